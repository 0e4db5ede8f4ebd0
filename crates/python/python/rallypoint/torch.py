"""Our stores for torch: a real `torch.distributed.Store` around one.

    import torch.distributed as dist
    from rallypoint import TCPStore
    from rallypoint.torch import as_torch_store

    store = TCPStore("node0", 29500)
    dist.init_process_group("gloo", store=as_torch_store(store), rank=rank, world_size=world_size)

This module imports torch; the rest of the package does not.
"""

import torch.distributed as dist

__all__ = ["TorchStore", "as_torch_store"]


class TorchStore(dist.Store):
    """A torch store that passes every call on to `store`."""

    def __init__(self, store):
        super().__init__()
        self._store = store
        self._timeout = store.timeout
        super().set_timeout(self._timeout)

    @property
    def store(self):
        """The store that calls are passed on to."""
        # A torch.distributed.PrefixStore around this one sets the time-out without calling anything here.
        timeout = super().timeout
        if timeout != self._timeout:
            self._timeout = timeout
            self._store.set_timeout(timeout)
        return self._store

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        return self.store.get(key)

    def add(self, key, amount):
        return self.store.add(key, amount)

    def check(self, keys):
        return self.store.check(keys)

    def compare_set(self, key, expected_value, desired_value):
        return self.store.compare_set(key, expected_value, desired_value)

    def delete_key(self, key):
        return self.store.delete_key(key)

    def num_keys(self):
        return self.store.num_keys()

    # From C++ these two are called by their names there.
    deleteKey = delete_key
    getNumKeys = num_keys

    def wait(self, keys, timeout=None):
        if timeout is None:
            self.store.wait(keys)
        else:
            self.store.wait(keys, timeout)

    def set_timeout(self, timeout):
        super().set_timeout(timeout)
        self._timeout = super().timeout
        self._store.set_timeout(timeout)

    def append(self, key, value):
        self.store.append(key, value)

    def multi_get(self, keys):
        return self.store.multi_get(keys)

    def multi_set(self, keys, values):
        self.store.multi_set(keys, values)

    def has_extended_api(self):
        return self.store.has_extended_api()

    def queue_push(self, key, value):
        self.store.queue_push(key, value)

    def queue_pop(self, key, block=True):
        return self.store.queue_pop(key, block)

    def queue_len(self, key):
        return self.store.queue_len(key)

    def list_keys(self):
        return self.store.list_keys()

    def barrier(self, key, world_size, timeout=None):
        if timeout is None:
            self.store.barrier(key, world_size)
        else:
            self.store.barrier(key, world_size, timeout)

    def clone(self):
        return as_torch_store(self.store.clone())

    def release(self):
        """Says that torch uses it no more: it, and the connections of its store, go when nobody else holds them."""
        _kept.pop(id(self._store), None)

    def __repr__(self):
        return f"TorchStore({self._store!r})"


def as_torch_store(store):
    """`store` as a `torch.distributed.Store`, for `init_process_group(store=...)` and whatever else wants one.

    One of torch's own is returned as it is. Asked again for the same store, it returns the same. It is kept until its
    `release()` is called, or the program ends: torch may use it from C++ when no Python holds it any more.
    """
    if isinstance(store, dist.Store):
        return store
    if id(store) not in _kept:
        _kept[id(store)] = TorchStore(store)
    return _kept[id(store)]


# By what they are around, which they keep alive, so that no other object has its number.
_kept = {}
