"""Elastic training with torch on CPUs. The training continues when workers or nodes are killed.

On one machine, with three restarts:

    rallypoint run --nproc-per-node 2 --max-restarts 3 examples/elastic_ddp.py --checkpoint /tmp/model.pt

With `--crash-at 50`, rank 1 kills itself after step 50, and all workers restart from the checkpoint of that step.

On one to four machines that share the directory of the checkpoint, run the same command on each machine:

    rallypoint run --nnodes 1:4 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint node0:29400 \
        --rdzv-id ddp examples/elastic_ddp.py --checkpoint /shared/model.pt

Kill a worker, or the agent of a node other than node0, with `kill -9`. The surviving nodes restart their workers from
the last checkpoint. node0 hosts the store. To survive the loss of node0 as well, run `rallypoint serve` on another
machine and use its address as the endpoint.
"""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

FEATURES = 8
BATCH = 64
"""Samples per step, divided among all workers."""


def batch(step, rank, world_size):
    """Returns this worker's share of a step's samples, which depend only on the step and not on the world size."""
    generator = torch.Generator().manual_seed(step)
    samples = torch.randn(BATCH, FEATURES, generator=generator)
    targets = samples @ torch.arange(1.0, FEATURES + 1).unsqueeze(1)
    return samples[rank::world_size], targets[rank::world_size]


def load(path, model, optimizer):
    """Loads the checkpoint, if it exists. Returns the step to continue with."""
    if not os.path.exists(path):
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(path, model, optimizer, step):
    """Writes the checkpoint atomically, so that a worker killed while writing leaves the old one in place."""
    temporary = f"{path}.{os.getpid()}"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, temporary)
    os.replace(temporary, path)


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True, help="a file that all nodes can access")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step")
    parser.add_argument("--crash-at", type=int, default=-1, help="step after which rank 1 kills itself, at the first start only")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first_step = load(options.checkpoint, model, optimizer)
    crashes = rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    replicated = DistributedDataParallel(model)
    if rank == 0:
        print(f"world of {world_size}, from step {first_step}", flush=True)

    for step in range(first_step, options.steps):
        samples, targets = batch(step, rank, world_size)
        loss = torch.nn.functional.mse_loss(replicated(samples), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.pause)
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            if rank == 0:
                save(options.checkpoint, model, optimizer, step + 1)
                print(f"step {step + 1} of {options.steps}: loss {loss.item():.6f}", flush=True)
            # The barrier keeps all workers from continuing before the checkpoint is written.
            dist.barrier()
        if crashes and step + 1 == options.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        print(f"done after {options.steps} steps with loss {loss.item() if first_step < options.steps else 0:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
