"""One client used by many threads, and many clients at once."""

import concurrent.futures
import threading

from clock import DEADLINE, seconds
from stage import Background, on_both


def together(count, call):
    """`call(number)` on so many threads, all starting at once; their results in order."""
    start = threading.Barrier(count)

    def run(number):
        start.wait()
        return call(number)

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@on_both
def test_threads_of_one_client_do_not_mix_up_their_answers(stage):
    store = stage.client()

    def work(number):
        for turn in range(100):
            key = f"{number} {turn}"
            store.set(key, key)
            assert store.get(key) == key.encode()
            assert store.compare_set(key, key, "next") == b"next"
            assert store.check([key, f"not {key}"]) is False
            store.add("sum", number)

    together(8, work)
    stage.see(store.get, "sum")
    stage.see(store.num_keys)


@on_both
def test_clients_adding_to_one_number_lose_nothing(stage):
    stores = [stage.client() for _ in range(8)]
    results = together(8, lambda number: [stores[number].add("n", 1) for _ in range(250)])
    stage.note("each number once", sorted(sum(results, [])) == list(range(1, 2001)))
    stage.see(stores[0].get, "n")


@on_both
def test_clients_taking_turns_by_compare_set_lose_nothing(stage):
    stores = [stage.client() for _ in range(4)]
    stores[0].set("n", "0")
    assert stores[0].get("n") == b"0"

    def work(number):
        held = b"0"
        for _ in range(50):
            while True:
                wanted = str(int(held) + 1).encode()
                came = stores[number].compare_set("n", held.decode(), wanted.decode())
                # Equal also when another client wrote the same number; the add tells how often that was.
                if came == wanted and held != wanted:
                    held = came
                    break
                held = came
            stores[number].add("writes", 1)

    together(4, work)
    stage.see(stores[0].get, "writes")


@on_both
def test_a_ring_of_clients_passes_a_token_round(stage):
    size = 6
    stores = [stage.client() for _ in range(size)]

    def work(rank):
        for lap in range(10):
            if (lap, rank) != (0, 0):
                before = (lap, rank - 1) if rank else (lap - 1, size - 1)
                assert stores[rank].get("token %d %d" % before) == b"here"
            stores[rank].set(f"token {lap} {rank}", "here")
        return lap

    stage.note("laps", together(size, work))
    stage.see(stores[0].num_keys)


@on_both
def test_a_client_blocked_in_a_wait_holds_up_no_other_client(stage):
    blocked, has_asked = stage.watched_client()
    waiting = Background(blocked.wait, ["late"], seconds(DEADLINE))
    has_asked()
    for number in range(50):
        store = stage.client()
        store.set(f"k{number}", "v")
        assert store.get(f"k{number}") == b"v"
    assert not waiting.is_done()
    stage.client().set("late", "v")
    stage.note("blocked", waiting.result())
