"""Meeting at a store: everybody gives something and gets everybody's, or waits until all have come.

The keys are those of `torch.distributed.elastic.utils.store`, so torch's ranks and ours can meet. Each prefix serves one
meeting.
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
    """Gives `store` this time-out, in seconds, for as long as the block lasts, however it ends."""
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Store, rank: int, prefix: str, world_size: int) -> List[bytes]:
    """The values of `{prefix}0`, `{prefix}1` and so on for all ranks, waiting until they are there.

    Rank 0 returns last: it usually hosts the store, and the others must have read everything before it may go.
    """
    if _keys_only.is_keys_only(store):
        return _keys_only.get_all(store, rank, prefix, world_size)
    return _rallypoint.get_all(store, rank, prefix, world_size)


def synchronize(
    store: Store, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> List[bytes]:
    """Sets `{key_prefix}{rank}` to `data`, and returns what all ranks have set. A time-out says which did not come."""
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
    """Waits until `world_size` callers have come.

    Args:
        store: where they meet.
        world_size: how many must come.
        key_prefix: a name for this meeting; each serves once.
        barrier_timeout: how long to wait, in seconds.
        rank: the rank of the caller. With it, a time-out says which ranks are missing.
        rank_tracing_decoder: what to call a rank in that message.
        trace_timeout: how long to wait, after a time-out, for torch's ranks to say that they have come.
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
