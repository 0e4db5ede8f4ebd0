"""Our stores, controlled from Python through the program `store_driver`."""

import select
import subprocess

from clock import WAIT_TIMEOUT
from servers import driver


class OurError(Exception):
    """An error of our store, with its name and message."""

    def __init__(self, name, message):
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


def _hex(value):
    data = value.encode() if isinstance(value, str) else value
    return data.hex() or "-"


def _bytes(word):
    return b"" if word == "-" else bytes.fromhex(word)


class OurStore:
    """One of our stores in a process of its own. The arguments are those of `store_driver`. Timeouts are in milliseconds."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [driver("store_driver"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._receive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def close(self):
        """Closes the store and waits until its process exits with success."""
        self._request("close")
        assert self.process.wait(WAIT_TIMEOUT) == 0

    def _request(self, *words):
        self._send(*words)
        return self._receive()

    def _send(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def _receive(self, within=3 * WAIT_TIMEOUT):
        ready, _, _ = select.select([self.process.stdout], [], [], within)
        if not ready:
            raise TimeoutError(f"our store did not reply within {within} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"our store's process exited: {self.process.communicate()[1]}")
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "err":
            raise OurError(*rest.split(" ", 1))
        return rest

    def start(self, operation, *words):
        """Sends a request for an operation. Returns a function that waits for its result."""
        self._send(operation, *words)
        return self._receive

    def set(self, key, value):
        self._request("set", key, _hex(value))

    def get(self, key):
        return _bytes(self._request("get", key))

    def add(self, key, delta):
        return int(self._request("add", key, delta))

    def check(self, keys):
        return self._request("check", *keys) == "true"

    def wait(self, keys, timeout=None):
        return self._request("wait", *keys) if timeout is None else self._request("wait_for", timeout, *keys)

    def compare_set(self, key, expected, desired):
        return _bytes(self._request("compare_set", key, _hex(expected), _hex(desired)))

    def compare_exchange(self, key, expected, desired):
        return self._request("compare_exchange", key, _hex(expected), _hex(desired))

    def delete_key(self, key):
        return self._request("delete_key", key) == "true"

    def num_keys(self):
        return int(self._request("num_keys"))

    def append(self, key, value):
        self._request("append", key, _hex(value))

    def start_adds(self, key, times):
        """Starts `times` additions of 1. Returns a function that waits for them and returns the sum after each addition."""
        receive = self.start("adds", key, times)
        return lambda: [int(word) for word in receive().split()]

    def multi_get(self, keys):
        return [_bytes(word) for word in self._request("multi_get", *keys).split()]

    def multi_set(self, keys, values):
        pairs = zip(keys, map(_hex, values), strict=True)
        return self._request("multi_set", *(word for pair in pairs for word in pair))

    def queue_push(self, key, value):
        return self._request("queue_push", key, _hex(value))

    def queue_pop(self, key, block=True):
        return _bytes(self._request("queue_pop" if block else "try_queue_pop", key))

    def queue_len(self, key):
        return int(self._request("queue_len", key))

    def list_keys(self):
        return self._request("list_keys").split()

    def barrier(self, key, world_size, timeout=None):
        return self._request("barrier_for", key, world_size, timeout) if timeout else self._request("barrier", key, world_size)

    def clone(self):
        """Replaces the store with a clone of itself."""
        return self._request("clone")

    def set_timeout(self, timeout):
        return self._request("set_timeout", timeout)

    def timeout(self):
        return int(self._request("timeout"))

    def has_extended_api(self):
        return self._request("has_extended_api") == "true"

    def synchronize(self, data, rank, world_size, prefix, timeout=int(WAIT_TIMEOUT * 1000)):
        return [_bytes(word) for word in self._request("synchronize", _hex(data), rank, world_size, prefix, timeout).split()]

    def elastic_barrier(self, prefix, rank, world_size, timeout=int(WAIT_TIMEOUT * 1000)):
        return self._request("elastic_barrier", prefix, rank, world_size, timeout)


class OurClient(OurStore):
    """Our TcpStore client of `server`, wrapped in a PrefixStore for each of `prefixes`."""

    def __init__(self, server, *prefixes, timeout=int(WAIT_TIMEOUT * 1000)):
        super().__init__("tcp", f"{server.host}:{server.port}", timeout, *prefixes)
