"""Jobs whose workers measure their own lives, in native rendezvous.

The worker is `lab_worker` of `crates/drivers`. All times are seconds of CLOCK_MONOTONIC, which all hosts of the lab and
this process share.
"""

import dataclasses
import itertools
import pathlib
import time

from binaries import driver
from clock import wait_until
from job import PORT, Job, assert_running

RENEWAL_TIMEOUT = 1.0
"""Seconds after which a worker that has not renewed its `last` counts as dead. A worker renews it every 2 ms."""

ENDPOINTS = 3
"""The number of hosts in the endpoint of a job."""


@dataclasses.dataclass
class Life:
    """The life of one worker, as the worker has measured it."""

    host: str
    world: str
    """The round and the address of the workers' store. Two worlds never have the same."""
    group_rank: int
    group_world_size: int
    start: float
    last: float
    """A time at which the worker still ran, at most a few milliseconds before its end."""


class TimedJob(Job):
    """A job with the native rendezvous, unless `backend` says otherwise."""

    def __init__(self, lab, *options, nnodes, endpoint=None, backend="rallypoint", launcher=None):
        endpoint = endpoint or ",".join(f"{host.address}:{PORT}" for host in lab.hosts[:ENDPOINTS])
        super().__init__(lab, *options, nnodes=nnodes, endpoint=endpoint, backend=backend, launcher=launcher)
        self._lives = pathlib.Path(self._directory.name) / "lives"
        self._lives.mkdir()

    def _worker(self):
        return ["--no-python", driver("lab_worker"), str(self._lives), str(self._fifo)]

    def lives(self):
        """Returns the lives of all workers so far, ordered by start."""
        found = []
        for path in self._lives.iterdir():
            fields = dict(field.split("=", 1) for field in path.read_text().split())
            # A worker that has just created its file has not written the line yet.
            if fields:
                for name in ("start", "last"):
                    fields[name] = float(fields[name])
                for name in ("group_rank", "group_world_size"):
                    fields[name] = int(fields[name])
                found.append(Life(**fields))
        return sorted(found, key=lambda life: life.start)

    def newest(self, agents):
        """Returns the newest life on the host of each agent that has had a worker."""
        newest = {life.host: life for life in self.lives()}
        return [newest[name] for agent in agents if (name := f"host{agent.host.number}") in newest]

    def wait_for_world(self, agents, within, since=0.0):
        """Waits until exactly the workers of these agents run in one world that started after the time `since`.

        Returns the time at which the last of them started. Fails immediately if an agent has exited, and otherwise
        after `within` seconds.
        """

        def running():
            assert_running(agents)
            lives = self.newest(agents)
            alive_since = time.monotonic() - RENEWAL_TIMEOUT
            is_one_world = len({life.world for life in lives}) == 1 and len(lives) == len(agents)
            is_running = all(life.start > since and life.last > alive_since for life in lives)
            return is_one_world and is_running and all(life.group_world_size == len(agents) for life in lives) and lives

        lives = wait_until(f"one world of {len(agents)} nodes", running, within, details=self.describe)
        ranks = sorted(life.group_rank for life in lives)
        assert ranks == list(range(len(agents))), f"group ranks: {ranks}"
        return max(life.start for life in lives)

    def overlap(self):
        """Returns for how many seconds workers of different worlds ran at the same time, at most."""
        pairs = itertools.combinations(self.lives(), 2)
        return max((overlap_of(*pair) for pair in pairs if pair[0].world != pair[1].world), default=0.0)

    def describe(self):
        """Returns one line for each life."""
        return "\n".join(
            f"{life.start:.3f}–{life.last:.3f} {life.host}, world {life.world}, "
            f"group rank {life.group_rank} of {life.group_world_size}"
            for life in self.lives()
        )


def overlap_of(first, second):
    """Returns for how many seconds two workers ran at the same time."""
    return max(0.0, min(first.last, second.last) - max(first.start, second.start))
