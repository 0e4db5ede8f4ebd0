"""One file shared by torch's FileStore and ours."""

import threading

import pytest
import torch.distributed as dist
from clock import WAIT_TIMEOUT, seconds
from driver import OurError
from files import PAIRS, OurFileStore, TorchFileStore, forked, in_forked_process, open_store, path  # noqa: F401  fixtures among them


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_side_reads_what_the_other_writes(open_store, first, second):
    writer, reader = open_store(first), open_store(second)
    writer.set("text", "v")
    writer.set("empty", "")
    writer.set("binary", bytes(range(256)).decode("latin-1"))
    assert reader.get("text") == b"v"
    assert reader.get("empty") == b""
    assert reader.get("binary") == bytes(range(256)).decode("latin-1").encode()
    assert writer.add("n", 5) == 5
    assert reader.add("n", -7) == -2
    assert writer.get("n") == b"-2"
    writer.append("log", "a")
    reader.append("log", "b")
    assert writer.get("log") == b"ab"
    assert reader.check(["text", "n"]) and not reader.check(["text", "absent"])
    assert reader.delete_key("text") and reader.delete_key("never")
    assert not writer.check(["text"])
    # Both sides also count the key that a FileStore creates for its reference count.
    assert writer.num_keys() == reader.num_keys() == 5
    large = "x" * 3_000_000
    writer.set("large", large)
    assert reader.get("large") == large.encode()


def test_the_same_calls_have_the_same_results_and_leave_the_same_bytes(tmp_path):
    def session(store_class, path):
        store = store_class(path, timeout=1)
        results = []

        def record(call, *arguments):
            try:
                results.append(call(*arguments))
            except (OurError, RuntimeError, ValueError, IndexError):
                results.append("an error")

        for key, expected, desired in [
            ("c", "", ""),
            ("c", "", "x"),
            ("c2", "", "x"),
            ("c3", "e", "x"),
            ("c2", "x", "y"),
            ("c2", "q", "w"),
            ("c2", "y", "y"),
            ("c2", "", "z"),
        ]:
            record(store.compare_set, key, expected, desired)
        for value in ["5", "abc", "", "12abc", " 7", "1.5", "0x10", "99999999999999999999"]:
            store.set("n", value)
            record(store.add, "n", 1)
        record(store.add, "new", 0)
        record(store.delete_key, "c")
        record(store.delete_key, "nope")
        record(store.compare_set, "c", "x", "y")
        record(store.check, ["c", "c2"])
        record(store.append, "c2", "more")
        record(store.append, "c9", "first")
        record(store.num_keys)
        record(store.get, "absent")
        store.close()
        return results

    theirs = session(TorchFileStore, tmp_path / "theirs")
    assert session(OurFileStore, tmp_path / "ours") == theirs
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert len(theirs) > 20


def test_our_add_refuses_to_overflow_and_torchs_wraps(open_store):
    torch, ours = open_store("torch"), open_store("ours")
    torch.set("n", str(2**63 - 1))
    with pytest.raises(OurError, match="NotANumber"):
        ours.add("n", 1)
    assert torch.get("n") == str(2**63 - 1).encode()
    assert torch.add("n", 1) == -(2**63)


def test_our_list_keys_omits_the_files_own_key(open_store):
    torch, ours = open_store("torch"), open_store("ours")
    torch.set("a", "1")
    ours.set("b", "2")
    assert ours.list_keys() == ["a", "b"]
    # Torch also lists the key of the reference count, `refcount/`, without its first letter.
    assert sorted(torch.list_keys()) == ["a", "b", "efcount/"]


@pytest.mark.parametrize(("waiter", "setter"), PAIRS)
def test_a_get_of_one_side_ends_when_the_other_sets_the_key(open_store, waiter, setter):
    waiting, other = open_store(waiter), open_store(setter)
    found = []
    thread = threading.Thread(target=lambda: found.append(waiting.get("k")))
    thread.start()
    other.set("k", "v")
    thread.join(WAIT_TIMEOUT)
    assert found == [b"v"]


def test_torch_and_our_store_pass_one_barrier(open_store):
    torch, ours = open_store("torch"), open_store("ours")
    ours_is_through = ours.start("barrier", "b", 2)
    torch.barrier("b", 2, seconds(WAIT_TIMEOUT))
    ours_is_through()
    assert torch.get("b/num_members") == ours.get("b/num_members") == b"2"


def add_many(path, times, sums):
    store = dist.FileStore(str(path), -1)
    sums.put([store.add("counter", 1) for _ in range(times)])


def test_concurrent_adds_of_both_sides_lose_no_update(open_store, path):
    observer = open_store("ours")
    times = 300
    adders = [open_store("ours") for _ in range(2)]
    sums = forked.Queue()
    with in_forked_process(add_many, path, times, sums), in_forked_process(add_many, path, times, sums):
        pending = [each.start_adds("counter", times) for each in adders]
        seen = [number for receive in pending for number in receive()]
        seen += sums.get(timeout=WAIT_TIMEOUT) + sums.get(timeout=WAIT_TIMEOUT)
    assert sorted(seen) == list(range(1, 4 * times + 1))
    assert observer.get("counter") == str(4 * times).encode()

