"""Runs torchrun and `rallypoint run` with the same arguments and scripts, and reads the results of each run."""

import atexit
import functools
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

from clock import WAIT_TIMEOUT, wait_until
from servers import binary

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE / "run_scripts"

PROCESS_TIMEOUT = 100
"""Seconds to wait for a launcher to exit. Importing torch alone takes several seconds on a busy machine."""

LAUNCHERS = ("torchrun", "rallypoint")


@functools.cache
def torchrun_server():
    """Returns a process that forks a torchrun for each request.

    The process imports torch only once. The import is most of torchrun's startup time.
    """
    process = subprocess.Popen(
        [sys.executable, HERE / "torchrun_server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.stdin.close)
    ready, _, _ = select.select([process.stdout], [], [], PROCESS_TIMEOUT)
    assert ready and process.stdout.readline() == "ready\n"
    return process


class Torchrun:
    """One torchrun, forked by `torchrun_server`, with the part of subprocess.Popen's interface that `Run` uses."""

    def __init__(self, args, directory, env):
        self.returncode = None
        base = directory / f"run{time.monotonic_ns()}"
        self._files = {name: f"{base}.{name}" for name in ("stdout", "stderr", "pid", "code")}
        request = {"arguments": args, "directory": str(directory), "environment": env} | self._files
        print(json.dumps(request), file=torchrun_server().stdin, flush=True)
        self.pid = int(self._read("pid", PROCESS_TIMEOUT))

    def _read(self, name, within):
        try:
            wait_until(f"torchrun's file {name}", lambda: os.path.exists(self._files[name]), within)
        except TimeoutError:
            raise subprocess.TimeoutExpired("torchrun", within) from None
        return pathlib.Path(self._files[name]).read_text()

    def poll(self):
        if self.returncode is None and os.path.exists(self._files["code"]):
            self.returncode = int(self._read("code", 0))
        return self.returncode

    def communicate(self, timeout=PROCESS_TIMEOUT):
        self.returncode = int(self._read("code", timeout))
        texts = tuple(pathlib.Path(self._files[name]).read_text() for name in ("stdout", "stderr"))
        for path in self._files.values():
            pathlib.Path(path).unlink()
        return texts

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start_launcher(name, args, directory, env):
    if name == "torchrun":
        return Torchrun(args, directory, env)
    return subprocess.Popen(
        [binary(), "run", *args],
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Run:
    """One run of a launcher, in its own directory, into which its workers write their reports."""

    def __init__(self, name, directory, *args, env=None, wait=True):
        self.name = name
        self.directory = directory / name
        (self.directory / "out").mkdir(parents=True, exist_ok=True)
        removed_prefixes = ("PET_", "TORCHELASTIC_", "VIRTUAL_ENV", "CONDA_", "PYTHON_EXEC")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(removed_prefixes)}
        # Both launchers must find the same interpreter, and write their temporary files where the test can read them.
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        inherited |= {"PATH": path, "TMPDIR": str(self.directory), "OUT": str(self.directory / "out")}
        self.args = [str(arg) for arg in args]
        self.process = start_launcher(name, self.args, self.directory, inherited | (env or {}))
        if wait:
            self.wait()

    def wait(self, within=PROCESS_TIMEOUT):
        try:
            self.out, self.err = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate(timeout=WAIT_TIMEOUT)
            raise AssertionError(f"{self} did not exit within {within} s: {self.out}\n{self.err}") from None
        self.code = self.process.returncode
        return self

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def worker_reports(self):
        """Returns the reports of the workers, by file name."""
        return {path.name: json.loads(path.read_text()) for path in sorted((self.directory / "out").glob("*.json"))}

    def failure_report(self):
        """Parses the failure report on standard error. Returns its title, and the fields of the failures in each section."""
        text = self.err[self.err.rindex(" FAILED\n") - 200 :]
        [(title, failures, cause)] = re.findall(
            r"={10,}\n(.*) FAILED\n-+\nFailures:\n(.*?)\n-+\nRoot Cause \(first observed failure\):\n(.*?)\n={10,}", text, re.S
        )
        return {"title": title, "failures": parse_failures(failures), "cause": parse_failures(cause)}

    def log_tree(self, root="logs"):
        """Returns the content of each file in the log directory by path, or None for a directory.

        `RUN` replaces the first part of a path, which contains random characters.
        """
        base = self.directory / root
        files = {}
        for path in sorted(base.rglob("*")):
            name = re.sub(r"^[^/]*_[a-z0-9_]{8}(?=/|$)", "RUN", str(path.relative_to(base)))
            files[name] = path.read_text() if path.is_file() else None
        return files

    def __repr__(self):
        return f"{self.name} {' '.join(self.args)}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


TORCH_FIELDS = ("time", "host", "rank", "exitcode", "error_file", "traceback")


def parse_failures(text):
    """Parses the failures in a section of the report. Returns, for each failure, the fields that torch's report has."""
    parsed = []
    for block in re.split(r"^\[\d+\]:\n", text, flags=re.M)[1:]:
        lines = re.findall(r"^  (\w+) *: (.*)$", block, re.M)
        parsed.append({name: value.rstrip() for name, value in lines if name in TORCH_FIELDS})
    return parsed


def run_both(directory, *args, **options):
    """Runs both launchers with the same arguments."""
    return [Run(name, directory, *args, **options) for name in LAUNCHERS]
