"""Commands at a terminal: the live line while they wait, the summary of a round, and a command that reads the terminal."""

import contextlib
import os
import pty
import re
import select
import signal
import socket
import time

import pytest
from servers import OurServer, binary

SCREEN_TIMEOUT = 60


class Terminal:
    """A `rallypoint` process with its own terminal."""

    def __init__(self, *arguments):
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.execv(binary(), [binary(), *arguments])
        self.output = ""

    def wait_for_screen(self, pattern):
        """Waits until the output matches the pattern."""
        deadline = time.monotonic() + SCREEN_TIMEOUT
        while not re.search(pattern, self.output):
            remaining = deadline - time.monotonic()
            ready, _, _ = select.select([self.screen], [], [], max(0, remaining))
            assert ready, self.output
            try:
                self.output += os.read(self.screen, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the program exited: {self.output}") from None

    def visible_lines(self):
        """Returns the lines as the screen shows them: for each line, the text written after the line was last cleared."""
        return [line.rpartition("\x1b[2K")[2] for line in self.output.split("\n")]

    def type_text(self, text):
        os.write(self.screen, text.encode())

    def exit_code(self):
        """Waits for the program to exit and returns its exit code.

        Reads the program's output meanwhile, because the program would block if the terminal's buffer were full.
        """
        deadline = time.monotonic() + SCREEN_TIMEOUT
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                while select.select([self.screen], [], [], 0)[0]:
                    try:
                        self.output += os.read(self.screen, 65536).decode(errors="replace")
                    except OSError:
                        break
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.output
            if select.select([self.screen], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    self.output += os.read(self.screen, 65536).decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.screen)


@pytest.fixture
def endpoint():
    server = OurServer()
    yield f"{server.host}:{server.port}"
    server.stop()


def test_a_waiting_node_shows_a_live_line(endpoint):
    with Terminal("join", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--nnodes", "2") as node:
        node.wait_for_screen("1 of at least 2 nodes have joined, 1 missing")
        node.wait_for_screen("gives up in 59")  # counts down from 600 s
        node.type_text("\x03")
        assert node.exit_code() == 128 + signal.SIGINT


def test_an_agent_shows_the_missing_nodes_and_then_the_round(endpoint):
    flags = ("run", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--rdzv-conf", "is_host=0")
    flags += ("--nnodes", "2", "--nproc-per-node", "2", "--local-addr", "127.0.0.1", "--no-python", "true")
    with Terminal(*flags) as first:
        first.wait_for_screen("1 of at least 2 nodes have joined, 1 missing")
        with Terminal(*flags) as second:
            for node in (first, second):
                node.wait_for_screen("4 workers on 2 nodes, this is node")
                assert node.exit_code() == 0, node.output


def test_a_waiting_static_node_shows_a_live_line(endpoint):
    host, port = endpoint.rsplit(":", 1)
    static = ("join", "--rdzv-backend", "static", "--nnodes", "2", "--rdzv-conf", "timeout=300")
    with Terminal(*static, "--rdzv-endpoint", "127.0.0.1:1", "--node-rank", "1") as node:
        node.wait_for_screen(r"no reply yet from rank 0 at 127\.0\.0\.1:1; gives up in (300|29\d) s \(timeout\)")
        node.wait_for_screen(r"connection refused \(nothing listens there\)")
        node.type_text("\x03")
        assert node.exit_code() == 128 + signal.SIGINT
    # At this endpoint there is a store but no node of rank 0. A node of another rank can join, because it needs only the
    # store.
    with Terminal(*static, "--rdzv-endpoint", endpoint, "--node-rank", "1") as node:
        node.wait_for_screen(f"1 of 2 nodes have joined at {endpoint}; gives up in 29")
        node.type_text("\x03")
        assert node.exit_code() == 128 + signal.SIGINT


RUN_COMMAND = ("run", "--rdzv-backend", "c10d", "--no-python")
WAITING_COMMANDS = {
    "run": lambda endpoint: (*RUN_COMMAND, "--nnodes", "2", "--rdzv-conf", "is_host=0", "--rdzv-endpoint", endpoint, "true"),
    "join": lambda endpoint: ("join", "--nnodes", "2", "--rdzv-conf", "is_host=0", "--rdzv-endpoint", endpoint),
    "store": lambda endpoint: ("store", "--timeout", "60s", "--endpoint", endpoint, "get", "k"),
}


def interrupt_when_shown(command, endpoint, *patterns):
    with Terminal(*WAITING_COMMANDS[command](endpoint)) as program:
        for pattern in patterns:
            program.wait_for_screen(pattern)
        program.type_text("\x03")
        program.exit_code()


@pytest.mark.parametrize("command", WAITING_COMMANDS)
def test_a_terminal_shows_that_nothing_listens_at_the_endpoint_and_a_hint(command, port):
    hint = "hint: check that the node or server that hosts the store is up"
    interrupt_when_shown(command, f"127.0.0.1:{port}", r"connection refused \(nothing listens there\)", hint)


@pytest.mark.parametrize("command", ["run", "join"])
def test_a_terminal_shows_that_the_name_in_the_endpoint_cannot_be_resolved_and_a_hint(command):
    reason = 'could not resolve host "no-such-host.invalid"'
    interrupt_when_shown(command, "no-such-host.invalid:29400", reason, "hint: check the spelling of the host name")


@pytest.mark.parametrize("command", WAITING_COMMANDS)
def test_a_terminal_shows_that_an_http_or_tls_server_is_at_the_endpoint_and_a_hint(command):
    for reply, kind in [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP"), (b"\x15\x03\x03\x00\x02\x02\x46", "a TLS")]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = "{}:{}".format(*server.getsockname())
            with Terminal(*WAITING_COMMANDS[command](endpoint)) as program:
                connection, _ = server.accept()
                with connection:
                    # The server reads the whole handshake. If bytes were unread, closing would reset the connection.
                    connection.recv(65536)
                    connection.sendall(reply)
                program.wait_for_screen(f"answered like {kind} server")
                program.wait_for_screen("hint: ")
                assert program.exit_code() != 0


TWO_NODES = ("--nnodes", "2", "--no-python", "true")
C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "job")
STATIC = ("--node-rank", "1", "--master-addr", "127.0.0.1", "--master-port", "1")


@pytest.mark.parametrize(
    "command, waiting_text, code",
    [
        (("join", *C10D, "--nnodes", "2"), "1 of at least 2", 128 + signal.SIGINT),
        (("run", *C10D, *TWO_NODES), "1 of at least 2", 128 + signal.SIGINT),
        (("run", *STATIC, *TWO_NODES), "no reply yet", 128 + signal.SIGINT),
        (("store", "--endpoint", "127.0.0.1:1", "ping"), "connecting to", -signal.SIGINT),
    ],
    ids=["join", "run", "run-static", "store"],
)
def test_an_interrupt_clears_the_live_line(command, waiting_text, code):
    with Terminal(*command) as node:
        node.wait_for_screen(waiting_text)
        node.type_text("\x03")
        assert node.exit_code() == code, node.output
        assert not [line for line in node.visible_lines() if waiting_text in line or re.search("[\u2800-\u28ff]", line)], node.output


def test_a_command_reads_its_terminal_and_gets_each_ctrl_c_once(endpoint):
    script = "trap 'echo caught $((n += 1))' INT; echo ready; read word; echo got $word; while :; do sleep 0.05; done"
    with Terminal("join", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--", "sh", "-c", script) as node:
        node.wait_for_screen("ready")
        node.type_text("hello\n")
        node.wait_for_screen("got hello")
        node.type_text("\x03")
        node.wait_for_screen("caught 1")
        node.type_text("\x03")
        node.wait_for_screen("caught 2")
        assert "caught 3" not in node.output
        os.kill(node.pid, signal.SIGTERM)
        assert node.exit_code() == 128 + signal.SIGTERM
