"""The dynamic rendezvous: nodes come and go, rounds form and re-form, and the nodes share one state in a backend.

What a node does next is decided in Rust, the same for every backend; the state is torch's, so that nodes which run torch's
handler can be in the same job.
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
"""What a backend gives out with a state, and wants back with the next one: it tells whether the state has changed."""


class RendezvousBackend(ABC):
    """Where the state of a rendezvous lies: bytes that are read, and replaced if nobody else has replaced them.

    Subclass it to keep the state anywhere. Its methods are called from several threads. The state's bytes are torch's, so
    what they mean is not its business. Any exception it raises ends the call that needed it and is raised from there.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the backend."""

    @abstractmethod
    def get_state(self) -> Optional[Tuple[bytes, Token]]:
        """The state and its token; `None` if there is no state yet. Doesn't wait for one.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: what is there is no state.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Optional[Token] = None) -> Optional[Tuple[bytes, Token, bool]]:
        """Replaces the state if it still is the one that `token` came with.

        Args:
            state: the new state.
            token: what an earlier call returned; `None` means that there must be no state yet.

        Returns:
            The state that is there now, its token, and whether it is this call's; `None` if there is none.

        Raises:
            RendezvousConnectionError: the backend could not be reached.
            RendezvousStateError: what is there is no state.
        """


class RendezvousTimeout:
    """How long things may take.

    Args:
        join: until this node is in a round; 10 minutes if not given.
        last_call: how long a round with enough nodes waits for more; 30 s.
        close: until the rendezvous is closed, by `set_closed` or `shutdown`; 30 s.
        heartbeat: until this node has shown that it is alive; 5 s.
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
        """Until this node is in a round."""
        return self._times["join"]

    @property
    def last_call(self) -> timedelta:
        """How long a round with enough nodes waits for more."""
        return self._times["last_call"]

    @property
    def close(self) -> timedelta:
        """Until the rendezvous is closed."""
        return self._times["close"]

    @property
    def heartbeat(self) -> timedelta:
        """Until this node has shown that it is alive."""
        return self._times["heartbeat"]

    def __repr__(self) -> str:
        return f"RendezvousTimeout({', '.join(f'{name}={time}' for name, time in self._times.items())})"


@dataclass(eq=False, frozen=True)
class RendezvousSettings:
    """What a node was told. The settings are its own: the others may have different ones.

    Attributes:
        run_id: which job.
        min_nodes: a round has at least so many nodes,
        max_nodes: and at most so many.
        timeout: how long things may take.
        keep_alive_interval: how often a node shows that it is alive.
        keep_alive_max_attempt: after how many intervals without a sign it is dead.
        cas_backoff_max_seconds: torch's nodes wait at most so long, at random, after a write that came too late. Ours do
            so by themselves: it is checked, and that is all.
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int
    cas_backoff_max_seconds: float = 0.0


class DynamicRendezvousHandler(RendezvousHandler):
    """One node of a dynamic rendezvous, over any backend. `from_backend` and `create_handler` make one.

    All methods may be called from any thread. While one of them waits, other threads run, and Ctrl-C ends it within
    100 ms: the node then leaves the rendezvous, and the handler can be used again.

    Args:
        settings: what this node is told.
        backend: where the state lies.
        store: where the nodes of a round meet.
        local_addr: the address by which the others reach this node; its host name if not given.
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
        """A handler over any backend.

        Args:
            run_id: which job.
            store: where the nodes of a round meet; a part of it is returned by `next_rendezvous`.
            backend: where the state lies.
            min_nodes: a round has at least so many nodes,
            max_nodes: and at most so many.
            local_addr: the address by which the others reach this node; its host name if not given.
            timeout: how long things may take.
            keep_alive_interval: how often a node shows that it is alive, in seconds.
            keep_alive_max_attempt: after how many intervals without a sign it is dead.
            cas_backoff_max_seconds: see `RendezvousSettings`.
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
        """What this node was told."""
        return self._settings

    def get_backend(self) -> str:
        """The name of the backend."""
        return self._backend_name

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the agent's store: yes, unless `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until this node is in a round, and shows from then on, every `keep_alive_interval`, that it is alive.

        Rank 0 publishes in the round's store where the workers meet. Unless `use_agent_store` is false, that is a store
        that it serves itself, for as long as the handler lives.

        Raises:
            RendezvousClosedError: the rendezvous has ended for good.
            RendezvousTimeoutError: there were too few nodes within the join time-out.
            RendezvousConnectionError: the store could not be reached or used.
            RendezvousStateError: what lies in the backend is no state.
            RendezvousGracefulExitError: it has ended, and this node was a spare that nobody needed. Not a failure.
        """
        store, rank, world_size, workers = self._node.next_rendezvous()
        return RendezvousInfo(store, rank, world_size, RendezvousStoreInfo(*workers))

    def is_closed(self) -> bool:
        """Whether the rendezvous has ended for good, as it was at most a second ago."""
        return self._node.is_closed()

    def set_closed(self) -> None:
        """Ends the rendezvous for everybody."""
        self._node.set_closed()

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round, as it was at most a second ago.

        At least 1 if the others have dropped this node: then starting over is its way back.
        """
        return self._node.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Which job this is."""
        return self._settings.run_id

    def shutdown(self) -> bool:
        """Stops the heartbeats and ends the rendezvous for everybody. Whether that worked."""
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
    """A handler over any backend, as parameters ask for.

    Args:
        store: where the nodes of a round meet.
        backend: where the state lies.
        params: the rest. These options are read, all in seconds:

            | option | default |
            |---|---|
            | `join_timeout` | 600 |
            | `last_call_timeout` | 30 |
            | `reform_last_call_timeout` (for a round that re-forms with no more nodes than before) | 3 |
            | `store_outage_timeout` (how long the node goes on while the store does not answer) | 600 |
            | `close_timeout` | 30 |
            | `heartbeat_timeout` | 5 |
            | `keep_alive_interval` | 5 |
            | `keep_alive_max_attempt` (a number) | 3 |
            | `cas_backoff_max_seconds` | 0 |
            | `expected_hosts` (`host1;host2` or `host[1-8]`) | Slurm's node list, if there is one |
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
    """Returns the option `NAME_timeout`, or None if it is not given. Raises `ValueError` if it is not positive."""
    seconds = params.get_as_int(name + "_timeout")
    if seconds is not None and seconds <= 0:
        raise ValueError(f"The {name} timeout ({timedelta(seconds=seconds)}) must be positive.")
    return None if seconds is None else timedelta(seconds=seconds)


def create_c10d_handler(params: RendezvousParameters) -> DynamicRendezvousHandler:
    """A handler with the `c10d` backend; what the registry calls. An option that nobody knows is a `ValueError`."""
    from .c10d_rendezvous_backend import create_backend

    problems = _rallypoint.check_rendezvous_options(list(params.config))
    if problems:
        raise ValueError("\n".join(problems))
    backend, store = create_backend(params)
    return create_handler(store, backend, params)


def get_method_name(depth: int = 2) -> str:
    """The name of the function that is `depth` calls up from here; torch has it among its names."""
    import inspect

    stack = inspect.stack()
    return stack[depth].function if len(stack) > depth else "no_method_name"


def _native_backend(backend: RendezvousBackend) -> Optional[_rallypoint.RendezvousCell]:
    """What Rust can use without calling Python: our own backend, unless somebody has put other methods in its place."""
    from .c10d_rendezvous_backend import C10dRendezvousBackend

    if not isinstance(backend, C10dRendezvousBackend):
        return None
    for method in ("get_state", "set_state"):
        if getattr(type(backend), method) is not getattr(C10dRendezvousBackend, method) or method in vars(backend):
            return None
    return backend._state
