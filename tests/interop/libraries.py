"""Torch's rendezvous API and ours under the same names, so that one test can run with both libraries."""

import importlib
import pickle
import threading
import uuid
from datetime import timedelta

import pytest
from join_call import JOIN_TIMEOUT, JoinCall

pytest.importorskip("rallypoint", reason="the Python package is not installed; scripts/python-venv installs it")


class Library:
    """One of the two libraries. Its modules are attributes, by the short names in `_MODULES`."""

    _MODULES = {
        "rdzv": "rendezvous",
        "api": "rendezvous.api",
        "dynamic": "rendezvous.dynamic_rendezvous",
        "c10d": "rendezvous.c10d_rendezvous_backend",
        "static": "rendezvous.static_tcp_rendezvous",
        "registry": "rendezvous.registry",
        "utils": "rendezvous.utils",
        "store": "utils.store",
        "ports": "utils.distributed",
    }

    def __init__(self, name, elastic, dist):
        self.name, self._elastic, self._dist = name, elastic, dist

    def __getattr__(self, name):
        if name not in self._MODULES:
            raise AttributeError(name)
        return importlib.import_module(f"{self._elastic}.{self._MODULES[name]}")

    @property
    def dist(self):
        """The module with the library's stores."""
        return importlib.import_module(self._dist)

    def server(self):
        """Returns a store whose server runs in this process."""
        return self.dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=JOIN_TIMEOUT))

    def client(self, server):
        """Returns a new client of `server`."""
        return self.dist.TCPStore(
            "127.0.0.1", server.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=JOIN_TIMEOUT)
        )

    def parameters(self, **changes):
        """Returns `RendezvousParameters` with valid defaults, which `changes` override."""
        defaults = {"backend": "c10d", "endpoint": "localhost:0", "run_id": "job", "min_nodes": 1, "max_nodes": 1}
        return self.api.RendezvousParameters(**{**defaults, **changes})

    def __repr__(self):
        return self.name


TORCH = Library("torch", "torch.distributed.elastic", "torch.distributed")
OURS = Library("ours", "rallypoint.elastic", "rallypoint")
BOTH = (TORCH, OURS)


class Node:
    """A node of a rendezvous on `server`. By default, it has its own client and the library's `c10d` backend."""

    def __init__(
        self,
        library,
        server,
        run_id,
        nodes,
        backend=None,
        store=None,
        addr="127.0.0.1",
        join=JOIN_TIMEOUT,
        last_call=30,
        close=30,
        **options,
    ):
        self.library = library
        # The server stops when the last reference to its store is dropped.
        self._server = server
        store = store or library.client(server)
        self.backend = backend or library.c10d.C10dRendezvousBackend(store, run_id)
        seconds = {"join": join, "last_call": last_call, "close": close}
        timeout = library.dynamic.RendezvousTimeout(**{name: timedelta(seconds=each) for name, each in seconds.items()})
        self.handler = library.dynamic.DynamicRendezvousHandler.from_backend(
            run_id, store, self.backend, *nodes, local_addr=addr, timeout=timeout, **options
        )

    def start(self):
        """Calls `next_rendezvous` on another thread. `joined` waits for the result."""
        self._joining = JoinCall(self.handler.next_rendezvous)
        return self

    def joined(self, within=JOIN_TIMEOUT):
        """Returns the result of `next_rendezvous`, or raises its exception."""
        return self._joining.result(within)

    def is_waiting(self):
        return self._joining.is_waiting()

    def stop_heartbeats(self):
        """Stops the heartbeats, so that other nodes consider this node dead."""
        if self.library is TORCH:
            self.handler._stop_heartbeats()
        else:
            self.handler._node.stop_heartbeats()

    def state(self):
        """Returns the shared state, unpickled into torch's classes."""
        current = self.backend.get_state()
        return current and pickle.loads(current[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop_heartbeats()


def new_run_id():
    """Returns a unique run id."""
    return f"job-{uuid.uuid4().hex[:8]}"


def memory_backend(library):
    """Returns a backend for `library` that keeps the state in memory. Its tokens are objects, compared by identity."""

    class MemoryBackend(library.dynamic.RendezvousBackend):
        def __init__(self):
            self._lock = threading.Lock()
            self._state = self._token = None
            self.calls = []
            self.failure = None

        @property
        def name(self):
            return "memory"

        def get_state(self):
            with self._lock:
                return self._current_state("get_state")

        def set_state(self, state, token=None):
            with self._lock:
                has_set = token is self._token
                if has_set:
                    self._state, self._token = bytes(state), object()
                current = self._current_state("set_state")
                return None if current is None else (*current, has_set)

        def _current_state(self, name):
            self.calls.append((name, threading.current_thread().name))
            if self.failure is not None:
                raise self.failure
            return None if self._state is None else (self._state, self._token)

    return MemoryBackend()
