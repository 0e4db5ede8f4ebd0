"""Nodes of a dynamic rendezvous, written in Python: rounds, waiting, spares, heartbeats, the end. Played on torch's and on ours."""

import os
import pickle
from datetime import timedelta

import pytest
import torch.distributed as dist
from both import BOTH, JOIN, OURS, TORCH, Node, memory_backend, run_id
from clock import stays, until


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


@pytest.fixture
def server(lib):
    return lib.server()


@pytest.fixture
def publishing(lib, monkeypatch):
    """Torch's rank 0 says where the workers meet in each round only if they don't meet at its own store; ours always does."""
    if lib is TORCH:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def dead_soon():
    """Options of a node that is taken for dead after four seconds."""
    return {"keep_alive_interval": 1, "keep_alive_max_attempt": 4}


def all_in_one_round(infos):
    assert sorted(info.rank for info in infos) == list(range(len(infos)))
    assert {info.world_size for info in infos} == {len(infos)}
    places = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
    assert len(places) == 1, places


# ---- making a handler ----


def test_a_handler_says_what_it_was_told(lib):
    store = lib.dist.HashStore()
    backend = lib.c10d.C10dRendezvousBackend(store, "job")
    times = lib.dynamic.RendezvousTimeout(join=timedelta(seconds=7))
    handler = lib.dynamic.DynamicRendezvousHandler.from_backend(
        "job", store, backend, 1, 3, "here", times, keep_alive_interval=6, keep_alive_max_attempt=4, cas_backoff_max_seconds=0.5
    )
    settings = handler.settings
    assert (handler.get_backend(), handler.get_run_id()) == ("c10d", "job")
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("job", 1, 3)
    assert settings.timeout is times
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=6), 4)
    assert settings.cas_backoff_max_seconds == 0.5


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"min_nodes": 0}, "The minimum number of nodes (0) must be greater than zero."),
        ({"min_nodes": -1}, "The minimum number of nodes (-1) must be greater than zero."),
        (
            {"min_nodes": 5, "max_nodes": 4},
            "The maximum number of nodes (4) must be greater than or equal to the minimum number of nodes (5).",
        ),
        ({"run_id": ""}, "The run id must be a non-empty string."),
        ({"cas_backoff_max_seconds": -1.0}, "cas_backoff_max_seconds (-1.0) must be finite and non-negative."),
        ({"cas_backoff_max_seconds": float("inf")}, "cas_backoff_max_seconds (inf) must be finite and non-negative."),
    ],
)
def test_what_cannot_be_is_refused(lib, changed, says):
    store = lib.dist.HashStore()
    given = {"run_id": "job", "min_nodes": 1, "max_nodes": 4, "backend": memory_backend(lib), "store": store}
    with pytest.raises(ValueError) as error:
        lib.dynamic.DynamicRendezvousHandler.from_backend(**{**given, **changed})
    assert str(error.value) == says


def created(lib, **options):
    store = lib.dist.HashStore()
    backend = lib.c10d.C10dRendezvousBackend(store, "job")
    return lib.dynamic.create_handler(store, backend, lib.parameters(max_nodes=4, **options))


def test_parameters_become_settings(lib):
    settings = created(lib).settings
    assert settings.timeout.join == timedelta(seconds=600)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=5), 3)
    settings = created(
        lib,
        join_timeout="50",
        last_call_timeout="10",
        close_timeout="60",
        heartbeat_timeout=1,
        keep_alive_interval="7",
        keep_alive_max_attempt=2,
        cas_backoff_max_seconds="0.25",
        what_nobody_knows=1,
    ).settings
    times = settings.timeout
    assert [each.seconds for each in (times.join, times.last_call, times.close, times.heartbeat)] == [50, 10, 60, 1]
    assert (settings.keep_alive_interval.seconds, settings.keep_alive_max_attempt) == (7, 2)
    assert settings.cas_backoff_max_seconds == 0.25


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"join_timeout": 0}, ValueError, "The join timeout (0:00:00) must be positive."),
        ({"close_timeout": -1}, ValueError, "The close timeout (-1 day, 23:59:59) must be positive."),
        (
            {"join_timeout": "x"},
            ValueError,
            "The rendezvous configuration option 'join_timeout' does not represent a valid integer value.",
        ),
        (
            {"keep_alive_interval": None},
            TypeError,
            "You passed 'keep_alive_interval=None' as a rendezvous configuration option",
        ),
        (
            {"keep_alive_max_attempt": None},
            TypeError,
            "You passed 'keep_alive_max_attempt=None' as a rendezvous configuration option",
        ),
        ({"cas_backoff_max_seconds": "x"}, ValueError, "cas_backoff_max_seconds('x') is not a valid float value."),
    ],
)
def test_options_that_cannot_be_are_refused(lib, options, kind, says):
    with pytest.raises(kind) as error:
        created(lib, **options)
    assert str(error.value) == says


# ---- rounds ----


def test_all_nodes_are_in_one_round_and_share_its_store(lib, server):
    job = run_id()
    nodes = [Node(lib, server, job, (3, 3)).start() for _ in range(3)]
    infos = [node.joined() for node in nodes]
    all_in_one_round(infos)
    for info in infos:
        assert isinstance(info, lib.api.RendezvousInfo)
        assert isinstance(info.store, lib.dist.PrefixStore)
        info.store.set(f"rank {info.rank}", "here")
    for info in infos:
        assert info.store.multi_get([f"rank {rank}" for rank in range(3)]) == [b"here"] * 3
    assert server.get(f"torch.rendezvous.{job}.0/rank 0") == b"here"
    for node in nodes:
        node.die()


def test_the_workers_store_of_rank_0_can_be_reached(lib, server):
    with Node(lib, server, run_id(), (1, 1)) as node:
        place = node.start().joined().bootstrap_store_info
        worker = dist.TCPStore(place.master_addr, place.master_port, is_master=False, timeout=timedelta(seconds=JOIN))
        worker.set("k", "v")
        assert worker.get("k") == b"v"
        assert node.handler.use_agent_store is True


def test_without_sharing_rank_0_only_names_a_port(lib, server, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    with Node(lib, server, run_id(), (1, 1)) as node:
        place = node.start().joined().bootstrap_store_info
        assert node.handler.use_agent_store is False
        # Nobody is there yet: the worker of rank 0 will serve.
        worker = dist.TCPStore("127.0.0.1", place.master_port, is_master=True, wait_for_workers=False)
        assert worker.port == place.master_port


@pytest.mark.parametrize("value", ["1", "0", "", "true"])
def test_sharing_is_asked_for_each_time(lib, server, monkeypatch, value):
    node = Node(lib, server, run_id(), (1, 1))
    assert node.handler.use_agent_store is True
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)
    assert node.handler.use_agent_store is (value != "1")


def test_a_round_with_enough_nodes_waits_for_more_until_the_last_call_is_over(lib, server):
    with Node(lib, server, run_id(), (1, 2), last_call=1) as node:
        info = node.start().joined()
        assert (info.rank, info.world_size) == (0, 1)


def test_a_node_alone_gives_up_in_time_and_is_out(lib, server):
    node = Node(lib, server, run_id(), (2, 2), join=1).start()
    with pytest.raises(lib.api.RendezvousTimeoutError):
        node.joined()
    state = node.state()
    assert not state.participants and not state.wait_list


def test_a_time_out_says_who_came_and_how_many_must():
    node = Node(OURS, OURS.server(), run_id(), (2, 3), join=3).start()
    with pytest.raises(OURS.api.RendezvousTimeoutError, match="1 of at least 2 nodes joined") as error:
        node.joined()
    assert "127.0.0.1" in str(error.value)
    assert "join_timeout" in str(error.value)


def test_a_second_round_can_follow_the_first(lib, server):
    job = run_id()
    nodes = [Node(lib, server, job, (2, 2)) for _ in range(2)]
    for number in range(2):
        for node in nodes:
            node.start()
        all_in_one_round([node.joined() for node in nodes])
        assert nodes[0].state().round == number
    for node in nodes:
        node.die()


def test_who_comes_late_is_counted_and_let_in(lib, server, publishing):
    job = run_id()
    first, second, late = (Node(lib, server, job, (2, 3), last_call=3) for _ in range(3))
    with first, second, late:
        first.start(), second.start()
        all_in_one_round([first.joined(), second.joined()])
        assert first.handler.num_nodes_waiting() == 0
        late.start()
        until("the late one to be seen", lambda: first.handler.num_nodes_waiting() == 1)
        until("the late one to be seen", lambda: second.handler.num_nodes_waiting() == 1)
        assert late.is_waiting()
        first.start(), second.start()
        all_in_one_round([first.joined(), second.joined(), late.joined()])
        until("nobody to wait", lambda: first.handler.num_nodes_waiting() == 0)


def test_who_finds_the_round_full_is_a_spare_and_leaves_gracefully_when_it_is_closed(lib, server):
    job = run_id()
    first, spare = (Node(lib, server, job, (1, 1)) for _ in range(2))
    with first, spare:
        first.start().joined()
        spare.start()
        until("the spare to be listed", lambda: first.state().redundancy_list)
        assert first.handler.num_nodes_waiting() == 0
        assert spare.is_waiting()
        first.handler.set_closed()
        with pytest.raises(lib.api.RendezvousGracefulExitError, match="is closed"):
            spare.joined()


def test_a_spare_takes_the_place_of_one_that_died(lib, server, publishing):
    job = run_id()
    first, second, spare = (Node(lib, server, job, (2, 2), **dead_soon()) for _ in range(3))
    with first, second, spare:
        first.start(), second.start()
        all_in_one_round([first.joined(), second.joined()])
        spare.start()
        until("the spare to be listed", lambda: first.state().redundancy_list)
        second.die()
        until("the spare to be counted", lambda: first.handler.num_nodes_waiting() == 1)
        first.start()
        all_in_one_round([first.joined(), spare.joined()])


# ---- heartbeats ----


def test_a_node_in_a_round_shows_that_it_is_alive(lib, server):
    with Node(lib, server, run_id(), (1, 1), keep_alive_interval=1) as node:
        node.start().joined()
        [before] = node.state().last_heartbeats.values()
        until("three heartbeats", lambda: max(node.state().last_heartbeats.values()) - before >= timedelta(seconds=2.5))


def test_a_node_that_stopped_showing_it_is_put_out(lib, server):
    job = run_id()
    first, second = (Node(lib, server, job, (2, 2), **dead_soon()) for _ in range(2))
    with first, second:
        first.start(), second.start()
        all_in_one_round([first.joined(), second.joined()])
        second.die()

        def is_put_out():
            first.handler.num_nodes_waiting()
            return len(first.state().last_heartbeats) == 1

        until("the dead one to be put out", is_put_out)


# ---- the end ----


def test_what_is_closed_stays_closed_for_all(lib, server):
    job = run_id()
    first, second = (Node(lib, server, job, (1, 2), last_call=1) for _ in range(2))
    assert first.handler.is_closed() is False
    assert first.handler.set_closed() is None
    assert second.handler.is_closed() is True
    until("the first to know", first.handler.is_closed)
    for node in (first, second):
        with pytest.raises(lib.api.RendezvousClosedError):
            node.start().joined()
    # Again is no error.
    second.handler.set_closed()


def test_shutdown_ends_it_for_all_and_may_be_repeated(lib, server):
    with Node(lib, server, run_id(), (1, 1)) as node:
        node.start().joined()
        assert node.handler.shutdown() is True
        assert node.state().closed
        assert node.handler.shutdown() is True


def test_after_shutdown_nothing_more_is_written(lib, server):
    with Node(lib, server, run_id(), (1, 1), keep_alive_interval=1) as node:
        node.start().joined()
        node.handler.shutdown()
        state = node.backend.get_state()
        # Two heartbeats would be due meanwhile.
        stays("nothing is written", lambda: node.backend.get_state() == state, 2.5)


def test_who_closed_it_is_said():
    server, job = OURS.server(), run_id()
    first, second = (Node(OURS, server, job, (1, 2)) for _ in range(2))
    first.handler.set_closed()
    with pytest.raises(OURS.api.RendezvousClosedError, match="127.0.0.1"):
        second.start().joined()


# ---- a backend written in Python ----


def test_a_backend_written_in_python_holds_the_state_of_a_round(lib, server):
    backend = memory_backend(lib)
    job = run_id()
    nodes = [Node(lib, server, job, (3, 3), backend=backend) for _ in range(3)]
    for number in range(2):
        for node in nodes:
            node.start()
        all_in_one_round([node.joined() for node in nodes])
        assert nodes[0].state().round == number
    assert nodes[0].handler.get_backend() == "memory"
    assert nodes[0].handler.shutdown()
    assert nodes[0].state().closed
    for node in nodes:
        node.die()


def test_a_backend_that_fails_ends_the_call_with_its_own_error(lib, server):
    backend = memory_backend(lib)
    node = Node(lib, server, run_id(), (1, 1), backend=backend)
    for failure in (lib.api.RendezvousConnectionError("gone"), lib.api.RendezvousStateError("bad"), KeyError("mine")):
        backend.failure = failure
        for call in (node.handler.next_rendezvous, node.handler.is_closed, node.handler.set_closed):
            with pytest.raises(type(failure)) as error:
                call()
            assert error.value is failure
    backend.failure = None
    with node:
        assert node.start().joined().world_size == 1


def test_shutdown_says_no_when_the_backend_is_gone_and_raises_what_is_no_rendezvous_error(lib, server):
    backend = memory_backend(lib)
    node = Node(lib, server, run_id(), (1, 1), backend=backend)
    backend.failure = lib.api.RendezvousConnectionError("gone")
    assert node.handler.shutdown() is False
    backend.failure = KeyError("mine")
    with pytest.raises(KeyError):
        node.handler.shutdown()


def test_a_state_that_is_none_is_an_error_and_is_left_alone(lib, server):
    backend = memory_backend(lib)
    backend.set_state(b"no pickle")
    node = Node(lib, server, run_id(), (1, 1), backend=backend)
    with pytest.raises(lib.api.RendezvousStateError) as error:
        node.handler.is_closed()
    assert str(error.value) == "The rendezvous state is corrupt. See inner exception for details."
    assert backend.get_state()[0] == b"no pickle"


def test_a_pickle_that_would_run_something_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "gone off"),)

    backend = memory_backend(OURS)
    backend.set_state(pickle.dumps(Bomb()))
    node = Node(OURS, OURS.server(), run_id(), (1, 1), backend=backend)
    with pytest.raises(OURS.api.RendezvousStateError):
        node.handler.is_closed()
    assert not (tmp_path / "gone off").exists()


@pytest.mark.parametrize("answer", [b"bytes", (b"one",), ("text", 1), (b"too", "many", True)])
def test_a_backend_that_answers_nonsense_is_an_error_and_not_a_hang(answer):
    backend = memory_backend(OURS)
    backend.get_state = lambda: answer
    node = Node(OURS, OURS.server(), run_id(), (1, 1), backend=backend)
    with pytest.raises((TypeError, ValueError)):
        node.handler.next_rendezvous()


def test_our_own_backend_with_another_method_in_its_place_is_called():
    """Rust goes round Python only where nobody would notice."""
    store = OURS.dist.HashStore()
    asked = []

    class Counting(OURS.c10d.C10dRendezvousBackend):
        def get_state(self):
            asked.append(1)
            return super().get_state()

    with Node(OURS, None, "job", (1, 1), store=store, backend=Counting(store, "job")) as node:
        assert node.start().joined().world_size == 1
    assert asked


def test_what_happens_is_logged_by_pythons_logging(caplog):
    with caplog.at_level("INFO", logger="rallypoint"), Node(OURS, OURS.server(), run_id(), (1, 1)) as node:
        node.start().joined()
        assert "as rank 0 in a world of size 1" in caplog.text


def test_a_heartbeat_that_fails_is_logged(caplog):
    backend = memory_backend(OURS)
    with Node(OURS, OURS.server(), run_id(), (1, 1), backend=backend, keep_alive_interval=1) as node:
        node.start().joined()
        backend.failure = KeyError("the backend is gone")

        def is_said():
            with pytest.raises(KeyError):
                node.handler.is_closed()
            return "failed to send a keep-alive heartbeat" in caplog.text

        until("it to be said", is_said)
        assert "the backend is gone" in caplog.text


# ---- torch's nodes and ours in one job ----


def mixed(first, *arguments, **options):
    """Two nodes of each library; one of `first` will be rank 0. Each library counts its nodes, so their addresses differ."""
    return [
        Node(each, *arguments, addr="127.0.0.1" if each is first else "127.0.0.2", **options)
        for each in (TORCH, OURS, TORCH, OURS)
    ]


@pytest.mark.parametrize("first", BOTH, ids=repr)
@pytest.mark.parametrize("host", BOTH, ids=repr)
def test_torchs_nodes_and_ours_are_in_one_round_whoever_serves(host, first):
    server, job = host.server(), run_id()
    nodes = mixed(first, server, job, (4, 4))
    for node in nodes:
        node.start()
    infos = [node.joined() for node in nodes]
    all_in_one_round(infos)
    for info in infos:
        info.store.set(f"rank {info.rank}", "here")
    for info in infos:
        assert info.store.get("rank 3") == b"here"
    nodes[1].handler.shutdown()
    until("torch's to know", nodes[0].handler.is_closed)
    for node in nodes:
        node.die()


def test_torchs_nodes_and_ours_share_a_backend_written_in_python():
    server, job = TORCH.server(), run_id()
    nodes = mixed(OURS, server, job, (4, 4), backend=memory_backend(TORCH))
    for node in nodes:
        node.start()
    all_in_one_round([node.joined() for node in nodes])
    assert len(nodes[0].state().participants) == 4
    for node in nodes:
        node.die()


def test_ours_over_a_store_of_torchs_returns_a_store_of_torchs():
    store = TORCH.dist.HashStore()
    backend = OURS.c10d.C10dRendezvousBackend(store, "job")
    with Node(OURS, None, "job", (1, 1), store=store, backend=backend) as node:
        info = node.start().joined()
    assert isinstance(info.store, dist.PrefixStore)
    info.store.set("k", "v")
    assert store.get("torch.rendezvous.job.0/k") == b"v"


def test_errors_are_torchs_too_where_torch_is_loaded(lib):
    node = Node(OURS, OURS.server(), run_id(), (1, 1))
    node.handler.set_closed()
    with pytest.raises(lib.api.RendezvousClosedError) as error:
        node.handler.next_rendezvous()
    assert isinstance(error.value, lib.api.RendezvousError)
    assert type(pickle.loads(pickle.dumps(error.value))) is OURS.api.RendezvousClosedError
