"""Nodes of a dynamic rendezvous: rounds, waiting, spares, heartbeats, closing.

Tests with the fixture `lib` run with torch's library and with ours.
"""

import os
import pickle
from datetime import timedelta

import pytest
import torch.distributed as dist
from libraries import BOTH, JOIN_TIMEOUT, OURS, TORCH, Node, memory_backend, new_run_id
from clock import assert_stays, wait_until


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


@pytest.fixture
def server(lib):
    return lib.server()


@pytest.fixture
def publish_in_each_round(lib, monkeypatch):
    """Makes torch's rank 0 publish the address of the workers' store in each round.

    Torch's rank 0 does so only if store sharing is disabled. Ours always does.
    """
    if lib is TORCH:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def short_keep_alive():
    """Returns options with which a node is dead after 4 s without heartbeats."""
    return {"keep_alive_interval": 1, "keep_alive_max_attempt": 4}


def assert_one_round(infos):
    assert sorted(info.rank for info in infos) == list(range(len(infos)))
    assert {info.world_size for info in infos} == {len(infos)}
    addresses = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
    assert len(addresses) == 1, addresses


# ---- creating a handler ----


def test_a_handler_has_the_settings_that_it_was_created_with(lib):
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
    ("arguments", "message"),
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
def test_invalid_arguments_are_refused(lib, arguments, message):
    store = lib.dist.HashStore()
    given = {"run_id": "job", "min_nodes": 1, "max_nodes": 4, "backend": memory_backend(lib), "store": store}
    with pytest.raises(ValueError) as error:
        lib.dynamic.DynamicRendezvousHandler.from_backend(**{**given, **arguments})
    assert str(error.value) == message


def create_handler(lib, **options):
    store = lib.dist.HashStore()
    backend = lib.c10d.C10dRendezvousBackend(store, "job")
    return lib.dynamic.create_handler(store, backend, lib.parameters(max_nodes=4, **options))


def test_parameters_become_settings(lib):
    settings = create_handler(lib).settings
    assert settings.timeout.join == timedelta(seconds=600)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (timedelta(seconds=5), 3)
    settings = create_handler(
        lib,
        join_timeout="50",
        last_call_timeout="10",
        close_timeout="60",
        heartbeat_timeout=1,
        keep_alive_interval="7",
        keep_alive_max_attempt=2,
        cas_backoff_max_seconds="0.25",
        unknown_option=1,
    ).settings
    times = settings.timeout
    assert [each.seconds for each in (times.join, times.last_call, times.close, times.heartbeat)] == [50, 10, 60, 1]
    assert (settings.keep_alive_interval.seconds, settings.keep_alive_max_attempt) == (7, 2)
    assert settings.cas_backoff_max_seconds == 0.25


@pytest.mark.parametrize(
    ("options", "kind", "message"),
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
def test_invalid_options_are_refused(lib, options, kind, message):
    with pytest.raises(kind) as error:
        create_handler(lib, **options)
    assert str(error.value) == message


# ---- rounds ----


def test_all_nodes_join_one_round_and_share_its_store(lib, server):
    job = new_run_id()
    nodes = [Node(lib, server, job, (3, 3)).start() for _ in range(3)]
    infos = [node.joined() for node in nodes]
    assert_one_round(infos)
    for info in infos:
        assert isinstance(info, lib.api.RendezvousInfo)
        assert isinstance(info.store, lib.dist.PrefixStore)
        info.store.set(f"rank {info.rank}", "here")
    for info in infos:
        assert info.store.multi_get([f"rank {rank}" for rank in range(3)]) == [b"here"] * 3
    assert server.get(f"torch.rendezvous.{job}.0/rank 0") == b"here"
    for node in nodes:
        node.stop_heartbeats()


def test_the_workers_store_of_rank_0_is_reachable(lib, server):
    with Node(lib, server, new_run_id(), (1, 1)) as node:
        store_info = node.start().joined().bootstrap_store_info
        worker = dist.TCPStore(store_info.master_addr, store_info.master_port, is_master=False, timeout=timedelta(seconds=JOIN_TIMEOUT))
        worker.set("k", "v")
        assert worker.get("k") == b"v"
        assert node.handler.use_agent_store is True


def test_without_sharing_rank_0_publishes_a_free_port(lib, server, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    with Node(lib, server, new_run_id(), (1, 1)) as node:
        store_info = node.start().joined().bootstrap_store_info
        assert node.handler.use_agent_store is False
        # No server listens on the port yet. Without sharing, the worker of rank 0 starts the server.
        worker = dist.TCPStore("127.0.0.1", store_info.master_port, is_master=True, wait_for_workers=False)
        assert worker.port == store_info.master_port


@pytest.mark.parametrize("value", ["1", "0", "", "true"])
def test_use_agent_store_reads_the_environment_on_each_access(lib, server, monkeypatch, value):
    node = Node(lib, server, new_run_id(), (1, 1))
    assert node.handler.use_agent_store is True
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)
    assert node.handler.use_agent_store is (value != "1")


def test_a_round_with_enough_nodes_completes_after_the_last_call(lib, server):
    with Node(lib, server, new_run_id(), (1, 2), last_call=1) as node:
        info = node.start().joined()
        assert (info.rank, info.world_size) == (0, 1)


def test_a_node_that_times_out_leaves_the_rendezvous(lib, server):
    node = Node(lib, server, new_run_id(), (2, 2), join=1).start()
    with pytest.raises(lib.api.RendezvousTimeoutError):
        node.joined()
    state = node.state()
    assert not state.participants and not state.wait_list


def test_a_timeout_lists_the_nodes_that_joined_and_the_required_number():
    node = Node(OURS, OURS.server(), new_run_id(), (2, 3), join=3).start()
    with pytest.raises(OURS.api.RendezvousTimeoutError, match="1 of at least 2 nodes joined") as error:
        node.joined()
    assert "127.0.0.1" in str(error.value)
    assert "join_timeout" in str(error.value)


def test_a_second_round_can_follow_the_first(lib, server):
    job = new_run_id()
    nodes = [Node(lib, server, job, (2, 2)) for _ in range(2)]
    for number in range(2):
        for node in nodes:
            node.start()
        assert_one_round([node.joined() for node in nodes])
        assert nodes[0].state().round == number
    for node in nodes:
        node.stop_heartbeats()


def test_a_late_node_is_counted_as_waiting_and_joins_the_next_round(lib, server, publish_in_each_round):
    job = new_run_id()
    first, second, late = (Node(lib, server, job, (2, 3), last_call=3) for _ in range(3))
    with first, second, late:
        first.start(), second.start()
        assert_one_round([first.joined(), second.joined()])
        assert first.handler.num_nodes_waiting() == 0
        late.start()
        wait_until("the late node to be counted", lambda: first.handler.num_nodes_waiting() == 1)
        wait_until("the late node to be counted", lambda: second.handler.num_nodes_waiting() == 1)
        assert late.is_waiting()
        first.start(), second.start()
        assert_one_round([first.joined(), second.joined(), late.joined()])
        wait_until("no node to be waiting", lambda: first.handler.num_nodes_waiting() == 0)


def test_a_spare_exits_gracefully_when_the_rendezvous_is_closed(lib, server):
    job = new_run_id()
    first, spare = (Node(lib, server, job, (1, 1)) for _ in range(2))
    with first, spare:
        first.start().joined()
        spare.start()
        wait_until("the spare to be listed", lambda: first.state().redundancy_list)
        assert first.handler.num_nodes_waiting() == 0
        assert spare.is_waiting()
        first.handler.set_closed()
        with pytest.raises(lib.api.RendezvousGracefulExitError, match="is closed"):
            spare.joined()


def test_a_spare_replaces_a_dead_node(lib, server, publish_in_each_round):
    job = new_run_id()
    first, second, spare = (Node(lib, server, job, (2, 2), **short_keep_alive()) for _ in range(3))
    with first, second, spare:
        first.start(), second.start()
        assert_one_round([first.joined(), second.joined()])
        spare.start()
        wait_until("the spare to be listed", lambda: first.state().redundancy_list)
        second.stop_heartbeats()
        wait_until("the spare to be counted", lambda: first.handler.num_nodes_waiting() == 1)
        first.start()
        assert_one_round([first.joined(), spare.joined()])


# ---- heartbeats ----


def test_a_node_in_a_round_sends_heartbeats(lib, server):
    with Node(lib, server, new_run_id(), (1, 1), keep_alive_interval=1) as node:
        node.start().joined()
        [before] = node.state().last_heartbeats.values()
        wait_until("three heartbeats", lambda: max(node.state().last_heartbeats.values()) - before >= timedelta(seconds=2.5))


def test_a_node_without_heartbeats_is_removed(lib, server):
    job = new_run_id()
    first, second = (Node(lib, server, job, (2, 2), **short_keep_alive()) for _ in range(2))
    with first, second:
        first.start(), second.start()
        assert_one_round([first.joined(), second.joined()])
        second.stop_heartbeats()

        def is_removed():
            first.handler.num_nodes_waiting()
            return len(first.state().last_heartbeats) == 1

        wait_until("the dead node to be removed", is_removed)


# ---- closing ----


def test_a_closed_rendezvous_stays_closed_for_all_nodes(lib, server):
    job = new_run_id()
    first, second = (Node(lib, server, job, (1, 2), last_call=1) for _ in range(2))
    assert first.handler.is_closed() is False
    assert first.handler.set_closed() is None
    assert second.handler.is_closed() is True
    wait_until("the first node to see that the rendezvous is closed", first.handler.is_closed)
    for node in (first, second):
        with pytest.raises(lib.api.RendezvousClosedError):
            node.start().joined()
    # Closing again is not an error.
    second.handler.set_closed()


def test_shutdown_closes_the_rendezvous_and_can_be_repeated(lib, server):
    with Node(lib, server, new_run_id(), (1, 1)) as node:
        node.start().joined()
        assert node.handler.shutdown() is True
        assert node.state().closed
        assert node.handler.shutdown() is True


def test_no_heartbeat_is_written_after_shutdown(lib, server):
    with Node(lib, server, new_run_id(), (1, 1), keep_alive_interval=1) as node:
        node.start().joined()
        node.handler.shutdown()
        state = node.backend.get_state()
        # Two heartbeats would be due in this time.
        assert_stays("nothing is written", lambda: node.backend.get_state() == state, 2.5)


def test_a_closed_error_names_the_node_that_closed_the_rendezvous():
    server, job = OURS.server(), new_run_id()
    first, second = (Node(OURS, server, job, (1, 2)) for _ in range(2))
    first.handler.set_closed()
    with pytest.raises(OURS.api.RendezvousClosedError, match="127.0.0.1"):
        second.start().joined()


# ---- a backend written in Python ----


def test_a_backend_written_in_python_can_store_the_state(lib, server):
    backend = memory_backend(lib)
    job = new_run_id()
    nodes = [Node(lib, server, job, (3, 3), backend=backend) for _ in range(3)]
    for number in range(2):
        for node in nodes:
            node.start()
        assert_one_round([node.joined() for node in nodes])
        assert nodes[0].state().round == number
    assert nodes[0].handler.get_backend() == "memory"
    assert nodes[0].handler.shutdown()
    assert nodes[0].state().closed
    for node in nodes:
        node.stop_heartbeats()


def test_an_exception_of_a_backend_is_raised_by_the_call(lib, server):
    backend = memory_backend(lib)
    node = Node(lib, server, new_run_id(), (1, 1), backend=backend)
    for failure in (lib.api.RendezvousConnectionError("gone"), lib.api.RendezvousStateError("bad"), KeyError("mine")):
        backend.failure = failure
        for call in (node.handler.next_rendezvous, node.handler.is_closed, node.handler.set_closed):
            with pytest.raises(type(failure)) as error:
                call()
            assert error.value is failure
    backend.failure = None
    with node:
        assert node.start().joined().world_size == 1


def test_shutdown_returns_false_for_a_rendezvous_error_and_raises_other_errors(lib, server):
    backend = memory_backend(lib)
    node = Node(lib, server, new_run_id(), (1, 1), backend=backend)
    backend.failure = lib.api.RendezvousConnectionError("gone")
    assert node.handler.shutdown() is False
    backend.failure = KeyError("mine")
    with pytest.raises(KeyError):
        node.handler.shutdown()


def test_a_corrupt_state_raises_a_state_error_and_is_not_replaced(lib, server):
    backend = memory_backend(lib)
    backend.set_state(b"no pickle")
    node = Node(lib, server, new_run_id(), (1, 1), backend=backend)
    with pytest.raises(lib.api.RendezvousStateError) as error:
        node.handler.is_closed()
    assert str(error.value) == "The rendezvous state is corrupt. See inner exception for details."
    assert backend.get_state()[0] == b"no pickle"


def test_a_malicious_pickle_is_not_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    backend = memory_backend(OURS)
    backend.set_state(pickle.dumps(Bomb()))
    node = Node(OURS, OURS.server(), new_run_id(), (1, 1), backend=backend)
    with pytest.raises(OURS.api.RendezvousStateError):
        node.handler.is_closed()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("returned", [b"bytes", (b"one",), ("text", 1), (b"too", "many", True)])
def test_a_backend_that_returns_invalid_values_raises_an_error(returned):
    backend = memory_backend(OURS)
    backend.get_state = lambda: returned
    node = Node(OURS, OURS.server(), new_run_id(), (1, 1), backend=backend)
    with pytest.raises((TypeError, ValueError)):
        node.handler.next_rendezvous()


def test_an_overridden_method_of_our_backend_is_called():
    """The Rust handler calls the Python methods of our backend only if a subclass overrides them."""
    store = OURS.dist.HashStore()
    calls = []

    class CountingBackend(OURS.c10d.C10dRendezvousBackend):
        def get_state(self):
            calls.append(1)
            return super().get_state()

    with Node(OURS, None, "job", (1, 1), store=store, backend=CountingBackend(store, "job")) as node:
        assert node.start().joined().world_size == 1
    assert calls


def test_events_are_logged_with_pythons_logging(caplog):
    with caplog.at_level("INFO", logger="rallypoint"), Node(OURS, OURS.server(), new_run_id(), (1, 1)) as node:
        node.start().joined()
        assert "as rank 0 in a world of size 1" in caplog.text


def test_a_failed_heartbeat_is_logged(caplog):
    backend = memory_backend(OURS)
    with Node(OURS, OURS.server(), new_run_id(), (1, 1), backend=backend, keep_alive_interval=1) as node:
        node.start().joined()
        backend.failure = KeyError("the backend is gone")

        def is_logged():
            with pytest.raises(KeyError):
                node.handler.is_closed()
            return "failed to send a keep-alive heartbeat" in caplog.text

        wait_until("the failure to be logged", is_logged)
        assert "the backend is gone" in caplog.text


# ---- torch's nodes and ours in one job ----


def mixed_nodes(first, *arguments, **options):
    """Returns two nodes of each library. A node of `first` becomes rank 0, because nodes are ranked by address."""
    return [
        Node(each, *arguments, addr="127.0.0.1" if each is first else "127.0.0.2", **options)
        for each in (TORCH, OURS, TORCH, OURS)
    ]


@pytest.mark.parametrize("first", BOTH, ids=repr)
@pytest.mark.parametrize("host", BOTH, ids=repr)
def test_torchs_nodes_and_ours_join_one_round_on_either_server(host, first):
    server, job = host.server(), new_run_id()
    nodes = mixed_nodes(first, server, job, (4, 4))
    for node in nodes:
        node.start()
    infos = [node.joined() for node in nodes]
    assert_one_round(infos)
    for info in infos:
        info.store.set(f"rank {info.rank}", "here")
    for info in infos:
        assert info.store.get("rank 3") == b"here"
    nodes[1].handler.shutdown()
    wait_until("torch's node to see that the rendezvous is closed", nodes[0].handler.is_closed)
    for node in nodes:
        node.stop_heartbeats()


def test_torchs_nodes_and_ours_share_a_backend_written_in_python():
    server, job = TORCH.server(), new_run_id()
    nodes = mixed_nodes(OURS, server, job, (4, 4), backend=memory_backend(TORCH))
    for node in nodes:
        node.start()
    assert_one_round([node.joined() for node in nodes])
    assert len(nodes[0].state().participants) == 4
    for node in nodes:
        node.stop_heartbeats()


def test_our_handler_on_torchs_store_returns_torchs_prefix_store():
    store = TORCH.dist.HashStore()
    backend = OURS.c10d.C10dRendezvousBackend(store, "job")
    with Node(OURS, None, "job", (1, 1), store=store, backend=backend) as node:
        info = node.start().joined()
    assert isinstance(info.store, dist.PrefixStore)
    info.store.set("k", "v")
    assert store.get("torch.rendezvous.job.0/k") == b"v"


def test_our_errors_derive_from_torchs_if_torch_is_loaded(lib):
    node = Node(OURS, OURS.server(), new_run_id(), (1, 1))
    node.handler.set_closed()
    with pytest.raises(lib.api.RendezvousClosedError) as error:
        node.handler.next_rendezvous()
    assert isinstance(error.value, lib.api.RendezvousError)
    assert type(pickle.loads(pickle.dumps(error.value))) is OURS.api.RendezvousClosedError
