"""A worker of an elastic job: repeats an all-reduce of the ranks until a file exists or the worker is killed.

    elastic_worker.py DIRECTORY

After its first all-reduce, each worker creates the file WORLD_SIZE.RANK.PID in DIRECTORY. All workers exit once DIRECTORY has
a file `finish`.
"""

import datetime
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

directory = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, world_size = dist.get_rank(), dist.get_world_size()
is_reported = False
while True:
    # The last element is nonzero if the workers should stop. Only rank 0 sets it.
    numbers = torch.tensor([float(rank + 1), float(rank == 0 and (directory / "finish").exists())])
    dist.all_reduce(numbers)
    assert numbers[0] == world_size * (world_size + 1) / 2, numbers
    if not is_reported:
        (directory / f"{world_size}.{rank}.{os.getpid()}").touch()
        is_reported = True
    if numbers[1]:
        break
    time.sleep(0.05)  # stands for the work of a step
dist.destroy_process_group()
