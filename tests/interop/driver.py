"""Our own stores, led from Python: handles on the program `store_driver`."""

import select
import subprocess

from clock import DEADLINE
from servers import driver


class OurError(Exception):
    """An error of our store: its name, and its text."""

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
    """A store of ours in a process of its own, opened as the arguments say."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [driver("store_driver"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def close(self):
        """Closes the store as a program that ends well does."""
        self._ask("close")
        assert self.process.wait(DEADLINE) == 0

    def _ask(self, *words):
        self._say(*words)
        return self._answer()

    def _say(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def _answer(self, within=3 * DEADLINE):
        ready, _, _ = select.select([self.process.stdout], [], [], within)
        if not ready:
            raise TimeoutError(f"our store did not come back within {within} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"our store ended: {self.process.communicate()[1]}")
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "err":
            raise OurError(*rest.split(" ", 1))
        return rest

    def later(self, operation, *words):
        """Starts an operation; what is returned waits for its answer."""
        self._say(operation, *words)
        return self._answer

    def set(self, key, value):
        self._ask("set", key, _hex(value))

    def get(self, key):
        return _bytes(self._ask("get", key))

    def add(self, key, delta):
        return int(self._ask("add", key, delta))

    def check(self, keys):
        return self._ask("check", *keys) == "true"

    def wait(self, keys, timeout=None):
        return self._ask("wait", *keys) if timeout is None else self._ask("wait_for", timeout, *keys)

    def compare_set(self, key, expected, desired):
        return _bytes(self._ask("compare_set", key, _hex(expected), _hex(desired)))

    def compare_exchange(self, key, expected, desired):
        return self._ask("compare_exchange", key, _hex(expected), _hex(desired))

    def delete_key(self, key):
        return self._ask("delete_key", key) == "true"

    def num_keys(self):
        return int(self._ask("num_keys"))

    def append(self, key, value):
        self._ask("append", key, _hex(value))

    def adds(self, key, times):
        """Starts to add one so many times; what is returned waits for the sums."""
        answer = self.later("adds", key, times)
        return lambda: [int(word) for word in answer().split()]

    def multi_get(self, keys):
        return [_bytes(word) for word in self._ask("multi_get", *keys).split()]

    def multi_set(self, keys, values):
        pairs = zip(keys, map(_hex, values), strict=True)
        return self._ask("multi_set", *(word for pair in pairs for word in pair))

    def queue_push(self, key, value):
        return self._ask("queue_push", key, _hex(value))

    def queue_pop(self, key, block=True):
        return _bytes(self._ask("queue_pop" if block else "try_queue_pop", key))

    def queue_len(self, key):
        return int(self._ask("queue_len", key))

    def list_keys(self):
        return self._ask("list_keys").split()

    def barrier(self, key, world_size, timeout=None):
        return self._ask("barrier_for", key, world_size, timeout) if timeout else self._ask("barrier", key, world_size)

    def clone(self):
        """From here on this is a clone of what it was."""
        return self._ask("clone")

    def set_timeout(self, timeout):
        return self._ask("set_timeout", timeout)

    def timeout(self):
        return int(self._ask("timeout"))

    def has_extended_api(self):
        return self._ask("has_extended_api") == "true"

    def synchronize(self, data, rank, world_size, prefix, timeout=int(DEADLINE * 1000)):
        return [_bytes(word) for word in self._ask("synchronize", _hex(data), rank, world_size, prefix, timeout).split()]

    def meet(self, prefix, rank, world_size, timeout=int(DEADLINE * 1000)):
        return self._ask("meet", prefix, rank, world_size, timeout)


class OurClient(OurStore):
    """Our TcpStore on a server, with a PrefixStore around it for each prefix."""

    def __init__(self, server, *prefixes, timeout=int(DEADLINE * 1000)):
        super().__init__("tcp", f"{server.host}:{server.port}", timeout, *prefixes)
