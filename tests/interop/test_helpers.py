"""Torch's elastic helpers and ours in one job: `synchronize`, `get_all`, `barrier` and `create_c10d_store`.

The tests run on torch's servers and on ours. Our ranks are processes of the program `helpers_driver`. Torch's ranks are
threads of this process.
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from clock import REPLY_TIMEOUT, WAIT_TIMEOUT, assert_stays, seconds, wait_until
from servers import SERVERS, driver, is_reached
from torch.distributed.elastic.utils import store as torch_helpers
from torch.distributed.elastic.utils.distributed import create_c10d_store

pytestmark = pytest.mark.timeout(180)

SHORT_TIMEOUT = 1.0  # seconds


def to_ms(timeout):
    """Converts seconds to an argument of `helpers_driver`, in milliseconds."""
    return str(int(timeout * 1000))


@pytest.fixture(params=SERVERS)
def server(request):
    server = SERVERS[request.param]()
    yield server
    server.stop()


class OurRank:
    """One of our ranks, in its own process."""

    started = []

    def __init__(self, *arguments):
        self.started.append(self)
        self.process = subprocess.Popen(
            [driver("helpers_driver"), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def outcome(self):
        """Waits for the process to exit. Returns the words of its result, or its error as an `OurError`."""
        out, _ = self.process.communicate(timeout=WAIT_TIMEOUT)
        return self.read(out)

    @staticmethod
    def read(line):
        kind, _, rest = line.strip().partition(" ")
        if kind == "ok":
            return rest.split()
        assert kind == "err", line
        name, _, message = rest.partition(" ")
        return OurError(name, message)

    def next_line(self):
        return self.read(self.process.stdout.readline())

    def close(self):
        """Closes the store of the process, and waits for the process to exit."""
        assert self.outcome() == ["closed"]
        assert self.process.returncode == 0


@pytest.fixture(autouse=True)
def kill_started_ranks():
    yield
    while OurRank.started:
        process = OurRank.started.pop().process
        process.kill()
        process.communicate()


class OurError(Exception):
    """An error of one of our ranks: its name and its message."""


def run_ranks(server, world, ours, our_arguments, torch_call):
    """Runs the ranks of `world`, and returns their results or errors by rank.

    The ranks in `ours` are processes with the arguments `our_arguments(rank)`. The other ranks are threads that call
    `torch_call(store, rank)`.
    """

    def torch_rank(rank):
        store = dist.TCPStore(
            server.host, server.port, is_master=False, wait_for_workers=False, timeout=seconds(WAIT_TIMEOUT)
        )
        try:
            return torch_call(store, rank)
        except RuntimeError as error:
            return error

    with ThreadPoolExecutor(len(world)) as pool:
        futures = {rank: pool.submit(torch_rank, rank) for rank in world if rank not in ours}
        processes = {rank: OurRank(*our_arguments(rank)) for rank in world if rank in ours}
        outcomes = {rank: process.outcome() for rank, process in processes.items()}
        return outcomes | {rank: future.result(WAIT_TIMEOUT) for rank, future in futures.items()}


def endpoint(server):
    return f"{server.host}:{server.port}"


# The ranks of a world of 4 that are ours. The other ranks are torch's.
OUR_RANKS = [{1, 3}, {0}, {0, 1, 2}, {3}]


@pytest.mark.parametrize("ours", OUR_RANKS, ids=str)
def test_synchronize_returns_the_values_of_all_ranks(server, ours):
    outcomes = run_ranks(
        server,
        range(4),
        ours,
        lambda rank: ["synchronize", endpoint(server), "data/", 4, rank, to_ms(WAIT_TIMEOUT), f"from{rank}"],
        lambda store, rank: torch_helpers.synchronize(store, f"from{rank}".encode(), rank, 4, "data/", WAIT_TIMEOUT),
    )
    for rank in range(4):
        values = outcomes[rank]
        if rank in ours:
            assert values == [f"from{n}" for n in range(4)], rank
        else:
            assert values == [f"from{n}".encode() for n in range(4)], rank


def test_get_all_returns_the_values_of_all_ranks_and_stores_torchs_keys(server):
    store = dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False)
    for rank in range(2):
        store.set(f"k{rank}", f"v{rank}")
    outcomes = run_ranks(
        server,
        range(2),
        {0},
        lambda rank: ["get_all", endpoint(server), "k", 2, rank, to_ms(WAIT_TIMEOUT)],
        lambda store, rank: torch_helpers.get_all(store, rank, "k", 2),
    )
    assert outcomes == {0: ["v0", "v1"], 1: [b"v0", b"v1"]}
    assert store.get("k/finished/num_members") == b"2"
    assert store.get("k/finished/last_member") == b"<val_ignored>"


def test_an_incomplete_exchange_times_out_on_every_rank_and_ours_names_the_missing_ranks(server):
    outcomes = run_ranks(
        server,
        [0, 2],
        {2},
        lambda rank: ["synchronize", endpoint(server), "data/", 4, rank, to_ms(REPLY_TIMEOUT), "x"],
        lambda store, rank: torch_helpers.synchronize(store, b"x", rank, 4, "data/", REPLY_TIMEOUT),
    )
    assert isinstance(outcomes[0], dist.DistStoreError)
    name, message = outcomes[2].args
    assert name == "Timeout"
    assert "2 of 4 ranks arrived, missing: 1, 3" in message


@pytest.mark.parametrize("ours", OUR_RANKS, ids=str)
def test_a_barrier_of_both_libraries_opens_for_all_ranks(server, ours):
    outcomes = run_ranks(
        server,
        range(4),
        ours,
        lambda rank: ["barrier", endpoint(server), "b", 4, rank, to_ms(WAIT_TIMEOUT), to_ms(SHORT_TIMEOUT)],
        lambda store, rank: torch_helpers.barrier(store, 4, "b", WAIT_TIMEOUT, rank),
    )
    assert outcomes == {rank: [] if rank in ours else None for rank in range(4)}


def test_a_barrier_opens_only_after_the_last_rank_has_arrived(server):
    early = [
        OurRank("barrier", endpoint(server), "b", 3, rank, to_ms(WAIT_TIMEOUT), to_ms(SHORT_TIMEOUT)) for rank in (0, 1)
    ]
    store = dist.TCPStore(server.host, server.port, is_master=False, wait_for_workers=False)
    wait_until("both ranks to arrive", lambda: store.add("b/num_members", 0) == 2)
    assert_stays("both ranks wait", lambda: [rank.process.poll() for rank in early] == [None, None], 0.5)
    torch_helpers.barrier(store, 3, "b", WAIT_TIMEOUT, 2)
    assert [rank.outcome() for rank in early] == [[], []]


def test_a_barrier_works_without_rank_numbers(server):
    outcomes = run_ranks(
        server,
        range(2),
        {1},
        lambda rank: ["barrier", endpoint(server), "b", 2, "-", to_ms(WAIT_TIMEOUT), to_ms(SHORT_TIMEOUT)],
        lambda store, rank: torch_helpers.barrier(store, 2, "b", WAIT_TIMEOUT),
    )
    assert outcomes == {0: None, 1: []}


def test_torchs_rank_0_names_the_missing_ranks_and_counts_ours_as_present(server):
    outcomes = run_ranks(
        server,
        [0, 1],
        {1},
        lambda rank: ["barrier", endpoint(server), "b", 4, rank, to_ms(REPLY_TIMEOUT), to_ms(WAIT_TIMEOUT)],
        lambda store, rank: torch_helpers.barrier(store, 4, "b", REPLY_TIMEOUT, rank, trace_timeout=SHORT_TIMEOUT),
    )
    error = outcomes[0]
    assert isinstance(error, dist.DistStoreError)
    missing = str(error).partition("missing_ranks=[")[2].partition("]")[0]
    assert set(missing.split(", ")) == {"2", "3"}, error
    # Torch's rank 0 sets its trace key only after its own timeout. Our rank waits for that key, so it counts rank 0 as
    # present.
    name, message = outcomes[1].args
    assert name == "Timeout"
    assert "2 of 4 ranks arrived, missing: 2, 3" in message


def test_our_rank_0_names_the_missing_ranks_and_releases_torchs_ranks(server):
    outcomes = run_ranks(
        server,
        [0, 1, 2],
        {0},
        lambda rank: ["barrier", endpoint(server), "b", 4, rank, to_ms(REPLY_TIMEOUT), to_ms(WAIT_TIMEOUT)],
        lambda store, rank: torch_helpers.barrier(store, 4, "b", REPLY_TIMEOUT + 2 * SHORT_TIMEOUT, rank),
    )
    name, message = outcomes[0].args
    assert name == "Timeout"
    assert "3 of 4 ranks arrived, missing: 3" in message
    for rank in (1, 2):
        assert isinstance(outcomes[rank], dist.DistStoreError)
        # Torch's ranks waited for the key that rank 0 sets after it has collected the trace keys.
        assert "[<check rank 0 (0) for missing rank info>]" in str(outcomes[rank])


# ---- create_c10d_store ----


def torchs_create(rank, port, world_size, timeout):
    try:
        return create_c10d_store(rank == 0, "127.0.0.1", port, world_size, timeout)
    except (RuntimeError, TimeoutError) as error:
        return error


def ours_create(rank, port, world_size, timeout):
    role = "serve" if rank == 0 else "join"
    return OurRank("create", f"127.0.0.1:{port}", role, world_size, to_ms(timeout))


@pytest.mark.parametrize("libuv", ["1", "0"])
@pytest.mark.parametrize("ours", [{0}, {1}, {0, 2}, {1, 2}], ids=str)
def test_ranks_of_both_libraries_create_one_store(ours, libuv, monkeypatch, port):
    monkeypatch.setenv("USE_LIBUV", libuv)
    with ThreadPoolExecutor(3) as pool:
        theirs = {
            rank: pool.submit(torchs_create, rank, port, 3, WAIT_TIMEOUT) for rank in range(3) if rank not in ours
        }
        processes = {rank: ours_create(rank, port, 3, WAIT_TIMEOUT) for rank in ours}
        try:
            assert {rank: process.next_line() for rank, process in processes.items()} == {
                rank: [str(port)] for rank in ours
            }
            stores = {rank: future.result(WAIT_TIMEOUT) for rank, future in theirs.items()}
            for store in stores.values():
                assert isinstance(store, dist.TCPStore), store
                assert store.get("_tcp_store/num_members/num_members") == b"3"
        finally:
            # Rank 0, which runs the server, is closed last.
            for rank in sorted(ours, reverse=True):
                processes[rank].close()


def test_our_server_reports_how_many_of_the_ranks_joined(port):
    with ThreadPoolExecutor(1) as pool:
        process = ours_create(0, port, 3, 5.0)
        wait_until("our server to listen", lambda: is_reached("127.0.0.1", port))
        theirs = pool.submit(torchs_create, 1, port, 3, 5.0)
        name, message = process.outcome().args
        assert name == "Timeout"
        assert "2 of 3 joined" in message
        assert isinstance(theirs.result(WAIT_TIMEOUT), RuntimeError)


def test_torchs_server_counts_our_ranks(port):
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(torchs_create, 0, port, 3, 5.0)
        process = ours_create(1, port, 3, 5.0)
        assert "2/3 clients joined" in str(theirs.result(WAIT_TIMEOUT))
        assert process.outcome().args[0] in ("Timeout", "ConnectionLost", "Unreachable")
