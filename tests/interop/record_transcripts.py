"""Records the bytes between torch's client and torch's own libuv server.

    python tests/interop/record_transcripts.py            # rewrites tests/transcripts/torch-2.15.0-libuv.txt

A proxy between client and server records the bytes. Each conversation has its own server, so it does not depend on other
conversations. Only the nonce of PING, which is the client's process id, differs from one recording to the next.

The format of the file:

    # text            a comment
    @ name            the start of a connection, with the name of its conversation; NAME_1, NAME_2 if it has several connections
    = op op ...       the operations of its requests, which this script states; they are not derived from the bytes
    > hex             bytes from the client (long data takes several lines)
    < hex             bytes from the server
    <!                the server closed the connection
"""

import datetime
import os
import pathlib
import socket
import threading
import warnings

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
import torch
import torch.distributed as dist
from proxy import Proxy

TARGET = pathlib.Path(__file__).parent.parent / "transcripts" / f"torch-{torch.__version__.split('+')[0]}-libuv.txt"
CONNECT = "validate ping"
# The bytes of VALIDATE and PING, of ADD, and of the first WAIT.
BYTES_THROUGH_FIRST_WAIT = (5 + 5) + (1 + 8 + len("init/") + 8) + (1 + 8 + 8 + len("init/"))


def ms(n):
    return datetime.timedelta(milliseconds=n)


class Recording:
    """A new torch server, and a proxy to it for the client under test."""

    def __init__(self):
        self.master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=ms(10_000))
        self.proxy = Proxy(("127.0.0.1", self.master.port))

    def client(self, timeout=ms(10_000), **options):
        return dist.TCPStore("127.0.0.1", self.proxy.port, is_master=False, timeout=timeout, **options)


def expect_error(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


CONVERSATIONS = []


def conversation(*ops):
    """Registers a function as a conversation. `ops` has one string per connection, with the names of its operations."""

    def register(function):
        CONVERSATIONS.append((function.__name__, ops, function))
        return function

    return register


@conversation(CONNECT)
def connect(recording):
    recording.client()


@conversation(f"{CONNECT} add")
def connect_with_a_world_size(recording):
    recording.client(world_size=2, wait_for_workers=True)


@conversation(f"{CONNECT} set set wait get wait get")
def set_and_get(recording):
    store = recording.client()
    store.set("k", "v")
    store.set("empty", "")
    assert store.get("k") == b"v"
    assert store.get("empty") == b""


@conversation(f"{CONNECT} set wait get check")
def keys_and_values_are_any_bytes(recording):
    store = recording.client()
    key, value = "ключ\0", bytes(range(256)) + b"!"
    store.set(key, value)
    assert store.get(key) == value
    assert store.check([key, ""]) is False


@conversation(f"{CONNECT} add add add wait get")
def add(recording):
    store = recording.client()
    store.add("n", 5)
    store.add("n", -7)
    store.add("n", 2**62)
    assert store.get("n") == str(2**62 - 2).encode()


@conversation(f"{CONNECT} set add")
def add_to_a_non_number_closes_the_connection(recording):
    store = recording.client()
    store.set("k", "abc")
    expect_error(dist.DistNetworkError, lambda: store.add("k", 1))


@conversation(f"{CONNECT} compare_set compare_set compare_set compare_set compare_set")
def compare_set(recording):
    store = recording.client()
    assert store.compare_set("k", "x", "a") == b"x"  # the key is absent: returns the expected value and stores nothing
    assert store.compare_set("k", "", "a") == b"a"
    assert store.compare_set("k", "wrong", "b") == b"a"
    assert store.compare_set("k", "a", "b") == b"b"
    assert store.compare_set("k", "b", "") == b""


@conversation(f"{CONNECT} check set check check")
def check(recording):
    store = recording.client()
    assert store.check(["k"]) is False
    store.set("k", "v")
    assert store.check(["k"]) is True
    assert store.check([]) is True


@conversation(f"{CONNECT} set num_keys delete_key delete_key num_keys")
def delete_key(recording):
    store = recording.client()
    store.set("k", "v")
    assert store.num_keys() == 1
    assert store.delete_key("k") is True
    assert store.delete_key("k") is False
    assert store.num_keys() == 0


@conversation(f"{CONNECT} append append wait get")
def append(recording):
    store = recording.client()
    store.append("k", "one")
    store.append("k", "two")
    assert store.get("k") == b"onetwo"


@conversation(f"{CONNECT} multi_set wait multi_get multi_set wait multi_get")
def multi_set_and_multi_get(recording):
    store = recording.client()
    store.multi_set(["a", "b", "c"], ["1", "", "three"])
    assert store.multi_get(["c", "a", "b", "a"]) == [b"three", b"1", b"", b"1"]
    store.multi_set([], [])
    assert store.multi_get([]) == []


@conversation(f"{CONNECT} set list_keys add list_keys")
def list_keys(recording):
    store = recording.client()
    store.set("k", "v")
    assert store.list_keys() == ["k"]
    store.add("n", 1)
    assert sorted(store.list_keys()) == ["k", "n"]


@conversation(f"{CONNECT} wait get")
def a_wait_that_another_client_ends(recording):
    store = recording.client()
    sent = recording.proxy.received(0)
    setter = threading.Thread(
        # The key is set after the WAIT has been forwarded, so that the server does not reply immediately.
        target=lambda: (recording.proxy.wait_for_more(0, than=sent), recording.master.set("k", "v"))
    )
    setter.start()
    assert store.get("k") == b"v"
    setter.join()


@conversation(f"{CONNECT} set wait cancel_wait check")
def a_wait_that_times_out(recording):
    store = recording.client()
    store.set("k", "v")
    expect_error(dist.DistStoreError, lambda: store.wait(["zz", "k"], ms(100)))
    assert store.check(["k"]) is True


@conversation(f"{CONNECT} wait cancel_wait check")
def a_wake_up_that_crosses_the_cancel(recording):
    store = recording.client()
    recording.master.set("k", "v")
    recording.proxy.delay_replies_until(b"\x0c")  # CANCEL_WAIT
    expect_error(dist.DistStoreError, lambda: store.wait(["k"], ms(100)))
    assert store.check(["k"]) is True


@conversation(f"{CONNECT} queue_len queue_push queue_push queue_len wait queue_pop queue_pop queue_pop check")
def queues(recording):
    store = recording.client()
    assert store.queue_len("q") == 0
    store.queue_push("q", "one")
    store.queue_push("q", "")
    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"one"
    assert store.queue_pop("q", block=False) == b""
    expect_error(dist.QueueEmptyError, lambda: store.queue_pop("q", block=False))
    assert store.check(["q"]) is False


@conversation(f"{CONNECT} wait cancel_wait queue_push wait queue_pop")
def a_queue_pop_that_times_out(recording):
    store = recording.client()
    store.set_timeout(ms(100))
    expect_error(dist.DistStoreError, lambda: store.queue_pop("q"))
    store.set_timeout(ms(10_000))
    store.queue_push("q", "item")
    assert store.queue_pop("q") == b"item"


@conversation(f"{CONNECT} barrier", f"{CONNECT} barrier")
def barrier_of_two(recording):
    first, second = recording.client(), recording.client()
    first_arrival = threading.Thread(target=lambda: first.barrier("bar", 2))
    first_arrival.start()
    second.barrier("bar", 2)
    first_arrival.join()


@conversation(f"{CONNECT} barrier cancel_wait num_keys")
def a_barrier_that_times_out(recording):
    store = recording.client()
    expect_error(dist.DistStoreError, lambda: store.barrier("bar", 2, ms(100)))
    store.num_keys()


@conversation(f"{CONNECT} add set wait")
def the_barrier_of_a_prefix_store(recording):
    dist.PrefixStore("inner", dist.PrefixStore("outer", recording.client())).barrier("bar", 1)


@conversation(f"{CONNECT} set", f"{CONNECT} wait get")
def a_clone_has_a_connection_of_its_own(recording):
    store = recording.client()
    store.set("k", "v")
    assert store.clone().get("k") == b"v"


@conversation(f"{CONNECT} add wait get wait get")
def the_masters_own_client(recording):
    """The client of the master connects to 127.0.0.2, where the proxy listens. The master's server listens on 127.0.0.1."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    recording.proxy.kill()
    recording.proxy = Proxy(("127.0.0.1", port), listen=("127.0.0.2", port))
    joiner = threading.Thread(
        target=lambda: (
            # The second worker connects after the GET of the master's first poll, so that this poll finds too few workers.
            recording.proxy.wait_for_more(0, than=BYTES_THROUGH_FIRST_WAIT),
            dist.TCPStore("127.0.0.1", port, world_size=2, is_master=False, timeout=ms(10_000)),
        )
    )
    joiner.start()
    master = dist.TCPStore(
        "127.0.0.2", port, world_size=2, is_master=True, timeout=ms(10_000), master_listen_fd=listener.detach()
    )
    joiner.join()
    # The record is read before the master is deleted, because its client and its server then stop in any order.
    recorded = recording.proxy.recorded()
    del master
    recording.proxy.finish()
    return [without_repeated_polls(join_runs(log)) for log in recorded]


def join_runs(log):
    """Joins consecutive entries of the same direction, up to the point where the client closed the connection."""
    runs = []
    for direction, data in log:
        if direction == ">!":
            break
        if runs and runs[-1][0] == direction:
            runs[-1] = (direction, runs[-1][1] + data)
        else:
            runs.append((direction, data))
    return runs


def without_repeated_polls(runs):
    """Removes each poll that is equal to the poll before it. The number of such polls depends on the machine's speed."""
    runs_kept = []
    for run in runs:
        runs_kept.append(run)
        # A poll is a WAIT and a GET, each with its reply.
        if runs_kept[-4:] == runs_kept[-8:-4]:
            del runs_kept[-4:]
    return runs_kept


def record(only=None):
    """Records the conversations, or those in `only`. Returns (name, ops, [(direction, bytes)]) for each connection."""
    recorded = []
    for name, ops, function in CONVERSATIONS:
        if only and name not in only:
            continue
        recording = Recording()
        logs = function(recording) or recording.proxy.finish()
        for number, (names, log) in enumerate(zip(ops, logs, strict=True)):
            recorded.append((f"{name}_{number + 1}" if len(ops) > 1 else name, names, join_runs(log)))
    return recorded


def write(recorded):
    lines = [
        f"# Bytes between the client and the libuv TCPStore server of torch {torch.__version__.split('+')[0]}, recorded by a proxy.",
        "# Written by tests/interop/record_transcripts.py, which describes the format.",
    ]
    for name, ops, runs in recorded:
        lines += ["", f"@ {name}", f"= {ops}"]
        for direction, data in runs:
            if direction == "<!":
                lines.append("<!")
            lines += [f"{direction} {data[at : at + 48].hex()}" for at in range(0, len(data), 48)]
    return "\n".join(lines) + "\n"


def read(text):
    """Parses the text that `write` returns."""
    recorded = []
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "@":
            recorded.append((rest, None, []))
        elif kind == "=":
            recorded[-1] = (recorded[-1][0], rest, [])
        elif kind in (">", "<"):
            runs = recorded[-1][2]
            if runs and runs[-1][0] == kind:
                runs[-1] = (kind, runs[-1][1] + bytes.fromhex(rest))
            else:
                runs.append((kind, bytes.fromhex(rest)))
        elif kind == "<!":
            recorded[-1][2].append(("<!", b""))
    return recorded


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(write(record()))
    print(f"{TARGET}: {len(read(TARGET.read_text()))} connections")
