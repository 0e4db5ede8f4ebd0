"""The example that trains, run as its first lines say. The other one is tested without torch (`run_command.rs`)."""

import os
import pathlib
import re
import signal
import time

import pytest
from launchers import Run
from servers import ROOT

EXAMPLE = ROOT / "examples" / "elastic_ddp.py"


class Node(Run):
    """A node of ours that trains."""

    def __init__(self, folder, number, endpoint, checkpoint):
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "ddp", "--local-addr", "127.0.0.1"]
        conf = "join_timeout=90,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5,read_timeout=90"
        super().__init__(
            "rallypoint",
            folder / str(number),
            *("--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 3, *rendezvous),
            *("--rdzv-conf", f"is_host={int(number == 0)},{conf}", "--shutdown-timeout", 5),
            *(EXAMPLE, "--checkpoint", checkpoint, "--steps", 60, "--every", 5, "--pause", 0.15),
            wait=False,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = ""

    def shows(self, pattern, within=100):
        """Waits for it on its standard output, from where the last one was found."""
        deadline = time.monotonic() + within
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            assert self.process.poll() is None, f"it ended: {self.text}\n{self.process.stderr.read()}"
            self.text += self.process.stdout.read() or ""
            time.sleep(0.05)
        self.text = self.text[found.end() :]
        return found

    def workers(self):
        """The processes that train."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                environment = (entry / "environ").read_bytes() if str(EXAMPLE).encode() in line else b""
            except OSError:
                continue
            if f"OUT={self.folder / 'out'}".encode() in environment.split(b"\0") and b"LOCAL_RANK=" in environment:
                if b"run" not in line[:2]:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def endpoint():
    import socket

    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.timeout(280)
def test_training_survives_the_death_of_a_worker_and_of_a_node(tmp_path, endpoint):
    checkpoint = tmp_path / "model.pt"
    with Node(tmp_path, 0, endpoint, checkpoint) as host, Node(tmp_path, 1, endpoint, checkpoint) as other:
        # Whoever comes second may find that the first has begun alone; then they begin again together.
        everywhere = lambda pattern: next(n for n in iter_shows((host, other), pattern))
        first = everywhere(r"world of 4, from step (\d+)")
        everywhere(r"step \d+ of 60")
        os.kill(host.workers()[0], signal.SIGKILL)
        again = everywhere(r"world of 4, from step (\d+)")
        assert int(again[1]) >= 5 + int(first[1]) // 5 * 5, "it goes on from a checkpoint"
        everywhere(r"step \d+ of 60")
        workers = other.workers()
        assert len(workers) == 2
        other.process.kill()
        alone = host.shows(r"world of 2, from step (\d+)")
        assert int(alone[1]) > int(again[1])
        host.shows(r"done after 60 steps with loss (\S+)")
        assert host.wait().code == 0, host.err
        # Nobody of the killed node trains on.
        assert not [pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()]


def iter_shows(nodes, pattern, within=100):
    """The first of these nodes that shows it: rank 0 may be on either."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        for node in nodes:
            assert node.process.poll() is None, f"it ended: {node.text}\n{node.process.stderr.read()}"
            node.text += node.process.stdout.read() or ""
            if found := re.search(pattern, node.text):
                for each in nodes:
                    each.text = each.text[found.end() :] if each is node else each.text
                yield found
        time.sleep(0.05)
    raise AssertionError(f"no {pattern!r} in {[node.text for node in nodes]}")
