"""The native half of the package. Import `rallypoint` instead."""

from collections.abc import Sequence
from datetime import timedelta
from os import PathLike
from typing import SupportsIndex, final

__version__: str

class Store:
    """The base of all stores: keys with values, counters and queues that the processes of a job share.

    Derive from it to write a store in Python: define set, get, add, check, compare_set, wait and whatever else is used; append,
    multi_get, multi_set and barrier have fallbacks over those. Such a store can be passed to PrefixStore.
    """

    def __init__(self) -> None: ...
    def set(self, key: str, value: str | bytes) -> None:
        """Stores value under key, whatever was there."""

    def get(self, key: str) -> bytes:
        """The value of key as bytes, waiting until there is one, at most for the store's timeout."""

    def add(self, key: str, amount: SupportsIndex) -> int:
        """Adds amount to the number that key holds (0 if there is none) and returns the sum."""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all these keys are there. Never waits."""

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Stores desired_value if key holds expected_value, or if it is absent and expected_value is empty. Returns the value
        held afterwards; expected_value if the key is absent and nothing was stored."""

    def delete_key(self, key: str) -> bool:
        """Removes key; whether it was there (a FileStore always says yes)."""

    def num_keys(self) -> int:
        """How many keys the whole store holds, its own bookkeeping included."""

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Waits until all these keys are there, at most for timeout; for the store's own if none is given."""

    @property
    def timeout(self) -> timedelta:
        """How long the store waits: a timedelta."""

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Sets how long the store waits from now on."""

    def append(self, key: str, value: str | bytes) -> None:
        """Puts value after what key holds."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of these keys, waiting until all are there, at most for the store's timeout."""

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Stores each of values under the key at its place in keys."""

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are single operations here rather than loops."""

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Puts value at the end of the queue key."""

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the value at the head of the queue key. Waits for one at most for the store's timeout; with block=False it
        raises QueueEmptyError instead."""

    def queue_len(self, key: str) -> int:
        """How many values the queue key holds."""

    def list_keys(self) -> list[str]:
        """The names of all keys, in no order."""

    def barrier(self, key: str, world_size: SupportsIndex, timeout: timedelta | float | None = None) -> None:
        """Waits until world_size callers have come to the barrier key, at most for timeout; for the store's own if none is
        given."""

    def clone(self) -> Store:
        """An independent client of the same store."""

class TCPStore(Store):
    """A store served over TCP: one process has is_master=True and serves, all others connect. Torch's TCPStore may be either.

    With port 0 the server picks a free one, which `port` tells. world_size is how many use the store; with wait_for_workers the
    server's own store waits until all have come. With multi_tenant the stores of this process with the same port share one
    server. master_listen_fd is a bound socket that the server takes over. use_libuv is accepted and changes nothing.
    """

    def __init__(
        self,
        host_name: str,
        port: SupportsIndex,
        world_size: SupportsIndex | None = None,
        is_master: bool = False,
        timeout: timedelta | float = ...,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: SupportsIndex | None = None,
        use_libuv: bool = True,
    ) -> None: ...
    @property
    def host(self) -> str:
        """The server's host, as given."""

    @property
    def port(self) -> int:
        """The server's port."""

    @property
    def libuvBackend(self) -> bool:
        """What use_libuv was; kept for programs that ask."""

    def clone(self) -> TCPStore:
        """Another client of the same server, with a connection of its own."""

class FileStore(Store):
    """A store in one file that many processes share, torch's FileStore among them.

    file_name is the file; it is made if it isn't there. world_size is how many use it: the last of them to go removes the file.
    Below zero the file stays.
    """

    def __init__(self, file_name: str | bytes | PathLike[str], world_size: SupportsIndex = -1) -> None: ...
    @property
    def path(self) -> str:
        """The path of the file."""

    def clone(self) -> FileStore:
        """Another store in the same file, counted among its users."""

class HashStore(Store):
    """A store shared by the threads of one process."""

    def __init__(self) -> None: ...
    def clone(self) -> HashStore:
        """The same store: its clones share what it holds."""

class PrefixStore(Store):
    """A part of another store: every key gets prefix and a slash before it. Prefixes may be nested."""

    def __init__(self, prefix: str, store: Store) -> None: ...
    @property
    def underlying_store(self) -> Store:
        """The store that this one is a part of."""

    @property
    def _underlying_non_prefix_store(self) -> Store:
        """The store below all prefixes."""

    def clone(self) -> PrefixStore:
        """The same part of a clone of the store it is a part of."""

@final
class RendezvousCell:
    """The state of one job in a store."""

    def __new__(cls, store: Store, run_id: str) -> RendezvousCell: ...
    def get(self) -> tuple[bytes, bytes] | None:
        """The state and its token; `None` if there is no state yet."""

    def set(self, state: bytes, token: bytes) -> tuple[bytes, bytes, bool] | None:
        """Replaces the state if its token still is this one (empty: there is none yet). What is there now, its token, and
        whether it is this."""

@final
class RendezvousNode:
    """One node of a dynamic rendezvous."""

    def __new__(
        cls,
        store: Store,
        backend: object,
        addr: str,
        *,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        join: timedelta,
        last_call: timedelta,
        close: timedelta,
        heartbeat: timedelta,
        keep_alive_interval: timedelta,
        keep_alive_max_attempt: int,
        expected_hosts: str | None = None,
        reform_last_call: timedelta | None = None,
        store_outage: timedelta | None = None,
    ) -> RendezvousNode: ...
    @property
    def name(self) -> str:
        """Who this is, as torch writes it: address, process and number."""

    def next_rendezvous(self) -> tuple[Store, int, int, tuple[str, int]]:
        """Waits until this node is in a round."""

    def is_closed(self) -> bool:
        """Whether the rendezvous has ended for good."""

    def set_closed(self) -> None:
        """Ends the rendezvous for everybody."""

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round."""

    def stop_heartbeats(self) -> None:
        """Ends the heartbeats. Does nothing in a process that was forked: there are none."""

@final
class StaticNode:
    """One node of a static rendezvous."""

    def __new__(
        cls, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: int
    ) -> StaticNode: ...
    def next_rendezvous(self) -> tuple[Store, int, int, tuple[str, int]]:
        """Waits until all nodes are here."""

def await_leaving(seconds: float) -> None:
    """Waits until the calls that were interrupted have ended, at most so many seconds."""

def parse_rendezvous_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Host and port of an endpoint; `None` if it names no port."""

def check_rendezvous_options(names: list[str]) -> list[str]:
    """Returns a message for each of these options that the `c10d` backend does not know."""

def create_rendezvous_store(
    endpoint: str, run_id: str, min_nodes: int, max_nodes: int, is_host: bool | None, read_timeout: int
) -> tuple[TCPStore, str]:
    """Hosts the store of a rendezvous, or connects to it; with an address of this machine under which the others reach it."""

def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int | None,
    world_size: int,
    timeout: timedelta,
    wait_for_workers: bool,
    retries: int,
    use_libuv: bool,
) -> TCPStore:
    """Makes the store of a job."""

def reserve_port() -> int:
    """The number of a socket that is bound to a free port."""

def exchange_store_info(rank: int, store: Store, local_addr: str, server_port: int) -> tuple[str, int]:
    """Rank 0 publishes where the workers meet; everybody reads it."""

def get_all(store: Store, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """What all ranks have set under the prefix."""

def synchronize(
    store: Store, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: timedelta
) -> list[bytes]:
    """Sets what this rank gives, and returns what all have given."""

def barrier(
    store: Store, world_size: int, key_prefix: str, timeout: timedelta, rank: int | None, trace_timeout: timedelta
) -> list[int]:
    """Waits until all have come. The ranks that have not, if the time is up and they are known."""
