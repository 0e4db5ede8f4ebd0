"""Runs older releases of torch, each in its own Python environment and in its own processes."""

import functools
import json
import os
import pathlib
import select
import subprocess

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"

VERSIONS = os.environ.get("RALLYPOINT_OLD_TORCH", "2.2").split()
"""The releases to test with. The default is the oldest one."""

PROCESS_TIMEOUT = 100
"""Seconds to wait for a process that imports torch, on a busy machine."""

SERVER_SCRIPT = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=sys.argv[1] == "libuv")
print(store.port, flush=True)
sys.stdin.read()
"""

# This script runs the operations of a store, except queues, `list_keys` and `barrier`, and prints their results. If an
# operation fails, or if the release does not have it, the result is the type of the exception.
OPERATIONS_SCRIPT = """
import json, sys
from datetime import timedelta
from torch.distributed import TCPStore
host, port = sys.argv[1:]
store = TCPStore(host, int(port), is_master=port == "0", wait_for_workers=False, timeout=timedelta(seconds=20))
results = []
def record(name, *arguments):
    try:
        results.append(repr(getattr(store, name)(*arguments)))
    except Exception as error:
        results.append(type(error).__name__)
record("set", "k", "v")
record("get", "k")
record("add", "n", 5)
record("add", "n", -7)
record("get", "n")
record("check", ["k", "n"])
record("check", ["k", "absent"])
record("wait", ["k", "n"])
record("wait", ["k", "absent"], timedelta(milliseconds=100))
record("compare_set", "c", "", "first")
record("compare_set", "c", "other", "second")
record("compare_set", "c", "first", "second")
record("compare_set", "absent", "some", "thing")
record("append", "c", " and more")
record("multi_set", ["a", "b"], ["1", "2"])
record("multi_get", ["c", "b", "a"])
record("num_keys")
record("delete_key", "a")
record("delete_key", "a")
record("num_keys")
print(json.dumps(results))
"""


class OldTorch:
    """One older release of torch."""

    def __init__(self, version):
        self.version = version
        self.number = tuple(map(int, version.split(".")))
        venv = subprocess.run([SCRIPTS / "torch-venv", version], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.python = f"{venv.strip()}/bin/python"

    def supports(self, op, libuv):
        """Returns whether this release's libuv server, or its legacy server if not `libuv`, supports an operation."""
        since = {"queues": (2, 8), "list_keys": (2, 10), "barrier": (2, 12)}[op]
        return self.number >= since and (libuv or op != "queues")

    def run_operations(self, host="127.0.0.1", port=0):
        """Returns the results of OPERATIONS_SCRIPT in this release. With port 0, the script starts its own server."""
        command = [self.python, "-c", OPERATIONS_SCRIPT, host, str(port)]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PROCESS_TIMEOUT).stdout)

    def torchrun(self, endpoint, run_id, nodes, *command, **config):
        """Starts this release's `torchrun` with one worker, which runs `command`."""
        return subprocess.Popen(
            [
                *(self.python, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint),
                *("--rdzv-id", run_id, "--nnodes", str(nodes), "--nproc-per-node", "1", "--local-addr", "127.0.0.1"),
                *("--monitor-interval", "0.1", "--max-restarts", "0", "--no-python"),
                *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in config.items())),
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@functools.cache
def old_torch(version):
    return OldTorch(version)


class OldServer:
    """The server of an older torch, in a process of its own."""

    def __init__(self, torch, libuv):
        self.name, self.host = f"torch {torch.version}'s {'libuv' if libuv else 'legacy'} server", "127.0.0.1"
        self.torch, self.libuv = torch, libuv
        self.process = subprocess.Popen(
            [torch.python, "-c", SERVER_SCRIPT, "libuv" if libuv else "legacy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready, _, _ = select.select([self.process.stdout], [], [], PROCESS_TIMEOUT)
        assert ready, f"{self.name} did not start within {PROCESS_TIMEOUT} s"
        self.port = int(self.process.stdout.readline())

    def supports(self, op):
        return self.torch.supports(op, self.libuv)

    def stop(self):
        self.process.kill()
        self.process.communicate()
