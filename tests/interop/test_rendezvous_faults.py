"""Cases in which torch's rendezvous is wrong, slow or unsafe and ours is not."""

import base64
import contextlib
import datetime
import os
import pathlib
import pickle
import re
import socket
import tempfile
import threading
import time

import hostile
import pytest
import torch.distributed as dist
from clock import assert_stays
from nodes import CountingBackend, OurNode, TorchNode, assert_agree
from servers import OurServer, TorchServer
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError, dynamic_rendezvous


@pytest.fixture
def server():
    server = OurServer()
    yield server
    if server.process.poll() is None:
        server.stop()


class SkewedNode(TorchNode):
    """A torch node whose clock is offset on the thread that joins."""

    offsets = threading.local()

    def __init__(self, *arguments, offset, **options):
        super().__init__(*arguments, **options)
        self.offset = offset

    def _join(self):
        SkewedNode.offsets.seconds = self.offset
        return super()._join()


class SkewedTime(datetime.datetime):
    """A clock with the offset of the current thread. `now` returns plain datetimes, which pickle like torch's."""

    @classmethod
    def now(cls, tz=None):
        offset = getattr(SkewedNode.offsets, "seconds", 0)
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=offset)


@pytest.mark.parametrize("offset", [20, 60, -20, -60])
def test_torchs_nodes_with_clock_skew_form_two_conflicting_worlds(server, monkeypatch, offset):
    """Our nodes agree even with clocks an hour apart: see the Rust tests of the rendezvous, and the simulator."""
    monkeypatch.setattr(dynamic_rendezvous, "datetime", SkewedTime)
    with (
        SkewedNode(server, "job", (1, 2), offset=0, last_call_timeout=2) as first,
        SkewedNode(server, "job", (1, 2), offset=offset, last_call_timeout=2) as second,
    ):
        rounds = [node.joined() for node in (first.start(), second.start())]
    # Both nodes joined, but their results conflict.
    assert {info.number for info in rounds} == {0}, rounds
    assert len({info.world_size for info in rounds}) == 2 or any(info.rank >= info.world_size for info in rounds), rounds


class Malicious:
    """An object that any client of the store can set, and that runs code when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture
def attack(tmp_path):
    """A function that sets the state's key to an object that creates a directory when it is unpickled.

    The function returns the path of that directory.
    """
    marker = tmp_path / "executed"
    value = base64.b64encode(pickle.dumps(Malicious(str(marker))))

    def run(server):
        store = dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False)
        store.set("torch.rendezvous.job", value)
        return marker

    return run


def test_torch_executes_a_malicious_state(attack):
    torch_server = TorchServer()
    marker = attack(torch_server)
    with TorchNode(torch_server, "job", (1, 1)) as node, pytest.raises(Exception):
        node.start().joined()
    assert marker.exists()
    torch_server.stop()


def test_our_node_refuses_a_malicious_state_and_names_the_function(attack):
    torch_server = TorchServer()
    marker = attack(torch_server)
    with OurNode(torch_server, "job", (1, 1), join_timeout=2) as node:
        assert node.exit_code() == 1
        assert "mkdir" in "".join(node.log)
    assert not marker.exists()
    torch_server.stop()


def test_our_server_protects_torchs_nodes_from_a_malicious_state(server, attack):
    with TorchNode(server, "job", (2, 2)) as victim:
        victim.start()
        # Torch's `set` does not wait for a reply, so the attacker sees no error. Our server closes the connection and
        # logs it.
        for _ in range(5):
            marker = attack(server)
        with OurNode(server, "job", (2, 2)) as other:
            assert_agree([victim.joined(), other.joined()])
    assert not marker.exists()
    server.stop()
    assert "not the state of a rendezvous" in server.log


def peak_memory_kib(process):
    """Waits for a process to exit and returns its peak memory in KiB."""
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{process.pid}/status") as status:
            figures = dict(line.split(":", 1) for line in status)
            peak = max(peak, int(figures.get("VmHWM", "0 kB").split()[0]))
        time.sleep(0.005)  # polling interval
    return peak


@contextlib.contextmanager
def torch_server_with_state(value):
    """Starts torch's server with `value` as the state. Yields the server and the options with which a node uses it."""
    # Torch's libuv server accepts at most 8 MiB, and our server accepts only valid states.
    torch_server = TorchServer(libuv=False)
    torch_server.store.set("torch.rendezvous.job", value)
    try:
        yield torch_server, {}
    finally:
        torch_server.stop()


@contextlib.contextmanager
def file_store_with_state(value):
    """Creates a FileStore with `value` as the state. Yields its path and the options with which a node uses it."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "rendezvous")
        # The file has the mode that our node would give it. Torch would create it with 0644, which our node accepts, too.
        path.touch(mode=0o600)
        dist.FileStore(str(path)).set("torch.rendezvous.job", value)
        yield str(path), {"store_type": "file"}


STORES = {"tcp": torch_server_with_state, "file": file_store_with_state}


def assert_exits_with_little_memory(store_with_state, value, *codes, join_timeout=1):
    """Runs our node on a store with `value` as the state, and returns the node's log.

    Asserts that the exit code is one of `codes`, and that the peak memory is below 64 MiB.
    """
    with (
        store_with_state(value) as (server_or_path, options),
        OurNode(server_or_path, "job", (1, 1), join_timeout=join_timeout, **options) as node,
    ):
        peak = peak_memory_kib(node.process)
        assert node.exit_code() in codes, node.log
    # A node that refuses the value because of its length may exit before its memory is polled for the first time.
    assert peak < 64 * 1024 and (peak > 1024 or len(value) > 8 << 20), peak
    return "".join(node.log)


@pytest.mark.parametrize("size", [3 << 20, 15 << 20, 200 << 20])
def test_our_node_uses_little_memory_on_a_large_invalid_state_in_a_server(size):
    assert_exits_with_little_memory(torch_server_with_state, b"gASV" * (size // 4), 1, 5, join_timeout=3)


@pytest.mark.parametrize("size", [3 << 20, 15 << 20, 60 << 20])
def test_our_node_uses_little_memory_on_a_large_invalid_state_in_a_file(size):
    assert_exits_with_little_memory(file_store_with_state, b"gASV" * (size // 4), 1, 5, join_timeout=3)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("make", hostile.HOSTILE, ids=lambda make: make.__name__)
def test_our_node_refuses_a_hostile_state_at_the_limits_with_little_memory(make, store):
    log = assert_exits_with_little_memory(STORES[store], base64.b64encode(make()), 1)
    assert 'the state of the rendezvous "job" is corrupt: ' in log, log


@pytest.mark.parametrize("store", STORES)
def test_our_node_cannot_join_a_state_with_full_lists_and_uses_little_memory(store):
    # The lists are valid, but there is no room for another node.
    log = assert_exits_with_little_memory(STORES[store], base64.b64encode(hostile.full_lists()), 1, 4)
    assert "more than 10000 nodes in a list" in log, log


def test_our_timeout_error_lists_the_nodes_that_joined_and_torchs_is_empty(server):
    with TorchNode(server, "torchs", (2, 2), join_timeout=1) as torch_node, pytest.raises(RendezvousTimeoutError) as error:
        torch_node.start().joined()
    assert str(error.value) == ""
    with OurNode(server, "ours", (2, 2), join_timeout=1) as ours:
        assert ours.exit_code() == 4
    log = "".join(ours.log)
    assert re.search(r"1 of at least 2 nodes joined within 1 s \(join_timeout\): 127\.0\.0\.1 \(pid \d+\)", log), log
    assert "--rdzv-conf join_timeout=SECONDS" in log


def test_our_closed_error_names_the_node_and_the_time_and_torchs_is_empty(server):
    with OurNode(server, "job", (1, 1), command=("true",)) as closer:
        assert closer.exit_code() == 0
    with TorchNode(server, "job", (1, 1)) as torch_node, pytest.raises(RendezvousClosedError) as error:
        torch_node.start().joined()
    assert str(error.value) == ""
    with OurNode(server, "job", (1, 1)) as ours:
        assert ours.exit_code() == 3
    log = "".join(ours.log)
    assert re.search(rf"closed by 127\.0\.0\.1 \(pid {closer.process.pid}\) at 20\d\d-", log), log


def drop(server, run_id):
    """Removes the only node from its round, as a node with a wrong clock might.

    Returns a function that checks whether the node is in a round again.
    """
    store = dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False)
    key = f"torch.rendezvous.{run_id}"
    state = pickle.loads(base64.b64decode(store.get(key)))
    [node] = state.participants
    for nodes in (state.participants, state.last_heartbeats):
        del nodes[node]
    state.complete, state.round = False, state.round + 1
    store.set(key, base64.b64encode(pickle.dumps(state)))
    return lambda: node in pickle.loads(base64.b64decode(store.get(key))).participants


def test_our_dropped_node_rejoins_and_torchs_never_notices(server):
    """Defect T2 in docs/compatibility.md: a torch node that was dropped continues and never notices it."""
    options = {"keep_alive_interval": 1, "last_call_timeout": 1}
    with OurNode(server, "ours", (1, 2), **options) as ours:
        before = ours.joined()
        drop(server, "ours")
        after = ours.joined()
        assert "the other nodes dropped this one" in "".join(ours.log)
        assert (after.number, after.world_size) == (before.number + 1, 1)
    with TorchNode(server, "torchs", (1, 2), **options) as torch_node:
        assert torch_node.start().joined().world_size == 1
        is_member = drop(server, "torchs")
        # Three heartbeats are due in this time.
        assert_stays("torch's node reports no waiting node and does not rejoin", lambda: torch_node.num_waiting() == 0 and not is_member(), 3.5)


def test_our_master_address_is_reachable_and_torchs_may_not_resolve(server, monkeypatch):
    # With store sharing, torch's node would fail earlier, because it could not connect to its own store at that name.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "no-such-host.invalid")
    with TorchNode(server, "torchs", (1, 1), addr=None) as torch_node:
        assert torch_node.start().joined().master[0] == "no-such-host.invalid"
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    with OurNode(server, "ours", (1, 1), addr=None) as ours:
        address, port = ours.joined().master
        assert address == "127.0.0.1"
        socket.create_connection((address, port), 20).close()


def test_torchs_distant_nodes_lose_most_of_their_compare_and_sets(server, monkeypatch):
    """All nodes read the same state before any node has written, so only one of their compare-and-sets succeeds. The other
    nodes read again, and the same happens.

    Our nodes need at most three writes each: see the Rust test with the same latency, and the simulator.
    """
    nodes = 24
    set_state = CountingBackend.set_state

    def delayed_set_state(*arguments):
        time.sleep(0.05)  # the latency of a distant store
        return set_state(*arguments)

    monkeypatch.setattr(CountingBackend, "set_state", delayed_set_state)
    with contextlib.ExitStack() as stack:
        distant = [stack.enter_context(TorchNode(server, "job", (nodes, nodes))) for _ in range(nodes)]
        assert_agree([node.joined() for node in [node.start() for node in distant]])
        assert sum(node.backend.writes for node in distant) > 3 * nodes


def test_a_misspelled_option_of_a_static_rendezvous_gets_a_suggestion():
    with OurNode("127.0.0.1:1", "job", (2, 2), backend="static", rank=1, timeuot=1) as node:
        assert node.exit_code() == 2
    assert "unknown rendezvous configuration option 'timeuot'; did you mean 'timeout'?" in "".join(node.log)
    # If no known option has a similar name, all known options are listed.
    with OurNode("127.0.0.1:1", "job", (2, 2), backend="static", rank=1, last_call=1) as node:
        assert node.exit_code() == 2
    assert "option 'last_call'; known options: rank, timeout" in "".join(node.log)


UNREACHABLE_EXIT_CODE = 5


def test_a_static_rendezvous_distinguishes_an_unknown_host_from_a_closed_port(port):
    with OurNode("no-such-host.invalid:29500", "job", (2, 2), backend="static", rank=1, timeout=1) as node:
        assert node.exit_code() == UNREACHABLE_EXIT_CODE
    unknown = "".join(node.log)
    assert 'could not resolve host "no-such-host.invalid"' in unknown and "refused" not in unknown, unknown
    # The port is reserved, but no server listens there.
    with OurNode(f"127.0.0.1:{port}", "job", (2, 2), backend="static", rank=1, timeout=1) as node:
        assert node.exit_code() == UNREACHABLE_EXIT_CODE
    refused = "".join(node.log)
    assert f"127.0.0.1:{port}: connection refused (nothing listens there)" in refused, refused
    assert "resolve" not in refused, refused
