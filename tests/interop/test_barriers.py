"""Barriers of torch's client on both servers. `test_deviations.py` has the cases in which torch's own server is wrong."""

from clock import WAIT_TIMEOUT, ms, seconds
from harness import Background, on_both_servers
from torch.distributed.elastic.utils.store import store_timeout


@on_both_servers
def test_a_barrier_opens_when_all_clients_have_arrived(harness):
    for index, size in enumerate([1, 2, 5]):
        stores = [harness.watched_client() for _ in range(size - 1)]
        waiting = [Background(store.barrier, f"bar{index}", size) for store, _ in stores]
        for _, wait_for_request in stores:
            wait_for_request()
        assert not any(waiter.is_done() for waiter in waiting), "no client may pass before the last has arrived"
        harness.call(harness.client().barrier, f"bar{index}", size)
        harness.record(size, [waiter.result() for waiter in waiting])


@on_both_servers
def test_a_barrier_timeout_is_reported_and_the_connection_stays_usable(harness):
    store = harness.client()
    with store_timeout(store, 0.1):
        harness.call(store.barrier, "bar", 2)
    harness.call(store.barrier, "other bar", 2, ms(50))
    harness.call(store.set, "k", "v")
    harness.call(store.get, "k")


@on_both_servers
def test_barriers_with_different_names_are_independent(harness):
    store, wait_for_request = harness.watched_client()
    waiting = Background(store.barrier, "a", 2, seconds(WAIT_TIMEOUT))
    wait_for_request()
    harness.call(harness.client().barrier, "b", 2, ms(50))
    assert not waiting.is_done()
    harness.call(harness.client().barrier, "a", 2)
    harness.record("a", waiting.result())


@on_both_servers
def test_a_barrier_of_a_prefix_store_uses_two_keys(harness):
    import torch.distributed as dist

    plain = harness.client()
    first, second = (dist.PrefixStore("outer", dist.PrefixStore("pre", harness.client())) for _ in range(2))
    waiting = Background(first.barrier, "bar", 2, seconds(WAIT_TIMEOUT))
    harness.call(second.barrier, "bar", 2, seconds(WAIT_TIMEOUT))
    harness.record("first", waiting.result())
    harness.call(lambda: sorted(plain.list_keys()))
    harness.call(plain.get, "pre/outer/bar/num_members")
    harness.call(plain.get, "pre/outer/bar/last_member")
    harness.call(first.barrier, "alone", 2, ms(50))
