"""Loss of a node: the time until the workers of the surviving nodes have restarted."""

import random
import time

import pytest
from clock import wait_until
from job import Job, kill
from lab import Lab

NODES = 3

CONFIGURATIONS = {"default": [], "last_call=1": ["--rdzv-conf", "last_call_timeout=1"]}
"""The last call of a round takes `last_call_timeout`, which is 30 s by default. A round that re-forms does not wait that long."""


def kill_process(position):
    """Returns a function that kills one process of a node: 0 is the outer process, and 1 is the agent."""
    return lambda agent: kill(agent.agent_pids()[position])


def kill_all(agent):
    """Kills all processes of the node, including its worker. Its host keeps running."""
    return kill(*agent.agent_pids(), agent.worker_pid())


def cut(agent):
    agent.host.cut()
    return time.monotonic()


LOSSES = {
    "outer": (kill_process(0), 5),
    "agent": (kill_process(1), 5),
    "all": (kill_all, 20),
    "cut": (cut, 20),
}
"""How a node is lost, and the maximum number of seconds until the workers of the survivors have restarted."""


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_survivors_of_a_lost_node_restart_in_time_and_use_no_restart_budget(tries, loss, configuration):
    lose, max_seconds = LOSSES[loss]

    def attempt(seed, record):
        options = ["--max-restarts", "0", *CONFIGURATIONS[configuration]]
        with Lab(hosts=NODES, seed=seed) as lab, Job(lab, *options, nnodes=f"2:{NODES}") as job:
            for host in lab.hosts:
                job.start(host)
            job.wait_for_workers(NODES, within=60)
            rng = random.Random(seed)
            # The node on the first host hosts the store, so it is not a victim here.
            victim = rng.choice(job.agents[1:])
            survivors = [agent for agent in job.agents if agent is not victim]
            # The node is lost at a random moment between two heartbeats, which are 5 s apart.
            time.sleep(rng.uniform(0, 5))
            begin = lose(victim)
            # The wait is longer than `max_seconds`, so that a slow restart is reported with its actual duration.
            seconds = job.wait_for_workers(NODES - 1, within=60, agents=survivors, since=begin) - begin
            record("survivors restarted", seconds)
            assert seconds <= max_seconds, f"the survivors of {victim.host.address} restarted after {seconds:.2f} s"
            if loss != "cut":
                wait_until("the lost node to exit", lambda: victim.process.poll() is not None)
            job.finish(survivors)

    tries(attempt)
