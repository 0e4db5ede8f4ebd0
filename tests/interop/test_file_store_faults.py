"""Faults of a file that torch's FileStore and ours share.

On some of these faults, torch's store ignores its timeout and hangs. Our store must time out. Calls of torch that hang run
in a forked process, which the test kills.
"""

import fcntl
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from clock import WAIT_TIMEOUT, delayed_since, run_delays, seconds, wait_until
from driver import OurError
from files import forked, in_forked_process, open_store, path, record  # noqa: F401  fixtures among them

# The maximum duration of a call with a timeout of 1 s, without the time for which it waited for a processor.
MAX_SECONDS = 1.1


def assert_times_out(ours, call, name):
    """Asserts that a call with a timeout of 1 s fails with the error `name` after at least 1 s and at most `MAX_SECONDS`.

    Returns the error and the duration in seconds.
    """
    pids = ours.process.pid, "self"
    start_time, before = time.monotonic(), run_delays(*pids)
    with pytest.raises(OurError) as failure:
        call()
    elapsed = time.monotonic() - start_time
    assert failure.value.name == name
    assert elapsed >= 1.0
    assert elapsed - delayed_since(before, *pids) <= MAX_SECONDS, failure.value
    return failure.value, elapsed


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_get_with_a_timeout_of_one_second_takes_longer_in_torch(open_store):
    torch, ours = open_store("torch", timeout=1), open_store("ours", timeout=1)
    _, elapsed = assert_times_out(ours, lambda: ours.get("absent"), "Timeout")
    start_time = time.monotonic()
    with pytest.raises(RuntimeError, match="Timeout waiting for key"):
        torch.get("absent")
    assert time.monotonic() - start_time > elapsed


def test_our_get_on_an_unlinked_file_fails_at_its_timeout(open_store, path):
    torch, ours = open_store("torch", timeout=1), open_store("ours", timeout=1)
    torch.set("k", "v")
    path.unlink()
    error, _ = assert_times_out(ours, lambda: ours.get("k"), "FileTimeout")
    assert "no such file" in error.message
    with pytest.raises(RuntimeError, match="No such file"):
        torch.get("k")


def get_with_torch(path, key, go):
    store = dist.FileStore(str(path), -1)
    store.set_timeout(seconds(1))
    go.wait(WAIT_TIMEOUT)
    store.get(key)


@pytest.mark.parametrize("tail", [b"\x02\x00", record("/torn", "value")[:9]], ids=["two bytes", "key without value"])
def test_our_store_recovers_from_a_torn_tail_on_which_torch_spins(open_store, path, tail):
    ours = open_store("ours", timeout=1)
    ours.set("k", "v")
    go = forked.Event()
    with in_forked_process(get_with_torch, path, "absent", go) as torch:
        # A reference count of 2 shows that torch's process has opened the file.
        wait_until("torch's process to open the file", lambda: record("refcount/", "2") in path.read_bytes())
        with path.open("ab") as file:
            file.write(tail)
        torn_bytes = path.read_bytes()
        go.set()
        torch_before = cpu_seconds(torch.pid)
        # Torch spins for longer than its timeout of 1 s, and keeps the file locked meanwhile.
        wait_until("torch to spin", lambda: cpu_seconds(torch.pid) - torch_before > 1.5)
        assert torch.is_alive()
        # Our store reads an existing key. A `get` of an absent key, and a `set`, which needs the lock, time out.
        ours_before = cpu_seconds(ours.process.pid)
        assert ours.get("k") == b"v"
        assert_times_out(ours, lambda: ours.get("torn"), "Timeout")
        assert_times_out(ours, lambda: ours.set("k", "w"), "FileTimeout")
        # If our store spun during the two timeouts, it would use 2 s of processor time.
        assert cpu_seconds(ours.process.pid) - ours_before < 0.5
        assert torch.is_alive() and path.read_bytes() == torn_bytes
    # Once torch's process is killed, our next write repairs the file, so that torch can read it, too.
    ours.set("k", "w")
    assert path.read_bytes() == torn_bytes[: -len(tail)] + record("/k", "w")
    reader = open_store("torch", timeout=1)
    assert reader.get("k") == b"w"
    assert not reader.check(["torn"])


def set_forever(path):
    store = dist.FileStore(str(path), -1)
    for n in range(10**9):
        store.set(f"key{n}", "x" * 2000)


def test_our_store_works_on_a_file_whose_torch_writers_were_killed_at_any_moment(open_store, path):
    ours = open_store("ours", timeout=2)
    rng = random.Random(7)
    for _ in range(8):
        with in_forked_process(set_forever, path) as torch:
            size = path.stat().st_size
            wait_until("torch's process to write", lambda: path.stat().st_size > size + 10_000)
            time.sleep(rng.random() * 0.01)  # a random moment
            torch.kill()
            torch.join(WAIT_TIMEOUT)
        start_time = time.monotonic()
        ours.set("after", "1")
        assert ours.get("after") == b"1"
        assert ours.get("key0") == b"x" * 2000
        assert time.monotonic() - start_time < 2.5
        assert open_store("torch", timeout=2).get("after") == b"1"


def hold_lock(path, ready):
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()
        signal.pause()


def set_with_torch(path, opened, go):
    store = dist.FileStore(str(path), -1)
    store.set_timeout(seconds(1))
    opened.set()
    go.wait(WAIT_TIMEOUT)
    store.set("k", "w")


def test_a_locked_file_hangs_torch_and_times_out_in_our_store(open_store, path):
    ours = open_store("ours", timeout=1)
    opened, held, go = forked.Event(), forked.Event(), forked.Event()
    with in_forked_process(set_with_torch, path, opened, go) as torch:
        assert opened.wait(WAIT_TIMEOUT)
        with in_forked_process(hold_lock, path, held):
            assert held.wait(WAIT_TIMEOUT)
            go.set()
            error, _ = assert_times_out(ours, lambda: ours.set("k", "v"), "FileTimeout")
            assert "lock" in error.message
            torch.join(1.5)
            assert torch.is_alive(), "torch's `set` must still hang after its timeout of 1 s"
        torch.join(WAIT_TIMEOUT)
        assert torch.exitcode == 0
    assert ours.get("k") == b"w"


def test_our_store_reports_where_torch_damaged_a_file_by_writing_after_a_torn_record(open_store, path):
    torch, ours = open_store("torch"), open_store("ours", timeout=1)
    torch.set("k", "v")
    assert ours.get("k") == b"v"
    whole = len(path.read_bytes())
    with path.open("ab") as file:
        file.write(b"\x02\x00")
    torch.set("l", "w")  # torch writes without reading the file
    damaged = path.read_bytes()
    for call in [lambda: ours.get("k"), lambda: ours.set("k", "x")]:
        with pytest.raises(OurError, match="File") as failure:
            call()
        assert f"at byte {whole}" in failure.value.message
    assert path.read_bytes() == damaged
