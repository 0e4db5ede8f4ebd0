"""Six nodes form a round, re-form after a worker has failed, and finish, over links with faults."""

import functools
import random
import time

import pytest
from clock import assert_stays
from job import Job
from lab import Lab

NODES = 6

RTT = {"delay": 0.15, "jitter": 0.1}
"""A round-trip time of 300 ms ± 200 ms."""

LOSS = {"loss": 0.1}

REORDERING = {"delay": 0.01, "reorder": 0.25}

BAD_LINKS = {"rtt": RTT, "loss": LOSS, "reordering": REORDERING, "all": REORDERING | LOSS | RTT}


def form(job, hosts, within):
    """Starts an agent on each host. Returns the seconds until all workers run."""
    begin = time.monotonic()
    for host in hosts:
        job.start(host)
    return job.wait_for_workers(NODES, within) - begin


def re_form(job, rng, within):
    """Kills the worker of one node. Returns the seconds until all workers have restarted."""
    victim = rng.choice(job.agents)
    begin = time.monotonic()
    victim.host.run(["kill", "-KILL", victim.starts()[-1].pid])
    # The test does not check whether the restart uses the restart budget. If heartbeats are lost, all nodes may rejoin for that
    # reason, which does not use the budget.
    return job.wait_for_workers(NODES, within, since=begin) - begin


@pytest.mark.parametrize("name", BAD_LINKS)
def test_a_job_forms_within_60_s_over_bad_links_and_again_after_a_failure(tries, name):
    def attempt(seed, record):
        with Lab(hosts=NODES, seed=seed) as lab, Job(lab, "--max-restarts", "1", nnodes=NODES) as job:
            lab.link(**BAD_LINKS[name])
            record("formed", form(job, lab.hosts, within=60))
            record("re-formed", re_form(job, random.Random(seed), within=60))

    tries(attempt)


@pytest.mark.long
def test_a_job_forms_within_180_s_where_30_percent_of_all_packets_are_lost(tries):
    """The test ends once the workers run. Later the round may re-form, because a node without heartbeats for 15 s is dropped."""

    def attempt(seed, record):
        with Lab(hosts=NODES, seed=seed) as lab, Job(lab, nnodes=NODES) as job:
            lab.link(loss=0.3)
            record("formed", form(job, lab.hosts, within=180))

    tries(attempt, allowed_to_fail=0.1)


@pytest.mark.parametrize("neighbors", ["static", "arp"])
@pytest.mark.parametrize("victim", ["store", "peer"])
def test_a_cut_of_3_s_at_any_moment_while_a_round_forms_ends_no_agent(tries, victim, neighbors):
    """The nodes start within 2 s of each other, and the cut starts within these 2 s."""

    def attempt(seed, record):
        rng = random.Random(seed)
        with Lab(hosts=NODES, seed=seed, neighbors=neighbors) as lab, Job(lab, nnodes=NODES) as job:
            # The delay makes it likely that requests are in flight when the cut starts.
            lab.link(delay=0.05, jitter=0.02)
            host = lab.hosts[0] if victim == "store" else rng.choice(lab.hosts[1:])
            cut = rng.uniform(0, 2)
            events = [(cut, host.cut), (cut + 3, host.heal)]
            events += [(rng.uniform(0, 2), functools.partial(job.start, each)) for each in lab.hosts]
            begin = time.monotonic()
            for when, event in sorted(events, key=lambda each: each[0]):
                time.sleep(max(0.0, begin + when - time.monotonic()))
                event()
            print(f"seed {seed}: {host.address} was cut off {cut:.3f} s after the start")
            record("formed", job.wait_for_workers(NODES, within=60) - begin)
            # An agent that failed because of the cut would exit within this time.
            assert_stays("all agents run", lambda: all(agent.process.poll() is None for agent in job.agents), 3)

    tries(attempt, default_count=2)


@pytest.mark.parametrize("name", BAD_LINKS)
def test_all_agents_of_a_job_that_finishes_over_bad_links_end_with_success(tries, name):
    def attempt(seed, record):
        with Lab(hosts=NODES, seed=seed) as lab, Job(lab, nnodes=NODES) as job:
            form(job, lab.hosts, within=60)
            lab.link(**BAD_LINKS[name])
            begin = time.monotonic()
            job.finish()
            record("finished", time.monotonic() - begin)

    tries(attempt)
