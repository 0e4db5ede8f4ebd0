"""The job of `test_gloo.py`: its processes form a process group and run collectives with each init method.

    gloo_job.py WORLD_SIZE METHOD=HOST:PORT...

Each method has its own server at HOST:PORT. The job prints one line of JSON per rank, in the order of the ranks.
"""

import datetime
import json
import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

WORLD_SIZE = int(sys.argv[1])
ENDPOINTS = dict(argument.split("=") for argument in sys.argv[2:])
TIMEOUT = datetime.timedelta(seconds=60)


def client(method):
    host, _, port = ENDPOINTS[method].rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False, timeout=TIMEOUT)


def join_group(rank, method):
    host, _, port = ENDPOINTS[method].rpartition(":")
    os.environ.update(
        MASTER_ADDR=host,
        MASTER_PORT=port,
        WORLD_SIZE=str(WORLD_SIZE),
        RANK=str(rank),
        GLOO_SOCKET_IFNAME="lo",
        # With this variable, all processes are clients of the store, as the workers of an elastic job are.
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    group = {"backend": "gloo", "timeout": TIMEOUT}
    if method == "store":
        dist.init_process_group(store=client(method), rank=rank, world_size=WORLD_SIZE, **group)
    elif method == "prefixed_store":
        store = dist.PrefixStore("job", dist.PrefixStore("round 1", client(method)))
        dist.init_process_group(store=store, rank=rank, world_size=WORLD_SIZE, **group)
    elif method == "tcp":
        dist.init_process_group(init_method=f"tcp://{host}:{port}", rank=rank, world_size=WORLD_SIZE, **group)
    elif method == "env":
        dist.init_process_group(init_method="env://", **group)


def run_collectives(rank, method):
    join_group(rank, method)
    results = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}

    tensor = torch.tensor([1.0, 4.0]) * (rank + 1)
    dist.all_reduce(tensor)
    results["all_reduce"] = tensor.tolist()

    tensor = torch.tensor(42.0 if rank == 1 else 0.0)
    dist.broadcast(tensor, src=1)
    results["broadcast"] = tensor.item()

    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(WORLD_SIZE)]
    dist.all_gather(gathered, torch.tensor([rank * rank]))
    results["all_gather"] = [int(each) for each in gathered]

    store = dist.PrefixStore(method, client(method))
    store.add("arrived", 1)
    dist.barrier()
    results["arrived_after_barrier"] = store.add("arrived", 0)

    # Subgroups use the same store.
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    tensor = torch.tensor(float(rank))
    dist.all_reduce(tensor, group=pairs[rank // 2])
    results["pair_sum"] = tensor.item()

    dist.barrier()
    dist.destroy_process_group()
    return results


def work(rank, report):
    torch.set_num_threads(1)
    report.send({method: run_collectives(rank, method) for method in ENDPOINTS})


if __name__ == "__main__":
    # The workers are forked, so that torch is imported only once.
    context = multiprocessing.get_context("fork")
    workers = []
    for rank in range(WORLD_SIZE):
        receiver, sender = context.Pipe(duplex=False)
        workers.append((context.Process(target=work, args=(rank, sender), daemon=True), receiver))
        workers[-1][0].start()
        sender.close()
    for process, receiver in workers:
        try:
            print(json.dumps(receiver.recv()))
        except EOFError:
            sys.exit(f"{process.name} exited without a report")
        process.join()
