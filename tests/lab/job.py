"""Jobs of `rallypoint run` with one agent per host, for the lab's tests."""

import base64
import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import tempfile
import time

from binaries import binary
from clock import wait_until
from lab import descendants, parents, pid_in_host

RUN_ID = "lab"
WORKER = pathlib.Path(__file__).resolve().parent / "worker.sh"
PORT = 29400


@dataclasses.dataclass
class Start:
    """One start of a worker, as the worker reported it."""

    when: float
    group_rank: int
    group_world_size: int
    restart: int
    pid: int


class Agent:
    """One node on a host, with one worker. `command` starts its launcher."""

    def __init__(self, host, command, environment):
        self.host = host
        self.process = host.start(command, environment)

    def starts(self):
        """Returns all starts of the node's worker so far."""
        pattern = re.compile(r"lab-worker group_rank=(\d+) world=(\d+) restart=(\d+) pid=(\d+)")
        found = ((when, pattern.search(line)) for when, line in list(self.process.lines))
        return [Start(when, *map(int, match.groups())) for when, match in found if match]

    def worker_pid(self):
        """Returns the process id of the running worker in the PID namespace of this machine."""
        pid = self.starts()[-1].pid
        [found] = [candidate for candidate in descendants(self.process.pid()) if pid_in_host(candidate) == pid]
        return found

    def agent_pids(self):
        """Returns the process ids of the node's processes other than the worker, from the outer process to the agent.

        Torchrun has only one such process.
        """
        parent_of = parents()
        pids = [parent_of[self.worker_pid()]]
        while pids[0] != self.process.pid():
            pids.insert(0, parent_of[pids[0]])
        return pids


def assert_running(agents):
    stopped = [agent.host.address for agent in agents if agent.process.poll() is not None]
    assert not stopped, f"agents have exited: {', '.join(stopped)}"


class Server:
    """`rallypoint serve` on a host."""

    def __init__(self, host):
        self.host = host
        self.endpoint = f"{host.address}:{PORT}"
        self.start()

    def start(self):
        self._process = self.host.start([binary(), "serve", "--listen", self.endpoint])
        wait_until("the server", lambda: "listening on" in self._process.text(), details=self._process.text)

    def kill(self):
        """Kills the server. Its data is lost."""
        self._process.kill()
        self._process.exit_code()


class Job:
    """A job: agents with the same arguments.

    `launcher` is the command that starts an agent, by default `rallypoint run`. `backend` is the backend of the
    rendezvous.
    """

    environment = None
    """Variables for the agents, in addition to those of this process."""

    def __init__(self, lab, *options, nnodes, endpoint=None, backend="c10d", launcher=None):
        self._lab = lab
        self._endpoint = endpoint or f"{lab.hosts[0].address}:{PORT}"
        self._launcher = launcher or [binary(), "run"]
        self._backend = backend
        self._options = [*options, "--nnodes", str(nnodes)]
        self._directory = tempfile.TemporaryDirectory(prefix="rallypoint-lab-")
        self._fifo = pathlib.Path(self._directory.name) / "finish"
        os.mkfifo(self._fifo)
        self.agents = []

    def start(self, host, *options):
        """Starts an agent on a host. `options` override those of the job."""
        rendezvous = ["--rdzv-backend", self._backend, "--rdzv-endpoint", self._endpoint, "--rdzv-id", RUN_ID]
        command = [*self._launcher, *rendezvous, *self._options, *options, *self._worker()]
        agent = Agent(host, command, self.environment)
        self.agents.append(agent)
        return agent

    def _worker(self):
        """Returns the last arguments of an agent, which start the worker."""
        return ["--log-dir", "/dev/null", "--no-python", "/bin/sh", str(WORKER), str(self._fifo)]

    def state(self):
        """Returns the pickled state of the rendezvous, or empty bytes if there is none."""
        command = [binary(), "store", "--endpoint", self._endpoint, "get", f"torch.rendezvous.{RUN_ID}"]
        completed = self._lab.hosts[0].run(command)
        return base64.b64decode(completed.stdout) if completed.returncode == 0 else b""

    def wait_for_nodes(self, agents, within):
        """Waits until the state contains the addresses of these nodes."""

        def are_in_the_state():
            assert_running(agents)
            state = self.state()
            return all(agent.host.address.encode() in state for agent in agents)

        wait_until("the nodes in the state", are_in_the_state, within)

    def wait_for_workers(self, nodes, within, agents=None, since=0.0):
        """Waits until the worker of each agent has started in a round of `nodes` nodes, after the time `since`.

        Returns the time of the last start. Fails immediately if an agent has exited, and otherwise after `within`
        seconds.
        """
        agents = self.agents if agents is None else agents

        def matching_starts():
            assert_running(agents)
            last = [starts[-1] for agent in agents if (starts := agent.starts())]
            matching = [candidate for candidate in last if candidate.group_world_size == nodes and candidate.when > since]
            return len(matching) == len(agents) and matching

        starts = wait_until(f"{len(agents)} workers in a round of {nodes} nodes", matching_starts, within)
        ranks = sorted(start.group_rank for start in starts)
        assert len(agents) < nodes or ranks == list(range(nodes)), f"group ranks in a round of {nodes} nodes: {ranks}"
        return max(start.when for start in starts)

    def finish(self, agents=None, within=60):
        """Lets the workers exit with success, and asserts that each agent exits with code 0 within `within` seconds."""
        # While the FIFO has a writer, opening it for reading does not block.
        with open(self._fifo, "r+b", buffering=0):
            for agent in self.agents if agents is None else agents:
                code = agent.process.exit_code(within)
                assert code == 0, f"the agent on {agent.host.address} exited with {code}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._directory.cleanup()


def kill(*pids):
    """Kills processes without a pause in between. Returns the time of the first kill."""
    moment = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return moment
