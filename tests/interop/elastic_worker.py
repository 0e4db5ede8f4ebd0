"""A worker of an elastic job: adds up ranks with the others again and again, until it finds a file or is killed.

    elastic_worker.py FOLDER

Each start that has met the others leaves a file in FOLDER, named WORLD_SIZE.RANK.PID. A file `finish` there ends all of them.
"""

import datetime
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

folder = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world_size = dist.get_rank(), dist.get_world_size()
is_reported = False
while True:
    # The last element says whether to stop; rank 0 decides.
    numbers = torch.tensor([float(rank + 1), float(rank == 0 and (folder / "finish").exists())])
    dist.all_reduce(numbers)
    assert numbers[0] == world_size * (world_size + 1) / 2, numbers
    if not is_reported:
        (folder / f"{world_size}.{rank}.{os.getpid()}").touch()
        is_reported = True
    if numbers[1]:
        break
    time.sleep(0.05)  # the pace of the work
dist.destroy_process_group()
