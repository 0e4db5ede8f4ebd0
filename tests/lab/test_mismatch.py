"""Nodes that disagree about the size of their job."""

import re
import time

import pytest
from job import Job, expect_running
from lab import Lab


@pytest.mark.parametrize("phase", ["forming", "running"])
def test_a_node_with_another_maximum_is_refused_and_told_who_says_what(tries, phase):
    """The first two nodes say 2:3 while a round is under way, or 3 while it forms. The third says 4."""

    def attempt(seed, record):
        nnodes = {"forming": "3", "running": "2:3"}[phase]
        with Lab(hosts=4, seed=seed) as lab, Job(lab, "--rdzv-conf", "last_call_timeout=1", nnodes=nnodes) as job:
            first, second, third, fourth = lab.hosts
            members = [job.start(first), job.start(second)]
            if phase == "running":
                job.wait_for_workers(2, within=60)
            begin = time.monotonic()
            refused = job.start(third, "--nnodes", {"forming": "4", "running": "2:4"}[phase])
            code = refused.process.ended(30)
            record("refused", time.monotonic() - begin)
            text = refused.process.text()
            assert code != 0
            assert re.search(rf"{re.escape(third.address)}\b", text), "the message doesn't name the node that is refused"
            assert re.search(rf"{re.escape(first.address)}\b|{re.escape(second.address)}\b", text), "the message doesn't name a member"
            [message] = [line for line in text.splitlines() if line.startswith("rallypoint run:")] or [text]
            assert re.search(r"\b3\b", message) and re.search(r"\b4\b", message), "the message doesn't name both values"
            assert not refused.starts()
            # The others are not disturbed, and a node that agrees with them gets in.
            job.agents.remove(refused)
            expect_running(members)
            job.start(fourth)
            job.wait_for_workers(3, within=60)
            job.finish()

    tries(attempt)
