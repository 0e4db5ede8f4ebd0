"""The extension module of the package. Import `rallypoint` instead."""

from collections.abc import Sequence
from datetime import timedelta
from os import PathLike
from typing import SupportsIndex, final

__version__: str

class Store:
    """The base class of all stores: keys with values, counters and queues that the processes of a job share.

    Every operation raises DistNetworkError if the server cannot be reached or a connection is lost, TypeError or
    ValueError if an argument is invalid, and NotImplementedError if this kind of store does not have the operation.

    Derive from Store to write a store in Python. Define set, get, add, check, compare_set and wait. append, multi_get,
    multi_set and barrier have fallbacks, which call these six methods. Define every other method that the program
    calls. Such a store can be passed to PrefixStore.
    """

    def __init__(self) -> None: ...
    def set(self, key: str, value: str | bytes) -> None:
        """Stores value under key, and replaces the value that the key had."""

    def get(self, key: str) -> bytes:
        """Returns the value of key as bytes. Waits until the key exists.

        Raises:
            DistStoreError: the key did not exist within the store's timeout.
        """

    def add(self, key: str, amount: SupportsIndex) -> int:
        """Adds amount to the integer that is stored under key, and returns the sum. An absent key counts as 0.

        Raises:
            NotANumberError: the value of key is not an integer.
        """

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys exist. Does not wait."""

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Stores desired_value if the value of key is expected_value. An absent key counts as empty.

        Returns the value of key after the call, or expected_value if the key is absent and nothing was stored.
        """

    def delete_key(self, key: str) -> bool:
        """Deletes key. Returns whether the key existed, except that a FileStore always returns True."""

    def num_keys(self) -> int:
        """Returns the number of keys in the whole store, including keys that the store created for itself."""

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Waits until all keys exist, for at most timeout. The default is the store's timeout.

        Raises:
            DistStoreError: not all keys existed within the timeout.
        """

    @property
    def timeout(self) -> timedelta:
        """The timeout of operations that wait, as a timedelta."""

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Sets the timeout of operations that wait."""

    def append(self, key: str, value: str | bytes) -> None:
        """Appends value to the value of key. An absent key counts as empty."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Returns the values of keys, in the same order. Waits until all keys exist.

        Raises:
            DistStoreError: not all keys existed within the store's timeout.
        """

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Stores each value under the key at the same index.

        Raises:
            DistStoreError: keys and values differ in length.
        """

    def has_extended_api(self) -> bool:
        """Returns whether append, multi_get and multi_set are single operations of this store."""

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Appends value to the queue key."""

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Removes the first value of the queue key and returns it. Waits for a value, unless block is False.

        Raises:
            DistStoreError: the queue was empty for the store's timeout.
            QueueEmptyError: the queue is empty, and block is False.
        """

    def queue_len(self, key: str) -> int:
        """Returns the number of values in the queue key."""

    def list_keys(self) -> list[str]:
        """Returns the names of all keys, in no particular order."""

    def barrier(self, key: str, world_size: SupportsIndex, timeout: timedelta | float | None = None) -> None:
        """Waits until world_size callers have reached the barrier key.

        Waits for at most timeout. The default is the store's timeout.

        Raises:
            DistStoreError: fewer than world_size callers arrived within the timeout.
            ValueError: world_size is less than 1.
        """

    def clone(self) -> Store:
        """Returns an independent client of the same store."""

class TCPStore(Store):
    """A store that one process serves over TCP, and to which other processes connect.

    Servers and clients are compatible with those of torch's TCPStore.

    Args:
        host_name: the host of the server.
        port: the port of the server. With 0, the server picks a free port; the attribute port has its number.
        world_size: the number of processes that use the store, or None if it is not known.
        is_master: whether this process runs the server.
        timeout: the timeout of connecting and of operations that wait. The default is 300 s.
        wait_for_workers: whether the process with the server waits until world_size processes have connected.
        multi_tenant: whether all stores of this process with the same port share one server.
        master_listen_fd: the file descriptor of a bound socket. The server listens on it, and closes it when it stops.
        use_libuv: ignored. Torch has this argument.

    Raises:
        DistNetworkError: the port is in use, or the server could not be reached within the timeout.
        DistStoreError: fewer than world_size processes connected within the timeout.
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
        """The host of the server, as given to the constructor."""

    @property
    def port(self) -> int:
        """The port of the server."""

    @property
    def libuvBackend(self) -> bool:
        """The value of use_libuv, for programs that read it."""

    def clone(self) -> TCPStore:
        """Returns another client of the same server, with a connection of its own."""

class FileStore(Store):
    """A store in one file that several processes share. Torch's FileStore can use the same file.

    Args:
        file_name: the path of the file, which is created if it does not exist.
        world_size: the number of stores that use the file. The last of them to be closed deletes the file.
            If it is negative, the file is never deleted.
    """

    def __init__(self, file_name: str | bytes | PathLike[str], world_size: SupportsIndex = -1) -> None: ...
    @property
    def path(self) -> str:
        """The path of the file."""

    def clone(self) -> FileStore:
        """Returns another store in the same file. It counts as one more user of the file."""

class HashStore(Store):
    """A store that the threads of one process share."""

    def __init__(self) -> None: ...
    def clone(self) -> HashStore:
        """Returns a store that shares its data with this one."""

class PrefixStore(Store):
    """A part of another store: puts the prefix and a slash in front of every key.

    Args:
        prefix: the prefix.
        store: the other store. It may be a PrefixStore itself.
    """

    def __init__(self, prefix: str, store: Store) -> None: ...
    @property
    def underlying_store(self) -> Store:
        """The store that this store is a part of."""

    @property
    def _underlying_non_prefix_store(self) -> Store:
        """The store below all nested prefixes."""

    def clone(self) -> PrefixStore:
        """Returns a PrefixStore with the same prefix over a clone of the underlying store."""

@final
class RendezvousCell:
    """The rendezvous state of one job in a store."""

    def __new__(cls, store: Store, run_id: str) -> RendezvousCell: ...
    def get(self) -> tuple[bytes, bytes] | None:
        """Returns the state and its token, or `None` if there is no state yet."""

    def set(self, state: bytes, token: bytes) -> tuple[bytes, bytes, bool] | None:
        """Replaces the state if `token` belongs to the current one. An empty token means that there is no state yet.

        Returns the current state, its token, and whether this call stored it, or `None` if there is no state.
        """

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
        """The node's name in torch's format: address, process id and local id."""

    def next_rendezvous(self) -> tuple[Store, int, int, tuple[str, int]]:
        """Waits until this node is in a round."""

    def is_closed(self) -> bool:
        """Returns whether the rendezvous is closed."""

    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""

    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round."""

    def stop_heartbeats(self) -> None:
        """Stops the heartbeats. Does nothing in a forked process, which sends none."""

@final
class StaticNode:
    """One node of a static rendezvous."""

    def __new__(
        cls, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: int
    ) -> StaticNode: ...
    def next_rendezvous(self) -> tuple[Store, int, int, tuple[str, int]]:
        """Waits until all nodes have joined."""

@final
class NativeNode:
    """One node of a native rendezvous."""

    def __new__(
        cls,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None,
        config: dict[str, str | None],
    ) -> NativeNode: ...
    @property
    def name(self) -> str:
        """The node's name: host name and process id."""

    def next_rendezvous(self) -> tuple[tuple[Store, int, int, tuple[str, int]], int]:
        """Waits until this node is in a round. Also returns the number of the round."""

    def is_closed(self) -> bool:
        """Returns whether the rendezvous is closed."""

    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""

    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round."""

    def shut_down(self) -> None:
        """Closes the rendezvous for all nodes, and waits up to 5 s until they don't need this node any more."""

def await_leaving(seconds: float) -> None:
    """Waits up to `seconds` until the nodes whose calls were interrupted have left their rendezvous."""

def parse_rendezvous_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Returns the host and port of an endpoint. The port is `None` if the endpoint has none."""

def check_rendezvous_options(names: list[str]) -> list[str]:
    """Returns a message for each option that the `c10d` backend does not know."""

def create_rendezvous_store(
    endpoint: str, run_id: str, min_nodes: int, max_nodes: int, is_host: bool | None, read_timeout: int
) -> tuple[TCPStore, str]:
    """Hosts the store of a rendezvous, or connects to it. Also returns this node's address for other nodes."""

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
    """Creates the store of a job."""

def reserve_port() -> int:
    """Binds a socket to a free port and returns its file descriptor."""

def exchange_store_info(rank: int, store: Store, local_addr: str, server_port: int) -> tuple[str, int]:
    """On rank 0, publishes the address and port of the workers' store. On every rank, returns what rank 0 published."""

def get_all(store: Store, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Returns the values that all ranks have set under the prefix."""

def synchronize(
    store: Store, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: timedelta
) -> list[bytes]:
    """Sets this rank's value, and returns the values of all ranks."""

def barrier(
    store: Store, world_size: int, key_prefix: str, timeout: timedelta, rank: int | None, trace_timeout: timedelta
) -> list[int]:
    """Waits until all ranks have arrived. After a timeout, returns the missing ranks if they are known."""
