"""Starts and stops the servers that are compared, each on a processor of its own. It puts no load on them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TORCH = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print("listening on 127.0.0.1:%d" % store.port, flush=True)
sys.stdin.read()
"""


class Server:
    """A process that serves until it is stopped."""

    def __init__(self, name: str, command: list[str], cpu: int, port: int | None = None):
        self.name = name
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if port is None else subprocess.DEVNULL,
            stderr=self.log,
        )
        self.port = port if port is not None else self._announced()

    def _announced(self) -> int:
        for line in self.process.stdout:
            if line.startswith(b"listening on "):
                return int(line.rsplit(b":", 1)[1])
        self.log.seek(0)
        sys.exit(f"compare: the {self.name} server did not start:\n{self.log.read().decode(errors='replace')}")

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def resident_kib(self) -> int:
        """What it takes of memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))

    def cpu_seconds(self) -> float:
        """The processor time it has used."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def without_name_server(scratch: Path) -> list[str]:
    """What to put before a command so that it asks no name server. Torch's server looks up the name of everybody who
    connects; without this its figures would be those of the network's name server. Empty if it can't be done."""
    conf = Path("/etc/nsswitch.conf")
    if not conf.exists():
        return []
    lines = [line for line in conf.read_text().splitlines() if not line.startswith("hosts:")]
    (scratch / "nsswitch.conf").write_text("\n".join([*lines, "hosts: files", ""]))
    mount = f'mount --bind {scratch}/nsswitch.conf {conf} && exec "$@"'
    for namespace in ("-m", "-rm"):
        prefix = ["unshare", namespace, "sh", "-c", mount, "sh"]
        try:
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                return prefix
        except FileNotFoundError:
            break
    return []


def torch(cpu: int, scratch: Path) -> Server:
    venv = subprocess.run([ROOT / "scripts/torch-venv"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Server("torch", [*without_name_server(scratch), f"{venv}/bin/python", "-c", TORCH], cpu)


def rallypoint(cpu: int, binary: Path) -> Server:
    return Server("rallypoint", [str(binary), "serve", "--listen", "127.0.0.1:0"], cpu)


def limit(cpu: int, binary: Path) -> Server:
    return Server("limit", [str(binary)], cpu)


def redis(cpu: int, scratch: Path) -> Server | None:
    """None if there is no Redis on this machine."""
    if not (shutil.which("redis-server") and shutil.which("redis-benchmark")):
        return None
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(scratch)]
    server = Server("redis", ["redis-server", *options], cpu, port)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server
        except OSError:
            time.sleep(0.05)
    sys.exit("compare: the redis server did not start")


def redis_version() -> str:
    run = subprocess.run(["redis-server", "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return "Redis " + run.stdout.split("v=", 1)[1].split()[0]


def processors() -> tuple[int, int]:
    """One for the servers, one for the load; the same if there is only one."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[-1]
