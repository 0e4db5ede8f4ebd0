"""The `c10d` backend, which keeps the state under one key of a store. One of the nodes hosts that store."""

from __future__ import annotations

from typing import Optional, Tuple

from ... import _rallypoint
from ..._rallypoint import FileStore, Store, TCPStore
from .api import RendezvousParameters
from .dynamic_rendezvous import RendezvousBackend, Token
from .errors import create_error

DEFAULT_PORT = 29400
"""The default port, for an endpoint that does not have one."""


class C10dRendezvousBackend(RendezvousBackend):
    """A backend that keeps the state of one job under one key of any store. Torch's backend uses the same key.

    Our own nodes also announce themselves in the store and wake each other, so that a round completes within
    milliseconds.

    Args:
        store: the store.
        run_id: the run id of the job.

    Raises:
        ValueError: `run_id` is empty.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._store = store
        # The address at which other nodes reach this one, if it is known.
        self._reachable_as: Optional[str] = None
        self._state = _rallypoint.RendezvousCell(store, run_id)

    @property
    def name(self) -> str:
        """The name of the backend, `c10d`."""
        return "c10d"

    def get_state(self) -> Optional[Tuple[bytes, Token]]:
        """Returns the state and its token, or `None` if there is no state yet."""
        return self._state.get()

    def set_state(self, state: bytes, token: Optional[Token] = None) -> Optional[Tuple[bytes, Token, bool]]:
        """Replaces the state if `token` belongs to the current one. See `RendezvousBackend.set_state`."""
        if token and not isinstance(token, bytes):
            # This backend's tokens are bytes, so a token of another type cannot belong to the current state.
            current = self._state.get()
            return None if current is None else (*current, False)
        return self._state.set(state, token or b"")


def create_backend(params: RendezvousParameters) -> Tuple[C10dRendezvousBackend, Store]:
    """Creates the store for the given parameters, and a backend that uses it.

    Args:
        params: the parameters. This function reads these options:

            | option | meaning | default |
            |---|---|---|
            | `store_type` | `tcp`, or `file` with a path as the endpoint | `tcp` |
            | `is_host` | whether this process hosts the TCP store | whether it can bind the endpoint |
            | `read_timeout` | the timeout of the TCP store, in seconds | 60 |

    Raises:
        RendezvousConnectionError: the store could not be created or reached. `__cause__` has the reason.
        RendezvousError: the store type is `file`, the endpoint is empty, and no temporary file could be created.
        ValueError: an option is invalid.
    """
    kind = str(params.get("store_type", "tcp")).strip().lower()
    store: Store
    reachable_as = None
    if kind == "tcp":
        store, reachable_as = _create_tcp_store(params)
    elif kind == "file":
        store = _create_file_store(params)
    else:
        raise ValueError("Invalid store type given. Currently only supports file and tcp.")
    backend = C10dRendezvousBackend(store, params.run_id)
    backend._reachable_as = reachable_as
    return backend, store


def _create_tcp_store(params: RendezvousParameters) -> Tuple[TCPStore, str]:
    is_host = params.get_as_bool("is_host")
    read_timeout = params.get_as_int("read_timeout", 60)
    if read_timeout is None or read_timeout <= 0:
        raise ValueError("The read timeout must be a positive integer.")
    return _rallypoint.create_rendezvous_store(
        params.endpoint or "", params.run_id, params.min_nodes, params.max_nodes, is_host, read_timeout
    )


def _create_file_store(params: RendezvousParameters) -> FileStore:
    path = params.endpoint
    if not path:
        import os
        import tempfile

        try:
            file, path = tempfile.mkstemp()
            os.close(file)
        except OSError as error:
            raise create_error(
                "RendezvousError", "The file creation for C10d store has failed. See inner exception for details."
            ) from error
    try:
        return FileStore(path)
    except (ValueError, RuntimeError, OSError) as error:
        raise create_error(
            "RendezvousConnectionError", "The connection to the C10d store has failed. See inner exception for details."
        ) from error
