"""`barrier`, `synchronize`, `get_all`, `create_c10d_store` and ports. Tests that take `lib` run with torch's library and
with ours.
"""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest import mock

import pytest
from libraries import BOTH, JOIN_TIMEOUT, OURS, TORCH


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


def run_concurrently(calls):
    """Makes calls concurrently and returns their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(JOIN_TIMEOUT) for each in [pool.submit(call) for call in calls]]


# ---- synchronizing ----


def test_synchronize_returns_the_values_of_all_ranks(lib):
    store = lib.dist.HashStore()
    calls = [
        lambda rank=rank: lib.store.synchronize(store, b"of %d" % rank, rank, 3, "sync/", timeout=JOIN_TIMEOUT) for rank in range(3)
    ]
    assert run_concurrently(calls) == [[b"of 0", b"of 1", b"of 2"]] * 3
    assert store.get("sync/1") == b"of 1"


def test_get_all_returns_existing_values(lib):
    store = lib.dist.HashStore()
    for rank in range(3):
        store.set(f"data{rank}", f"of {rank}")
    # Rank 0 is last, because it waits for the other ranks.
    for rank in (1, 2, 0):
        assert lib.store.get_all(store, rank, "data", 3) == [b"of 0", b"of 1", b"of 2"]
    assert store.get("data/finished/num_members") == b"3"
    assert store.check(["data/finished/last_member"])


def test_get_all_works_on_a_python_store_with_only_set_get_and_add(lib):
    class MinimalStore(lib.dist.Store):
        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            self.values[key] = value if isinstance(value, bytes) else value.encode()

        def get(self, key):
            return self.values[key]

        def add(self, key, amount):
            self.values[key] = str(int(self.values.get(key, 0)) + amount).encode()
            return int(self.values[key])

    store = MinimalStore()
    for rank in range(2):
        store.set(f"data{rank}", f"of {rank}")
    assert lib.store.get_all(store, 1, "data", 2) == [b"of 0", b"of 1"]
    # Rank 0 waits for the other ranks, which torch's library cannot do on a store without `wait`.
    if lib is OURS:
        assert lib.store.get_all(store, 0, "data", 2) == [b"of 0", b"of 1"]


def test_torchs_ranks_and_ours_synchronize_and_pass_a_barrier():
    server = OURS.server()
    # Each rank has its own client, because threads that share one of torch's clients block each other.
    ranks = [(rank, lib, lib.client(server)) for rank, lib in enumerate((TORCH, OURS, TORCH, OURS))]
    calls = [
        lambda rank=rank, lib=lib, store=store: lib.store.synchronize(store, b"of %d" % rank, rank, 4, "sync/", timeout=JOIN_TIMEOUT)
        for rank, lib, store in ranks
    ]
    assert run_concurrently(calls) == [[b"of 0", b"of 1", b"of 2", b"of 3"]] * 4
    calls = [
        lambda rank=rank, lib=lib, store=store: lib.store.barrier(store, 4, "gate", barrier_timeout=JOIN_TIMEOUT, rank=rank)
        for rank, lib, store in ranks
    ]
    assert run_concurrently(calls) == [None] * 4


def test_a_missing_rank_causes_a_timeout(lib):
    store = lib.dist.HashStore()
    with pytest.raises(lib.dist.DistStoreError):
        lib.store.synchronize(store, b"x", 0, 2, "sync/", timeout=0.2)
    with pytest.raises(lib.dist.DistStoreError):
        lib.store.barrier(store, 2, "gate", barrier_timeout=0.2)


def test_a_timeout_lists_the_missing_ranks():
    with pytest.raises(OURS.dist.DistStoreError, match="1 of 3 ranks arrived, missing: 1, 2"):
        OURS.store.synchronize(OURS.dist.HashStore(), b"x", 0, 3, "sync/", timeout=0.2)


def test_a_barrier_opens_when_the_last_rank_has_arrived(lib):
    store = lib.dist.HashStore()
    passed = []

    def arrive(rank):
        lib.store.barrier(store, 3, "gate", barrier_timeout=JOIN_TIMEOUT)
        passed.append(rank)

    first = [threading.Thread(target=arrive, args=(rank,), daemon=True) for rank in range(2)]
    for thread in first:
        thread.start()
    assert not passed
    arrive(2)
    for thread in first:
        thread.join(JOIN_TIMEOUT)
    assert sorted(passed) == [0, 1, 2]


def test_a_barrier_names_missing_ranks_with_the_decoder(lib):
    store = lib.dist.HashStore()

    def arrive(rank):
        with pytest.raises(lib.dist.DistStoreError) as error:
            lib.store.barrier(
                store,
                3,
                "test/store",
                barrier_timeout=2,
                rank=rank,
                rank_tracing_decoder=lambda each: f"Rank {each} host",
                trace_timeout=2,
            )
        return str(error.value)

    messages = run_concurrently([lambda rank=rank: arrive(rank) for rank in (0, 1)])
    expected = "Timed out waiting on barrier on rank 0, for key prefix: test/store (world_size=3, missing_ranks=[Rank 2 host], timeout=2)"
    assert messages[0] == expected


def test_a_rank_decoder_requires_a_rank(lib):
    with pytest.raises(AssertionError, match="Tracing requires rank information"):
        lib.store.barrier(lib.dist.HashStore(), 2, "gate", rank_tracing_decoder=str)


def test_store_timeout_changes_the_timeout_within_its_block(lib):
    store = lib.dist.HashStore()
    store.set_timeout(timedelta(seconds=77))
    with lib.store.store_timeout(store, 5):
        assert store.timeout == timedelta(seconds=5)
    assert store.timeout == timedelta(seconds=77)


def test_store_timeout_restores_the_timeout_after_an_exception():
    """Torch's `store_timeout` does not restore the timeout after an exception."""
    store = OURS.dist.HashStore()
    store.set_timeout(timedelta(seconds=77))
    with contextlib.suppress(KeyError), OURS.store.store_timeout(store, 5):
        raise KeyError
    assert store.timeout == timedelta(seconds=77)
    with pytest.raises(OURS.dist.DistStoreError):
        OURS.store.barrier(store, 2, "gate", barrier_timeout=0.1)
    assert store.timeout == timedelta(seconds=77)


def test_synchronize_and_barrier_work_on_a_store_written_in_python(lib):
    class Wrapped(lib.dist.Store):
        def __init__(self):
            super().__init__()
            self.inner, self.names = lib.dist.HashStore(), []

    def forward(name):
        def call(self, *arguments):
            self.names.append(name)
            return getattr(self.inner, name)(*arguments)

        return call

    for name in ("set", "get", "add", "check", "compare_set", "wait", "multi_get", "set_timeout"):
        setattr(Wrapped, name, forward(name))
    Wrapped.timeout = property(lambda self: self.inner.timeout)
    store = Wrapped()
    assert lib.store.synchronize(store, b"x", 0, 1, "sync/") == [b"x"]
    lib.store.barrier(store, 1, "gate")
    assert {"set", "add", "wait"} <= set(store.names)


class MockStore:
    """A store that records its calls, as a mock in a user's tests might. Its `wait` takes keys and no timeout."""

    def __init__(self):
        self.calls = []

    @property
    def timeout(self):
        self.calls.append(("timeout",))
        return timedelta(seconds=1234)

    def set_timeout(self, timeout):
        self.calls.append(("set_timeout", timeout))

    def set(self, key, value):
        self.calls.append(("set", key, value))

    def multi_get(self, keys):
        self.calls.append(("multi_get", keys))
        return ["value"] * len(keys)

    def add(self, key, amount):
        self.calls.append(("add", key, amount))
        return 3

    def wait(self, keys):
        self.calls.append(("wait", keys))


def results_and_calls_on_mock_stores(lib):
    outcomes = []
    for call in (
        lambda store: lib.store.get_all(store, 0, "prefix", 3),
        lambda store: lib.store.get_all(store, 1, "prefix", 3),
        lambda store: lib.store.synchronize(store, b"data", 0, 3, "prefix"),
        lambda store: lib.store.barrier(store, 3, "prefix"),
    ):
        store = MockStore()
        outcomes.append((call(store), store.calls))
    return outcomes


def test_our_library_makes_the_same_calls_as_torchs_on_a_store_whose_wait_takes_only_keys():
    assert results_and_calls_on_mock_stores(OURS) == results_and_calls_on_mock_stores(TORCH)


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_our_barrier_whose_wait_times_out_makes_torchs_calls_and_raises_torchs_message(rank):
    def arrive(lib):
        store = MockStore()
        # To find the missing ranks, torch's barrier passes a timeout to `wait`, so `wait` must accept any arguments here.
        store.wait = mock.Mock(side_effect=[TORCH.dist.DistStoreError("late"), None, TORCH.dist.DistStoreError("late")])
        with pytest.raises(TORCH.dist.DistStoreError) as caught:
            lib.store.barrier(store, 3, "prefix", barrier_timeout=1, rank=rank, trace_timeout=0.1)
        return str(caught.value), store.calls

    assert arrive(OURS) == arrive(TORCH)


# ---- creating a store ----


def test_libuv_backend_follows_the_environment_variable(lib, monkeypatch):
    def create():
        return lib.ports.create_c10d_store(is_server=True, server_addr="127.0.0.1", timeout=JOIN_TIMEOUT, wait_for_workers=False)

    monkeypatch.delenv("USE_LIBUV", raising=False)
    assert create().libuvBackend is True
    monkeypatch.setenv("USE_LIBUV", "0")
    assert create().libuvBackend is False
    monkeypatch.setenv("USE_LIBUV", "1")
    assert create().libuvBackend is True


def test_a_store_for_one_process_picks_a_free_port(lib):
    store = lib.ports.create_c10d_store(is_server=True, server_addr="127.0.0.1", timeout=JOIN_TIMEOUT)
    assert isinstance(store, lib.dist.TCPStore)
    assert store.timeout == timedelta(seconds=JOIN_TIMEOUT)
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_one_process_serves_and_the_others_connect(lib):
    port = lib.ports.get_free_port()
    stores = run_concurrently(
        [
            lambda rank=rank: lib.ports.create_c10d_store(rank == 0, "127.0.0.1", port, world_size=3, timeout=JOIN_TIMEOUT)
            for rank in range(3)
        ]
    )
    stores[0].set("k", "v")
    assert [store.get("k") for store in stores] == [b"v"] * 3
    assert {store.port for store in stores} == {port}


def test_a_world_of_several_processes_requires_a_port(lib):
    with pytest.raises(ValueError) as error:
        lib.ports.create_c10d_store(True, "127.0.0.1", world_size=2)
    assert str(error.value) == "server_port must be specified when world_size > 1, got server_port=-1, world_size=2"


def test_a_port_in_use_is_reported(lib):
    with lib.ports.get_socket_with_port() as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(lib.dist.DistNetworkError) as error:
            lib.ports.create_c10d_store(True, "127.0.0.1", port, timeout=5)
    assert str(error.value) == f"on 127.0.0.1, port: {port} already in use"


def test_a_server_without_all_workers_times_out(lib):
    with pytest.raises(lib.dist.DistStoreError):
        lib.ports.create_c10d_store(True, "127.0.0.1", lib.ports.get_free_port(), world_size=2, timeout=1)


def test_a_client_without_a_server_times_out(lib):
    with lib.ports.get_socket_with_port() as bound, pytest.raises(lib.dist.DistNetworkError):
        lib.ports.create_c10d_store(False, "127.0.0.1", bound.getsockname()[1], world_size=2, timeout=1)


def test_wait_for_workers_false_does_not_wait(lib):
    port = lib.ports.get_free_port()
    store = lib.ports.create_c10d_store(True, "127.0.0.1", port, world_size=5, timeout=JOIN_TIMEOUT, wait_for_workers=False)
    assert store.port == port


# ---- ports ----


def test_get_socket_with_port_reserves_a_port_without_listening(lib):
    bound = lib.ports.get_socket_with_port()
    with contextlib.closing(bound):
        assert isinstance(bound, socket.socket)
        port = bound.getsockname()[1]
        assert port != 0
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", port))
        with socket.socket() as other, pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_get_free_port_returns_a_port_that_can_be_bound(lib):
    with socket.socket() as other:
        other.bind(("127.0.0.1", lib.ports.get_free_port()))
