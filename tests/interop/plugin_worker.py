"""A worker of `test_python_rendezvous_torchrun.py`: runs an all-reduce and a barrier, and writes a report to DIRECTORY.

    plugin_worker.py DIRECTORY VICTIM

VICTIM is the rank of a worker that kills itself before the barrier, or -1 for none. After a restart, no worker kills itself.
"""

import datetime
import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist

directory, victim = pathlib.Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
reduced = torch.tensor(float(rank + 1))
dist.all_reduce(reduced)

killed = directory / "killed"
if rank == victim and not killed.exists():
    killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)

# If a worker was killed, the barrier fails on the other workers, and the agents restart all workers.
dist.barrier()
results = {
    "sum": reduced.item(),
    "world_size": dist.get_world_size(),
    "group_rank": int(os.environ["GROUP_RANK"]),
    "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    "agent_store": os.environ["TORCHELASTIC_USE_AGENT_STORE"],
}
dist.destroy_process_group()
(directory / f"done-{rank}").write_text(json.dumps(results))
