"""One client used by many threads, and many concurrent clients."""

import concurrent.futures
import threading

from clock import WAIT_TIMEOUT, seconds
from harness import Background, on_both_servers


def run_concurrently(count, call):
    """Runs `call(number)` on `count` threads that start together. Returns the results in order."""
    start = threading.Barrier(count)

    def run(number):
        start.wait()
        return call(number)

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@on_both_servers
def test_threads_that_share_a_client_get_their_own_replies(harness):
    store = harness.client()

    def work(number):
        for repetition in range(100):
            key = f"{number} {repetition}"
            store.set(key, key)
            assert store.get(key) == key.encode()
            assert store.compare_set(key, key, "next") == b"next"
            assert store.check([key, f"not {key}"]) is False
            store.add("sum", number)

    run_concurrently(8, work)
    harness.call(store.get, "sum")
    harness.call(store.num_keys)


@on_both_servers
def test_concurrent_adds_lose_no_update(harness):
    stores = [harness.client() for _ in range(8)]
    results = run_concurrently(8, lambda number: [stores[number].add("n", 1) for _ in range(250)])
    harness.record("each number once", sorted(sum(results, [])) == list(range(1, 2001)))
    harness.call(stores[0].get, "n")


@on_both_servers
def test_concurrent_compare_sets_lose_no_update(harness):
    stores = [harness.client() for _ in range(4)]
    stores[0].set("n", "0")

    def increment(number):
        known, wanted = "0", None
        for _ in range(50):
            while known != wanted:
                # The number of the client makes its value different from all values that other clients write.
                wanted = f"{int(known.split()[0]) + 1} by {number}"
                known = stores[number].compare_set("n", known, wanted).decode()
            wanted = None

    run_concurrently(4, increment)
    harness.record("updates", stores[0].get("n").split()[0])


@on_both_servers
def test_a_ring_of_clients_passes_a_token_around(harness):
    size = 6
    stores = [harness.client() for _ in range(size)]

    def work(rank):
        for lap in range(10):
            if (lap, rank) != (0, 0):
                before = (lap, rank - 1) if rank else (lap - 1, size - 1)
                assert stores[rank].get("token %d %d" % before) == b"here"
            stores[rank].set(f"token {lap} {rank}", "here")
        return lap

    harness.record("laps", run_concurrently(size, work))
    harness.call(stores[0].num_keys)


@on_both_servers
def test_a_client_blocked_in_a_wait_does_not_delay_other_clients(harness):
    blocked, wait_for_request = harness.watched_client()
    waiting = Background(blocked.wait, ["late"], seconds(WAIT_TIMEOUT))
    wait_for_request()
    for number in range(50):
        store = harness.client()
        store.set(f"k{number}", "v")
        assert store.get(f"k{number}") == b"v"
    assert not waiting.is_done()
    harness.client().set("late", "v")
    harness.record("blocked", waiting.result())
