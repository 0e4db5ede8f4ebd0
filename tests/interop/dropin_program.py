"""A program that uses the stores of torch.distributed. `test_python_dropin.py` runs it unchanged, and again with
`import rallypoint as dist` in place of its first import. Both runs must print the same."""

import torch.distributed as dist

import datetime
import tempfile
import threading


def show(*items):
    print(*items, flush=True)


def exchange(store, rank, world_size, results):
    """Sets a value for this rank and reads the values of all ranks."""
    store.set(f"rank{rank}", f"hello from {rank}")
    store.wait([f"rank{other}" for other in range(world_size)], datetime.timedelta(seconds=30))
    results[rank] = [store.get(f"rank{other}").decode() for other in range(world_size)]
    if store.add("arrived", 1) == world_size:
        store.set("all", "here")
    store.wait(["all"])


def elect(store, rank):
    """Returns the leader, which is the first rank that writes the key."""
    return store.compare_set("leader", "", str(rank)).decode()


server = dist.TCPStore("127.0.0.1", 0, world_size=None, is_master=True, timeout=datetime.timedelta(seconds=30))
world_size, results, threads = 4, {}, []
for rank in range(world_size):
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=datetime.timedelta(seconds=30))
    store = dist.PrefixStore("exchange", client)
    threads.append(threading.Thread(target=exchange, args=(store, rank, world_size, results)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for rank in range(world_size):
    show(rank, results[rank])
show(elect(server, 0), elect(server, 1))
show(sorted(server.list_keys()), server.num_keys())

# A work queue.
for job in range(5):
    server.queue_push("jobs", str(job))
done = []
while server.queue_len("jobs"):
    done.append(int(server.queue_pop("jobs")))
show(done)
try:
    server.queue_pop("jobs", block=False)
except dist.QueueEmptyError as error:
    show("no more jobs", isinstance(error, dist.DistStoreError), isinstance(error, RuntimeError))

# A timeout, caught with the exception type that programs usually name.
try:
    server.wait(["never set"], datetime.timedelta(milliseconds=100))
except dist.DistStoreError as error:
    show("timed out:", str(error).split(" (")[0].splitlines()[0])
except RuntimeError:
    show("not the error that was expected")

# The other operations, properties and errors.
server.multi_set(["a", "b"], ["1", "2"])
show(server.multi_get(["a", "b"]), server.has_extended_api())
server.append("a", "+")
show(server.get("a"), server.delete_key("a"), server.delete_key("a"), server.check(["a"]), server.check(["b"]))
show(server.clone().get("b"), type(server.clone()).__name__, server.timeout)
server.set_timeout(datetime.timedelta(seconds=5))
show(server.timeout, server.host, server.port > 0)
try:
    dist.TCPStore("127.0.0.1", server.port, is_master=True)
except dist.DistNetworkError as error:
    show("taken:", "EADDRINUSE" in str(error))
try:
    dist.TCPStore("127.0.0.1", 0, world_size=2, is_master=True, timeout=datetime.timedelta(seconds=1))
except dist.DistStoreError as error:
    show(str(error).partition(" waiting ")[2].split(" (")[0].splitlines()[0])
try:
    server.set("k", 1)
except TypeError:
    show("a value is str or bytes")

with tempfile.TemporaryDirectory() as directory:
    first, second = dist.FileStore(f"{directory}/store", 2), dist.FileStore(f"{directory}/store", 2)
    first.set("k", "v")
    show(second.get("k"), second.add("n", 2), first.add("n", 3), first.path == f"{directory}/store")
    del first, second

local = dist.HashStore()
prefixed = dist.PrefixStore("outer", dist.PrefixStore("inner", local))
prefixed.set("k", "v")
show(local.get("inner/outer/k"), prefixed.underlying_store.underlying_store is local)


class Upper(dist.Store):
    """A store written in Python."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.upper()

    def get(self, key):
        return self.values[key]


own = Upper()
dist.PrefixStore("p", own).set("k", "quiet")
show(own.values, dist.PrefixStore("p", own).get("k"))
