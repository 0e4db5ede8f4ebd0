"""Queues of torch's client, on torch's own server and on ours."""

from clock import ms
from harness import on_both_servers
from torch.distributed.elastic.utils.store import store_timeout


@on_both_servers
def test_items_are_popped_in_the_order_of_the_pushes(harness):
    store, other = harness.client(), harness.client()
    for item in ["one", "", "three", b"\xff\x00"]:
        harness.call(store.queue_push, "q", item)
    harness.settle()
    harness.call(other.queue_len, "q")
    harness.call(other.queue_pop, "q")
    harness.call(store.queue_pop, "q", block=False)
    harness.call(store.queue_pop, "q", False)
    harness.call(other.queue_len, "q")
    harness.call(other.queue_pop, "q")
    harness.call(store.queue_len, "q")


@on_both_servers
def test_an_empty_queue_raises_or_times_out(harness):
    store = harness.client()
    harness.call(store.queue_len, "q")
    harness.call(store.queue_pop, "q", block=False)
    with store_timeout(store, 0.05):
        harness.call(store.queue_pop, "q")
    harness.call(store.queue_push, "q", "item")
    harness.call(store.queue_pop, "q")
    harness.call(store.queue_pop, "q", block=False)
    with store_timeout(store, 0.05):
        harness.call(store.queue_pop, "q", block=True)


@on_both_servers
def test_a_queue_is_not_counted_as_a_key_but_check_finds_it(harness):
    store = harness.client()
    store.queue_push("q", "item")
    harness.call(store.num_keys)
    harness.call(store.list_keys)
    harness.call(store.check, ["q"])
    harness.call(store.wait, ["q"])
    harness.call(store.get, "q")
    harness.call(store.delete_key, "q")
    harness.call(store.queue_len, "q")
    store.queue_pop("q")
    harness.call(store.check, ["q"])
    harness.call(store.wait, ["q"], ms(50))


@on_both_servers
def test_a_key_and_a_queue_can_have_the_same_name(harness):
    store = harness.client()
    store.queue_push("q", "item")
    harness.call(store.set, "q", "value")
    harness.call(store.get, "q")
    harness.call(store.queue_len, "q")
    harness.call(store.append, "q", "+")
    harness.call(store.compare_set, "q", "value+", "new")
    harness.call(store.queue_pop, "q")
    harness.call(store.check, ["q"])
    # The wait of `queue_pop` ends because the key exists, but the queue is empty.
    harness.call(store.queue_pop, "q")
    harness.call(store.queue_pop, "q", block=False)
    harness.call(store.delete_key, "q")
    harness.call(store.check, ["q"])
    store.queue_push("n", "5")
    harness.call(store.add, "n", 1)
    harness.call(store.queue_pop, "n")


@on_both_servers
def test_each_push_wakes_one_waiter_in_the_order_of_the_waits(harness):
    store = harness.client()
    with harness.raw() as first, harness.raw() as second:
        for raw in (first, second):
            raw.send_request("wait", ["/q"])
            raw.settle()
        store.queue_push("q", "one")
        harness.record("first", first.receive(1))
        first.send_request("queue_pop", "/q")
        harness.record("first pops", (first.receive_number(), first.receive_text()))
        store.queue_push("q", "two")
        harness.record("second", second.receive(1))
        second.send_request("queue_pop", "/q")
        harness.record("second pops", (second.receive_number(), second.receive_text()))


@on_both_servers
def test_a_queue_keeps_1000_items(harness):
    store = harness.client()
    for number in range(1000):
        store.queue_push("q", str(number))
    harness.call(store.queue_len, "q")
    harness.record("all", [store.queue_pop("q", block=False) for _ in range(1000)])
    harness.call(store.queue_len, "q")
