"""Adapters that pass our stores to torch as a real `torch.distributed.Store`.

    import torch.distributed as dist
    from rallypoint import TCPStore
    from rallypoint.torch import as_torch_store

    store = TCPStore("node0", 29500)
    dist.init_process_group("gloo", store=as_torch_store(store), rank=rank, world_size=world_size)

This module imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import SupportsIndex, Union

import torch.distributed as dist

from ._rallypoint import Store

__all__ = ["TorchStore", "as_torch_store"]


class TorchStore(dist.Store):
    """A torch store that passes every call to `store`, one of our stores."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._timeout = store.timeout
        super().set_timeout(self._timeout)

    @property
    def store(self) -> Store:
        """The store that receives the calls."""
        # A torch.distributed.PrefixStore around this store sets the timeout in C++, without calling `set_timeout` here.
        timeout = super().timeout
        if timeout != self._timeout:
            self._timeout = timeout
            self._store.set_timeout(timeout)
        return self._store

    def set(self, key: str, value: Union[str, bytes]) -> None:
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def add(self, key: str, amount: SupportsIndex) -> int:
        return self.store.add(key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        return self.store.check(keys)

    def compare_set(self, key: str, expected_value: Union[str, bytes], desired_value: Union[str, bytes]) -> bytes:
        return self.store.compare_set(key, expected_value, desired_value)

    def delete_key(self, key: str) -> bool:
        return self.store.delete_key(key)

    def num_keys(self) -> int:
        return self.store.num_keys()

    # C++ code calls these two methods by their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys

    def wait(self, keys: Sequence[str], timeout: Union[timedelta, None] = None) -> None:
        if timeout is None:
            self.store.wait(keys)
        else:
            self.store.wait(keys, timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._timeout = super().timeout
        self._store.set_timeout(timeout)

    def append(self, key: str, value: Union[str, bytes]) -> None:
        self.store.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self.store.multi_get(keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[Union[str, bytes]]) -> None:
        self.store.multi_set(keys, values)

    def has_extended_api(self) -> bool:
        return self.store.has_extended_api()

    def queue_push(self, key: str, value: Union[str, bytes]) -> None:
        self.store.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self.store.queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        return self.store.queue_len(key)

    def list_keys(self) -> list[str]:
        return self.store.list_keys()

    def barrier(self, key: str, world_size: int, timeout: Union[timedelta, None] = None) -> None:
        if timeout is None:
            self.store.barrier(key, world_size)
        else:
            self.store.barrier(key, world_size, timeout)

    def clone(self) -> dist.Store:
        return as_torch_store(self.store.clone())

    def release(self) -> None:
        """Declares that torch no longer uses this adapter, so that it can be freed together with its store."""
        _adapters.pop(id(self._store), None)

    def __repr__(self) -> str:
        return f"TorchStore({self._store!r})"


def as_torch_store(store: Union[Store, dist.Store]) -> dist.Store:
    """Returns `store` as a `torch.distributed.Store`, for `init_process_group(store=...)` and similar functions.

    One of torch's own stores is returned unchanged, and repeated calls with the same store return the same adapter. The
    adapter lives until its `release()` is called or the program ends, because torch may use it from C++ when no Python
    code refers to it.
    """
    if isinstance(store, dist.Store):
        return store
    if id(store) not in _adapters:
        _adapters[id(store)] = TorchStore(store)
    return _adapters[id(store)]


# Adapters by the id of their store. The adapter keeps the store alive, so the id stays unique.
_adapters: dict[int, TorchStore] = {}
