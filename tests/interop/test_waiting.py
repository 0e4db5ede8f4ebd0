"""Waits of torch's client: satisfied, timed out, cancelled, and the connection used again."""

import itertools

from clock import DEADLINE, ms, seconds
from stage import Background, on_both
from torch.distributed.elastic.utils.store import store_timeout


@on_both
def test_a_wait_that_times_out_names_all_its_keys_and_leaves_the_connection_usable(stage):
    store = stage.client()
    store.set("k", "v")
    with store_timeout(store, 0.1):
        stage.see(store.get, "missing")
    stage.see(store.get, "k")
    with store_timeout(store, 0.1):
        stage.see(store.wait, ["missing"])
    stage.see(store.wait, ["k", "missing"], ms(50))
    stage.see(store.wait, ["missing", "k"], ms(50))
    with store_timeout(store, 0.1):
        stage.see(store.multi_get, ["k", "missing"])
        stage.see(store.queue_pop, "q")
    stage.see(store.wait, ["k"])
    stage.see(store.wait, [])
    stage.see(store.wait, ["", "ключ"], ms(50))
    stage.see(store.set, "missing", "now here")
    stage.see(store.get, "missing")


@on_both
def test_a_time_out_of_zero_is_at_once(stage):
    store = stage.client()
    store.set_timeout(ms(0))
    stage.see(store.get, "missing")
    stage.see(store.check, ["missing"])
    stage.note("timeout", store.timeout)


@on_both
def test_every_way_of_making_a_key_ends_a_wait_for_it(stage):
    other = stage.client()
    makers = {
        "set": lambda key: other.set(key, "v"),
        "set of nothing": lambda key: other.set(key, ""),
        "add": lambda key: other.add(key, 3),
        "compare_set": lambda key: other.compare_set(key, "", "v"),
        "append": lambda key: other.append(key, "v"),
        "multi_set": lambda key: other.multi_set(["else", key], ["1", "v"]),
    }
    for key, make in makers.items():
        store, has_asked = stage.watched_client()
        waiting = Background(store.get, key)
        has_asked()
        make(key)
        stage.note(key, waiting.result())


@on_both
def test_a_wait_for_many_keys_ends_with_the_last_whatever_the_order(stage):
    other = stage.client()
    for number, order in enumerate(itertools.permutations("abc")):
        keys = [f"{number}{name}" for name in "abc"]
        store, has_asked = stage.watched_client()
        waiting = Background(store.multi_get, keys)
        has_asked()
        for name in order:
            assert not waiting.is_done()
            other.set(f"{number}{name}", name)
        stage.note(order, waiting.result())


@on_both
def test_a_key_named_twice_in_a_wait_is_waited_for_once(stage):
    store, has_asked = stage.watched_client()
    waiting = Background(store.wait, ["k", "k"], seconds(DEADLINE))
    has_asked()
    stage.client().set("k", "v")
    stage.note("waited", waiting.result())
    stage.see(store.num_keys)


@on_both
def test_many_clients_waiting_for_one_key_are_all_woken(stage):
    waiting = [Background(stage.client().get, "go") for _ in range(20)]
    stage.client().set("go", "gone")
    stage.note("all", [each.result() for each in waiting])


@on_both
def test_a_client_that_cancelled_is_not_woken_later(stage):
    store, other = stage.client(), stage.client()
    with store_timeout(store, 0.05):
        for _ in range(3):
            stage.see(store.get, "k")
    other.set("k", "v")
    # A stray wake-up would be taken for the answer to one of these.
    stage.see(store.add, "n", 2**40 + 1)
    stage.see(store.check, ["absent"])
    stage.see(store.get, "k")


@on_both
def test_a_wake_up_that_crosses_the_cancel_is_swallowed(stage):
    store, other = stage.client(), stage.client()
    for round in range(30):
        # Set at about the moment of the time-out: either side may win, the connection must survive both.
        waiting = Background(store.wait, [f"k{round}"], ms(3))
        stage.client().set(f"k{round}", "v") if round % 2 else other.add(f"k{round}", 1)
        waiting.result()
        assert store.add("n", 1) == round + 1
    stage.see(store.get, "n")


@on_both
def test_a_delete_before_the_wait_ends_keeps_it_waiting(stage):
    other = stage.client()
    other.set("k", "v")
    other.delete_key("k")
    stage.see(stage.client().wait, ["k"], ms(50))


@on_both
def test_a_client_that_leaves_while_it_waits_disturbs_nobody(stage):
    others = stage.client()
    for _ in range(5):
        with stage.raw() as leaver:
            leaver.ask("wait", ["/k", "/zz"])
            leaver.settle()
    store, has_asked = stage.watched_client()
    waiting = Background(store.get, "k")
    has_asked()
    stage.see(others.set, "k", "v")
    stage.note("woken", waiting.result())
    stage.see(others.num_keys)
