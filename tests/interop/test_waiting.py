"""Waits of torch's client that end, time out or are canceled, and later use of the connection."""

import itertools

from clock import WAIT_TIMEOUT, ms, seconds
from harness import Background, on_both_servers
from torch.distributed.elastic.utils.store import store_timeout


@on_both_servers
def test_a_wait_that_times_out_names_all_its_keys_and_the_connection_stays_usable(harness):
    store = harness.client()
    store.set("k", "v")
    with store_timeout(store, 0.1):
        harness.call(store.get, "missing")
    harness.call(store.get, "k")
    with store_timeout(store, 0.1):
        harness.call(store.wait, ["missing"])
    harness.call(store.wait, ["k", "missing"], ms(50))
    harness.call(store.wait, ["missing", "k"], ms(50))
    with store_timeout(store, 0.1):
        harness.call(store.multi_get, ["k", "missing"])
        harness.call(store.queue_pop, "q")
    harness.call(store.wait, ["k"])
    harness.call(store.wait, [])
    harness.call(store.wait, ["", "ключ"], ms(50))
    harness.call(store.set, "missing", "now here")
    harness.call(store.get, "missing")


@on_both_servers
def test_a_timeout_of_zero_expires_immediately(harness):
    store = harness.client()
    store.set_timeout(ms(0))
    harness.call(store.get, "missing")
    harness.call(store.check, ["missing"])
    harness.record("timeout", store.timeout)


@on_both_servers
def test_every_operation_that_creates_a_key_ends_a_wait_for_it(harness):
    other = harness.client()
    makers = {
        "set": lambda key: other.set(key, "v"),
        "set of nothing": lambda key: other.set(key, ""),
        "add": lambda key: other.add(key, 3),
        "compare_set": lambda key: other.compare_set(key, "", "v"),
        "append": lambda key: other.append(key, "v"),
        "multi_set": lambda key: other.multi_set(["else", key], ["1", "v"]),
    }
    for key, make in makers.items():
        store, wait_for_request = harness.watched_client()
        waiting = Background(store.get, key)
        wait_for_request()
        make(key)
        harness.record(key, waiting.result())


@on_both_servers
def test_a_wait_for_several_keys_ends_with_the_last_key_in_any_order(harness):
    other = harness.client()
    for number, order in enumerate(itertools.permutations("abc")):
        keys = [f"{number}{name}" for name in "abc"]
        store, wait_for_request = harness.watched_client()
        waiting = Background(store.multi_get, keys)
        wait_for_request()
        for name in order:
            assert not waiting.is_done()
            other.set(f"{number}{name}", name)
        harness.record(order, waiting.result())


@on_both_servers
def test_a_key_named_twice_in_a_wait_is_waited_for_once(harness):
    store, wait_for_request = harness.watched_client()
    waiting = Background(store.wait, ["k", "k"], seconds(WAIT_TIMEOUT))
    wait_for_request()
    harness.client().set("k", "v")
    harness.record("waited", waiting.result())
    harness.call(store.num_keys)


@on_both_servers
def test_many_clients_waiting_for_one_key_are_all_woken(harness):
    waiting = [Background(harness.client().get, "go") for _ in range(20)]
    harness.client().set("go", "gone")
    harness.record("all", [each.result() for each in waiting])


@on_both_servers
def test_a_client_whose_wait_was_canceled_is_not_woken_later(harness):
    store, other = harness.client(), harness.client()
    with store_timeout(store, 0.05):
        for _ in range(3):
            harness.call(store.get, "k")
    other.set("k", "v")
    # If the server woke the client, the client would take the wake-up for the reply to one of these requests.
    harness.call(store.add, "n", 2**40 + 1)
    harness.call(store.check, ["absent"])
    harness.call(store.get, "k")


@on_both_servers
def test_a_wake_up_that_crosses_the_cancel_is_ignored(harness):
    store, other = harness.client(), harness.client()
    for round in range(30):
        # The key is set at about the moment of the timeout. Either event may be first, and the connection must stay
        # usable in both cases.
        waiting = Background(store.wait, [f"k{round}"], ms(3))
        harness.client().set(f"k{round}", "v") if round % 2 else other.add(f"k{round}", 1)
        waiting.result()
        assert store.add("n", 1) == round + 1
    harness.call(store.get, "n")


@on_both_servers
def test_a_wait_for_a_deleted_key_times_out(harness):
    other = harness.client()
    other.set("k", "v")
    other.delete_key("k")
    harness.call(harness.client().wait, ["k"], ms(50))


@on_both_servers
def test_a_client_that_disconnects_during_a_wait_does_not_disturb_other_clients(harness):
    other = harness.client()
    for _ in range(5):
        with harness.raw() as raw:
            raw.send_request("wait", ["/k", "/zz"])
            raw.settle()
    store, wait_for_request = harness.watched_client()
    waiting = Background(store.get, "k")
    wait_for_request()
    harness.call(other.set, "k", "v")
    harness.record("woken", waiting.result())
    harness.call(other.num_keys)
