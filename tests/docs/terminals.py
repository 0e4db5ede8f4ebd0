"""Runs the code blocks of a page as a reader would: in several terminals, one block after the other in each terminal."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from binaries import binary

BLOCK_TIMEOUT = 120
"""Seconds to wait for a block to exit, or for a server's expected output."""

STOP_TIMEOUT = 20
"""Seconds to wait for a server to exit after SIGINT."""

JOB_VARIABLE_PREFIXES = ("RALLYPOINT_", "PET_", "TORCHELASTIC_", "SLURM_", "MASTER_", "VIRTUAL_ENV", "CONDA_PREFIX")
"""Prefixes of environment variables that blocks don't inherit, because they would change the jobs of the page."""

FORBIDDEN_PROGRAMS = ("apt-get", "cargo", "docker", "pip", "podman", "sudo", "systemctl", "uv", "uvx")
"""Programs that blocks must not run, because they would change the machine."""

SCRIPT = """\
set -euo pipefail
if [ -e {state} ]; then . {state}; cd "$PWD"; fi
trap 'export -p >{state}' EXIT
{text}
"""
"""The bash script that runs a block. The file `{state}` passes exported environment variables and the working directory on to the
terminal's next block."""


class Running:
    """The processes of a running block: N processes for a block with `nodes N`, and one for any other block."""

    def __init__(self, block, commands, directory, environment):
        self.block = block
        self.log = directory / f"output-{block.line}"
        with self.log.open("ab") as log:
            self.processes = [
                subprocess.Popen(
                    ["bash", "-c", command],
                    cwd=directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # `stop` and `kill` signal the process group of the block, as Ctrl-C does in a terminal.
                    start_new_session=True,
                )
                for command in commands
            ]

    def output(self):
        return self.log.read_text(errors="replace")

    def fail(self, text):
        raise AssertionError(f"line {self.block.line}: {text}\n--- block\n{self.block.text}--- output\n{self.output()}")

    def missing(self):
        """Returns the expected lines that the block hasn't printed. The order is not checked, because it differs between runs."""
        printed = [line.strip() for line in self.output().splitlines()]
        return [line for line in self.block.output if line.strip() and not any(pattern(line).fullmatch(seen) for seen in printed)]

    def await_output(self):
        """Waits until the block has printed all lines that the page shows. Fails if the block exits before that."""
        deadline = time.monotonic() + BLOCK_TIMEOUT
        while missing := self.missing():
            if time.monotonic() > deadline or not self.is_running():
                # The block may have printed its last lines after the check above.
                if missing := self.missing():
                    self.fail(f"the output does not contain {missing}")
                return
            time.sleep(0.02)

    def is_running(self):
        return any(process.poll() is None for process in self.processes)

    def check_exit(self):
        """Fails if a process of the block has exited with another code than the page states."""
        for process in self.processes:
            if process.poll() not in (None, self.block.exit):
                self.fail(f"exit code {process.returncode}, not {self.block.exit}")

    def finish(self, others=()):
        """Waits until the block exits, and checks its exit codes and output.

        `others` are the running blocks of other terminals. If one of them exits with an unexpected code, this function
        fails immediately.
        """
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
        """Stops a server with SIGINT, as Ctrl-C does. Fails if the server has already exited."""
        for process in self.processes:
            if process.poll() is not None:
                self.fail(f"the server exited before the end of the page, with exit code {process.returncode}")
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
    """The terminals of one page. They share a directory and have `rallypoint`, `torchrun` and this Python on the PATH."""

    def __init__(self, directory):
        self.directory = directory
        paths = [programs(directory / "bin"), pathlib.Path(binary()).parent, pathlib.Path(sys.executable).parent, os.environ["PATH"]]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(JOB_VARIABLE_PREFIXES)}
        self.environment = inherited | {
            "PATH": os.pathsep.join(map(str, paths)),
            "HOME": str(directory),
            "PYTHONWARNINGS": "ignore",
            # Torch's client makes a reverse DNS lookup of the server's address. By default, a lost DNS packet delays it by 5 s.
            "RES_OPTIONS": "timeout:1 attempts:1",
        }
        self.running = {}
        self.servers = []
        self.started = []

    def run(self, block):
        """Starts a block after the previous block of its terminal has exited, or writes it to disk if it is a file.

        For a server, waits for its expected output. For any other block, waits until the block exits, unless its comment
        names a terminal.
        """
        if block.file:
            (self.directory / block.file).write_text(block.text)
            return
        terminal = block.terminal or 1
        if not block.server and terminal in self.running:
            self.running.pop(terminal).finish(self.running.values())
        started = Running(block, self.commands(block), self.directory, self.environment)
        self.started.append(started)
        if block.server:
            self.servers.append(started)
            started.await_output()
        else:
            self.running[terminal] = started
            if not block.terminal:
                started.finish(self.running.values())

    def commands(self, block):
        """Returns the bash scripts of a block, one for each of its processes."""
        text = block.text
        if block.language == "python":
            path = self.directory / f"block-{block.line}.py"
            path.write_text(text)
            text = f"python {path}"
        else:
            # A comment that ends with `exit code N` states the exit code of the command before it.
            text = re.sub(
                r"^(?P<command>\S.*?) +#.*\bexit code (?P<code>\d+)$",
                r"\g<command> && code=0 || code=$?; [ $code = \g<code> ]",
                text,
                flags=re.MULTILINE,
            )
        names = [f"server-{block.line}"] if block.server else [f"{block.terminal or 1}-{node}" for node in range(block.nodes)]
        return [SCRIPT.format(state=self.directory / f"state-{name}", text=text) for name in names]

    def finish(self):
        """Waits for the blocks that still run, and stops the servers."""
        for started in self.running.values():
            started.finish()
        for server in self.servers:
            server.stop()

    def kill(self):
        for started in self.started:
            started.kill()


def programs(directory):
    """Creates a directory of programs and returns it: a `torchrun` that uses this Python, and stubs of the programs in
    FORBIDDEN_PROGRAMS, which print an error and fail."""
    refuse = "echo 'a page must not run this; write `not run: REASON` above the block' >&2; exit 1"
    scripts = dict.fromkeys(FORBIDDEN_PROGRAMS, refuse) | {"torchrun": 'exec python -m torch.distributed.run "$@"'}
    directory.mkdir()
    for name, script in scripts.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    return directory


def pattern(line):
    """Returns the pattern that a line of output must match. `…` and the whitespace around it stand for any text."""
    return re.compile(".*".join(map(re.escape, re.split(r"\s*…\s*", line.strip()))))
