"""Runs the blocks of a page as a reader would: in terminals, one after the other in each of them."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from binaries import binary

BLOCK_TIMEOUT = 120
"""Seconds that a block may take, or that its output may be late."""

STOP_TIMEOUT = 20
"""Seconds that a server may take to end after Ctrl-C."""

CHANGES_A_JOB = ("RALLYPOINT_", "PET_", "TORCHELASTIC_", "SLURM_", "MASTER_", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Beginnings of variables that a page doesn't inherit."""

CHANGES_THE_MACHINE = ("apt-get", "cargo", "docker", "pip", "podman", "sudo", "systemctl", "uv", "uvx")
"""Programs that a page can't run."""

SCRIPT = """\
set -euo pipefail
if [ -e {state} ]; then . {state}; cd "$PWD"; fi
trap 'export -p >{state}' EXIT
{text}
"""
"""Exported variables and the current folder carry over to the next block of the terminal."""


class Running:
    """A block that runs, in one process or in several."""

    def __init__(self, block, commands, folder, environment):
        self.block = block
        self.log = folder / f"output-{block.line}"
        with self.log.open("ab") as log:
            self.processes = [
                subprocess.Popen(
                    ["bash", "-c", command],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C reaches all processes of a terminal.
                    start_new_session=True,
                )
                for command in commands
            ]

    def output(self):
        return self.log.read_text(errors="replace")

    def fail(self, text):
        raise AssertionError(f"line {self.block.line}: {text}\n--- block\n{self.block.text}--- output\n{self.output()}")

    def missing(self):
        """Returns the expected lines that the block hasn't printed. The order is not checked: workers print when they run."""
        printed = [line.strip() for line in self.output().splitlines()]
        return [line for line in self.block.output if line.strip() and not any(pattern(line).fullmatch(seen) for seen in printed)]

    def await_output(self):
        """Waits until the block has printed all that the page shows."""
        deadline = time.monotonic() + BLOCK_TIMEOUT
        while missing := self.missing():
            if time.monotonic() > deadline or not self.is_running():
                # The last lines may have been written while the check ran.
                if missing := self.missing():
                    self.fail(f"the output does not contain {missing}")
                return
            time.sleep(0.02)

    def is_running(self):
        return any(process.poll() is None for process in self.processes)

    def check_exit(self):
        """Fails if a process of the block has ended with another exit code than the page says."""
        for process in self.processes:
            if process.poll() not in (None, self.block.exit):
                self.fail(f"exit code {process.returncode}, not {self.block.exit}")

    def finish(self, others=()):
        """Waits until the block ends, and checks exit codes and output. It does not wait if one of the others has failed."""
        deadline = time.monotonic() + BLOCK_TIMEOUT
        while self.is_running():
            for other in others:
                other.check_exit()
            if time.monotonic() > deadline:
                self.fail(f"the block still runs after {BLOCK_TIMEOUT} s")
            time.sleep(0.02)
        self.check_exit()
        if missing := self.missing():
            self.fail(f"the output does not contain {missing}")
        self.check_prints()

    def check_prints(self):
        """Checks that each `print(…)  # TEXT` of a Python block has printed TEXT, in this order."""
        if self.block.language == "python":
            expected = re.findall(r"^ *print\(.*\)  # (.*)$", self.block.text, re.MULTILINE)
            printed = [line for line in self.output().splitlines() if line in expected]
            if printed != expected:
                self.fail(f"the output does not have these lines in this order: {expected}")

    def stop(self):
        """Stops a server as Ctrl-C does."""
        for process in self.processes:
            if process.poll() is not None:
                self.fail(f"the server ended before the page did, with exit code {process.returncode}")
            os.killpg(process.pid, signal.SIGINT)
        for process in self.processes:
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.fail(f"the server still runs {STOP_TIMEOUT} s after Ctrl-C")

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Terminals:
    """The terminals of one page. They share a folder and have `rallypoint`, `torchrun` and this Python on the PATH."""

    def __init__(self, folder):
        self.folder = folder
        paths = [programs(folder / "bin"), pathlib.Path(binary()).parent, pathlib.Path(sys.executable).parent, os.environ["PATH"]]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(CHANGES_A_JOB)}
        self.environment = inherited | {
            "PATH": os.pathsep.join(map(str, paths)),
            "HOME": str(folder),
            "PYTHONWARNINGS": "ignore",
            # Torch's client looks up the name of the address it connects to; a lost packet there costs five seconds by default.
            "RES_OPTIONS": "timeout:1 attempts:1",
        }
        self.running = {}
        self.servers = []
        self.started = []

    def run(self, block):
        """Starts a block, and waits for its end unless its comment names a terminal."""
        if block.file:
            (self.folder / block.file).write_text(block.text)
            return
        terminal = block.terminal or 1
        if not block.server and terminal in self.running:
            self.running.pop(terminal).finish(self.running.values())
        started = Running(block, self.commands(block), self.folder, self.environment)
        self.started.append(started)
        if block.server:
            self.servers.append(started)
            started.await_output()
        else:
            self.running[terminal] = started
            if not block.terminal:
                started.finish(self.running.values())

    def commands(self, block):
        """Returns the scripts of a block, one for each terminal that it runs in."""
        text = block.text
        if block.language == "python":
            path = self.folder / f"block-{block.line}.py"
            path.write_text(text)
            text = f"python {path}"
        else:
            # A comment that ends with an exit code says how the command before it ends.
            text = re.sub(
                r"^(?P<command>\S.*?) +#.*\bexit code (?P<code>\d+)$",
                r"\g<command> && code=0 || code=$?; [ $code = \g<code> ]",
                text,
                flags=re.MULTILINE,
            )
        names = [f"server-{block.line}"] if block.server else [f"{block.terminal or 1}-{node}" for node in range(block.nodes)]
        return [SCRIPT.format(state=self.folder / f"state-{name}", text=text) for name in names]

    def finish(self):
        """Waits for the blocks that run in other terminals, and stops the servers."""
        for started in self.running.values():
            started.finish()
        for server in self.servers:
            server.stop()

    def kill(self):
        for started in self.started:
            started.kill()


def programs(folder):
    """Returns a folder with a `torchrun` of this Python, and with programs that refuse to change the machine."""
    refuse = "echo 'a page must not run this; write `not run: REASON` above the block' >&2; exit 1"
    scripts = dict.fromkeys(CHANGES_THE_MACHINE, refuse) | {"torchrun": 'exec python -m torch.distributed.run "$@"'}
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def pattern(line):
    """Returns what a line of output must match: `…` is any text, with the blanks around it."""
    return re.compile(".*".join(map(re.escape, re.split(r"\s*…\s*", line.strip()))))
