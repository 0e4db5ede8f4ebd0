"""Runs one scenario of torch's client against torch's own server and against ours, and compares the results.

The tests do not contain expected results. The results on torch's own server, in the same run, are the expected ones.
"""

import functools
import re
import threading

import torch.distributed as dist
from clock import WAIT_TIMEOUT, seconds
from proxy import Proxy
from raw import RawConnection, wait_until_settled
from servers import OurServer, TorchServer


def normalized(message):
    """Returns the message without ports and file descriptors, and without the C++ backtrace."""
    message = message.split("\nException raised from")[0]
    message = re.sub(r"fd=\d+", "fd=FD", message)
    return re.sub(r"(127\.0\.0\.1\]?(?::|, ))\d+", r"\1PORT", message)


def outcome(call, *arguments, **options):
    """Returns the result of a call, or the type and message of its exception."""
    try:
        return call(*arguments, **options)
    except Exception as error:  # noqa: BLE001  every error is an outcome here
        return f"{type(error).__module__}.{type(error).__name__}: {normalized(str(error))}"


class RequestWatcher:
    """Waits, when called, until the server has processed a request that the client sent after the last `mark`."""

    def __init__(self, proxy, server):
        self._proxy = proxy
        self._server = server
        self.mark()

    def mark(self):
        self._sent = self._proxy.received(0)

    def __call__(self):
        self._proxy.wait_for_more(0, than=self._sent)
        wait_until_settled(self._server)


class Harness:
    """A server, clients of it, and a record of their results."""

    def __init__(self, server):
        self.server = server
        self.recorded = []
        self._proxies = []

    def client(self, timeout=seconds(WAIT_TIMEOUT), host=None, **options):
        """Returns a new torch client."""
        return dist.TCPStore(host or self.server.host, self.server.port, is_master=False, timeout=timeout, **options)

    def watched_client(self, timeout=seconds(WAIT_TIMEOUT)):
        """Returns a new torch client, and a function that waits until the server has processed the client's next request."""
        proxy = Proxy((self.server.host, self.server.port))
        self._proxies.append(proxy)
        store = dist.TCPStore("127.0.0.1", proxy.port, is_master=False, timeout=timeout)
        return store, RequestWatcher(proxy, self.server)

    def raw(self, **options):
        """Returns a raw connection to the server."""
        return RawConnection(self.server, **options)

    def settle(self):
        """Waits until the server has processed all requests sent so far. Torch's `set` returns before that."""
        wait_until_settled(self.server)

    def call(self, call, *arguments, **options):
        """Makes a call, records its outcome, and returns it."""
        result = outcome(call, *arguments, **options)
        self.record(f"{getattr(call, '__name__', call)}{arguments or ''}", result)
        return result

    def record(self, label, value):
        self.recorded.append((label, value))

    def close(self):
        for proxy in self._proxies:
            proxy.kill()


def on_both_servers(scenario):
    """Turns a scenario into a test that runs it on torch's libuv server and on ours, and compares the records."""

    @functools.wraps(scenario)
    def test():
        recorded = []
        for create in (TorchServer, OurServer):
            server = create()
            harness = Harness(server)
            try:
                scenario(harness)
            finally:
                harness.close()
                server.stop()
            recorded.append(harness.recorded)
        theirs, ours = recorded
        assert theirs, "the scenario recorded nothing"
        assert ours == theirs, "our server (left) against torch's own (right)"

    del test.__wrapped__  # otherwise pytest would look for a fixture with the name of the scenario's argument
    return test


class Background:
    """A call on a thread of its own."""

    def __init__(self, call, *arguments, **options):
        self._outcome = None
        self._thread = threading.Thread(
            target=lambda: setattr(self, "_outcome", outcome(call, *arguments, **options)), daemon=True
        )
        self._thread.start()

    def is_done(self):
        return not self._thread.is_alive()

    def result(self):
        self._thread.join(WAIT_TIMEOUT)
        assert self.is_done(), f"the call has not returned after {WAIT_TIMEOUT} s"
        return self._outcome
