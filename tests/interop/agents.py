"""Runs torch's `torchrun` and `rallypoint run` as agents of one job, with the same arguments."""

import signal
import subprocess
import sys

import clock
from output_reader import OutputReader
from servers import binary

PROCESS_TIMEOUT = 150
"""Seconds to wait for an agent to exit. Importing torch alone takes several seconds on a busy machine."""

COMMANDS = {
    "ours": [binary(), "run"],
    # The environment of `scripts/python-venv` has the module torch, but not the command `torchrun`.
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


class Launcher:
    """The launcher of one node, with its output so far in `text`."""

    def __init__(self, kind, *arguments, environment=None):
        self.kind = kind
        self.process = subprocess.Popen(
            [*COMMANDS[kind], *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.text = ""
        self._output = OutputReader(self.process, (self.process.stdout, self._append))

    def _append(self, line):
        self.text += line

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def exit_code(self):
        """Waits for the launcher to exit and returns its exit code. `text` is complete then."""
        return self._output.exit_code(PROCESS_TIMEOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Torch's workers survive if their agent is killed with SIGKILL, so the agent gets SIGTERM first.
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def wait_until(what, condition, *launchers):
    """Waits until `condition()` is true. The message of a TimeoutError contains the output of the launchers."""

    def outputs():
        return "\n".join(f"== {launcher.kind} ({launcher.process.poll()})\n{launcher.text}" for launcher in launchers)

    return clock.wait_until(what, condition, PROCESS_TIMEOUT, outputs)
