"""The job of `test_python_dropin.py`: its processes form a process group on one of our stores and run collectives.

    python_gloo_job.py WORLD_SIZE

Prints one line of JSON per rank, in the order of the ranks.
"""

import datetime
import json
import multiprocessing
import os
import sys

import rallypoint
import torch
import torch.distributed as dist
from rallypoint.torch import as_torch_store

WORLD_SIZE = int(sys.argv[1])
TIMEOUT = datetime.timedelta(seconds=60)


def work(rank, port, report):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = rallypoint.PrefixStore("job", rallypoint.TCPStore("127.0.0.1", port, WORLD_SIZE + 1, timeout=TIMEOUT))
    dist.init_process_group("gloo", store=as_torch_store(store), rank=rank, world_size=WORLD_SIZE, timeout=TIMEOUT)
    tensor = torch.tensor([1.0, 4.0]) * (rank + 1)
    dist.all_reduce(tensor)
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(WORLD_SIZE)]
    dist.all_gather(gathered, torch.tensor([rank * rank]))
    # Subgroups use the same store.
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair_sum = torch.tensor(float(rank))
    dist.all_reduce(pair_sum, group=pairs[rank // 2])
    dist.barrier()
    dist.destroy_process_group()
    report.send({"rank": rank, "all_reduce": tensor.tolist(), "gathered": [int(value) for value in gathered], "pair_sum": pair_sum.item()})


if __name__ == "__main__":
    # The workers are forked, so that torch is imported only once.
    context = multiprocessing.get_context("fork")
    server = rallypoint.TCPStore("127.0.0.1", 0, WORLD_SIZE + 1, True, wait_for_workers=False, timeout=TIMEOUT)
    workers = []
    for rank in range(WORLD_SIZE):
        receiver, sender = context.Pipe(duplex=False)
        workers.append((context.Process(target=work, args=(rank, server.port, sender), daemon=True), receiver))
        workers[-1][0].start()
        sender.close()
    for process, receiver in workers:
        try:
            print(json.dumps(receiver.recv()), flush=True)
        except EOFError:
            sys.exit(f"{process.name} exited without a report")
        process.join()
