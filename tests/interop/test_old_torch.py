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
def mine(server):
    with OurClient(server) as client:
        yield client


@pytest.fixture
def ours():
    server = OurServer()
    yield server
    server.stop()


def test_our_client_runs_every_operation_of_an_old_server(server, mine):
    before = mine.num_keys()
    mine.set("k", "v")
    assert mine.get("k") == b"v"
    assert [mine.add("n", 5), mine.add("n", -7)] == [5, -2]
    assert mine.check(["k", "n"]) and not mine.check(["k", "absent"])
    assert mine.compare_set("c", "", "first") == b"first"
    assert mine.compare_set("c", "other", "second") == b"first"
    assert mine.compare_exchange("c", "first", "second") == "stored"
    mine.append("c", " and more")
    mine.multi_set(["a", "b"], ["1", "2"])
    assert mine.multi_get(["c", "b", "a"]) == [b"second and more", b"2", b"1"]
    # Our client has stored no key of its own.
    assert mine.num_keys() == before + 5
    assert mine.delete_key("a") and not mine.delete_key("a")
    with pytest.raises(OurError, match="missing absent"):
        mine.wait(["k", "absent"], 100)
    mine.clone()
    assert mine.get("k") == b"v"


def test_a_write_to_an_old_server_is_visible_when_it_returns(server, mine):
    with OurClient(server) as other:
        for number in range(50):
            mine.set(f"s{number}", "v")
            assert other.check([f"s{number}"])
            mine.append(f"a{number}", "v")
            assert other.check([f"a{number}"])


def test_a_wait_on_an_old_server_ends_when_another_client_sets_the_key(server, mine):
    with OurClient(server) as other:
        waiting = mine.start("get", "awaited")
        other.set("awaited", "v")
        assert waiting() == b"v".hex()


def test_an_operation_that_an_old_server_lacks_fails_immediately_and_the_client_stays_usable(server, mine):
    before = mine.num_keys()
    calls = {
        "queue_push": lambda: mine.queue_push("q", "item"),
        "queue_len": lambda: mine.queue_len("q"),
        "queue_pop": lambda: mine.queue_pop("q"),
        "list_keys": mine.list_keys,
        "barrier": lambda: mine.barrier("bar", 1),
    }
    for name, call in calls.items():
        if server.supports("queues" if name.startswith("queue") else name):
            call()
            continue
        with pytest.raises(OurError) as failure:
            call()
        assert failure.value.name == "Unsupported", failure.value
        assert f"{name} is not supported by the server at 127.0.0.1:{server.port}" in failure.value.message
        assert mine.add("after", 1) > 0
    mine.delete_key("after")
    mine.delete_key("bar")
    assert mine.num_keys() == before


def test_an_old_client_gets_the_same_results_from_our_server_as_from_its_own(torch, ours):
    assert torch.run_operations(ours.host, ours.port) == torch.run_operations()


def result(process):
    out, _ = process.communicate(timeout=PROCESS_TIMEOUT)
    return process.returncode, out


def test_old_agents_form_a_job_on_our_server(torch, ours):
    endpoint = f"{ours.host}:{ours.port}"
    command = ("sh", "-c", 'echo "told $RANK of $WORLD_SIZE"')
    processes = [torch.torchrun(endpoint, "job", 2, *command, is_host=0) for _ in range(2)]
    results = [result(process) for process in processes]
    assert [code for code, _ in results] == [0, 0], results
    reports = {line.partition("told ")[2] for _, out in results for line in out.splitlines() if "told " in line}
    assert reports == {"0 of 2", "1 of 2"}


def test_an_old_agent_and_ours_form_a_job_from_torch_2_6_and_ours_explains_why_not_before(torch, server):
    # The rendezvous is on the old torch's server, so that only one node is ours.
    endpoint = f"{server.host}:{server.port}"
    theirs = torch.torchrun(endpoint, "job", 2, "true", is_host=0)
    try:
        if torch.number >= (2, 6):
            with OurNode(server, "job", (2, 2), command=("true",)) as mine:
                assert mine.joined(PROCESS_TIMEOUT).world_size == 2
                assert result(theirs)[0] == 0
                assert mine.exit_code(PROCESS_TIMEOUT) == 0
            return
        with OurClient(server) as client:
            key = "torch.rendezvous.job"
            # The test polls, because a compare_set wakes no waiter on the oldest legacy servers. Torch stores the value
            # `Y2FuaW1hZGFt` before the first state.
            wait_until("the old agent's state", lambda: client.check([key]) and client.get(key) != b"Y2FuaW1hZGFt", PROCESS_TIMEOUT)
        with OurNode(server, "job", (2, 2)) as mine:
            assert mine.exit_code(PROCESS_TIMEOUT) != 0
            log = "".join(mine.log)
        assert "written by an agent of torch older than 2.6" in log, log
        assert "hint: agents from before and after torch 2.6 can't share a rendezvous" in log, log
        assert "corrupt" not in log
    finally:
        theirs.kill()
        theirs.communicate()
