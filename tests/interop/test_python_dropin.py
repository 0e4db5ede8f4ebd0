"""Torch programs that use our stores, either through a changed import or through the adapter `as_torch_store`."""

import gc
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from clock import ms, seconds, wait_until
from families import FAMILIES

HERE = pathlib.Path(__file__).parent
IMPORT = "import torch.distributed as dist\n"


def run(path, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", path, *map(str, arguments)], capture_output=True, text=True, timeout=100
    )


def test_a_torch_program_prints_the_same_with_only_its_import_changed(tmp_path):
    text = (HERE / "dropin_program.py").read_text()
    assert text.count(IMPORT) == 1
    changed = tmp_path / "changed.py"
    changed.write_text(text.replace(IMPORT, "import rallypoint as dist\n"))
    theirs, ours = run(HERE / "dropin_program.py"), run(changed)
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout and len(ours.stdout.splitlines()) > 15
    assert ours.stderr == ""


def test_four_processes_all_reduce_over_our_store():
    job = run(HERE / "python_gloo_job.py", 4)
    assert job.returncode == 0, job.stderr
    reports = [json.loads(line) for line in job.stdout.splitlines()]
    assert len(reports) == 4
    for rank, seen in enumerate(reports):
        assert seen == {"rank": rank, "all_reduce": [10.0, 40.0], "gathered": [0, 1, 4, 9], "pair_sum": 1.0 if rank < 2 else 5.0}


@pytest.fixture
def adapted():
    from rallypoint.torch import as_torch_store

    return as_torch_store(FAMILIES["ours"].TCPStore("127.0.0.1", 0, is_master=True, timeout=seconds(20)))


def test_an_adapted_store_is_a_torch_store(adapted):
    from rallypoint.torch import as_torch_store

    assert isinstance(adapted, dist.Store)
    assert as_torch_store(adapted) is adapted
    inner = adapted.store
    # The methods are called directly from Python, and from C++ through torch's PrefixStore.
    for store, prefix in [(adapted, ""), (dist.PrefixStore("p", adapted), "p/")]:
        store.set("k", "v")
        assert inner.get(prefix + "k") == b"v" == store.get("k")
        assert store.add("n", 2) == 2 and store.check(["k", "n"]) and not store.check(["x"])
        assert store.compare_set("k", "v", "w") == b"w"
        store.append("k", "!")
        store.multi_set(["a", "b"], ["1", "2"])
        assert store.multi_get(["a", "b", "k"]) == [b"1", b"2", b"w!"]
        assert store.delete_key("a") is True and store.num_keys() == inner.num_keys()
        assert store.has_extended_api() is True
        store.wait(["k"])
        store.wait(["k"], seconds(5))
        with pytest.raises(dist.DistStoreError, match="wait timeout after 30ms"):
            store.wait(["none"], ms(30))
        assert store.clone().get("k") == b"w!"
        assert store.timeout == seconds(20)
    adapted.set_timeout(seconds(7))
    assert inner.timeout == adapted.timeout == seconds(7)
    adapted.queue_push("q", "item")
    assert adapted.queue_len("q") == 1 and adapted.queue_pop("q") == b"item"
    assert "k" in adapted.list_keys()
    adapted.barrier("b", 1)


def test_an_adapted_store_lives_as_long_as_torch_may_call_it():
    from rallypoint.torch import as_torch_store

    prefixed = dist.PrefixStore("p", as_torch_store(FAMILIES["ours"].HashStore()))
    gc.collect()
    prefixed.set("k", "v")
    assert prefixed.get("k") == b"v"


def test_a_timeout_set_through_torchs_prefix_store_applies_to_our_store(adapted):
    prefixed = dist.PrefixStore("part", adapted)
    prefixed.set_timeout(ms(200))
    assert adapted.store.timeout == ms(200)
    started = time.monotonic()
    with pytest.raises(dist.DistStoreError):
        prefixed.get("never")
    assert time.monotonic() - started < 10


def test_a_released_adapted_store_frees_its_resources():
    from rallypoint.torch import as_torch_store

    def use():
        store = FAMILIES["ours"].TCPStore("127.0.0.1", 0, is_master=True)
        adapter = as_torch_store(store)
        assert as_torch_store(store) is adapter
        adapter.set("k", "v")
        adapter.release()

    def open_resources():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    use()
    before = open_resources()
    for _ in range(10):
        use()

    def is_released():
        return all(current <= previous for current, previous in zip(open_resources(), before, strict=True))

    wait_until("all resources to be freed", is_released, details=open_resources)
