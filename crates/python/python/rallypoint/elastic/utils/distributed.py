"""Creates the store of a job, and finds a port for it."""

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
    """Creates the store of a job: one process runs the server, and the others connect to it.

    Args:
        is_server: whether this process runs the server.
        server_addr: the server's host. The server listens on all addresses of its machine, or only on the loopback
            address if `server_addr` is a loopback address.
        server_port: the server's port. With -1, the server picks a free port, which requires a `world_size` of 1.
        world_size: the number of processes that use the store.
        timeout: the time for the whole call, in seconds.
        wait_for_workers: whether to wait until all processes have connected.
        retries: the maximum number of attempts to bind a port that is in use.
        use_libuv: ignored, as in torch. The store's `libuvBackend` is false if the environment variable USE_LIBUV is
            set to a value other than 1. That has no other effect.

    Raises:
        ValueError: there is no port, and `world_size` is greater than 1 or this process does not run the server.
        DistNetworkError: the port is in use, or the server could not be reached.
        DistStoreError: not all processes connected in time.
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
    """Returns a port that is free on all addresses of this machine. Another process may bind it first."""
    with get_socket_with_port() as bound:
        return bound.getsockname()[1]


def get_socket_with_port() -> socket.socket:
    """Returns a socket that is bound to a free port on all addresses of this machine.

    No other process can take the port until the socket is closed. The socket does not listen.
    """
    return socket.socket(fileno=_rallypoint.reserve_port())
