"""Exchanges values between ranks through a store, and waits for ranks at a barrier.

The keys are those of `torch.distributed.elastic.utils.store`, so ranks that run torch can take part. Use each key
prefix only once.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import Callable, Iterator, List, Optional

from ... import _rallypoint
from ..._exceptions import DistStoreError, class_to_raise
from ..._rallypoint import Store
from . import _keys_only

__all__ = ["store_timeout", "get_all", "synchronize", "barrier"]


@contextmanager
def store_timeout(store: Store, timeout: float) -> Iterator[None]:
    """Returns a context manager that sets the timeout of `store`, in seconds, and restores the old one at the end."""
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Store, rank: int, prefix: str, world_size: int) -> List[bytes]:
    """Returns the values of `{prefix}0`, `{prefix}1` and so on for all ranks. Waits until they exist.

    Rank 0 usually hosts the store, so rank 0 returns only after all other ranks have read the values.

    Args:
        store: the store.
        rank: the rank of the caller.
        prefix: the prefix of the keys.
        world_size: the number of ranks.

    Raises:
        DistStoreError: not all values existed within the store's timeout.
    """
    if _keys_only.is_keys_only(store):
        return _keys_only.get_all(store, rank, prefix, world_size)
    return _rallypoint.get_all(store, rank, prefix, world_size)


def synchronize(
    store: Store, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> List[bytes]:
    """Sets `{key_prefix}{rank}` to `data`, and returns the values of all ranks.

    Args:
        store: the store.
        data: the value of this rank.
        rank: the rank of the caller.
        world_size: the number of ranks.
        key_prefix: the prefix of the keys. Use each prefix only once.
        timeout: how long to wait for the other ranks, in seconds.

    Raises:
        DistStoreError: not all ranks set their value within the timeout. The message lists the missing ranks.
    """
    if _keys_only.is_keys_only(store):
        return _keys_only.synchronize(store, data, rank, world_size, key_prefix, timeout)
    return _rallypoint.synchronize(store, data, rank, world_size, key_prefix, timedelta(seconds=timeout))


def barrier(
    store: Store,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: Optional[int] = None,
    rank_tracing_decoder: Optional[Callable[[int], str]] = None,
    trace_timeout: float = 10,
) -> None:
    """Waits until `world_size` callers have arrived.

    Args:
        store: the store.
        world_size: the number of callers to wait for.
        key_prefix: the prefix of the barrier's keys. Use each prefix only once.
        barrier_timeout: how long to wait, in seconds.
        rank: the rank of the caller. If every caller passes its rank, a timeout reports the missing ranks.
        rank_tracing_decoder: returns the name of a rank for that report.
        trace_timeout: how long to wait, after a timeout, for ranks that run torch to report that they have arrived, in
            seconds.

    Raises:
        DistStoreError: not all callers arrived within the timeout.
        AssertionError: `rank_tracing_decoder` is given without `rank`.
    """
    if rank is None and rank_tracing_decoder is not None:
        raise AssertionError("Tracing requires rank information")
    rank_name = rank_tracing_decoder or str
    if _keys_only.is_keys_only(store):
        missing_names = _keys_only.barrier(store, world_size, key_prefix, barrier_timeout, rank, rank_name)
    else:
        missing_ranks = _rallypoint.barrier(
            store, world_size, key_prefix, timedelta(seconds=barrier_timeout), rank, timedelta(seconds=trace_timeout)
        )
        missing_names = [rank_name(missing_rank) for missing_rank in missing_ranks]
    if missing_names:
        raise class_to_raise(DistStoreError)(
            f"Timed out waiting on barrier on rank {rank}, for key prefix: {key_prefix} (world_size={world_size}, "
            f"missing_ranks=[{', '.join(missing_names)}], timeout={barrier_timeout})"
        )
