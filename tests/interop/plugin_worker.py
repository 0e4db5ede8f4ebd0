"""A worker of `test_python_rendezvous_torchrun.py`: runs an all-reduce. One worker kills itself afterwards, once.

    plugin_worker.py FOLDER VICTIM

VICTIM is the global rank of the worker that kills itself, or -1 for none. Each worker writes a report to FOLDER at the
end.
"""

import datetime
import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist

folder, victim = pathlib.Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
reduced = torch.tensor(float(rank + 1))
dist.all_reduce(reduced)

killed = folder / "killed"
if rank == victim and not killed.exists():
    killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)

# Fails for the survivors of a killed worker. The agents then restart all workers.
dist.barrier()
results = {
    "sum": reduced.item(),
    "world_size": dist.get_world_size(),
    "group_rank": int(os.environ["GROUP_RANK"]),
    "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    "agent_store": os.environ["TORCHELASTIC_USE_AGENT_STORE"],
}
dist.destroy_process_group()
(folder / f"done-{rank}").write_text(json.dumps(results))
