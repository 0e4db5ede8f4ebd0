"""Runs the training example as its docstring describes. `run_command.rs` tests the other example, which needs no torch."""

import os
import pathlib
import queue
import re
import signal
import time

import pytest
from launchers import PROCESS_TIMEOUT, Run
from output_reader import OutputReader
from servers import ROOT

EXAMPLE = ROOT / "examples" / "elastic_ddp.py"


class Node(Run):
    """A node that trains. The lines of its standard output go to `lines`, and those of its standard error to `log`."""

    def __init__(self, directory, number, endpoint, lines):
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "ddp", "--local-addr", "127.0.0.1"]
        conf = "join_timeout=100,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5,read_timeout=100"
        super().__init__(
            "rallypoint",
            directory / str(number),
            *("--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 3, *rendezvous),
            *("--rdzv-conf", f"is_host={int(number == 0)},{conf}", "--shutdown-timeout", 5),
            *(EXAMPLE, "--checkpoint", directory / "model.pt", "--steps", 60, "--every", 5, "--pause", 0.15),
            wait=False,
        )
        self.log = []
        self._output = OutputReader(self.process, (self.process.stdout, lines.put), (self.process.stderr, self.log.append))

    def exit_code(self):
        return self._output.exit_code(PROCESS_TIMEOUT)

    def workers(self):
        """Returns the process ids of the workers."""
        pids = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                # The agent's command line also contains the example's path, but not among its first three words.
                is_worker = str(EXAMPLE).encode() in line[:3]
                environment = (entry / "environ").read_bytes().split(b"\0") if is_worker else []
            except OSError:
                continue
            if f"OUT={self.directory / 'out'}".encode() in environment:
                pids.append(int(entry.name))
        return pids

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@pytest.mark.timeout(290)
def test_training_survives_the_loss_of_a_worker_and_of_a_node(tmp_path, port):
    endpoint = f"127.0.0.1:{port}"
    lines, shown_lines = queue.Queue(), []
    with Node(tmp_path, 0, endpoint, lines) as host, Node(tmp_path, 1, endpoint, lines) as other:

        def wait_for_line(pattern):
            """Returns the number in the next line that matches.

            Rank 0 prints these lines, and may be on either node.
            """
            deadline = time.monotonic() + PROCESS_TIMEOUT
            while time.monotonic() < deadline:
                try:
                    shown_lines.append(lines.get(timeout=max(0.1, deadline - time.monotonic())))
                except queue.Empty:
                    break
                if match := re.search(pattern, shown_lines[-1]):
                    return int(match[1])
            raise AssertionError(f"no {pattern!r}\n{''.join(shown_lines)}\n{''.join(host.log)}\n{''.join(other.log)}")

        # The first node may have started alone. In that case both nodes restart together.
        wait_for_line(r"world of 4, from step (\d+)")
        first_step = wait_for_line(r"step (\d+) of 60")
        os.kill(host.workers()[0], signal.SIGKILL)
        restarted_from = wait_for_line(r"world of 4, from step (\d+)")
        assert restarted_from >= first_step, "training continues from a checkpoint"
        wait_for_line(r"step (\d+) of 60")
        workers = other.workers()
        assert len(workers) == 2
        other.process.kill()
        alone_from = wait_for_line(r"world of 2, from step (\d+)")
        assert alone_from > restarted_from
        wait_for_line(r"done after (\d+) steps")
        assert host.exit_code() == 0, host.log
        # No worker of the killed node is left.
        assert not [pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()]
