"""Training with torch over the native rendezvous: `examples/elastic_ddp.py` survives the loss of any node of three.

The node on the first host founds the job and leads it, and the node on the second host has rank 0.
"""

import importlib.util
import os
import pathlib
import re
import sys

import pytest
from binaries import ROOT, binary
from clock import wait_until
from job import PORT, Job, assert_running, kill
from lab import Lab, descendants

EXAMPLE = ROOT / "examples/elastic_ddp.py"
NODES = 3
STEPS = 40
STEPS_PER_CHECKPOINT = 5
STEPS_BEFORE_LOSS = 15

START_TIMEOUT = 120
"""Seconds for all workers to import torch and to start training, on a busy machine."""

LAUNCHERS = {
    "rallypoint run": [binary(), "run"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


class Training(Job):
    """A job that trains. Its agents find the Python of this test."""

    environment = {"PATH": os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]), "OMP_NUM_THREADS": "1"}

    def __init__(self, lab, launcher, checkpoint):
        endpoint = ",".join(f"{host.address}:{PORT}" for host in lab.hosts)
        # The surviving workers may fail before their agents know that a node is lost.
        options = ["--rdzv-conf", "last_call_timeout=2", "--max-restarts", "3"]
        super().__init__(lab, *options, nnodes=f"2:{NODES}", endpoint=endpoint, backend="rallypoint", launcher=launcher)
        self._checkpoint = checkpoint

    def _worker(self):
        arguments = {"checkpoint": self._checkpoint, "steps": STEPS, "every": STEPS_PER_CHECKPOINT, "pause": 0.1}
        return [str(EXAMPLE), *(f"--{name}={value}" for name, value in arguments.items())]

    def printed(self, pattern, since=0.0):
        """Returns the numbers in the lines of all nodes that match, in the order of the lines."""
        lines = sorted(line for agent in self.agents for line in list(agent.process.lines) if line[0] > since)
        found = (re.search(pattern, text) for _, text in lines)
        return [tuple(map(int, match.groups())) for match in found if match]

    def worlds(self):
        """Returns the size of each world, and the step at which it began."""
        return self.printed(r"world of (\d+), from step (\d+)")

    def checkpoints(self):
        """Returns the steps with a checkpoint."""
        return [step for (step,) in self.printed(rf"step (\d+) of {STEPS}: loss")]


def expected_weights(example, worlds):
    """Computes the weights of a training without processes: each world trains from its first step to that of the next."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(example.FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ends = [*(begin for _, begin in worlds[1:]), STEPS]
    for (size, begin), end in zip(worlds, ends):
        for step in range(begin, end):
            shares = [example.batch(step, rank, size) for rank in range(size)]
            # DistributedDataParallel averages the gradients of the workers.
            losses = [torch.nn.functional.mse_loss(model(samples), targets) for samples, targets in shares]
            optimizer.zero_grad()
            (sum(losses) / size).backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(
    "victim",
    [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)],
    ids=["the leader", "rank 0", "another node"],
)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_training_continues_from_the_last_checkpoint_after_the_loss_of_a_node(tries, tmp_path, launcher, victim):
    torch = pytest.importorskip("torch")
    if launcher == "torchrun" and not importlib.util.find_spec("rallypoint"):
        pytest.skip("the Python package is not installed; scripts/python-venv installs it")
    specification = importlib.util.spec_from_file_location("elastic_ddp", EXAMPLE)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)

    def attempt(seed, record):
        checkpoint = tmp_path / f"model-{seed}.pt"
        with Lab(hosts=NODES, seed=seed) as lab, Training(lab, LAUNCHERS[launcher], checkpoint) as job:
            for number, host in enumerate(lab.hosts):
                job.start(host, *(["--node-rank", "0"] if number == 1 and launcher != "torchrun" else []))
            trains = lambda: assert_running(job.agents) or max(job.checkpoints(), default=0) >= STEPS_BEFORE_LOSS  # noqa: E731
            wait_until("the first checkpoints", trains, START_TIMEOUT)
            lost = job.agents[victim]
            survivors = [agent for agent in job.agents if agent is not lost]
            begin = kill(lost.process.pid(), *descendants(lost.process.pid()))
            restarted = lambda: assert_running(survivors) or job.printed(r"world of (2), from", since=begin)  # noqa: E731
            wait_until("a world of two nodes", restarted, START_TIMEOUT)
            for agent in survivors:
                code = agent.process.exit_code(START_TIMEOUT)
                assert code == 0, f"the agent on {agent.host.address} exited with {code}"
            worlds, checkpoints = job.worlds(), job.checkpoints()
            assert worlds[0] == (NODES, 0) and worlds[-1][0] == NODES - 1, worlds
            # Each world continues from the last checkpoint, so every checkpoint was written once.
            assert checkpoints == list(range(STEPS_PER_CHECKPOINT, STEPS + 1, STEPS_PER_CHECKPOINT)), checkpoints
            assert all(step in (0, *checkpoints) for _, step in worlds), worlds
            saved = torch.load(checkpoint, weights_only=True)
            assert saved["step"] == STEPS
            for name, expected in expected_weights(example, worlds).items():
                assert torch.allclose(saved["model"][name], expected, atol=1e-4), (name, saved["model"][name], expected)

    tries(attempt)
