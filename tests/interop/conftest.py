"""Interop tests: real torch against Rallypoint.

How to run, from the root of the repository:

    cargo build --release
    "$(scripts/torch-venv)/bin/python" -m pytest -n 2 tests/interop

`scripts/torch-venv` makes an environment with torch and pytest once and prints where it is. The binary is
`$RALLYPOINT_BIN`, else the newest build in `target`. `test_python_*.py` need our Python package too: `scripts/python-venv` builds it and
makes an environment that has both.

Where torch's client talks to our server, the expected outcome is not written down: the same scenario is played on
torch's own server in the same run, and results, error types and messages must be equal (`stage.on_both`). Where we
mean to differ, `test_deviations.py` shows both sides.

Each test has servers of its own on free ports, ends them and checks that ours ended cleanly. Torch's stores run in the
test process; mind that `list_keys` and `queue_pop` keep the interpreter's lock while they wait, so whoever is to answer
them can't be a Python thread.
"""

import os
import socket
import warnings

# Before torch is imported. Expected errors would fill the output with C++ backtraces.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Torch's client looks up the name of the address it connects to; a lost packet there costs five seconds by default.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import pytest

pytest.register_assert_rewrite("families", "raw", "servers", "harness")

from servers import SERVERS, OurServer, TorchServer
from harness import Harness


@pytest.fixture
def ours():
    """A stage on our server."""
    yield from _stage(OurServer())


@pytest.fixture
def libuv():
    """A stage on torch's default server."""
    yield from _stage(TorchServer(libuv=True))


@pytest.fixture
def legacy():
    """A stage on torch's older server."""
    yield from _stage(TorchServer(libuv=False))


@pytest.fixture(params=SERVERS)
def harness(request):
    """A stage on each of the three servers in turn."""
    yield from _stage(SERVERS[request.param]())


@pytest.fixture
def port():
    """A port for a store that one of the nodes will host. Nobody is given it meanwhile, but a server may share it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _stage(server):
    harness = Harness(server)
    try:
        yield harness
    finally:
        harness.close()
        server.stop()
