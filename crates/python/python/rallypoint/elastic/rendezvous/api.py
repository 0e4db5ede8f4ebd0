"""What every rendezvous has, whatever is behind it: handlers, their parameters, what they return, what they raise."""

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
    """Where the workers of a round find each other: the address and port of the store that rank 0 serves."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Store, local_addr: Optional[str], server_port: Optional[int] = None
    ) -> RendezvousStoreInfo:
        """Rank 0 publishes its address and port in `store`; everybody reads both, waiting as long as the store does.

        Args:
            rank: the rank of this node.
            store: the store of the round.
            local_addr: the address of this node; its host name if there is none.
            server_port: the port of the store; a free one if there is none.
        """
        if rank == 0 and not local_addr:
            local_addr = _host_name()
        addr, port = _rallypoint.exchange_store_info(rank, store, local_addr or "", server_port or 0)
        return RendezvousStoreInfo(addr, port)


class RendezvousInfo:
    """What a node gets from a round. Ranks and the world size count nodes, not workers."""

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
        """The store of this round, shared by its nodes."""
        return self._store

    @property
    def rank(self) -> int:
        """The rank of this node."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many nodes are in the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> Optional[RendezvousStoreInfo]:
        """Where the workers of the round find each other."""
        return self._bootstrap_store_info

    def __repr__(self) -> str:
        return (
            f"RendezvousInfo(rank={self.rank}, world_size={self.world_size}, "
            f"bootstrap_store_info={self.bootstrap_store_info})"
        )


class RendezvousHandler(ABC):
    """One node's part in a rendezvous.

    Subclass it for a rendezvous of another kind, and make that known with `rendezvous_handler_registry.register`.
    """

    @abstractmethod
    def get_backend(self) -> str:
        """The name of the backend: the one it is registered under."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the store that the agent of rank 0 serves, at `bootstrap_store_info`."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until this node is in a round.

        Raises:
            RendezvousClosedError: the rendezvous has ended for good.
            RendezvousTimeoutError: there were too few nodes in time.
            RendezvousConnectionError: the store could not be reached or used.
            RendezvousStateError: what lies in the store is no state.
            RendezvousGracefulExitError: it has ended, and this node was a spare that nobody needed. Not a failure.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the rendezvous has ended for good, as far as this node knows."""

    @abstractmethod
    def set_closed(self) -> None:
        """Ends the rendezvous for everybody."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round.

        Call it now and then, and `next_rendezvous` if it is not 0: that lets them in.
        """

    @abstractmethod
    def get_run_id(self) -> str:
        """Which job this is."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Ends this node's part and the rendezvous with it. Whether that worked."""


class RendezvousParameters:
    """What a handler is made from.

    Args:
        backend: the name of the backend.
        endpoint: where the nodes meet, usually `host:port`.
        run_id: which job.
        min_nodes: a round has at least so many nodes,
        max_nodes: and at most so many.
        local_addr: the address by which the others reach this node; found out if there is none.
        **kwargs: further options of the backend.
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
        """The option `key` as it was given, or `default`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: Optional[bool] = None) -> Optional[bool]:
        """The option `key` as a truth value: `1`, `true`, `t`, `yes`, `y` or their opposites, in any case of letters."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value in (0, 1):
            return value == 1
        if isinstance(value, str) and value.lower() in _TRUTH_VALUES:
            return _TRUTH_VALUES[value.lower()]
        raise ValueError(f"The rendezvous configuration option '{key}' does not represent a valid boolean value.")

    def get_as_int(self, key: str, default: Optional[int] = None) -> Optional[int]:
        """The option `key` as a whole number, read as `int()` reads it."""
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
"""Makes a handler of one backend."""


class RendezvousHandlerRegistry:
    """The backends there are, by name."""

    def __init__(self) -> None:
        self._registry: Dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Makes a backend known.

        Registering the same creator again changes nothing; another one for the same name is a `ValueError`.

        Args:
            backend: its name.
            creator: makes a handler of it from parameters. The handler's `get_backend` must say the same name.
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
        """Makes a handler of the backend that `params` name."""
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
"""The backends of this process: `c10d`, `static`, and those that you register."""

_EMPTY_BACKEND_NAME = "The rendezvous backend name must be a non-empty string."

_TRUTH_VALUES = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n"), False),
}


def _host_name() -> str:
    import socket

    return socket.getfqdn()
