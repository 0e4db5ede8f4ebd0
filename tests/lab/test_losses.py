"""The native rendezvous over bad links on a busy machine: no node is lost that still runs."""

import contextlib
import re
import subprocess
import sys
import time

import pytest
from job import PORT, Job
from lab import Lab

BAD_LINK = {"loss": 0.1, "delay": 0.2, "jitter": 0.1}
"""A tenth of all packets is lost, and each of the others takes 200 ms ± 100 ms in each direction."""

BUSY_LOOPS = 2


@contextlib.contextmanager
def busy_loops(count):
    """Runs processes that use as much processor time as they get."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def assert_undisturbed(job, seconds):
    """Asserts for some seconds that no round ends and that no agent does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(1)
        for agent in job.agents:
            ended = re.search(r"(round \d+ of the rendezvous .*|.* could not renew its lease .*)", agent.process.text())
            assert not ended and agent.process.poll() is None, f"{agent.host.address}: {ended and ended[1]}"
            assert len(agent.starts()) == 1


@pytest.mark.parametrize(
    ("hosts", "agents", "seconds"), [(8, 16, 60), pytest.param(16, 64, 600, marks=pytest.mark.long)], ids=["16 agents", "64 agents"]
)
def test_no_node_is_lost_over_bad_links_on_a_busy_machine(tries, hosts, agents, seconds):
    """A node that were declared lost, or fenced, would restart its worker."""

    def attempt(seed, _):
        with Lab(hosts=hosts, seed=seed) as lab:
            endpoint = ",".join(f"{host.address}:{PORT}" for host in lab.hosts[:3])
            with Job(lab, "--max-restarts", "0", nnodes=agents, endpoint=endpoint, backend="rallypoint") as job:
                for number in range(agents):
                    job.start(lab.hosts[number % hosts])
                job.wait_for_workers(agents, within=60)

                # The number of voters grows with the number of nodes. Each new one gets the log over a good link.
                assert_undisturbed(job, 3)
                lab.link(**BAD_LINK)
                with busy_loops(BUSY_LOOPS):
                    assert_undisturbed(job, seconds)
                lab.link()
                job.finish()

    tries(attempt)
