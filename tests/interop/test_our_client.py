"""Every operation of our client on torch's two servers and on our own. A torch client checks the results."""

import pytest
import torch.distributed as dist
from clock import REPLY_TIMEOUT, WAIT_TIMEOUT, seconds, wait_until
from driver import OurClient, OurError
from harness import Background
from torch.distributed.elastic.utils import store as elastic

WITH_QUEUES = ["libuv", "ours"]
LONG_TIMEOUT_MS = int(WAIT_TIMEOUT * 1000)  # milliseconds, for operations that must succeed


@pytest.fixture
def our_client(harness):
    with OurClient(harness.server) as client:
        yield client


@pytest.fixture
def torch_client(harness):
    return harness.client()


def fails(name, call, *arguments):
    """Asserts that a call fails with the error `name`, and returns the error's message."""
    with pytest.raises(OurError) as failure:
        call(*arguments)
    assert failure.value.name == name, failure.value
    return failure.value.message


def test_each_client_reads_what_the_other_writes(our_client, torch_client):
    for key, value in {"k": b"v", "ключ": b"\xff\x00", "empty": b"", "": b"nameless"}.items():
        our_client.set(key, value)
        assert torch_client.get(key) == value
        torch_client.set(key, b"theirs " + value)
        assert torch_client.check([key])
        assert our_client.get(key) == b"theirs " + value


def test_a_write_is_visible_when_it_returns(our_client, torch_client):
    for number in range(50):
        our_client.set(f"s{number}", "v")
        assert torch_client.check([f"s{number}"])
        our_client.append(f"a{number}", "v")
        assert torch_client.check([f"a{number}"])
        our_client.multi_set([f"m{number}", f"n{number}"], ["v", "w"])
        assert torch_client.check([f"m{number}", f"n{number}"])


def test_add_counts_together_with_torchs_client(our_client, torch_client):
    assert our_client.add("n", 5) == 5
    assert torch_client.add("n", -7) == -2
    assert our_client.add("n", 2**62) == 2**62 - 2
    assert our_client.get("n") == str(2**62 - 2).encode()
    torch_client.set("n", " 12abc")
    assert torch_client.get("n") == b" 12abc"
    assert our_client.add("n", 1) == 13


def test_add_to_a_value_that_is_not_an_integer_fails_and_the_client_stays_usable(our_client, torch_client):
    our_client.set("k", "abc")
    assert "abc" in fails("NotANumber", our_client.add, "k", 1)
    assert our_client.get("k") == b"abc"
    assert torch_client.get("k") == b"abc"
    assert our_client.add("n", 1) == 1


def test_compare_set_matches_torchs_and_compare_exchange_reports_the_outcome(our_client, torch_client):
    for value in [None, "", "x", "y"]:
        for expected in ["", "x"]:
            for desired in ["", "x", "new"]:
                for client, key in ((our_client, "mine"), (torch_client, "theirs")):
                    torch_client.delete_key(key)
                    if value is not None:
                        torch_client.set(key, value)
                        assert torch_client.get(key) == value.encode()
                ours = our_client.compare_set("mine", expected, desired)
                assert ours == torch_client.compare_set("theirs", expected, desired)
                assert our_client.check(["mine"]) == our_client.check(["theirs"])
    torch_client.delete_key("k")
    assert our_client.compare_exchange("k", "x", "y") == "absent"
    assert our_client.compare_exchange("k", "", "x") == "stored"
    assert our_client.compare_exchange("k", "y", "z") == f"held {b'x'.hex()}"
    assert our_client.compare_exchange("k", "x", "x") == "stored"
    assert torch_client.get("k") == b"x"


def test_check_delete_key_num_keys_and_list_keys_agree_with_torchs_client(our_client, torch_client):
    assert our_client.num_keys() == 0
    assert our_client.list_keys() == []
    torch_client.multi_set(["a", "b", "c"], ["1", "2", "3"])
    assert torch_client.num_keys() == 3
    assert our_client.num_keys() == 3
    assert sorted(our_client.list_keys()) == ["a", "b", "c"]
    assert our_client.check(["a", "b"]) is True
    assert our_client.check(["a", "zz"]) is False
    assert our_client.check([]) is True
    assert our_client.delete_key("a") is True
    assert our_client.delete_key("a") is False
    assert torch_client.check(["a"]) is False
    assert our_client.num_keys() == 2


def test_append_multi_set_and_multi_get_agree_with_torchs_client(our_client, torch_client):
    our_client.append("k", "one")
    torch_client.append("k", "two")
    assert torch_client.get("k") == b"onetwo"
    our_client.append("k", "")
    assert our_client.get("k") == b"onetwo"
    our_client.multi_set(["a", "b"], ["1", ""])
    assert torch_client.multi_get(["b", "a"]) == [b"", b"1"]
    assert our_client.multi_get(["b", "a", "a", "k"]) == [b"", b"1", b"1", b"onetwo"]
    assert our_client.multi_get([]) == []
    assert our_client.has_extended_api() is torch_client.has_extended_api() is True


def test_one_call_carries_10000_keys(our_client, torch_client):
    keys = [f"key{number}" for number in range(10_000)]
    our_client.multi_set(keys, [str(number) for number in range(10_000)])
    assert torch_client.num_keys() == 10_000
    assert our_client.multi_get(keys) == [str(number).encode() for number in range(10_000)]
    assert our_client.check(keys) is True
    our_client.wait(keys)


def test_values_up_to_the_limit_pass_and_larger_ones_are_refused_locally(our_client, torch_client):
    value = bytes(range(256)) * (8 * 2**20 // 256)
    our_client.set("k", value)
    assert torch_client.get("k") == value
    assert our_client.get("k") == value
    fails("TooLarge", our_client.set, "k", value + b"!")
    fails("TooLarge", our_client.set, "k" * 8192, "v")
    assert our_client.get("k") == value


def test_waits_of_either_client_end_when_the_other_sets_the_key(harness, our_client, torch_client):
    waiting = our_client.start("multi_get", "a", "b")
    torch_client.set("b", "2")
    torch_client.set("a", "1")
    assert waiting() == "31 32"
    waiting = our_client.start("get", "c")
    torch_client.add("c", 7)
    assert waiting() == "37"
    # The wait of torch's client ends when our client sets the key.
    theirs = Background(torch_client.get, "d")
    our_client.set("d", "4")
    assert theirs.result() == b"4"


def test_a_timeout_lists_the_present_keys_and_the_client_stays_usable(our_client, torch_client):
    torch_client.set("here", "1")
    assert torch_client.check(["here"])
    message = fails("Timeout", our_client.wait, ["here", "missing"], REPLY_TIMEOUT * 1000)
    assert "missing missing (1 of 2 keys present: here)" in message
    our_client.set_timeout(100)
    assert our_client.timeout() == 100
    fails("Timeout", our_client.get, "missing")
    fails("Timeout", our_client.multi_get, ["here", "missing"])
    our_client.set_timeout(LONG_TIMEOUT_MS)
    torch_client.set("missing", "no more")
    assert our_client.get("missing") == b"no more"
    assert our_client.num_keys() == 2


@pytest.mark.parametrize("harness", WITH_QUEUES, indirect=True)
def test_queues_are_shared_with_torch(our_client, torch_client):
    assert our_client.queue_len("q") == 0
    assert "q" in fails("QueueEmpty", our_client.queue_pop, "q", False)
    our_client.queue_push("q", "one")
    our_client.queue_push("q", "")
    assert torch_client.queue_len("q") == 2
    assert torch_client.queue_pop("q") == b"one"
    assert our_client.queue_pop("q") == b""
    waiting = our_client.start("queue_pop", "q")
    torch_client.queue_push("q", "late")
    assert waiting() == b"late".hex()
    our_client.set_timeout(100)
    fails("Timeout", our_client.queue_pop, "q")
    our_client.set_timeout(LONG_TIMEOUT_MS)
    torch_client.queue_push("q", "again")
    assert our_client.queue_pop("q") == b"again"


@pytest.mark.parametrize("harness", ["legacy"], indirect=True)
def test_a_queue_operation_on_a_server_without_queues_fails_immediately(our_client):
    calls = {
        "queue_push": lambda: our_client.queue_push("q", "x"),
        "queue_len": lambda: our_client.queue_len("q"),
        "queue_pop": lambda: our_client.queue_pop("q"),
    }
    for name, call in calls.items():
        assert f"{name} is not supported by the server at " in fails("Unsupported", call)
        # The client is still usable.
        assert our_client.add("n", 1) > 0


def test_our_client_and_torchs_pass_one_barrier(harness, our_client, torch_client):
    waiting = our_client.start("barrier", "bar", "2")
    torch_client.barrier("bar", 2, seconds(WAIT_TIMEOUT))
    waiting()
    assert "alone" in fails("Timeout", our_client.barrier, "alone", 2, REPLY_TIMEOUT * 1000)
    assert our_client.add("n", 1) == 1


def test_our_prefix_store_and_torchs_pass_one_barrier_with_the_same_keys(harness, torch_client):
    with OurClient(harness.server, "outer", "inner") as our_client:
        theirs = dist.PrefixStore("inner", dist.PrefixStore("outer", torch_client))
        waiting = our_client.start("barrier", "bar", "2")
        theirs.barrier("bar", 2, seconds(WAIT_TIMEOUT))
        waiting()
        assert torch_client.get("outer/inner/bar/num_members") == b"2"
        assert torch_client.get("outer/inner/bar/last_member") == b"1"


def test_our_prefix_store_uses_the_same_keys_as_torchs(harness, torch_client):
    with OurClient(harness.server, "outer", "inner") as our_client:
        theirs = dist.PrefixStore("inner", dist.PrefixStore("outer", torch_client))
        our_client.set("k", "v")
        assert torch_client.get("outer/inner/k") == b"v"
        assert theirs.get("k") == b"v"
        theirs.set("t", "w")
        assert theirs.get("t") == b"w"
        assert sorted(our_client.list_keys()) == sorted(theirs.list_keys()) == ["k", "t"]
        torch_client.set("elsewhere", "1")
        assert torch_client.num_keys() == 3
        assert our_client.num_keys() == 3
        our_client.clone()
        assert our_client.multi_get(["k", "t"]) == [b"v", b"w"]
        assert our_client.delete_key("t") is True
        assert theirs.check(["t"]) is False


def test_a_clone_keeps_timeout_and_data_without_the_original(harness, our_client, torch_client):
    our_client.set_timeout(5000)
    our_client.set("k", "v")
    our_client.clone()
    assert our_client.timeout() == 5000
    assert our_client.get("k") == b"v"


def test_concurrent_adds_of_our_clients_and_torchs_lose_no_update(harness, torch_client):
    clients = [OurClient(harness.server) for _ in range(3)]
    try:
        theirs = [Background(lambda store: [store.add("n", 1) for _ in range(100)], harness.client()) for _ in range(3)]
        for _ in range(100):
            pending = [client.start("add", "n", "1") for client in clients]
            for receive in pending:
                receive()
        for call in theirs:
            call.result()
        assert torch_client.get("n") == b"600"
    finally:
        for client in clients:
            client.__exit__()


def test_synchronize_exchanges_values_with_torchs_helper(harness, our_client, torch_client):
    theirs = Background(elastic.synchronize, torch_client, b"from torch", 0, 2, "sync/", 10)
    assert our_client.synchronize("from us", 1, 2, "sync/") == [b"from torch", b"from us"]
    assert theirs.result() == [b"from torch", b"from us"]
    theirs = Background(elastic.synchronize, torch_client, b"", 1, 2, "turned/", 10)
    assert our_client.synchronize("first", 0, 2, "turned/") == [b"first", b""]
    assert theirs.result() == [b"first", b""]


def test_our_elastic_barrier_and_torchs_helper_pass_together(harness, our_client, torch_client):
    theirs = Background(elastic.barrier, torch_client, 2, "meet/", 10)
    our_client.elastic_barrier("meet/", 1, 2)
    assert theirs.result() is None


def test_the_elastic_barrier_names_the_missing_ranks_on_both_sides(harness, our_client, torch_client):
    # Rank 0 is torch's, rank 1 is ours, and rank 2 never arrives.
    def torchs_rank():
        return elastic.barrier(torch_client, 3, "few/", 1, rank=0, rank_tracing_decoder=str, trace_timeout=3)

    theirs = Background(torchs_rank)
    other = harness.client()
    wait_until("torch's rank to arrive", lambda: other.add("few//num_members", 0) == 1)
    message = fails("Timeout", our_client.elastic_barrier, "few/", 1, 3, 1000)
    assert "2 of 3 ranks arrived, missing: 2" in message
    assert "2" in theirs.result() and "missing" in theirs.result().lower()


def test_a_lost_server_is_reported_by_our_client_and_by_torchs(ours):
    with OurClient(ours.server, timeout=2000) as our_client:
        torch_client = ours.client()
        our_client.set("k", "v")
        with ours.server.frozen():
            waiting, theirs = our_client.start("get", "missing"), Background(torch_client.get, "missing")
            unread = ours.server.unread_connections
            wait_until("both requests to be sent", lambda: unread() == 2, details=unread)
        ours.settle()
        ours.server.kill()
        message = fails("ConnectionLost", waiting)
        assert f"127.0.0.1:{ours.server.port}" in message and "missing" in message
        assert "Did the remote server shutdown or crash?" in theirs.result()
