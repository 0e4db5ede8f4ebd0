"""A proxy between a client and a server of a store, which records the bytes in both directions.

The proxy runs in a process of its own. Some calls of torch's stores (`list_keys`, `queue_pop`) keep the GIL while they
wait, so a proxy on another thread of the same process could not run. `Proxy` starts the proxy process and sends it
commands. Run as a script, this file is the proxy process. It reads commands from standard input and writes JSON replies
to standard output, one per line.
"""

import json
import socket
import subprocess
import sys
import threading

WAIT_TIMEOUT = 20


class Proxy:
    """A proxy process that listens on `port` and forwards each connection to `server`."""

    def __init__(self, server, listen=("127.0.0.1", 0)):
        arguments = [*server, *listen]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = json.loads(self.process.stdout.readline())

    def _command(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        reply = json.loads(self.process.stdout.readline())
        if reply is None:
            raise TimeoutError(f"the proxy timed out after {WAIT_TIMEOUT} s: {' '.join(map(str, words))}")
        return reply

    def delay_replies_until(self, request):
        """Delays all replies of the server until the bytes of a client end with `request`, for at most WAIT_TIMEOUT seconds."""
        self._command("hold", request.hex())

    def received(self, connection):
        """Returns the number of bytes received from the client of a connection, given the connection's number."""
        return self._command("received", connection)

    def wait_for_more(self, connection, than):
        """Waits until more than `than` bytes of a connection were forwarded to the server."""
        self._command("more", connection, than)

    def recorded(self):
        """Returns a list of (direction, bytes) pairs for each connection, in the order of the connections' numbers.

        The direction is `>` for bytes from the client and `<` for bytes from the server. `>!` and `<!` mean that
        the client or the server, respectively, has closed its side of the connection.
        """
        return [[(direction, bytes.fromhex(data)) for direction, data in log] for log in self._command("recorded")]

    def finish(self):
        """Waits until all connections are closed, kills the proxy, and returns the recorded bytes."""
        self._command("all_ended")
        recorded = self.recorded()
        self.kill()
        return recorded

    def kill(self):
        self.process.kill()
        self.process.communicate()


class _RecordingProxy:
    """The part that runs in the proxy process: accepts connections, forwards and records their bytes, handles commands."""

    def __init__(self, server, listen):
        self.server = server
        self.listener = socket.create_server(listen)
        self.changed = threading.Condition()
        self.logs = []
        self.forwarded = []
        self.open_directions = 0
        self.release_request = None
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.server)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.changed:
                number = len(self.logs)
                self.logs.append([])
                self.forwarded.append(0)
                self.open_directions += 2
            threading.Thread(target=self.forward, args=(client, server, number, ">"), daemon=True).start()
            threading.Thread(target=self.forward, args=(server, client, number, "<"), daemon=True).start()

    def forward(self, source, sink, number, direction):
        log = self.logs[number]
        data = b" "
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            with self.changed:
                if direction == "<":
                    self.changed.wait_for(lambda: self.release_request is None, WAIT_TIMEOUT)
                elif self.release_request is not None and data.endswith(self.release_request):
                    self.release_request = None
                # Bytes after the client has closed its side are not recorded.
                if not any(recorded == ">!" for recorded, _ in log):
                    log.append((direction if data else f"{direction}!", data))
                self.changed.notify_all()
            try:
                sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            if direction == ">":
                with self.changed:
                    self.forwarded[number] += len(data)
                    self.changed.notify_all()
        with self.changed:
            self.open_directions -= 1
            self.changed.notify_all()

    def handle(self, word, *operands):
        with self.changed:
            if word == "hold":
                self.release_request = bytes.fromhex(operands[0])
                return True
            if word == "received":
                return sum(len(data) for direction, data in self.logs[int(operands[0])] if direction == ">")
            if word == "more":
                connection, than = map(int, operands)
                has_more = lambda: connection < len(self.logs) and self.forwarded[connection] > than  # noqa: E731
                return self.changed.wait_for(has_more, WAIT_TIMEOUT) or None
            if word == "all_ended":
                return self.changed.wait_for(lambda: self.open_directions == 0, WAIT_TIMEOUT) or None
            if word == "recorded":
                return [[(direction, data.hex()) for direction, data in log] for log in self.logs]


if __name__ == "__main__":
    server_host, server_port, host, port = sys.argv[1:]
    proxy = _RecordingProxy((server_host, int(server_port)), (host, int(port)))
    print(json.dumps(proxy.listener.getsockname()[1]), flush=True)
    for line in sys.stdin:
        print(json.dumps(proxy.handle(*line.split())), flush=True)
