"""Interop tests: real torch against Rallypoint.

How to run, from the root of the repository:

    cargo build --release --workspace --bins
    "$(scripts/torch-venv)/bin/python" -m pytest -n 2 tests/interop

`scripts/torch-venv` creates an environment with torch and pytest once and prints its path. The binary is
`$RALLYPOINT_BIN`, or else the newest build in `target`. `test_python_*.py` also need our Python package:
`scripts/python-venv` builds it and creates an environment with torch, pytest and the package.

Where torch's client uses our server, the expected outcome is not written down. The same scenario runs against torch's
own server, and results, error types and messages must be equal (`harness.on_both_servers`). `test_deviations.py` has
the cases in which our server differs on purpose.

Each test starts its own servers on free ports, stops them, and checks that our servers exit cleanly. Torch's stores run
in the test process. Their `list_keys` and `queue_pop` keep the GIL while they wait, so a Python thread of the same
process cannot be the server or proxy that they wait for.
"""

import os
import signal
import socket
import warnings

# Processes inherit ignored signals. A shell ignores SIGINT in background jobs, and the tests send SIGINT. `nohup` ignores
# SIGHUP. Torchrun's workers then have its default action, and our workers ignore it (docs/compatibility.md).
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# By default, torch logs a C++ backtrace for each expected error. The variable must be set before torch is imported.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Torch's client makes a reverse DNS lookup of the server's address. By default, a lost DNS packet delays it by 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import pytest

pytest.register_assert_rewrite("families", "raw", "servers", "harness")

from servers import SERVERS, OurServer, TorchServer
from harness import Harness


@pytest.fixture
def ours():
    """A harness for our server."""
    yield from _harness_for(OurServer())


@pytest.fixture
def libuv():
    """A harness for torch's default server."""
    yield from _harness_for(TorchServer(libuv=True))


@pytest.fixture
def legacy():
    """A harness for torch's legacy server, which does not use libuv."""
    yield from _harness_for(TorchServer(libuv=False))


@pytest.fixture(params=SERVERS)
def harness(request):
    """A harness for each of the three servers in turn."""
    yield from _harness_for(SERVERS[request.param]())


@pytest.fixture
def port():
    """A free port for a store that one of the nodes hosts.

    The fixture keeps the port bound with SO_REUSEADDR. The kernel assigns it to no other process, but a server can
    listen on it.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def _harness_for(server):
    harness = Harness(server)
    try:
        yield harness
    finally:
        harness.close()
        server.stop()
