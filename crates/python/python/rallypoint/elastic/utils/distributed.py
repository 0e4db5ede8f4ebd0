"""Making the store of a job, and finding a port for it."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Optional

from ... import _rallypoint
from ..._rallypoint import TCPStore

__all__ = ["create_c10d_store", "get_free_port", "get_socket_with_port"]


def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: Optional[bool] = None,
) -> TCPStore:
    """The store of a job: one process serves, the others find it, and all have come when it returns.

    Args:
        is_server: whether this process serves.
        server_addr: the server's host. The server itself listens on all addresses of its machine.
        server_port: its port; -1 for any free one, which only a world of one can find.
        world_size: how many processes use it.
        timeout: how long to wait for everything together, in seconds.
        wait_for_workers: whether to wait until all have come.
        retries: how often to try a port that is taken.
        use_libuv: ignored, as in torch. The store's `libuvBackend` is false if the environment variable USE_LIBUV is not 1;
            that changes nothing else.

    Raises:
        ValueError: several processes and no port.
        DistNetworkError: the port is taken, or the server could not be reached.
        DistStoreError: not all have come in time.
    """
    if use_libuv is not None:
        import logging

        logging.getLogger(__name__).warning("argument use_libuv is deprecated and ignored")
    if server_port == -1 and world_size > 1:
        raise ValueError(
            f"server_port must be specified when world_size > 1, got server_port={server_port}, world_size={world_size}"
        )
    return _rallypoint.create_c10d_store(
        is_server,
        server_addr,
        None if server_port == -1 else server_port,
        world_size,
        timedelta(seconds=timeout),
        wait_for_workers,
        retries,
        os.environ.get("USE_LIBUV", "1") == "1",
    )


def get_free_port() -> int:
    """A port that was free a moment ago on all addresses of this machine. Somebody may take it before you do."""
    with get_socket_with_port() as bound:
        return bound.getsockname()[1]


def get_socket_with_port() -> socket.socket:
    """A socket bound to a free port on all addresses of this machine: nobody can take the port until it is closed.

    It does not listen.
    """
    return socket.socket(fileno=_rallypoint.reserve_port())
