"""Barriers through torch's client, where torch's own are right; `test_deviations.py` has the rest."""

from clock import DEADLINE, ms, seconds
from stage import Background, on_both
from torch.distributed.elastic.utils.store import store_timeout


@on_both
def test_a_barrier_lets_go_when_all_have_come(stage):
    for round, size in enumerate([1, 2, 5]):
        stores = [stage.watched_client() for _ in range(size - 1)]
        waiting = [Background(store.barrier, f"bar{round}", size) for store, _ in stores]
        for _, has_asked in stores:
            has_asked()
        assert not any(each.is_done() for each in waiting), "nobody may leave before the last has come"
        stage.see(stage.client().barrier, f"bar{round}", size)
        stage.note(size, [each.result() for each in waiting])


@on_both
def test_a_barrier_that_times_out_says_so_and_leaves_the_connection_usable(stage):
    store = stage.client()
    with store_timeout(store, 0.1):
        stage.see(store.barrier, "bar", 2)
    stage.see(store.barrier, "other bar", 2, ms(50))
    stage.see(store.set, "k", "v")
    stage.see(store.get, "k")


@on_both
def test_barriers_of_different_names_are_different(stage):
    store, has_asked = stage.watched_client()
    waiting = Background(store.barrier, "a", 2, seconds(DEADLINE))
    has_asked()
    stage.see(stage.client().barrier, "b", 2, ms(50))
    assert not waiting.is_done()
    stage.see(stage.client().barrier, "a", 2)
    stage.note("a", waiting.result())


@on_both
def test_a_barrier_on_a_prefix_store_is_the_generic_one(stage):
    import torch.distributed as dist

    plain = stage.client()
    first, second = (dist.PrefixStore("outer", dist.PrefixStore("pre", stage.client())) for _ in range(2))
    waiting = Background(first.barrier, "bar", 2, seconds(DEADLINE))
    stage.see(second.barrier, "bar", 2, seconds(DEADLINE))
    stage.note("first", waiting.result())
    stage.see(lambda: sorted(plain.list_keys()))
    stage.see(plain.get, "pre/outer/bar/num_members")
    stage.see(plain.get, "pre/outer/bar/last_member")
    stage.see(first.barrier, "alone", 2, ms(50))
