"""Nodes with different values of `--nnodes`: the node that joins later is refused."""

import re
import time

import pytest
from job import Job, assert_running
from lab import Lab


def names_host(message, host):
    return re.search(rf"{re.escape(host.address)}(?!\d)", message)


@pytest.mark.parametrize("phase", ["forming", "running"])
def test_a_node_with_another_nnodes_is_refused_and_the_message_names_both_values_and_nodes(tries, phase):
    """The first two nodes have `--nnodes` 3 ("forming") or 2:3 ("running"). The third node has 4 or 2:4."""

    def attempt(seed, record):
        nnodes = {"forming": "3", "running": "2:3"}[phase]
        with Lab(hosts=4, seed=seed) as lab, Job(lab, "--rdzv-conf", "last_call_timeout=1", nnodes=nnodes) as job:
            first, second, third, fourth = lab.hosts
            members = [job.start(first), job.start(second)]
            if phase == "running":
                job.wait_for_workers(2, within=60)
            else:
                job.wait_for_nodes(members, within=60)
            begin = time.monotonic()
            refused = job.start(third, "--nnodes", {"forming": "4", "running": "2:4"}[phase])
            code = refused.process.exit_code(30)
            record("refused", time.monotonic() - begin)
            assert code != 0
            message = refused.process.text().partition("rallypoint run:")[2]
            assert names_host(message, third), "the message doesn't name the node that is refused"
            assert names_host(message, first) or names_host(message, second), "the message doesn't name a member of the round"
            values = re.sub(r"\d+\.\d+\.\d+\.\d+[\d_]*", "", message)
            assert re.search(r"\b3\b", values) and re.search(r"\b4\b", values), "the message doesn't name both values"
            assert not refused.starts()
            # The other nodes are not disturbed, and a node with the same value can join.
            job.agents.remove(refused)
            assert_running(members)
            job.start(fourth)
            job.wait_for_workers(3, within=60)
            job.finish()

    tries(attempt)
