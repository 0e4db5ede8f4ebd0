"""Torch's store classes and ours, so that one test can run with both."""

import contextlib

import pytest
import torch.distributed as dist
from clock import WAIT_TIMEOUT, seconds

rallypoint = pytest.importorskip("rallypoint", reason="the Python package is not installed; scripts/python-venv installs it")

FAMILIES = {"torch": dist, "ours": rallypoint}
KINDS = ["tcp", "file", "hash", "prefix-tcp", "prefix-file", "prefix-hash"]


class Stores:
    """Creates stores of one family, which is torch's or ours. All clients of the same kind share one store."""

    def __init__(self, family, directory):
        self.name = family
        self.module = FAMILIES[family]
        self.directory = directory
        self.servers = {}

    def make(self, kind, timeout=seconds(WAIT_TIMEOUT)):
        """Returns a new client of the store of this kind."""
        if kind.startswith("prefix-"):
            return self.module.PrefixStore("part", self.make(kind.removeprefix("prefix-"), timeout))
        if kind == "tcp":
            store = self.tcp(timeout)
        elif kind == "file":
            store = self.module.FileStore(str(self.directory / "store"), -1)
            store.set_timeout(timeout)
        elif kind == "hash":
            store = self.servers.setdefault("hash", self.module.HashStore())
            store.set_timeout(timeout)
        return store

    def tcp(self, timeout=seconds(WAIT_TIMEOUT)):
        server = self.servers.get("tcp")
        if server is None:
            server = self.module.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=seconds(WAIT_TIMEOUT))
            self.servers["tcp"] = server
        return self.module.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=timeout)


@contextlib.contextmanager
def raises(family, name, *parts):
    """Expects the family's exception `name`, or else the built-in exception of that name, with all `parts` in its message."""
    expected = getattr(FAMILIES[family], name, None) or getattr(__import__("builtins"), name)
    with pytest.raises(expected) as caught:
        yield caught
    for part in parts:
        assert part in str(caught.value), caught.value
    # While torch is imported, our exceptions also derive from torch's, so that existing `except` clauses catch them.
    if hasattr(dist, name):
        assert isinstance(caught.value, getattr(dist, name))
