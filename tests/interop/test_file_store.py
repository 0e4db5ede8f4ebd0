"""One file shared by torch's FileStore and ours, in both directions and step by step."""

import threading

import pytest
import torch.distributed as dist
from clock import DEADLINE, seconds
from driver import OurError
from files import PAIRS, Ours, Torch, forked, in_torch_process, path, start  # noqa: F401  fixtures among them


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_what_one_side_writes_the_other_reads(start, one, two):
    writer, reader = start(one), start(two)
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
    # Both count the file's own key.
    assert writer.num_keys() == reader.num_keys() == 5
    large = "x" * 3_000_000
    writer.set("large", large)
    assert reader.get("large") == large.encode()


def test_the_same_calls_have_the_same_results_and_leave_the_same_bytes(tmp_path):
    def session(store_class, path):
        store = store_class(path, timeout=1)
        results = []

        def note(call, *arguments):
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
            note(store.compare_set, key, expected, desired)
        for held in ["5", "abc", "", "12abc", " 7", "1.5", "0x10", "99999999999999999999"]:
            store.set("n", held)
            note(store.add, "n", 1)
        note(store.add, "new", 0)
        note(store.delete_key, "c")
        note(store.delete_key, "nope")
        note(store.compare_set, "c", "x", "y")
        note(store.check, ["c", "c2"])
        note(store.append, "c2", "more")
        note(store.append, "c9", "first")
        note(store.num_keys)
        note(store.get, "absent")
        store.close()
        return results

    theirs = session(Torch, tmp_path / "theirs")
    assert session(Ours, tmp_path / "ours") == theirs
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert len(theirs) > 20


def test_add_never_wraps_although_torchs_does(start):
    torch, ours = start("torch"), start("ours")
    torch.set("n", str(2**63 - 1))
    with pytest.raises(OurError, match="NotANumber"):
        ours.add("n", 1)
    assert torch.get("n") == str(2**63 - 1).encode()
    assert torch.add("n", 1) == -(2**63)


def test_keys_are_listed_without_the_files_own(start):
    torch, ours = start("torch"), start("ours")
    torch.set("a", "1")
    ours.set("b", "2")
    assert ours.list_keys() == ["a", "b"]
    # Torch shows its counter with the first letter missing.
    assert sorted(torch.list_keys()) == ["a", "b", "efcount/"]


@pytest.mark.parametrize(("waiter", "setter"), PAIRS)
def test_one_side_waits_for_the_other(start, waiter, setter):
    waiting, other = start(waiter), start(setter)
    found = []
    thread = threading.Thread(target=lambda: found.append(waiting.get("k")))
    thread.start()
    other.set("k", "v")
    thread.join(DEADLINE)
    assert found == [b"v"]


def test_both_sides_meet_at_a_barrier(start):
    torch, ours = start("torch"), start("ours")
    ours_is_through = ours.later("barrier", "b", 2)
    torch.barrier("b", 2, seconds(DEADLINE))
    ours_is_through()
    assert torch.get("b/num_members") == ours.get("b/num_members") == b"2"


def add_many(path, times, sums):
    store = dist.FileStore(str(path), -1)
    sums.put([store.add("counter", 1) for _ in range(times)])


def test_many_processes_of_both_sides_count_together(start, path):
    keeper = start("ours")
    times = 300
    counting = [start("ours") for _ in range(2)]
    sums = forked.Queue()
    with in_torch_process(add_many, path, times, sums), in_torch_process(add_many, path, times, sums):
        answers = [each.adds("counter", times) for each in counting]
        seen = [number for answer in answers for number in answer()]
        seen += sums.get(timeout=DEADLINE) + sums.get(timeout=DEADLINE)
    assert sorted(seen) == list(range(1, 4 * times + 1))
    assert keeper.get("counter") == str(4 * times).encode()

