"""Launchers of one job, with the same arguments: torch's own `torchrun` and `rallypoint run`."""

import signal
import subprocess
import sys

import clock
from output_reader import OutputReader
from servers import binary

PROCESS_TIMEOUT = 150
"""Seconds that anything may take; importing torch alone takes several on a busy machine."""

COMMANDS = {
    "ours": [binary(), "run"],
    # Not the command: an environment that was made on top of torch's has none.
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


class Launcher:
    """One node's, with what it has written so far."""

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
        """Its exit code, once all it wrote is in `text`."""
        return self._output.exit_code(PROCESS_TIMEOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Torch's workers live on if their agent is killed; so it is asked first.
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def wait_until(what, condition, *launchers):
    """Waits for a condition, looking often; if it doesn't come, shows what the launchers wrote."""

    def written():
        return "\n".join(f"== {launcher.kind} ({launcher.process.poll()})\n{launcher.text}" for launcher in launchers)

    return clock.wait_until(what, condition, PROCESS_TIMEOUT, written)
