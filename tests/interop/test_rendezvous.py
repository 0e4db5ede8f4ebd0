"""Torch's handlers and `rallypoint join` in one rendezvous agree on rounds, ranks and masters."""

import contextlib
import pickle
import time

import pytest
from clock import wait_until
from nodes import CountingBackend, OurNode, TorchNode, assert_agree
from servers import OurServer, TorchServer

SERVERS = {"ours": OurServer, "torch's": TorchServer}


@pytest.fixture(params=SERVERS)
def server(request):
    server = SERVERS[request.param]()
    yield server
    server.stop()


@pytest.fixture
def nodes(server):
    """A function that creates nodes on the server. The nodes stop at the end of the test."""
    with contextlib.ExitStack() as stack:

        def create_nodes(kind, count, *arguments, **options):
            return [stack.enter_context(kind(server, *arguments, **options)) for _ in range(count)]

        yield create_nodes


def test_eight_nodes_of_each_kind_agree_on_one_round(nodes):
    all_nodes = nodes(TorchNode, 8, "job", (16, 16)) + nodes(OurNode, 8, "job", (16, 16))
    rounds = [node.joined() for node in [node.start() for node in all_nodes]]
    assert_agree(rounds)


def test_all_nodes_rejoin_for_a_late_node_and_torchs_node_closes_the_rendezvous(nodes, monkeypatch):
    # Without this variable, torch's rank 0 publishes its address only in its first round, and a late node times out
    # (defect T1 in docs/compatibility.md).
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    options = {"last_call_timeout": 4}
    torchs = nodes(TorchNode, 3, "job", (4, 7), **options)
    ours = nodes(OurNode, 2, "job", (4, 7), **options)
    first = [node.joined() for node in [node.start() for node in torchs + ours]]
    assert_agree(first)
    assert {info.number for info in first} == {0}
    # One of our nodes joins late. It is put on the wait list, where torch's nodes find it.
    ours += nodes(OurNode, 1, "job", (4, 7), **options)
    for node in torchs:
        wait_until("the late node to be counted", lambda node=node: node.num_waiting() > 0)
        node.start()
    second = [node.joined() for node in torchs + ours]
    assert_agree(second)
    assert {info.number for info in second} == {1}
    assert {info.world_size for info in second} == {6}
    # One of torch's nodes closes the rendezvous. Our nodes exit, and no node can join any more.
    torchs[0].close()
    for node in torchs:
        wait_until("the node to see that the rendezvous is closed", node.handler.is_closed)
    assert [node.exit_code() for node in ours] == [0, 0, 0]
    [late] = nodes(OurNode, 1, "job", (1, 7))
    assert late.exit_code() == 3
    assert "is closed" in "".join(late.log)


def test_a_late_torch_node_joins_our_nodes(nodes):
    """If rank 0 is ours, it publishes the master's address in every round, so torch's late node finds it."""
    options = {"last_call_timeout": 4}
    ours = nodes(OurNode, 2, "job", (1, 3), addr="127.0.0.1", **options)
    assert_agree([node.joined() for node in ours])
    [late] = nodes(TorchNode, 1, "job", (1, 3), addr="127.0.0.2", **options)
    late.start()
    rounds = [late.joined(), *(node.joined() for node in ours)]
    assert_agree(rounds)
    assert rounds[0].rank == 2


def test_a_late_torch_node_cannot_join_torchs_nodes(nodes):
    """Defect T1 in docs/compatibility.md: rank 0 publishes its address only in its first round, so the late node times out."""
    options = {"last_call_timeout": 3, "read_timeout": 4}
    [first] = nodes(TorchNode, 1, "job", (1, 2), addr="127.0.0.1", **options)
    assert first.start().joined().world_size == 1
    [late] = nodes(TorchNode, 1, "job", (1, 2), addr="127.0.0.2", **options)
    late.start()
    wait_until("the late node to be counted", lambda: first.num_waiting() == 1)
    assert first.start().joined().world_size == 2
    with pytest.raises(Exception, match="MASTER_ADDR"):
        late.joined()


def test_a_torch_node_remains_its_own_master_when_a_late_torch_node_becomes_rank_0(nodes):
    """Defect T1 in docs/compatibility.md: the older node was its own master in its first round, and keeps that master although
    the late node, whose address sorts first, is rank 0 in the second round."""
    [old] = nodes(TorchNode, 1, "job", (1, 2), addr="127.0.0.2", last_call_timeout=3)
    assert old.start().joined().world_size == 1
    [late] = nodes(TorchNode, 1, "job", (1, 2), addr="127.0.0.1", last_call_timeout=3)
    late.start()
    wait_until("the late node to be counted", lambda: old.num_waiting() == 1)
    old.start()
    rounds = [late.joined(), old.joined()]
    # The nodes agree on everything except the master.
    assert_agree(rounds, masters=False)
    assert [info.rank for info in rounds] == [0, 1]
    assert rounds[0].master[0] == "127.0.0.1"
    assert rounds[1].master[0] == "127.0.0.2"


def test_our_late_node_that_becomes_rank_0_is_the_master_of_both_nodes(nodes):
    [old] = nodes(OurNode, 1, "job", (1, 2), addr="127.0.0.2", last_call_timeout=3)
    alone = old.joined()
    assert (alone.world_size, alone.master[0]) == (1, "127.0.0.2")
    [late] = nodes(OurNode, 1, "job", (1, 2), addr="127.0.0.1", last_call_timeout=3)
    rounds = [late.joined(), old.joined()]
    assert_agree(rounds)
    assert [info.rank for info in rounds] == [0, 1]
    assert rounds[0].master[0] == "127.0.0.1"


def test_our_late_node_reports_that_torchs_rank_0_has_not_published_its_address(nodes):
    options = {"last_call_timeout": 3, "read_timeout": 4}
    [first] = nodes(TorchNode, 1, "job", (1, 2), addr="127.0.0.1", **options)
    assert first.start().joined().world_size == 1
    [late] = nodes(OurNode, 1, "job", (1, 2), addr="127.0.0.2", **options)
    wait_until("the late node to be counted", lambda: first.num_waiting() == 1)
    assert first.start().joined().world_size == 2
    assert late.exit_code() == 1
    assert "has not published MASTER_ADDR and MASTER_PORT" in "".join(late.log)


def test_our_node_keeps_the_master_address_that_torchs_rank_0_published_only_in_its_first_round(nodes):
    options = {"last_call_timeout": 1}
    [torchs] = nodes(TorchNode, 1, "job", (2, 2), addr="127.0.0.1", **options)
    [ours] = nodes(OurNode, 1, "job", (2, 2), addr="127.0.0.2", **options)
    first = [torchs.start().joined(), ours.joined()]
    assert_agree(first)
    # Torch's node rejoins, as after a failure of its workers, and our node follows.
    torchs.start()
    second = [torchs.joined(), ours.joined()]
    assert_agree(second)
    assert second[0].number == 1 and second[0].master == first[0].master


NOTICE_TIMEOUT = 5
"""Seconds within which our node must notice a write of torch's node."""

RARE_HEARTBEATS = {"keep_alive_interval": 60}
"""With heartbeats every 60 s, a heartbeat is unlikely to be the reason why our node notices the write."""


@pytest.fixture
def write_times(monkeypatch):
    """The times of the successful writes of torch's nodes."""
    times = []
    set_state = CountingBackend.set_state

    def timed_set_state(*arguments):
        current = set_state(*arguments)
        if current and current[-1]:
            times.append(time.monotonic())
        return current

    monkeypatch.setattr(CountingBackend, "set_state", timed_set_state)
    return times


def state(node):
    """Returns the rendezvous state in the store, or None if there is none."""
    current = node.backend.get_state()
    return current and pickle.loads(current[0])


def test_our_waiting_node_notices_within_5_s_that_a_torch_node_joined(nodes, write_times):
    # Our node is rank 0, so it waits only for the round to complete, and not for a master's address.
    [ours] = nodes(OurNode, 1, "job", (2, 2), addr="127.0.0.1", **RARE_HEARTBEATS)
    [torchs] = nodes(TorchNode, 1, "job", (2, 2), addr="127.0.0.2", **RARE_HEARTBEATS)
    wait_until("our node to wait", lambda: (current := state(torchs)) and len(current.participants) == 1)
    torchs.start()
    our_round = ours.joined()
    noticed = time.monotonic()
    # Torch's first write completed the round.
    assert noticed - write_times[0] < NOTICE_TIMEOUT
    assert_agree([our_round, torchs.joined()])


def test_our_node_in_a_round_notices_within_5_s_that_a_torch_node_waits(nodes, write_times):
    options = {"last_call_timeout": 3, **RARE_HEARTBEATS}
    [ours] = nodes(OurNode, 1, "job", (1, 2), addr="127.0.0.1", **options)
    assert ours.joined().world_size == 1
    [late] = nodes(TorchNode, 1, "job", (1, 2), addr="127.0.0.2", **options)
    late.start()
    wait_until("the late node to wait", lambda: write_times)
    wait_until("our node to rejoin", lambda: state(late).round == 1, within=write_times[0] + NOTICE_TIMEOUT - time.monotonic())
    assert_agree([ours.joined(), late.joined()])


def test_a_node_that_leaves_does_not_close_the_rendezvous_and_the_others_rejoin(nodes):
    options = {"last_call_timeout": 4}
    ours = nodes(OurNode, 2, "job", (1, 3), **options)
    [torchs] = nodes(TorchNode, 1, "job", (1, 3), **options)
    torchs.start()
    assert_agree([node.joined() for node in [torchs, *ours]])
    ours[0].signal()
    assert ours[0].exit_code() == 0
    torchs.start()
    assert_agree([torchs.joined(), ours[1].joined()], masters=False)


def test_nodes_of_both_kinds_join_through_one_file(tmp_path):
    path = str(tmp_path / "rendezvous")
    # The file has the mode that our node would give it. Torch would create it with 0644, which our node accepts, too.
    (tmp_path / "rendezvous").touch(mode=0o600)
    with (
        TorchNode(path, "job", (4, 4)) as first,
        TorchNode(path, "job", (4, 4)) as second,
        OurNode(path, "job", (4, 4), store_type="file") as third,
        OurNode(path, "job", (4, 4), store_type="file") as fourth,
    ):
        rounds = [node.joined() for node in [node.start() for node in (first, second, third, fourth)]]
        assert_agree(rounds)
