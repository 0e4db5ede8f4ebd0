"""Older releases of torch: our client on their servers, their clients on our server, and their agents with ours.

By default, the tests run with the oldest release. RALLYPOINT_OLD_TORCH="2.2 2.4 2.6 2.8" selects several releases.
"""

import pytest
from clock import wait_until
from driver import OurClient, OurError
from nodes import OurNode
from old_torch import PROCESS_TIMEOUT, VERSIONS, OldServer, old_torch
from servers import OurServer


@pytest.fixture(params=VERSIONS, scope="module")
def torch(request):
    return old_torch(request.param)


@pytest.fixture(params=["legacy", "libuv"], scope="module")
def server(request, torch):
    server = OldServer(torch, request.param == "libuv")
    yield server
    server.stop()


@pytest.fixture
def our_client(server):
    with OurClient(server) as client:
        yield client


@pytest.fixture
def our_server():
    server = OurServer()
    yield server
    server.stop()


def test_our_client_runs_every_operation_of_an_old_server(server, our_client):
    before = our_client.num_keys()
    our_client.set("k", "v")
    assert our_client.get("k") == b"v"
    assert [our_client.add("n", 5), our_client.add("n", -7)] == [5, -2]
    assert our_client.check(["k", "n"]) and not our_client.check(["k", "absent"])
    assert our_client.compare_set("c", "", "first") == b"first"
    assert our_client.compare_set("c", "other", "second") == b"first"
    assert our_client.compare_exchange("c", "first", "second") == "stored"
    our_client.append("c", " and more")
    our_client.multi_set(["a", "b"], ["1", "2"])
    assert our_client.multi_get(["c", "b", "a"]) == [b"second and more", b"2", b"1"]
    # Our client has stored no key of its own.
    assert our_client.num_keys() == before + 5
    assert our_client.delete_key("a") and not our_client.delete_key("a")
    # After a timeout of 10 s, our client waits another 400 ms for the list of present keys: enough even on a busy machine.
    with pytest.raises(OurError, match="missing absent"):
        our_client.wait(["k", "absent"], 10_000)
    our_client.clone()
    assert our_client.get("k") == b"v"


def test_a_write_to_an_old_server_is_visible_when_it_returns(server, our_client):
    with OurClient(server) as other:
        for number in range(50):
            our_client.set(f"s{number}", "v")
            assert other.check([f"s{number}"])
            our_client.append(f"a{number}", "v")
            assert other.check([f"a{number}"])


def test_a_wait_on_an_old_server_ends_when_another_client_sets_the_key(server, our_client):
    with OurClient(server) as other:
        waiting = our_client.start("get", "awaited")
        other.set("awaited", "v")
        assert waiting() == b"v".hex()


def test_an_operation_that_an_old_server_lacks_fails_immediately_and_the_client_stays_usable(server, our_client):
    before = our_client.num_keys()
    calls = {
        "queue_push": lambda: our_client.queue_push("q", "item"),
        "queue_len": lambda: our_client.queue_len("q"),
        "queue_pop": lambda: our_client.queue_pop("q"),
        "list_keys": our_client.list_keys,
        "barrier": lambda: our_client.barrier("bar", 1),
    }
    for name, call in calls.items():
        if server.supports("queues" if name.startswith("queue") else name):
            call()
            continue
        with pytest.raises(OurError) as failure:
            call()
        assert failure.value.name == "Unsupported", failure.value
        assert f"{name} is not supported by the server at 127.0.0.1:{server.port}" in failure.value.message
        assert our_client.add("after", 1) > 0
    our_client.delete_key("after")
    our_client.delete_key("bar")
    assert our_client.num_keys() == before


def test_an_old_client_gets_the_same_results_from_our_server_as_from_its_own(torch, our_server):
    assert torch.run_operations(our_server.host, our_server.port) == torch.run_operations()


def result(process):
    out, _ = process.communicate(timeout=PROCESS_TIMEOUT)
    return process.returncode, out


def test_old_agents_form_a_job_on_our_server(torch, our_server):
    endpoint = f"{our_server.host}:{our_server.port}"
    command = ("sh", "-c", 'echo "told $RANK of $WORLD_SIZE"')
    processes = [torch.torchrun(endpoint, "job", 2, *command, is_host=0) for _ in range(2)]
    results = [result(process) for process in processes]
    assert [code for code, _ in results] == [0, 0], results
    reports = {line.partition("told ")[2] for _, out in results for line in out.splitlines() if "told " in line}
    assert reports == {"0 of 2", "1 of 2"}


def test_our_node_joins_an_agent_of_torch_2_6_or_newer_and_reports_an_older_agent_as_the_cause(torch, server):
    # The old torch's server hosts the rendezvous, so that our node is the only part of the job that is not the old torch's.
    endpoint = f"{server.host}:{server.port}"
    theirs = torch.torchrun(endpoint, "job", 2, "true", is_host=0)
    try:
        if torch.number >= (2, 6):
            with OurNode(server, "job", (2, 2), command=("true",)) as our_node:
                assert our_node.joined(PROCESS_TIMEOUT).world_size == 2
                assert result(theirs)[0] == 0
                assert our_node.exit_code(PROCESS_TIMEOUT) == 0
            return
        with OurClient(server) as client:
            key = "torch.rendezvous.job"
            # The test polls, because a compare_set wakes no waiter on torch's legacy server. Torch stores the
            # placeholder `Y2FuaW1hZGFt` until the first state is set.
            wait_until("the old agent's state", lambda: client.check([key]) and client.get(key) != b"Y2FuaW1hZGFt", PROCESS_TIMEOUT)
        with OurNode(server, "job", (2, 2)) as our_node:
            assert our_node.exit_code(PROCESS_TIMEOUT) != 0
            log = "".join(our_node.log)
        assert "written by an agent of torch older than 2.6" in log, log
        assert "hint: agents from before and after torch 2.6 can't share a rendezvous" in log, log
        assert "corrupt" not in log
    finally:
        theirs.kill()
        theirs.communicate()
