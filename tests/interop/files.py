"""Torch's FileStores and ours on one file. Torch's stores run in this process, and each of our stores in its own process."""

import multiprocessing
import struct
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from clock import WAIT_TIMEOUT, seconds
from driver import OurStore

forked = multiprocessing.get_context("fork")


class OurFileStore(OurStore):
    def __init__(self, path, num_workers=-1, timeout=WAIT_TIMEOUT):
        super().__init__("file", path, int(timeout * 1000), num_workers)


class TorchFileStore:
    """Torch's FileStore in this process, with an explicit `close`."""

    def __init__(self, path, num_workers=-1, timeout=WAIT_TIMEOUT):
        self.store = dist.FileStore(str(path), num_workers)
        self.store.set_timeout(seconds(timeout))

    def __getattr__(self, name):
        return getattr(self.store, name)

    def close(self):
        self.store = None

    kill = close


SIDES = {"torch": TorchFileStore, "ours": OurFileStore}
PAIRS = [("torch", "ours"), ("ours", "torch")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def open_store(path):
    """A function that opens a store of torch or of ours on the file `path`.

    At the end of the test, the fixture deletes the file before it closes the stores. On a torn, damaged or replaced
    file, the destructor of torch's store would spin forever, because it has no timeout.
    """
    stores = []

    def open_one(side, *arguments, **options):
        store = SIDES[side](path, *arguments, **options)
        stores.append(store)
        return store

    yield open_one
    path.unlink(missing_ok=True)
    for store in stores:
        store.kill()


def record(key, value=b""):
    key = key.encode() if isinstance(key, str) else key
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(key)) + key + struct.pack("<I", len(value)) + value


@contextmanager
def in_forked_process(target, *arguments):
    """Runs `target` in a forked process, which is killed at the end of the `with` block."""
    process = forked.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(WAIT_TIMEOUT)
