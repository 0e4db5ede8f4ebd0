"""Starts and stops the servers that the benchmarks compare. Each server is pinned to a processor."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from name_server import ADDRESS

ROOT = Path(__file__).resolve().parent.parent

TORCH_SERVER_SCRIPT = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
print("listening on 127.0.0.1:%d" % store.port, flush=True)
sys.stdin.read()
"""


class Server:
    """A server process."""

    def __init__(self, name: str, command: list[str], cpu: int, port: int | None = None):
        self.name = name
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if port is None else subprocess.DEVNULL,
            stderr=self.log,
        )
        self.port = port if port is not None else self._announced_port()

    def _announced_port(self) -> int:
        for line in self.process.stdout:
            if line.startswith(b"listening on "):
                return int(line.rsplit(b":", 1)[1])
        self.log.seek(0)
        sys.exit(f"benches: the {self.name} server did not start:\n{self.log.read().decode(errors='replace')}")

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def resident_kib(self) -> int:
        """Returns the current resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))

    def cpu_seconds(self) -> float:
        """Returns the processor time that the process has used."""
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


def command_with_etc_file(scratch: Path, name: str, text: str) -> list[str]:
    """Returns a command prefix. A program that is run with it reads `text` in `/etc/NAME`; other programs don't.

    Returns an empty list if `/etc/NAME` does not exist or if this machine does not permit mount namespaces.
    """
    overlay, target = scratch / name, Path("/etc") / name
    overlay.write_text(text)
    mount = f'mount --bind {overlay} {target} && exec "$@"'
    for namespace in ("-m", "-rm"):
        prefix = ["unshare", namespace, "sh", "-c", mount, "sh"]
        try:
            if target.exists() and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                return prefix
        except FileNotFoundError:
            break
    return []


def command_with_local_names(scratch: Path) -> list[str]:
    """Returns a command prefix. A program that is run with it sends no queries to a name server.

    Returns an empty list in the same cases as `command_with_etc_file`.
    """
    conf = Path("/etc/nsswitch.conf")
    lines = conf.read_text().splitlines() if conf.exists() else []
    lines = [line for line in lines if not line.startswith("hosts:")]
    return command_with_etc_file(scratch, conf.name, "\n".join([*lines, "hosts: files", ""]))


def torch(cpu: int, prefix: list[str], name: str = "torch") -> Server:
    venv = subprocess.run([ROOT / "scripts/torch-venv"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Server(name, [*prefix, f"{venv}/bin/python", "-c", TORCH_SERVER_SCRIPT], cpu)


def name_server(cpu: int) -> "Server | None":
    """Starts the name server. Returns None if its port cannot be bound."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ADDRESS, 53))
        except OSError:
            return None
    return Server("name server", [sys.executable, str(Path(__file__).with_name("name_server.py"))], cpu)


def torch_with_dns(cpu: int, scratch: Path) -> "Server | None":
    """Starts a server of torch that queries our name server for every client. Returns None if that is not possible."""
    prefix = command_with_etc_file(scratch, "resolv.conf", f"nameserver {ADDRESS}\n")
    return torch(cpu, prefix, "torch with DNS lookups") if prefix else None


def rallypoint(cpu: int, binary: Path) -> Server:
    return Server("rallypoint", [str(binary), "serve", "--listen", "127.0.0.1:0"], cpu)


def limit(cpu: int, binary: Path) -> Server:
    return Server("limit", [str(binary)], cpu)


def redis(cpu: int, scratch: Path) -> Server | None:
    """Starts Redis. Returns None if it is not installed."""
    if not (shutil.which("redis-server") and shutil.which("redis-benchmark")):
        return None
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(scratch)]
    server = Server("redis", ["redis-server", *options], cpu, port)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server
        except OSError:
            time.sleep(0.05)
    sys.exit("benches: the redis server did not start")


def torch_version() -> str:
    requirements = (ROOT / "tests/interop/requirements.txt").read_text()
    return next(line.split("==")[1] for line in requirements.splitlines() if line.startswith("torch=="))


def redis_version() -> str:
    run = subprocess.run(["redis-server", "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return "Redis " + run.stdout.split("v=", 1)[1].split()[0]


def processors() -> tuple[int, int]:
    """Returns one processor for the servers and one for the load. They are the same if there is only one."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[0], cpus[-1]
