"""Our client through every operation on torch's two servers and on our own, with a torch client looking on."""

import pytest
import torch.distributed as dist
from clock import ANSWERED, DEADLINE, seconds, until
from driver import OurClient, OurError
from stage import Background
from torch.distributed.elastic.utils import store as elastic

WITH_QUEUES = ["libuv", "ours"]
PATIENT = int(DEADLINE * 1000)  # milliseconds: for what must succeed


@pytest.fixture
def mine(stage):
    with OurClient(stage.server) as client:
        yield client


@pytest.fixture
def torchs(stage):
    return stage.client()


def fails(name, call, *arguments):
    with pytest.raises(OurError) as failure:
        call(*arguments)
    assert failure.value.name == name, failure.value
    return failure.value.message


def test_what_one_writes_the_other_reads(mine, torchs):
    for key, value in {"k": b"v", "ключ": b"\xff\x00", "empty": b"", "": b"nameless"}.items():
        mine.set(key, value)
        assert torchs.get(key) == value
        torchs.set(key, b"theirs " + value)
        assert torchs.check([key])
        assert mine.get(key) == b"theirs " + value


def test_a_write_is_there_when_it_returns(mine, torchs):
    for number in range(50):
        mine.set(f"s{number}", "v")
        assert torchs.check([f"s{number}"])
        mine.append(f"a{number}", "v")
        assert torchs.check([f"a{number}"])
        mine.multi_set([f"m{number}", f"n{number}"], ["v", "w"])
        assert torchs.check([f"m{number}", f"n{number}"])


def test_add_counts_with_torch(mine, torchs):
    assert mine.add("n", 5) == 5
    assert torchs.add("n", -7) == -2
    assert mine.add("n", 2**62) == 2**62 - 2
    assert mine.get("n") == str(2**62 - 2).encode()
    torchs.set("n", " 12abc")
    assert torchs.get("n") == b" 12abc"
    assert mine.add("n", 1) == 13


def test_add_to_what_is_no_number_says_so_and_the_client_goes_on(mine, torchs):
    mine.set("k", "abc")
    assert "abc" in fails("NotANumber", mine.add, "k", 1)
    assert mine.get("k") == b"abc"
    assert torchs.get("k") == b"abc"
    assert mine.add("n", 1) == 1


def test_compare_set_as_torch_has_it_and_plainly(mine, torchs):
    for held in [None, "", "x", "y"]:
        for expected in ["", "x"]:
            for desired in ["", "x", "new"]:
                for client, key in ((mine, "mine"), (torchs, "theirs")):
                    torchs.delete_key(key)
                    if held is not None:
                        torchs.set(key, held)
                        assert torchs.get(key) == held.encode()
                assert mine.compare_set("mine", expected, desired) == torchs.compare_set("theirs", expected, desired)
                assert mine.check(["mine"]) == mine.check(["theirs"])
    torchs.delete_key("k")
    assert mine.compare_exchange("k", "x", "y") == "absent"
    assert mine.compare_exchange("k", "", "x") == "stored"
    assert mine.compare_exchange("k", "y", "z") == f"held {b'x'.hex()}"
    assert mine.compare_exchange("k", "x", "x") == "stored"
    assert torchs.get("k") == b"x"


def test_check_delete_count_and_list(mine, torchs):
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


def test_append_and_the_operations_on_many_keys(mine, torchs):
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


def test_ten_thousand_keys_in_one_call(mine, torchs):
    keys = [f"key{number}" for number in range(10_000)]
    mine.multi_set(keys, [str(number) for number in range(10_000)])
    assert torchs.num_keys() == 10_000
    assert mine.multi_get(keys) == [str(number).encode() for number in range(10_000)]
    assert mine.check(keys) is True
    mine.wait(keys)


def test_large_values_pass_and_larger_ones_are_not_even_sent(mine, torchs):
    value = bytes(range(256)) * (8 * 2**20 // 256)
    mine.set("k", value)
    assert torchs.get("k") == value
    assert mine.get("k") == value
    fails("TooLarge", mine.set, "k", value + b"!")
    fails("TooLarge", mine.set, "k" * 8192, "v")
    assert mine.get("k") == value


def test_waits_end_when_torch_sets_the_key(stage, mine, torchs):
    waiting = mine.later("multi_get", "a", "b")
    torchs.set("b", "2")
    torchs.set("a", "1")
    assert waiting() == "31 32"
    waiting = mine.later("get", "c")
    torchs.add("c", 7)
    assert waiting() == "37"
    # And the other way.
    theirs = Background(torchs.get, "d")
    mine.set("d", "4")
    assert theirs.result() == b"4"


def test_a_time_out_says_what_was_there_and_the_client_goes_on(mine, torchs):
    torchs.set("here", "1")
    assert torchs.check(["here"])
    message = fails("Timeout", mine.wait, ["here", "missing"], ANSWERED * 1000)
    assert "missing missing (1 of 2 keys there: here)" in message
    mine.set_timeout(100)
    assert mine.timeout() == 100
    fails("Timeout", mine.get, "missing")
    fails("Timeout", mine.multi_get, ["here", "missing"])
    mine.set_timeout(PATIENT)
    torchs.set("missing", "no more")
    assert mine.get("missing") == b"no more"
    assert mine.num_keys() == 2


@pytest.mark.parametrize("stage", WITH_QUEUES, indirect=True)
def test_queues_are_shared_with_torch(mine, torchs):
    assert mine.queue_len("q") == 0
    assert "q" in fails("QueueEmpty", mine.queue_pop, "q", False)
    mine.queue_push("q", "one")
    mine.queue_push("q", "")
    assert torchs.queue_len("q") == 2
    assert torchs.queue_pop("q") == b"one"
    assert mine.queue_pop("q") == b""
    waiting = mine.later("queue_pop", "q")
    torchs.queue_push("q", "late")
    assert waiting() == b"late".hex()
    mine.set_timeout(100)
    fails("Timeout", mine.queue_pop, "q")
    mine.set_timeout(PATIENT)
    torchs.queue_push("q", "again")
    assert mine.queue_pop("q") == b"again"


@pytest.mark.parametrize("stage", ["legacy"], indirect=True)
def test_a_server_without_queues_is_an_error_and_not_a_hang(mine):
    calls = {
        "queue_push": lambda: mine.queue_push("q", "x"),
        "queue_len": lambda: mine.queue_len("q"),
        "queue_pop": lambda: mine.queue_pop("q"),
    }
    for name, call in calls.items():
        assert f"{name} is not supported by the server at " in fails("Unsupported", call)
        # And the client is usable all the same.
        assert mine.add("n", 1) > 0


def test_barriers_meet_torchs(stage, mine, torchs):
    waiting = mine.later("barrier", "bar", "2")
    torchs.barrier("bar", 2, seconds(DEADLINE))
    waiting()
    assert "alone" in fails("Timeout", mine.barrier, "alone", 2, ANSWERED * 1000)
    assert mine.add("n", 1) == 1


def test_the_barrier_of_a_prefix_store_meets_torchs_at_the_same_keys(stage, torchs):
    with OurClient(stage.server, "outer", "inner") as mine:
        theirs = dist.PrefixStore("inner", dist.PrefixStore("outer", torchs))
        waiting = mine.later("barrier", "bar", "2")
        theirs.barrier("bar", 2, seconds(DEADLINE))
        waiting()
        assert torchs.get("outer/inner/bar/num_members") == b"2"
        assert torchs.get("outer/inner/bar/last_member") == b"1"


def test_prefixes_are_torchs_prefixes(stage, torchs):
    with OurClient(stage.server, "outer", "inner") as mine:
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


def test_a_clone_goes_on_alone(stage, mine, torchs):
    mine.set_timeout(5000)
    mine.set("k", "v")
    mine.clone()
    assert mine.timeout() == 5000
    assert mine.get("k") == b"v"


def test_many_of_ours_and_torchs_count_together(stage, torchs):
    clients = [OurClient(stage.server) for _ in range(3)]
    try:
        theirs = [Background(lambda store: [store.add("n", 1) for _ in range(100)], stage.client()) for _ in range(3)]
        for _ in range(100):
            answers = [client.later("add", "n", "1") for client in clients]
            for answer in answers:
                answer()
        for each in theirs:
            each.result()
        assert torchs.get("n") == b"600"
    finally:
        for client in clients:
            client.__exit__()


def test_synchronize_exchanges_with_torchs_helper(stage, mine, torchs):
    theirs = Background(elastic.synchronize, torchs, b"from torch", 0, 2, "sync/", 10)
    assert mine.synchronize("from us", 1, 2, "sync/") == [b"from torch", b"from us"]
    assert theirs.result() == [b"from torch", b"from us"]
    theirs = Background(elastic.synchronize, torchs, b"", 1, 2, "turned/", 10)
    assert mine.synchronize("first", 0, 2, "turned/") == [b"first", b""]
    assert theirs.result() == [b"first", b""]


def test_the_elastic_barrier_meets_torchs_helper(stage, mine, torchs):
    theirs = Background(elastic.barrier, torchs, 2, "meet/", 10)
    mine.meet("meet/", 1, 2)
    assert theirs.result() is None


def test_the_elastic_barrier_names_who_is_missing_on_both_sides(stage, mine, torchs):
    # Of three, rank 0 is torch's, rank 1 is ours, and rank 2 never comes.
    def torchs_rank():
        return elastic.barrier(torchs, 3, "few/", 1, rank=0, rank_tracing_decoder=str, trace_timeout=3)

    theirs = Background(torchs_rank)
    other = stage.client()
    until("torch's to come", lambda: other.add("few//num_members", 0) == 1)
    message = fails("Timeout", mine.meet, "few/", 1, 3, 1000)
    assert "2 of 3 ranks arrived, missing: 2" in message
    assert "2" in theirs.result() and "missing" in theirs.result().lower()


def test_a_server_that_goes_away_is_named_by_ours_as_by_torchs_client(ours):
    with OurClient(ours.server, timeout=2000) as mine:
        torchs = ours.client()
        mine.set("k", "v")
        with ours.server.frozen():
            waiting, theirs = mine.later("get", "missing"), Background(torchs.get, "missing")
            until("both requests", lambda: ours.server.unread() == 2, instead=ours.server.unread)
        ours.settle()
        ours.server.kill()
        message = fails("ConnectionLost", waiting)
        assert f"127.0.0.1:{ours.server.port}" in message and "missing" in message
        assert "Did the remote server shutdown or crash?" in theirs.result()
