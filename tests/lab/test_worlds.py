"""The native rendezvous while nodes are cut off or stopped: workers of two worlds never run at the same time.

The workers measure their lives (`timed.py`). The leader of the coordinator is on the first host, and the second host has
rank 0.
"""

import contextlib
import os
import signal
import time

import pytest
from clock import assert_stays
from job import Server
from lab import Lab
from timed import TimedJob

NODES = 4

MAX_RETURN_SECONDS = 3.0
"""Maximum seconds from the end of a fault until all nodes are in one world."""


def long(*values):
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


@contextlib.contextmanager
def running_job(seed):
    """Starts a job with a worker on each of `NODES` hosts, of which half suffice."""
    with Lab(hosts=NODES, seed=seed) as lab, TimedJob(lab, "--max-restarts", "0", nnodes=f"{NODES // 2}:{NODES}") as job:
        leader, rank_0, *others = lab.hosts
        # The node of the first endpoint founds the job, so its coordinator leads.
        job.start(leader)
        job.start(rank_0, "--node-rank", "0")
        for host in others:
            job.start(host)
        job.wait_for_world(job.agents, within=60)
        assert {life.host: life.group_rank for life in job.lives()}["host2"] == 0
        yield lab, job


def assert_all_return(job, since, healed_at, record):
    """Asserts that all nodes are soon in one world, that no worker ran beside one of another world, and that the job ends."""
    returned_at = job.wait_for_world(job.agents, within=60, since=since)
    record("all nodes are back", returned_at - healed_at)
    overlap = job.overlap()
    record("overlap", overlap)
    assert overlap == 0, f"workers of two worlds ran together for {overlap:.3f} s\n{job.describe()}"
    assert returned_at - healed_at <= MAX_RETURN_SECONDS, f"the nodes returned after {returned_at - healed_at:.2f} s"
    job.finish()


def cut_off(*numbers):
    """Returns a function that cuts off each of these hosts from all others, and itself returns the healing."""

    def apply(lab):
        healing = contextlib.ExitStack()
        for number in numbers:
            healing.enter_context(lab.hosts[number - 1].cut())
        return healing

    return apply


CUTS = {
    "the leader": cut_off(1),
    "rank 0": cut_off(2),
    "another node": cut_off(3),
    "half of the nodes": cut_off(1, 2),
    "one half from the other": lambda lab: lab.split(lab.hosts[:2]),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("seconds", [5, *long(20, 45, 60)])
def test_workers_of_two_worlds_never_overlap_while_nodes_are_cut_off(tries, seconds, cut):
    def attempt(seed, record):
        with running_job(seed) as (lab, job):
            begin = time.monotonic()
            with CUTS[cut](lab):
                time.sleep(seconds)
            assert_all_return(job, begin, time.monotonic(), record)

    tries(attempt)


@pytest.mark.parametrize("position", [0, *long(1, 2)], ids=["the leader", "rank 0", "another node"])
@pytest.mark.parametrize("seconds", [30, *long(90)])
def test_workers_of_two_worlds_never_overlap_while_an_agent_is_stopped(tries, seconds, position):
    """The guard, which is the outer process of the node, runs on and kills the workers."""

    def attempt(seed, record):
        with running_job(seed) as (_, job):
            _, agent = job.agents[position].agent_pids()
            begin = time.monotonic()
            os.kill(agent, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(agent, signal.SIGCONT)
            assert_all_return(job, begin, time.monotonic(), record)

    tries(attempt)


@pytest.mark.parametrize("outage", [5, *long(60)])
def test_a_separate_server_that_is_killed_and_restarted_empty_disturbs_no_worker(tries, outage):
    def attempt(seed, record):
        with Lab(hosts=NODES + 1, seed=seed) as lab:
            server = Server(lab.hosts[0])
            # Three nodes are not all that the job can have, so the first round waits for the last call.
            options = ["--max-restarts", "0", "--rdzv-conf", "scale_up_delay=1,last_call_timeout=1"]
            with TimedJob(lab, *options, nnodes=f"2:{NODES}", endpoint=server.endpoint) as job:
                *first_hosts, last_host = lab.hosts[1:]
                members = [job.start(host) for host in first_hosts]
                job.wait_for_world(members, within=60)
                workers = len(job.lives())

                def are_undisturbed():
                    return len(job.lives()) == workers and all(agent.process.poll() is None for agent in members)

                # The server hands the job over to the nodes once they have the log.
                assert_stays("no worker restarts while the nodes take over the job", are_undisturbed, 5)
                server.kill()
                assert_stays("no worker restarts without the server", are_undisturbed, outage)
                server.start()
                assert_stays("no worker restarts beside the empty server", are_undisturbed, 7)
                job.wait_for_world(members, within=10)
                begin = time.monotonic()
                job.start(last_host)
                record("a fourth node joined", job.wait_for_world(job.agents, within=60, since=begin) - begin)
                assert job.overlap() == 0, job.describe()
                job.finish()

    tries(attempt)
