"""Torch's two servers and ours, each on a free port."""

import contextlib
import pathlib
import select
import signal
import socket
import subprocess

import torch.distributed as dist
from binaries import ROOT, binary, driver  # noqa: F401  tests import them from here
from clock import WAIT_TIMEOUT, seconds, wait_until


def is_reached(host, port):
    """Returns whether a server listens at this address."""
    try:
        socket.create_connection((host, port), timeout=WAIT_TIMEOUT).close()
    except ConnectionRefusedError:
        return False
    return True


class TorchServer:
    """Torch's server, on a C++ thread of this process."""

    def __init__(self, libuv=True):
        self.name = "torch's libuv server" if libuv else "torch's legacy server"
        self.libuv = libuv
        self.host = "127.0.0.1"
        # The store is also a client, but it is not counted as a worker.
        self.store = dist.TCPStore(
            self.host, 0, is_master=True, wait_for_workers=False, use_libuv=libuv, timeout=seconds(WAIT_TIMEOUT)
        )
        self.port = self.store.port

    def stop(self):
        self.store = None


class OurServer:
    """A `rallypoint serve` process."""

    def __init__(self, host="127.0.0.1", *options):
        self.name = "rallypoint serve"
        self.killed = False
        self.process = subprocess.Popen(
            [binary(), "serve", "--listen", f"{host}:0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_TIMEOUT)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("listening on "):
            self.process.kill()
            raise RuntimeError(f"`rallypoint serve` printed {line!r}, then: {self.process.communicate()[1]}")
        self.host, _, port = line.removeprefix("listening on ").strip().rpartition(":")
        self.port = int(port)

    def stop(self):
        """Terminates the server. Fails if the server crashed during the test, or does not exit cleanly."""
        if self.killed:
            return
        alive = self.process.poll() is None
        self.process.terminate()
        try:
            _, self.log = self.process.communicate(timeout=WAIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, self.log = self.process.communicate()
            raise AssertionError(f"SIGTERM did not end the server; its log: {self.log}") from None
        assert alive, f"the server had already exited with {self.process.returncode}; its log: {self.log}"
        assert self.process.returncode == 0, f"exit code {self.process.returncode}; its log: {self.log}"

    @contextlib.contextmanager
    def frozen(self):
        """Suspends the server's process during the `with` block. The server does not read requests that arrive meanwhile."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            # SIGSTOP suspends the threads of the process one after the other.
            tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
            wait_until("the server to be suspended", lambda: all(") T " in (task / "stat").read_text() for task in tasks.iterdir()))
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def unread_connections(self):
        """Returns the number of connections with bytes that the server has not read."""
        local = f":{self.port:04X}"
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # Field 4 is the lengths of the send queue and the receive queue. State 01 is an established connection.
        queues = [row[4] for row in rows if row[1].endswith(local) and row[3] == "01"]
        return sum(int(queue.split(":")[1], 16) > 0 for queue in queues)

    def kill(self):
        """Kills the server, as a crash would."""
        self.killed = True
        self.process.kill()
        self.process.communicate()


SERVERS = {"libuv": lambda: TorchServer(libuv=True), "legacy": lambda: TorchServer(libuv=False), "ours": OurServer}
