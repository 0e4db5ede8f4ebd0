"""Outages of the store: workers keep running, and waiting nodes rejoin afterwards, even if the store was restarted
empty.

The store is a `rallypoint serve` on the first host. The nodes are on the other hosts.
"""

import contextlib
import time

import pytest
from clock import assert_stays, wait_until
from job import Job, Server, assert_running, kill
from lab import Lab


@contextlib.contextmanager
def server_and_job(count, nnodes, seed, configuration="last_call_timeout=1"):
    """Starts a server. Yields it, a job without nodes, and a host for each node."""
    with Lab(hosts=1 + count, seed=seed) as lab:
        server = Server(lab.hosts[0])
        options = ["--max-restarts", "0", "--rdzv-conf", configuration]
        with Job(lab, *options, nnodes=nnodes, endpoint=server.endpoint) as job:
            yield server, job, lab.hosts[1:]


def cut_off(server, seconds):
    """Makes the store unreachable for `seconds`, and yields repeatedly meanwhile. The store keeps its data."""
    with server.host.cut():
        yield from poll_for(seconds)


def restarted_empty(server, seconds):
    """Kills the store, yields repeatedly for `seconds`, and starts an empty store."""
    server.kill()
    yield from poll_for(seconds)
    server.start()


def poll_for(seconds):
    """Yields every 100 ms for `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.1)


OUTAGES = {"cut": cut_off, "empty": restarted_empty}


def are_undisturbed(agents):
    """Returns whether all agents run and each still has its first worker."""
    return all(agent.process.poll() is None and len(agent.starts()) == 1 for agent in agents)


@pytest.mark.parametrize("outage", ["cut", pytest.param("empty", marks=pytest.mark.long)])
def test_workers_keep_running_through_an_outage_of_90_s_and_a_node_can_join_afterwards(tries, outage):
    def attempt(seed, record):
        with server_and_job(4, nnodes="2:4", seed=seed) as (server, job, hosts):
            members = [job.start(host) for host in hosts[:3]]
            job.wait_for_workers(3, within=60)
            for _ in OUTAGES[outage](server, 90):
                assert are_undisturbed(members), "an agent exited or restarted its worker during the outage"
            restored_at = time.monotonic()
            job.wait_for_nodes(members, within=60)
            record("the state is restored", time.monotonic() - restored_at)
            # 20 s is longer than the 15 s without a heartbeat after which a node is dead.
            assert_stays("no agent has exited or restarted its worker after the outage", lambda: are_undisturbed(members), 20)
            begin = time.monotonic()
            job.start(hosts[3])
            record("a fourth node joined", job.wait_for_workers(4, within=60, since=begin) - begin)
            job.finish()

    tries(attempt)


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_member_that_dies_after_an_outage_is_detected(tries, outage):
    def attempt(seed, record):
        with server_and_job(3, nnodes="2:3", seed=seed) as (server, job, hosts):
            members = [job.start(host) for host in hosts]
            job.wait_for_workers(3, within=60)
            for _ in OUTAGES[outage](server, 5):
                assert are_undisturbed(members), "an agent exited or restarted its worker during the outage"
            job.wait_for_nodes(members, within=60)
            begin = kill(*members[2].agent_pids(), members[2].worker_pid())
            seconds = job.wait_for_workers(2, within=60, agents=members[:2], since=begin) - begin
            record("survivors restarted", seconds)
            job.finish(members[:2])

    tries(attempt)


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_ends_the_agents_at_store_outage_timeout_and_not_before(tries, outage):
    def attempt(seed, record):
        with server_and_job(3, nnodes=3, seed=seed, configuration="store_outage_timeout=15") as (server, job, hosts):
            members = [job.start(host) for host in hosts]
            job.wait_for_workers(3, within=60)
            begin = time.monotonic()
            for _ in OUTAGES[outage](server, 45):
                if time.monotonic() - begin < 14:
                    assert are_undisturbed(members), "an agent gave up before 15 s"
                if all(agent.process.poll() is not None for agent in members):
                    break
            seconds = time.monotonic() - begin
            record("all agents have exited", seconds)
            for agent in members:
                assert agent.process.poll() not in (None, 0), f"{agent.host.address} has not failed after {seconds:.1f} s"
                assert "store_outage_timeout" in agent.process.text()

    tries(attempt)


@pytest.mark.parametrize("outage", OUTAGES)
def test_nodes_of_an_incomplete_round_rejoin_after_an_outage(tries, outage):
    def attempt(seed, record):
        with server_and_job(3, nnodes=3, seed=seed) as (server, job, hosts):
            waiting = [job.start(host) for host in hosts[:2]]
            job.wait_for_nodes(waiting, within=30)
            for _ in OUTAGES[outage](server, 5):
                assert_running(waiting)
            restored_at = time.monotonic()
            job.start(hosts[2])
            record("formed", job.wait_for_workers(3, within=60) - restored_at)
            job.finish()

    tries(attempt)


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_spare_keeps_waiting_through_an_outage_and_replaces_a_lost_node(tries, outage):
    def attempt(seed, record):
        with server_and_job(3, nnodes=2, seed=seed) as (server, job, hosts):
            members = [job.start(host) for host in hosts[:2]]
            job.wait_for_workers(2, within=60)
            spare = job.start(hosts[2])
            job.wait_for_nodes([*members, spare], within=30)
            for _ in OUTAGES[outage](server, 5):
                assert are_undisturbed(members) and spare.process.poll() is None, "an agent was disturbed by the outage"
            job.wait_for_nodes([*members, spare], within=60)
            begin = kill(*members[1].agent_pids(), members[1].worker_pid())
            remaining = [members[0], spare]
            record("the spare joined", job.wait_for_workers(2, within=60, agents=remaining, since=begin) - begin)
            wait_until("the lost node to exit", lambda: members[1].process.poll() is not None)
            job.finish(remaining)

    tries(attempt)
