"""Runs the code blocks of the READMEs and of docs/ that need several hosts, which have the comment `<!-- test: hosts -->`.

The hosts have the names that the pages use: `node0`, `node1` and so on are nodes, and `store` is a machine without workers. A command
that launches a job runs on all nodes at the same time, with one worker per node instead of 8. There are as many nodes as the command
allows, so that the round doesn't wait for more of them. `train.py` and `./worker` print their rank and wait for the test. Each
`rallypoint serve` runs on `store`. Each `rallypoint store` runs there as well, while the previous job of the page runs.
"""

import base64
import contextlib
import importlib.util
import os
import pathlib
import re
import shlex
import sys

import pytest
from binaries import ROOT, binary
from clock import wait_until
from lab import Lab

sys.path.append(str(ROOT / "tests/docs"))
from blocks import read  # noqa: E402

JOB_TIMEOUT = 60
"""Seconds for the nodes of a job to start their workers, and to exit after the workers have exited. Torchrun imports torch first."""

PROGRAMS = {
    "train.py": """\
import os
print(f"docs-worker rank={os.environ['RANK']} world={os.environ['WORLD_SIZE']}", flush=True)
open("finish").close()  # waits until the test opens the FIFO
""",
    "worker": "#!/bin/sh\nexec python train.py\n",
    "bin/torchrun": '#!/bin/sh\nexec python -m torch.distributed.run "$@"\n',
    # Slurm's batch script runs on one node, and srun starts its command on each node. Here the script runs on each node.
    "bin/srun": '#!/bin/sh\nexec "$@"\n',
    "bin/scontrol": '#!/bin/sh\nseq -f "node%.0f" 0 $((SLURM_NNODES - 1))\n',
}

ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def hosts_blocks():
    """Returns a parameter for each block that needs several hosts: the list of commands to run.

    A list ends with the commands of its block. If the block begins with `rallypoint store`, which needs a running job, the list
    begins with the commands of the previous `hosts` block of the page.
    """
    pages = [ROOT / "README.md", *sorted(ROOT.glob("crates/*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    found = []
    for page in pages:
        earlier = []
        for block in read(page.read_text()):
            if block.reason == "hosts":
                commands = split(block.text)
                needs_job = commands[0].startswith("rallypoint store")
                found.append(pytest.param((earlier if needs_job else []) + commands, id=f"{page.relative_to(ROOT)}:{block.line}"))
                earlier = commands
    return found


def split(text):
    """Returns the commands of a block, without comments. A script with a `#!` line is one command."""
    if text.startswith("#!"):
        return [text]
    lines = re.sub(r"(^|\s)# .*$", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


def count_nodes(commands):
    """Returns the number of nodes that the commands allow: MAX of `--nnodes MIN:MAX`, or the number of nodes of a Slurm job."""
    return max(map(int, re.findall(r"(?:--nnodes (?:\d+:)?|#SBATCH --nodes=)(\d+)", "\n".join(commands))))


class Site:
    """The hosts of one block. They share a directory with the programs that the block starts."""

    def __init__(self, lab, directory):
        *self.nodes, self.store = lab.hosts
        self.directory = directory
        (directory / "bin").mkdir()
        for name, text in PROGRAMS.items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
        (directory / "bin/rallypoint").symlink_to(binary())
        self.finish = directory / "finish"
        os.mkfifo(self.finish)
        count = len(self.nodes)
        path = os.pathsep.join([str(directory / "bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        slurm = [f"SLURM_NNODES={count}", f"SLURM_JOB_NODELIST=node[0-{count - 1}]", "SLURM_JOB_ID=4711"]
        self._environment = ["env", f"PATH={path}", f"HOME={directory}"]
        self._slurm_environment = [*self._environment, *slurm]

    def command(self, text):
        environment = self._slurm_environment if "SLURM_" in text else self._environment
        text = text.replace("--nproc-per-node 8", "--nproc-per-node 1")
        return [*environment, "bash", "-euc", f"cd {shlex.quote(str(self.directory))}\n{text}"]

    def serve(self, text):
        server = self.store.start(self.command(text))
        wait_until("the server", lambda: "listening on" in server.text(), details=server.text)

    @contextlib.contextmanager
    def launch(self, text):
        """Runs a command on all nodes. Yields once all workers run with the right ranks, and then waits until all nodes exit."""
        processes = [node.start(self.command(text)) for node in self.nodes]

        def all_started():
            exited = [process.log() for process in processes if process.poll() is not None]
            assert not exited, "nodes have exited before all workers have started:\n" + "\n".join(exited)
            starts = [re.findall(r"docs-worker rank=(\d+) world=(\d+)", process.text()) for process in processes]
            return all(starts) and starts

        starts = wait_until("the workers", all_started, JOB_TIMEOUT)
        count = len(self.nodes)
        assert sorted(sum(starts, [])) == sorted((str(rank), str(count)) for rank in range(count))
        yield
        # While the FIFO has a writer, opening it for reading does not block.
        with open(self.finish, "r+b", buffering=0):
            assert [process.exit_code(JOB_TIMEOUT) for process in processes] == [0] * count

    def read_store(self, text):
        """Runs a `rallypoint store` command, in a pipe and on a terminal, and checks that it prints something about the job."""
        command = self.command(text)
        piped, shown = self.store.run(command), self.store.run([sys.executable, "-c", ON_A_TERMINAL, *command])
        print(f"{text}\n{piped.stdout}{piped.stderr}{shown.stdout}{shown.stderr}")
        assert piped.returncode == 0 and shown.returncode == 0
        if " get torch.rendezvous." in text:
            state = base64.b64decode(piped.stdout)
            # The node that hosts the store has joined with the name in the endpoint, and the other nodes with their addresses.
            for name in ["node0", *(node.address for node in self.nodes[1:])]:
                assert name.encode() in state
                assert f": {name} (pid " in shown.stdout
            assert f"participants: {len(self.nodes)}" in shown.stdout
        else:
            assert text.endswith(" list"), f"this test has no check for the output of {text!r}"
            assert "torch.rendezvous.my-job" in piped.stdout.splitlines()
            assert "torch.rendezvous.my-job" in shown.stdout


@pytest.mark.parametrize("commands", hosts_blocks())
def test_a_block_for_several_hosts_runs_on_several_hosts(commands, tmp_path):
    if any("--rdzv-backend rallypoint" in command for command in commands) and not importlib.util.find_spec("rallypoint"):
        pytest.skip("the Python package is not installed; scripts/python-venv installs it")
    count = count_nodes(commands)
    with Lab(hosts=count + 1, names=[*(f"node{number}" for number in range(count)), "store"]) as lab:
        site = Site(lab, tmp_path)
        with contextlib.ExitStack() as job:
            for command in commands:
                if command.startswith("rallypoint serve"):
                    site.serve(command)
                elif command.startswith("rallypoint store"):
                    site.read_store(command)
                else:
                    job.close()
                    job.enter_context(site.launch(command))
