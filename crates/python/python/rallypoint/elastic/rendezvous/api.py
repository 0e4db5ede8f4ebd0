"""The interface of every rendezvous: handlers, parameters, results, exceptions and the registry of backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Dict, Optional

from ... import _rallypoint
from ..._rallypoint import Store
from .errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "rendezvous_handler_registry",
]


@dataclass
class RendezvousStoreInfo:
    """The address and port of the store for the workers of a round. Rank 0 serves that store."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Store, local_addr: Optional[str], server_port: Optional[int] = None
    ) -> RendezvousStoreInfo:
        """On rank 0, publishes the address and port. On every rank, returns what rank 0 has published.

        Args:
            rank: the rank of this node.
            store: the store of the round.
            local_addr: the address of this node. The default is its host name.
            server_port: the port of the workers' store. The default is a free port.

        Raises:
            DistStoreError: rank 0 did not publish within the store's timeout.
        """
        if rank == 0 and not local_addr:
            local_addr = _host_name()
        addr, port = _rallypoint.exchange_store_info(rank, store, local_addr or "", server_port or 0)
        return RendezvousStoreInfo(addr, port)


class RendezvousInfo:
    """The result of a round for one node. Its rank and world size count nodes, not workers."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        bootstrap_store_info: Optional[RendezvousStoreInfo],
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Store:
        """The store that the nodes of this round share."""
        return self._store

    @property
    def rank(self) -> int:
        """The rank of this node."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of nodes in the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> Optional[RendezvousStoreInfo]:
        """The address and port of the store for the workers of the round."""
        return self._bootstrap_store_info

    def __repr__(self) -> str:
        return (
            f"RendezvousInfo(rank={self.rank}, world_size={self.world_size}, "
            f"bootstrap_store_info={self.bootstrap_store_info})"
        )


class RendezvousHandler(ABC):
    """The interface of one node to a rendezvous.

    Subclass it to implement another kind of rendezvous, and register that with `rendezvous_handler_registry.register`.
    """

    @abstractmethod
    def get_backend(self) -> str:
        """Returns the name under which the backend is registered."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the store at `bootstrap_store_info`, which the agent of rank 0 serves."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until this node is in a round.

        Raises:
            RendezvousClosedError: the rendezvous is closed.
            RendezvousTimeoutError: this node was not in a round in time.
            RendezvousConnectionError: the store could not be reached or used.
            RendezvousStateError: the stored value is not a rendezvous state.
            RendezvousGracefulExitError: the rendezvous is closed, and this node was a spare. This is not a failure.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Returns whether the rendezvous is closed, as far as this node knows."""

    @abstractmethod
    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round.

        Call this method periodically. If the number is not 0, call `next_rendezvous`, so that these nodes can join.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """Returns the run id of the job."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Ends this node's part in the rendezvous and closes the rendezvous. Returns whether that succeeded."""


class RendezvousParameters:
    """The parameters from which a handler is created.

    Args:
        backend: the name of the backend.
        endpoint: the endpoint of the rendezvous, usually `host:port`.
        run_id: the run id of the job.
        min_nodes: the minimum number of nodes in a round.
        max_nodes: the maximum number of nodes in a round.
        local_addr: the address at which other nodes reach this one. By default, the handler determines it.
        **kwargs: further options of the backend.

    Raises:
        ValueError: `backend` is empty, or the numbers of nodes are invalid.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError(_EMPTY_BACKEND_NAME)
        if min_nodes < 1:
            raise ValueError(f"The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero.")
        if max_nodes < min_nodes:
            raise ValueError(
                f"The maximum number of rendezvous nodes ({max_nodes}) must be greater than or "
                f"equal to the minimum number of rendezvous nodes ({min_nodes})."
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config: Dict[str, Any] = kwargs

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the option `key` as it was given, or `default` if it was not given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: Optional[bool] = None) -> Optional[bool]:
        """Returns the option `key` as a boolean, or `default` if it was not given.

        `1`, `true`, `t`, `yes` and `y` are true, and `0`, `false`, `f`, `no` and `n` are false. Case does not matter.

        Raises:
            ValueError: the option has another value.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value in (0, 1):
            return value == 1
        if isinstance(value, str) and value.lower() in _TRUTH_VALUES:
            return _TRUTH_VALUES[value.lower()]
        raise ValueError(f"The rendezvous configuration option '{key}' does not represent a valid boolean value.")

    def get_as_int(self, key: str, default: Optional[int] = None) -> Optional[int]:
        """Returns the option `key` as an integer, or `default` if it was not given. `int()` converts it.

        Raises:
            ValueError: the option is not an integer.
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError as error:
            raise ValueError(
                f"The rendezvous configuration option '{key}' does not represent a valid integer value."
            ) from error

    def __repr__(self) -> str:
        return (
            f"RendezvousParameters(backend={self.backend!r}, endpoint={self.endpoint!r}, run_id={self.run_id!r}, "
            f"min_nodes={self.min_nodes}, max_nodes={self.max_nodes}, local_addr={self.local_addr!r}, "
            f"config={self.config!r})"
        )


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]
"""A function that creates a handler of one backend."""


class RendezvousHandlerRegistry:
    """A registry of backends: maps the name of each to the function that creates its handlers."""

    def __init__(self) -> None:
        self._registry: Dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Registers a backend. Does nothing if the same creator is already registered under this name.

        Args:
            backend: the name of the backend.
            creator: creates a handler from parameters. The handler's `get_backend` must return the same name.

        Raises:
            ValueError: the name is empty, or another creator is registered under it.
        """
        if not backend:
            raise ValueError(_EMPTY_BACKEND_NAME)
        current = self._registry.setdefault(backend, creator)
        if current != creator:
            raise ValueError(
                f"The rendezvous backend '{backend}' cannot be registered with '{creator}' as it "
                f"is already registered with '{current}'."
            )

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Creates a handler of the backend `params.backend`.

        Raises:
            ValueError: no such backend is registered.
            RuntimeError: the handler's `get_backend` returns another name.
        """
        creator = self._registry.get(params.backend)
        if creator is None:
            raise ValueError(
                f"The rendezvous backend '{params.backend}' is not registered. Did you forget to call `register`? "
                f"Registered are: {', '.join(sorted(self._registry)) or 'none'}."
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"The rendezvous backend '{handler.get_backend()}' does not match the requested "
                f"backend '{params.backend}'."
            )
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""The backends of this process: `c10d`, `rallypoint`, `static`, and those that the program registers."""

_EMPTY_BACKEND_NAME = "The rendezvous backend name must be a non-empty string."

_TRUTH_VALUES = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
}


def _host_name() -> str:
    import socket

    return socket.getfqdn()
