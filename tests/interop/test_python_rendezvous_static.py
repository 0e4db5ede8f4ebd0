"""The static rendezvous: parameters, the round, conflicting nodes. Tests that take `lib` run with torch's library and with ours."""

from datetime import timedelta

import pytest
from libraries import BOTH, JOIN_TIMEOUT, OURS, TORCH
from join_call import JoinCall


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


@pytest.fixture
def port():
    return OURS.ports.get_free_port()


def parameters(lib, port, rank, nodes, **options):
    options = {"run_id": "job", "timeout": JOIN_TIMEOUT, **options}
    return lib.parameters(
        backend="static", endpoint=f"localhost:{port}", min_nodes=nodes, max_nodes=nodes, rank=rank, **options
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"endpoint": "localhost"}, "Port is absent in endpoint: localhost. Try launching with --master-port"),
        ({"endpoint": ""}, "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request"),
        ({"endpoint": "  "}, "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request"),
    ],
)
def test_an_endpoint_without_host_or_port_is_refused(lib, arguments, message):
    with pytest.raises(ValueError) as error:
        lib.static.create_rdzv_handler(lib.parameters(backend="static", rank=0, **arguments))
    assert str(error.value) == message


def test_a_missing_rank_is_refused(lib):
    with pytest.raises(ValueError) as error:
        lib.static.create_rdzv_handler(lib.parameters(backend="static", endpoint="localhost:1"))
    assert str(error.value) == "rank is absent in RendezvousParameters.Try add --node-rank to the cmd request"


def test_a_handler_has_the_settings_that_it_was_created_with(lib):
    handler = lib.static.create_rdzv_handler(parameters(lib, 123, 0, 1))
    assert isinstance(handler, lib.api.RendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("static", "job", True)
    assert (handler.master_addr, handler.master_port, handler.rank, handler.world_size) == ("localhost", 123, 0, 1)
    assert handler.timeout == timedelta(seconds=JOIN_TIMEOUT)
    assert lib.static.create_rdzv_handler(
        lib.parameters(backend="static", endpoint="localhost:1", rank=0)
    ).timeout == timedelta(seconds=600)


def test_a_static_rendezvous_is_never_closed_and_has_no_waiting_nodes(lib):
    handler = lib.static.create_rdzv_handler(parameters(lib, 123, 0, 1))
    assert handler.is_closed() is False
    assert handler.set_closed() is None
    assert handler.is_closed() is False
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown() is True


def test_a_second_call_returns_the_same_round(lib, port):
    handler = lib.static.create_rdzv_handler(parameters(lib, port, 0, 1))
    for _ in range(2):
        info = handler.next_rendezvous()
        assert (info.rank, info.world_size) == (0, 1)
        assert info.bootstrap_store_info == lib.api.RendezvousStoreInfo("localhost", port)
        info.store.add("count", 1)
    assert info.store.get("count") == b"2"
    assert isinstance(info.store, lib.dist.PrefixStore)


def test_the_handler_can_be_created_directly(lib, port):
    handler = lib.static.StaticTCPRendezvous("localhost", port, 0, 1, "job", JOIN_TIMEOUT)
    assert handler.next_rendezvous().world_size == 1


@pytest.mark.parametrize("kinds", [(TORCH, TORCH), (OURS, OURS), (TORCH, OURS), (OURS, TORCH)], ids=repr)
def test_nodes_of_both_libraries_join_and_share_a_store(kinds, port):
    handlers = [lib.static.create_rdzv_handler(parameters(lib, port, rank, 2)) for rank, lib in enumerate(kinds)]
    calls = [JoinCall(handler.next_rendezvous) for handler in handlers]
    first, second = (call.result() for call in calls)
    assert (first.rank, second.rank) == (0, 1)
    assert first.world_size == second.world_size == 2
    first.store.set("k", "v")
    assert second.store.get("k") == b"v"


def test_too_few_nodes_raise_a_store_error_at_the_timeout(lib, port):
    with pytest.raises(lib.dist.DistStoreError):
        lib.static.create_rdzv_handler(parameters(lib, port, 0, 2, timeout=1)).next_rendezvous()


def test_a_timeout_names_the_missing_ranks(port):
    with pytest.raises(OURS.dist.DistStoreError, match="1 of 3 nodes joined.*rank 1, 2"):
        OURS.static.create_rdzv_handler(parameters(OURS, port, 0, 3, timeout=1)).next_rendezvous()


def test_a_missing_server_raises_a_network_error(lib):
    with lib.ports.get_socket_with_port() as bound:
        handler = lib.static.create_rdzv_handler(parameters(lib, bound.getsockname()[1], 1, 2, timeout=1))
        with pytest.raises(lib.dist.DistNetworkError):
            handler.next_rendezvous()


def test_a_rank_given_twice_is_reported():
    port = OURS.ports.get_free_port()
    handlers = [OURS.static.create_rdzv_handler(parameters(OURS, port, rank, 3)) for rank in (0, 1, 1)]
    for call in [JoinCall(handler.next_rendezvous) for handler in handlers]:
        with pytest.raises(OURS.api.RendezvousError, match="node rank 1 was given twice"):
            call.result()


@pytest.mark.parametrize("rank", [-1, 2, "x"])
def test_an_invalid_rank_is_refused(rank):
    with pytest.raises(ValueError):
        OURS.static.create_rdzv_handler(parameters(OURS, 123, rank, 2))
