"""Queues through torch's client."""

from clock import ms
from stage import on_both
from torch.distributed.elastic.utils.store import store_timeout


@on_both
def test_items_come_out_in_the_order_they_went_in(stage):
    store, other = stage.client(), stage.client()
    for item in ["one", "", "three", b"\xff\x00"]:
        stage.see(store.queue_push, "q", item)
    stage.settle()
    stage.see(other.queue_len, "q")
    stage.see(other.queue_pop, "q")
    stage.see(store.queue_pop, "q", block=False)
    stage.see(store.queue_pop, "q", False)
    stage.see(other.queue_len, "q")
    stage.see(other.queue_pop, "q")
    stage.see(store.queue_len, "q")


@on_both
def test_an_empty_queue_raises_or_times_out(stage):
    store = stage.client()
    stage.see(store.queue_len, "q")
    stage.see(store.queue_pop, "q", block=False)
    with store_timeout(store, 0.05):
        stage.see(store.queue_pop, "q")
    stage.see(store.queue_push, "q", "item")
    stage.see(store.queue_pop, "q")
    stage.see(store.queue_pop, "q", block=False)
    with store_timeout(store, 0.05):
        stage.see(store.queue_pop, "q", block=True)


@on_both
def test_a_queue_is_no_key_but_counts_as_present(stage):
    store = stage.client()
    store.queue_push("q", "item")
    stage.see(store.num_keys)
    stage.see(store.list_keys)
    stage.see(store.check, ["q"])
    stage.see(store.wait, ["q"])
    stage.see(store.get, "q")
    stage.see(store.delete_key, "q")
    stage.see(store.queue_len, "q")
    store.queue_pop("q")
    stage.see(store.check, ["q"])
    stage.see(store.wait, ["q"], ms(50))


@on_both
def test_a_key_and_a_queue_of_one_name_live_side_by_side(stage):
    store = stage.client()
    store.queue_push("q", "item")
    stage.see(store.set, "q", "value")
    stage.see(store.get, "q")
    stage.see(store.queue_len, "q")
    stage.see(store.append, "q", "+")
    stage.see(store.compare_set, "q", "value+", "new")
    stage.see(store.queue_pop, "q")
    stage.see(store.check, ["q"])
    # The wait is over as the key is there; the queue is empty all the same.
    stage.see(store.queue_pop, "q")
    stage.see(store.queue_pop, "q", block=False)
    stage.see(store.delete_key, "q")
    stage.see(store.check, ["q"])
    store.queue_push("n", "5")
    stage.see(store.add, "n", 1)
    stage.see(store.queue_pop, "n")


@on_both
def test_a_push_wakes_one_waiter_and_the_next_push_the_next(stage):
    store = stage.client()
    with stage.raw() as first, stage.raw() as second:
        for raw in (first, second):
            raw.ask("wait", ["/q"])
            raw.settle()
        store.queue_push("q", "one")
        stage.note("first", first.receive(1))
        first.ask("queue_pop", "/q")
        stage.note("first pops", (first.receive_number(), first.receive_text()))
        store.queue_push("q", "two")
        stage.note("second", second.receive(1))
        second.ask("queue_pop", "/q")
        stage.note("second pops", (second.receive_number(), second.receive_text()))


@on_both
def test_a_queue_with_a_thousand_items_keeps_them_all(stage):
    store = stage.client()
    for number in range(1000):
        store.queue_push("q", str(number))
    stage.see(store.queue_len, "q")
    stage.note("all", [store.queue_pop("q", block=False) for _ in range(1000)])
    stage.see(store.queue_len, "q")
