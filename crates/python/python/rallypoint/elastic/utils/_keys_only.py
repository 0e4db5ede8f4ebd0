"""`get_all`, `synchronize` and `barrier` for a store whose `wait` takes keys and no timeout, such as a mock in a test.

The `wait` of such a store takes at most the store's own timeout, so `synchronize` and `barrier` set that timeout for
the duration of the call. If the call fails, the timeout stays set, as in torch. The functions call the same methods as
torch's functions, in the same order.
"""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from typing import Any, Callable, List, Optional

from ..._exceptions import DistStoreError

_IGNORED_VALUE = "<val_ignored>"


def is_keys_only(store: Any) -> bool:
    """Returns whether the class of `store` has a `wait` that cannot be called with keys and a timeout."""
    try:
        inspect.signature(type(store).wait).bind(store, [], timedelta())
    except TypeError:
        return True
    except (AttributeError, ValueError):
        # The class has no `wait`, or its `wait` is a method of an extension module without a signature.
        return False
    return False


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> List[bytes]:
    values = store.multi_get([f"{prefix}{index}" for index in range(world_size)])
    last = _arrive(store, world_size, f"{prefix}/finished")
    if rank == 0:
        store.wait([last])
    return list(values)


def synchronize(store: Any, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float) -> List[bytes]:
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    store.set(f"{key_prefix}{rank}", data)
    values = get_all(store, rank, key_prefix, world_size)
    store.set_timeout(before)
    return values


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    timeout: float,
    rank: Optional[int],
    rank_name: Callable[[int], str],
) -> List[str]:
    """Waits until all ranks have arrived, and returns an empty list.

    After a timeout, rank 0 returns the names of the missing ranks, and every other rank returns a reference to rank 0.
    Raises the exception of the timeout if `rank` is `None`, if no rank is missing, or if rank 0 does not answer.
    """
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    last = _arrive(store, world_size, key_prefix)
    try:
        store.wait([last])
    except _timeout_errors():
        if rank is None:
            raise
        store.set(f"{key_prefix}{rank}/TRACE", _IGNORED_VALUE)
        if rank == 0:
            # Each wait may take the whole timeout.
            others = range(1, world_size)
            missing = [rank_name(other) for other in others if not _wait_succeeds(store, f"{key_prefix}{other}/TRACE")]
            store.set(f"{key_prefix}/TRACING_GATE", _IGNORED_VALUE)
        elif _wait_succeeds(store, f"{key_prefix}/TRACING_GATE"):
            missing = [f"[<check rank 0 ({rank_name(0)}) for missing rank info>]"]
        else:
            missing = []
        if missing:
            return missing
        raise
    store.set_timeout(before)
    return []


def _wait_succeeds(store: Any, key: str) -> bool:
    try:
        store.wait([key])
    except _timeout_errors():
        return False
    return True


def _arrive(store: Any, world_size: int, prefix: str) -> str:
    """Counts this caller as arrived. Returns the key that exists once all callers have arrived."""
    last = f"{prefix}/last_member"
    if store.add(f"{prefix}/num_members", 1) == world_size:
        store.set(last, _IGNORED_VALUE)
    return last


def _timeout_errors() -> "tuple[type[Exception], ...]":
    """Returns our exception for a timeout, and torch's if torch is loaded."""
    torch_error = getattr(sys.modules.get("torch.distributed"), "DistStoreError", DistStoreError)
    return DistStoreError, torch_error
