"""The native rendezvous of the Python package, without torch."""

import os
import signal
import threading

import pytest
from libraries import new_run_id

from rallypoint.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousParameters,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)


@pytest.fixture
def endpoint(port):
    return f"127.0.0.1:{port}"


def create(endpoint, nodes=1, **options):
    run_id = options.pop("run_id", "job")
    parameters = RendezvousParameters("rallypoint", endpoint, run_id, nodes, nodes, local_addr="127.0.0.1", **options)
    return rendezvous_handler_registry.create_handler(parameters)


def join_together(handlers):
    """Joins a round with all handlers, each on its own thread. Returns what they got, by rank."""
    found = []
    threads = [threading.Thread(target=lambda handler=handler: found.append(handler.next_rendezvous())) for handler in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found, key=lambda info: info.rank)


def test_a_node_joins_shares_a_store_and_closes_the_job(endpoint):
    run_id = new_run_id()
    handler = create(endpoint, run_id=run_id, lease=5, node_rank="0")
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("rallypoint", run_id, True)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size, info.bootstrap_store_info.master_addr) == (0, 1, "127.0.0.1")
    assert os.environ["RALLYPOINT_ROUND"] == "0"
    info.store.set("key", "value")
    assert info.store.get("key") == b"value"
    assert (handler.num_nodes_waiting(), handler.is_closed()) == (0, False)
    assert handler.shutdown() is True
    assert handler.is_closed() is True
    with pytest.raises(RendezvousClosedError, match="closed the job at"):
        handler.next_rendezvous()


def test_nodes_of_one_process_form_a_round(endpoint):
    # The server of a node ends with its handler.
    handlers = [create(endpoint, nodes=2), create(endpoint, nodes=2)]
    infos = join_together(handlers)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"


def test_an_interrupted_node_can_join_again(endpoint):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    first = create(endpoint, nodes=2)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Interrupted):
            first.next_rendezvous()
    finally:
        signal.signal(signal.SIGALRM, before)
    infos = join_together([first, create(endpoint, nodes=2)])
    assert [info.rank for info in infos] == [0, 1]


def test_wrong_arguments_and_missing_nodes_have_torchs_exceptions(endpoint):
    with pytest.raises(ValueError, match="node_unit is \"3\""):
        create(endpoint, nodes=2, node_unit=3)
    with pytest.raises(ValueError, match="the backend rallypoint needs an endpoint"):
        create("")
    with pytest.raises(RendezvousTimeoutError, match="1 of 2 nodes have joined"):
        create(endpoint, nodes=2, join_timeout=5).next_rendezvous()
