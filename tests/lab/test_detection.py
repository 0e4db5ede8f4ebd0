"""A node is lost: how long it takes until the workers of the surviving nodes run again."""

import random
import time

import pytest
from clock import wait_until
from job import Job, kill
from lab import Lab

NODES = 3

CONFIGURATIONS = {"default": [], "last_call=1": ["--rdzv-conf", "last_call_timeout=1"]}
"""A round that could still grow waits for `last_call_timeout`, which is 30 s by default."""


def kill_process(position):
    """Kills one process of the node: 0 is the one that the user started, 1 is the agent, the parent of the worker."""
    return lambda agent: kill(agent.agent_processes()[position])


def kill_all(agent):
    """Kills all processes of the node in one moment, and its worker with them. Its host stays up."""
    return kill(*agent.agent_processes(), agent.worker())


def cut(agent):
    agent.host.cut()
    return time.monotonic()


LOSSES = {
    "outer": (kill_process(0), 5),
    "agent": (kill_process(1), 5),
    "all": (kill_all, 20),
    "cut": (cut, 20),
}


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
            chance = random.Random(seed)
            # The first host has the store, which is lost with its node.
            victim = chance.choice(job.agents[1:])
            survivors = [agent for agent in job.agents if agent is not victim]
            # At any moment of the interval between two heartbeats.
            time.sleep(chance.uniform(0, 5))
            begin = lose(victim)
            # Past the limit the test waits on, to tell how late it was.
            seconds = job.wait_for_workers(NODES - 1, within=60, agents=survivors, since=begin) - begin
            record("survivors run again", seconds)
            assert seconds <= max_seconds, f"the survivors of {victim.host.address} ran again after {seconds:.2f} s"
            if loss != "cut":
                wait_until("the end of the lost node", lambda: victim.process.poll() is not None)
            job.finish(survivors)

    tries(attempt)
