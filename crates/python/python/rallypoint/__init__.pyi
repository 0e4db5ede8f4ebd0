"""Torch's distributed stores and elastic rendezvous, in Rust."""

from rallypoint import elastic as elastic

from rallypoint._exceptions import (
    DistBackendError as DistBackendError,
    DistError as DistError,
    DistNetworkError as DistNetworkError,
    DistStoreError as DistStoreError,
    NotANumberError as NotANumberError,
    QueueEmptyError as QueueEmptyError,
)
from rallypoint._rallypoint import (
    FileStore as FileStore,
    HashStore as HashStore,
    PrefixStore as PrefixStore,
    Store as Store,
    TCPStore as TCPStore,
    __version__ as __version__,
)

__all__ = [
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "HashStore",
    "NotANumberError",
    "PrefixStore",
    "QueueEmptyError",
    "Store",
    "TCPStore",
]
