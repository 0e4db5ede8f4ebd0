"""A worker of `test_python_rendezvous_torchrun.py`: in a round of three nodes it waits until its agent ends it.

    native_worker.py DIRECTORY

In a round of two nodes it runs an all-reduce and writes a report to DIRECTORY.
"""

import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

directory, agent = pathlib.Path(sys.argv[1]), os.getppid()
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world_size, round_number = dist.get_rank(), dist.get_world_size(), os.environ["RALLYPOINT_ROUND"]
reduced = torch.tensor(float(rank + 1))
dist.all_reduce(reduced)
(directory / f"started-{round_number}-{rank}").touch()
while world_size == 3:
    time.sleep(0.02)
    if os.getppid() != agent:
        sys.exit("the agent was killed")
report = {
    "sum": reduced.item(),
    "world_size": world_size,
    "round": round_number,
    "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
}
dist.destroy_process_group()
(directory / f"done-{rank}").write_text(json.dumps(report))
