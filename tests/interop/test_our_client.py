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
def mine(harness):
    with OurClient(harness.server) as client:
        yield client


@pytest.fixture
def torchs(harness):
    return harness.client()


def fails(name, call, *arguments):
    with pytest.raises(OurError) as failure:
        call(*arguments)
    assert failure.value.name == name, failure.value
    return failure.value.message


def test_each_client_reads_what_the_other_writes(mine, torchs):
    for key, value in {"k": b"v", "ключ": b"\xff\x00", "empty": b"", "": b"nameless"}.items():
        mine.set(key, value)
        assert torchs.get(key) == value
        torchs.set(key, b"theirs " + value)
        assert torchs.check([key])
        assert mine.get(key) == b"theirs " + value


def test_a_write_is_visible_when_it_returns(mine, torchs):
    for number in range(50):
        mine.set(f"s{number}", "v")
        assert torchs.check([f"s{number}"])
        mine.append(f"a{number}", "v")
        assert torchs.check([f"a{number}"])
        mine.multi_set([f"m{number}", f"n{number}"], ["v", "w"])
        assert torchs.check([f"m{number}", f"n{number}"])


def test_add_counts_together_with_torchs_client(mine, torchs):
    assert mine.add("n", 5) == 5
    assert torchs.add("n", -7) == -2
    assert mine.add("n", 2**62) == 2**62 - 2
    assert mine.get("n") == str(2**62 - 2).encode()
    torchs.set("n", " 12abc")
    assert torchs.get("n") == b" 12abc"
    assert mine.add("n", 1) == 13


def test_add_to_a_value_that_is_not_an_integer_fails_and_the_client_stays_usable(mine, torchs):
    mine.set("k", "abc")
    assert "abc" in fails("NotANumber", mine.add, "k", 1)
    assert mine.get("k") == b"abc"
    assert torchs.get("k") == b"abc"
    assert mine.add("n", 1) == 1


def test_compare_set_matches_torchs_and_compare_exchange_reports_the_outcome(mine, torchs):
    for value in [None, "", "x", "y"]:
        for expected in ["", "x"]:
            for desired in ["", "x", "new"]:
                for client, key in ((mine, "mine"), (torchs, "theirs")):
                    torchs.delete_key(key)
                    if value is not None:
                        torchs.set(key, value)
                        assert torchs.get(key) == value.encode()
                assert mine.compare_set("mine", expected, desired) == torchs.compare_set("theirs", expected, desired)
                assert mine.check(["mine"]) == mine.check(["theirs"])
    torchs.delete_key("k")
    assert mine.compare_exchange("k", "x", "y") == "absent"
    assert mine.compare_exchange("k", "", "x") == "stored"
    assert mine.compare_exchange("k", "y", "z") == f"held {b'x'.hex()}"
    assert mine.compare_exchange("k", "x", "x") == "stored"
    assert torchs.get("k") == b"x"


def test_check_delete_key_num_keys_and_list_keys_agree_with_torchs_client(mine, torchs):
    assert mine.num_keys() == 0
    assert mine.list_keys() == []
    torchs.multi_set(["a", "b", "c"], ["1", "2", "3"])
    assert torchs.num_keys() == 3
    assert mine.num_keys() == 3
    assert sorted(mine.list_keys()) == ["a", "b", "c"]
    assert mine.check(["a", "b"]) is True
    assert mine.check(["a", "zz"]) is False
    assert mine.check([]) is True
    assert mine.delete_key("a") is True
    assert mine.delete_key("a") is False
    assert torchs.check(["a"]) is False
    assert mine.num_keys() == 2


def test_append_multi_set_and_multi_get_agree_with_torchs_client(mine, torchs):
    mine.append("k", "one")
    torchs.append("k", "two")
    assert torchs.get("k") == b"onetwo"
    mine.append("k", "")
    assert mine.get("k") == b"onetwo"
    mine.multi_set(["a", "b"], ["1", ""])
    assert torchs.multi_get(["b", "a"]) == [b"", b"1"]
    assert mine.multi_get(["b", "a", "a", "k"]) == [b"", b"1", b"1", b"onetwo"]
    assert mine.multi_get([]) == []
    assert mine.has_extended_api() is torchs.has_extended_api() is True


def test_one_call_carries_10000_keys(mine, torchs):
    keys = [f"key{number}" for number in range(10_000)]
    mine.multi_set(keys, [str(number) for number in range(10_000)])
    assert torchs.num_keys() == 10_000
    assert mine.multi_get(keys) == [str(number).encode() for number in range(10_000)]
    assert mine.check(keys) is True
    mine.wait(keys)


def test_values_up_to_the_limit_pass_and_larger_ones_are_refused_locally(mine, torchs):
    value = bytes(range(256)) * (8 * 2**20 // 256)
    mine.set("k", value)
    assert torchs.get("k") == value
    assert mine.get("k") == value
    fails("TooLarge", mine.set, "k", value + b"!")
    fails("TooLarge", mine.set, "k" * 8192, "v")
    assert mine.get("k") == value


def test_waits_end_when_torch_sets_the_key(harness, mine, torchs):
    waiting = mine.start("multi_get", "a", "b")
    torchs.set("b", "2")
    torchs.set("a", "1")
    assert waiting() == "31 32"
    waiting = mine.start("get", "c")
    torchs.add("c", 7)
    assert waiting() == "37"
    # Torch's wait ends when our client sets the key.
    theirs = Background(torchs.get, "d")
    mine.set("d", "4")
    assert theirs.result() == b"4"


def test_a_timeout_lists_the_present_keys_and_the_client_stays_usable(mine, torchs):
    torchs.set("here", "1")
    assert torchs.check(["here"])
    message = fails("Timeout", mine.wait, ["here", "missing"], REPLY_TIMEOUT * 1000)
    assert "missing missing (1 of 2 keys there: here)" in message
    mine.set_timeout(100)
    assert mine.timeout() == 100
    fails("Timeout", mine.get, "missing")
    fails("Timeout", mine.multi_get, ["here", "missing"])
    mine.set_timeout(LONG_TIMEOUT_MS)
    torchs.set("missing", "no more")
    assert mine.get("missing") == b"no more"
    assert mine.num_keys() == 2


@pytest.mark.parametrize("harness", WITH_QUEUES, indirect=True)
def test_queues_are_shared_with_torch(mine, torchs):
    assert mine.queue_len("q") == 0
    assert "q" in fails("QueueEmpty", mine.queue_pop, "q", False)
    mine.queue_push("q", "one")
    mine.queue_push("q", "")
    assert torchs.queue_len("q") == 2
    assert torchs.queue_pop("q") == b"one"
    assert mine.queue_pop("q") == b""
    waiting = mine.start("queue_pop", "q")
    torchs.queue_push("q", "late")
    assert waiting() == b"late".hex()
    mine.set_timeout(100)
    fails("Timeout", mine.queue_pop, "q")
    mine.set_timeout(LONG_TIMEOUT_MS)
    torchs.queue_push("q", "again")
    assert mine.queue_pop("q") == b"again"


@pytest.mark.parametrize("harness", ["legacy"], indirect=True)
def test_a_queue_operation_on_a_server_without_queues_fails_immediately(mine):
    calls = {
        "queue_push": lambda: mine.queue_push("q", "x"),
        "queue_len": lambda: mine.queue_len("q"),
        "queue_pop": lambda: mine.queue_pop("q"),
    }
    for name, call in calls.items():
        assert f"{name} is not supported by the server at " in fails("Unsupported", call)
        # The client is still usable.
        assert mine.add("n", 1) > 0


def test_our_client_and_torchs_pass_one_barrier(harness, mine, torchs):
    waiting = mine.start("barrier", "bar", "2")
    torchs.barrier("bar", 2, seconds(WAIT_TIMEOUT))
    waiting()
    assert "alone" in fails("Timeout", mine.barrier, "alone", 2, REPLY_TIMEOUT * 1000)
    assert mine.add("n", 1) == 1


def test_our_prefix_store_and_torchs_pass_one_barrier_with_the_same_keys(harness, torchs):
    with OurClient(harness.server, "outer", "inner") as mine:
        theirs = dist.PrefixStore("inner", dist.PrefixStore("outer", torchs))
        waiting = mine.start("barrier", "bar", "2")
        theirs.barrier("bar", 2, seconds(WAIT_TIMEOUT))
        waiting()
        assert torchs.get("outer/inner/bar/num_members") == b"2"
        assert torchs.get("outer/inner/bar/last_member") == b"1"


def test_our_prefix_store_uses_the_same_keys_as_torchs(harness, torchs):
    with OurClient(harness.server, "outer", "inner") as mine:
        theirs = dist.PrefixStore("inner", dist.PrefixStore("outer", torchs))
        mine.set("k", "v")
        assert torchs.get("outer/inner/k") == b"v"
        assert theirs.get("k") == b"v"
        theirs.set("t", "w")
        assert theirs.get("t") == b"w"
        assert sorted(mine.list_keys()) == sorted(theirs.list_keys()) == ["k", "t"]
        torchs.set("elsewhere", "1")
        assert torchs.num_keys() == 3
        assert mine.num_keys() == 3
        mine.clone()
        assert mine.multi_get(["k", "t"]) == [b"v", b"w"]
        assert mine.delete_key("t") is True
        assert theirs.check(["t"]) is False


def test_a_clone_keeps_timeout_and_data_without_the_original(harness, mine, torchs):
    mine.set_timeout(5000)
    mine.set("k", "v")
    mine.clone()
    assert mine.timeout() == 5000
    assert mine.get("k") == b"v"


def test_concurrent_adds_of_our_clients_and_torchs_lose_no_update(harness, torchs):
    clients = [OurClient(harness.server) for _ in range(3)]
    try:
        theirs = [Background(lambda store: [store.add("n", 1) for _ in range(100)], harness.client()) for _ in range(3)]
        for _ in range(100):
            pending = [client.start("add", "n", "1") for client in clients]
            for receive in pending:
                receive()
        for call in theirs:
            call.result()
        assert torchs.get("n") == b"600"
    finally:
        for client in clients:
            client.__exit__()


def test_synchronize_exchanges_with_torchs_helper(harness, mine, torchs):
    theirs = Background(elastic.synchronize, torchs, b"from torch", 0, 2, "sync/", 10)
    assert mine.synchronize("from us", 1, 2, "sync/") == [b"from torch", b"from us"]
    assert theirs.result() == [b"from torch", b"from us"]
    theirs = Background(elastic.synchronize, torchs, b"", 1, 2, "turned/", 10)
    assert mine.synchronize("first", 0, 2, "turned/") == [b"first", b""]
    assert theirs.result() == [b"first", b""]


def test_our_elastic_barrier_and_torchs_helper_pass_together(harness, mine, torchs):
    theirs = Background(elastic.barrier, torchs, 2, "meet/", 10)
    mine.elastic_barrier("meet/", 1, 2)
    assert theirs.result() is None


def test_the_elastic_barrier_names_the_missing_ranks_on_both_sides(harness, mine, torchs):
    # Rank 0 is torch's, rank 1 is ours, and rank 2 never arrives.
    def torchs_rank():
        return elastic.barrier(torchs, 3, "few/", 1, rank=0, rank_tracing_decoder=str, trace_timeout=3)

    theirs = Background(torchs_rank)
    other = harness.client()
    wait_until("torch's rank to arrive", lambda: other.add("few//num_members", 0) == 1)
    message = fails("Timeout", mine.elastic_barrier, "few/", 1, 3, 1000)
    assert "2 of 3 ranks arrived, missing: 2" in message
    assert "2" in theirs.result() and "missing" in theirs.result().lower()


def test_a_lost_server_is_reported_by_our_client_and_by_torchs(ours):
    with OurClient(ours.server, timeout=2000) as mine:
        torchs = ours.client()
        mine.set("k", "v")
        with ours.server.frozen():
            waiting, theirs = mine.start("get", "missing"), Background(torchs.get, "missing")
            wait_until("both requests to be sent", lambda: ours.server.unread() == 2, details=ours.server.unread)
        ours.settle()
        ours.server.kill()
        message = fails("ConnectionLost", waiting)
        assert f"127.0.0.1:{ours.server.port}" in message and "missing" in message
        assert "Did the remote server shutdown or crash?" in theirs.result()
