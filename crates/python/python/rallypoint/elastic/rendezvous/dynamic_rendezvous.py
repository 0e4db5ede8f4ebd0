"""The dynamic rendezvous: nodes join and leave, rounds re-form, and all nodes share one state in a backend.

The decisions of a node are made in Rust, and do not depend on the backend. The state has torch's format, so nodes that
run torch's handler can be in the same job.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Dict, Optional, Tuple

from ... import _rallypoint
from ..._rallypoint import Store
from . import _shutdown
from .api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo, _host_name
from .errors import is_rendezvous_error

__all__ = [
    "RendezvousBackend",
    "RendezvousTimeout",
    "RendezvousSettings",
    "DynamicRendezvousHandler",
    "create_handler",
]

Token = Any
"""Identifies one version of the state. A backend returns it with a state and compares it in `set_state`."""


class RendezvousBackend(ABC):
    """Storage for the state of a rendezvous: bytes that can be read and replaced by compare-and-set.

    Subclass it to store the state anywhere. Several threads call its methods. A backend need not interpret the bytes,
    which have torch's format. If a method raises an exception, the handler's call fails with that exception.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the backend."""

    @abstractmethod
    def get_state(self) -> Optional[Tuple[bytes, Token]]:
        """Returns the state and its token, or `None` if there is no state yet. Does not wait.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the stored value is not a state.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Optional[Token] = None) -> Optional[Tuple[bytes, Token, bool]]:
        """Replaces the state if `token` belongs to the current one.

        Args:
            state: the new state.
            token: the token that an earlier call returned. `None` means that there is no state yet.

        Returns:
            The current state, its token, and whether it is the one from this call. `None` if there is no state.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: the stored value is not a state.
        """


class RendezvousTimeout:
    """The timeouts of a rendezvous.

    Args:
        join: how long this node may take to join a round. The default is 10 minutes.
        last_call: how long a round that has enough nodes accepts more. The default is 30 s.
        close: how long closing the rendezvous may take. The default is 30 s.
        heartbeat: how long writing one heartbeat may take. The default is 5 s.

    Raises:
        ValueError: a timeout is not positive.
    """

    _DEFAULTS: ClassVar[Dict[str, timedelta]] = {
        "join": timedelta(seconds=600),
        "last_call": timedelta(seconds=30),
        "close": timedelta(seconds=30),
        "heartbeat": timedelta(seconds=5),
    }

    def __init__(
        self,
        join: Optional[timedelta] = None,
        last_call: Optional[timedelta] = None,
        close: Optional[timedelta] = None,
        heartbeat: Optional[timedelta] = None,
    ) -> None:
        self._times = {}
        given = {"join": join, "last_call": last_call, "close": close, "heartbeat": heartbeat}
        for name, time in given.items():
            time = self._DEFAULTS[name] if time is None else time
            if time <= timedelta(0):
                raise ValueError(f"The {name} timeout ({time}) must be positive.")
            self._times[name] = time

    @property
    def join(self) -> timedelta:
        """How long this node may take to join a round."""
        return self._times["join"]

    @property
    def last_call(self) -> timedelta:
        """How long a round that has enough nodes accepts more."""
        return self._times["last_call"]

    @property
    def close(self) -> timedelta:
        """How long closing the rendezvous may take."""
        return self._times["close"]

    @property
    def heartbeat(self) -> timedelta:
        """How long writing one heartbeat may take."""
        return self._times["heartbeat"]

    def __repr__(self) -> str:
        return f"RendezvousTimeout({', '.join(f'{name}={time}' for name, time in self._times.items())})"


@dataclass(eq=False, frozen=True)
class RendezvousSettings:
    """The settings of one node. All nodes of a job need the same `min_nodes` and `max_nodes`. Timeouts may differ.

    Attributes:
        run_id: the run id of the job.
        min_nodes: the minimum number of nodes in a round.
        max_nodes: the maximum number of nodes in a round.
        timeout: the timeouts.
        keep_alive_interval: the interval between two heartbeats.
        keep_alive_max_attempt: the number of intervals without a heartbeat after which a node is dead.
        cas_backoff_max_seconds: the maximum random delay of torch's nodes after a compare-and-set that failed. Our
            nodes choose that delay themselves, and only validate this value.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    cas_backoff_max_seconds: float = 0.0


class DynamicRendezvousHandler(RendezvousHandler):
    """One node of a dynamic rendezvous, with any backend. `from_backend` and `create_handler` create one.

    All methods can be called from any thread. While a method waits, other Python threads run. Ctrl-C ends the wait
    within 100 ms; the node then leaves the rendezvous, and the handler can be used again.

    Args:
        settings: the settings of this node.
        backend: the backend that stores the state.
        store: the store for the data of each round.
        local_addr: the address at which other nodes reach this one. The default is the address that `create_backend`
            determined while it created a TCP store, and otherwise the host name.
        expected_hosts: the hosts that should join (`host1;host2` or `host[1-8]`). A message about a timeout names those
            that are missing. The default is Slurm's node list, if there is one.
        reform_last_call: the maximum duration of the last call of a round that re-forms with no more nodes than the
            round before it. If `last_call` is shorter, it applies instead. The default is 3 s.
        store_outage: how long the node keeps running while the store does not answer. The default is 10 minutes.

    Raises:
        ValueError: a setting is invalid.
    """

    def __init__(
        self,
        settings: RendezvousSettings,
        backend: RendezvousBackend,
        store: Store,
        local_addr: Optional[str] = None,
        *,
        expected_hosts: Optional[str] = None,
        reform_last_call: Optional[timedelta] = None,
        store_outage: Optional[timedelta] = None,
    ) -> None:
        delay = settings.cas_backoff_max_seconds
        if not math.isfinite(delay) or delay < 0:
            raise ValueError(f"cas_backoff_max_seconds ({delay}) must be finite and non-negative.")
        if settings.min_nodes < 1:
            raise ValueError(f"The minimum number of nodes ({settings.min_nodes}) must be greater than zero.")
        if settings.max_nodes < settings.min_nodes:
            raise ValueError(
                f"The maximum number of nodes ({settings.max_nodes}) must be greater than or equal to the minimum number "
                f"of nodes ({settings.min_nodes})."
            )
        self._settings = settings
        self._backend_name = backend.name
        times = settings.timeout
        self._node = _rallypoint.RendezvousNode(
            store,
            _native_backend(backend) or backend,
            local_addr or getattr(backend, "_reachable_as", None) or _host_name(),
            run_id=settings.run_id,
            min_nodes=settings.min_nodes,
            max_nodes=settings.max_nodes,
            join=times.join,
            last_call=times.last_call,
            close=times.close,
            heartbeat=times.heartbeat,
            keep_alive_interval=settings.keep_alive_interval,
            keep_alive_max_attempt=min(max(settings.keep_alive_max_attempt, 0), 2**32 - 1),
            expected_hosts=expected_hosts,
            reform_last_call=reform_last_call,
            store_outage=store_outage,
        )
        _shutdown.stop_at_exit(self._node)

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Store,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: Optional[str] = None,
        timeout: Optional[RendezvousTimeout] = None,
        keep_alive_interval: int = 5,
        keep_alive_max_attempt: int = 3,
        cas_backoff_max_seconds: float = 0.0,
    ) -> DynamicRendezvousHandler:
        """Creates a handler with any backend.

        Args:
            run_id: the run id of the job.
            store: the store for the data of each round. `next_rendezvous` returns a PrefixStore around it.
            backend: the backend that stores the state.
            min_nodes: the minimum number of nodes in a round.
            max_nodes: the maximum number of nodes in a round.
            local_addr: the address at which other nodes reach this one. See `DynamicRendezvousHandler`.
            timeout: the timeouts.
            keep_alive_interval: the interval between two heartbeats, in seconds.
            keep_alive_max_attempt: the number of intervals without a heartbeat after which a node is dead.
            cas_backoff_max_seconds: see `RendezvousSettings`.

        Raises:
            ValueError: a setting is invalid.
        """
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            keep_alive_interval=timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt=keep_alive_max_attempt,
            cas_backoff_max_seconds=cas_backoff_max_seconds,
        )
        return cls(settings, backend, store, local_addr)

    @property
    def settings(self) -> RendezvousSettings:
        """The settings of this node."""
        return self._settings

    def get_backend(self) -> str:
        """Returns the name of the backend."""
        return self._backend_name

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the agent's store: true, unless `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until this node is in a round. From then on, the node sends a heartbeat every `keep_alive_interval`.

        Rank 0 publishes the address and port of the workers' store in the round's store. If `use_agent_store` is true,
        rank 0 also serves the workers' store, as long as its handler exists.

        Raises:
            RendezvousClosedError: the rendezvous is closed.
            RendezvousTimeoutError: this node was not in a round within the join timeout, because fewer than `min_nodes`
                nodes joined, or because the current round did not re-form.
            RendezvousConnectionError: the store could not be reached or used.
            RendezvousStateError: the value in the backend is not a rendezvous state.
            RendezvousGracefulExitError: the rendezvous is closed, and this node was a spare. This is not a failure.
            RendezvousError: the nodes of the job have different settings for the number of nodes.
            DistStoreError: rank 0 did not publish the address of the workers' store.
        """
        store, rank, world_size, workers = self._node.next_rendezvous()
        return RendezvousInfo(store, rank, world_size, RendezvousStoreInfo(*workers))

    def is_closed(self) -> bool:
        """Returns whether the rendezvous is closed. The result may be up to 1 s old, or older during an outage of the store."""
        return self._node.is_closed()

    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""
        self._node.set_closed()

    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round.

        The result may be up to 1 s old, or older during an outage of the store. If other nodes have dropped this node,
        the number is at least 1, so that the agent rejoins.
        """
        return self._node.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Returns the run id of the job."""
        return self._settings.run_id

    def shutdown(self) -> bool:
        """Stops the heartbeats and closes the rendezvous for all nodes. Returns whether that succeeded."""
        self._node.stop_heartbeats()
        try:
            self._node.set_closed()
        except Exception as error:
            if not is_rendezvous_error(error):
                raise
            import logging

            logging.getLogger(__name__).warning(
                "The node '%s' has failed to shutdown the rendezvous '%s' due to an error of type %s: %s",
                self._node.name,
                self._settings.run_id,
                type(error).__name__,
                error,
            )
            return False
        return True

    def __repr__(self) -> str:
        return f"DynamicRendezvousHandler({self._node.name!r}, run_id={self._settings.run_id!r}, backend={self._backend_name!r})"


def create_handler(
    store: Store, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """Creates a handler with any backend from parameters.

    Args:
        store: the store for the data of each round.
        backend: the backend that stores the state.
        params: the parameters. This function reads these options, with times in seconds:

            | option | default |
            |---|---|
            | `join_timeout` | 600 |
            | `last_call_timeout` | 30 |
            | `reform_last_call_timeout` (if shorter, for a round that re-forms with no more nodes than the round before it) | 3 |
            | `store_outage_timeout` (how long the node keeps running while the store does not answer) | 600 |
            | `close_timeout` | 30 |
            | `heartbeat_timeout` | 5 |
            | `keep_alive_interval` | 5 |
            | `keep_alive_max_attempt` (a number) | 3 |
            | `cas_backoff_max_seconds` | 0 |
            | `expected_hosts` (hosts that should join, for messages: `host1;host2` or `host[1-8]`) | Slurm's node list, if there is one |

    Raises:
        ValueError: an option is invalid.
        TypeError: `keep_alive_interval` or `keep_alive_max_attempt` is None.
    """
    times = (params.get_as_int(name + "_timeout") for name in ("join", "last_call", "close", "heartbeat"))
    timeout = RendezvousTimeout(*(None if time is None else timedelta(seconds=time) for time in times))
    numbers = {}
    for option, default in (("keep_alive_interval", 5), ("keep_alive_max_attempt", 3)):
        number = params.get_as_int(option, default)
        if number is None:
            raise TypeError(f"You passed '{option}=None' as a rendezvous configuration option")
        numbers[option] = number
    delay = params.get("cas_backoff_max_seconds", 0.0)
    try:
        seconds = float(delay)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cas_backoff_max_seconds({delay!r}) is not a valid float value.") from error
    settings = RendezvousSettings(
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        timeout,
        keep_alive_interval=timedelta(seconds=numbers["keep_alive_interval"]),
        keep_alive_max_attempt=numbers["keep_alive_max_attempt"],
        cas_backoff_max_seconds=seconds,
    )
    return DynamicRendezvousHandler(
        settings,
        backend,
        store,
        params.local_addr,
        expected_hosts=params.get("expected_hosts"),
        reform_last_call=_positive_timeout(params, "reform_last_call"),
        store_outage=_positive_timeout(params, "store_outage"),
    )


def _positive_timeout(params: RendezvousParameters, name: str) -> Optional[timedelta]:
    """Returns the option `NAME_timeout`, or `None` if it is not given. Raises `ValueError` if it is not positive."""
    seconds = params.get_as_int(name + "_timeout")
    if seconds is not None and seconds <= 0:
        raise ValueError(f"The {name} timeout ({timedelta(seconds=seconds)}) must be positive.")
    return None if seconds is None else timedelta(seconds=seconds)


def create_c10d_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Creates a store, a `c10d` backend that uses it, and a handler with that backend, for the registry.

    Raises:
        ValueError: an option is unknown or invalid.
        RendezvousConnectionError: the store could not be created or reached.
    """
    from .c10d_rendezvous_backend import create_backend

    problems = _rallypoint.check_rendezvous_options(list(params.config))
    if problems:
        raise ValueError("\n".join(problems))
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


def get_method_name(depth: int = 2) -> str:
    """Returns the name of the function `depth` calls up the stack. Exists because torch has it."""
    import inspect

    stack = inspect.stack()
    return stack[depth].function if len(stack) > depth else "no_method_name"


def _native_backend(backend: RendezvousBackend) -> Optional[_rallypoint.RendezvousCell]:
    """Returns the cell of a `C10dRendezvousBackend`, which Rust uses without calling Python.

    Returns `None` for other backends, and if `get_state` or `set_state` is overridden.
    """
    from .c10d_rendezvous_backend import C10dRendezvousBackend

    if not isinstance(backend, C10dRendezvousBackend):
        return None
    for method in ("get_state", "set_state"):
        if getattr(type(backend), method) is not getattr(C10dRendezvousBackend, method) or method in vars(backend):
            return None
    return backend._state
