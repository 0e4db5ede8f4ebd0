"""The workloads that are compared, and what ours is to reach of torch's on each. It runs nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    name: str
    group: str
    """The row of the requirements it belongs to."""
    target: float | None
    """Ours is to reach so many times torch's throughput."""
    in_flight: int = 1
    limit: float | None = None
    """And so much of the limit server's, which has fixed replies and knows the small operations only."""
    redis: str | None = None
    """The test of redis-benchmark that comes nearest."""
    p99: bool = False
    """Its p99 is to be no worse than torch's."""
    rival: str = "torch"
    """Which of torch's servers it is compared with."""
    turns: int = 1
    """Into so many turns a round is cut, one server after the other in each: what is near its target is to be told from noise."""

    @property
    def title(self) -> str:
        flight = "" if self.in_flight == 1 else f", {self.in_flight} in flight"
        return self.name + flight + ("" if self.rival == "torch" else f", {self.rival}")


ONE = "one request in flight, 64 connections"
MANY = "32 requests in flight, 64 connections"
LARGE = "one request with 10,000 keys, 64 connections"
GATHERING = "many clients, once"
VALUE = "8 MiB values, 64 connections"

WORKLOADS = [
    *(Workload(name, ONE, 1.1, limit=0.9, p99=True, turns=5) for name in ("add", "get", "set", "check", "compare_set")),
    Workload("wait", ONE, None, limit=0.9, p99=True, turns=5),
    Workload("add", MANY, 10, in_flight=32, limit=0.5, redis="incr"),
    Workload("get", MANY, 10, in_flight=32, limit=0.5, redis="get"),
    Workload("check", MANY, 10, in_flight=32, limit=0.5),
    Workload("wait", MANY, 10, in_flight=32, limit=0.5),
    Workload("compare_set", MANY, 10, in_flight=32, limit=0.5),
    Workload("set", MANY, 1.5, in_flight=32, limit=0.5, redis="set", turns=5),
    Workload("multi_get-10000", LARGE, 30),
    Workload("wait-10000", LARGE, 30, turns=3),
    Workload("multi_set-10000", LARGE, 100),
    Workload("cancel-2000", GATHERING, 100),
    Workload("connect-10000", GATHERING, None),
    Workload("connect-10000", GATHERING, 5, rival="torch that asks"),
    Workload("bootstrap-1024", GATHERING, 2.5),
    Workload("barrier-10000", GATHERING, 1.0, turns=5),
    Workload("get-8MiB", VALUE, 1.0),
    Workload("set-8MiB", VALUE, 1.0, turns=3),
]

REST_MIB = 10
"""A server with no connections may take so much memory,"""
IDLE_KIB = 4
"""and so much more for each idle one of"""
IDLE_CONNECTIONS = 10_000

NODES = {2: (0.1, None), 256: (0.1, None), 1000: (None, 2.0)}
"""Nodes: the largest part of torch's time, and the largest number of seconds, that a round may take."""
WRITES_PER_NODE = 3
"""Compare-and-sets that a round may take for each node."""
WOKEN = 0.05
"""Seconds within which a change of the round must have woken the last node."""

STARTS = {1: (1 / 50, 16), 8: (1 / 40, 16), 32: (1 / 20, 24)}
"""Workers: the largest part of torchrun's time, and the largest number of MiB, that a start may take."""
DEATHS = {"one node, the first time": 0.03, "one node, after that": 0.03, "two nodes": 0.3}
"""Seconds that a restart may take."""

PYTHON = {"add": (1.0, 1.0), "check": (1.0, 1.0), "compare_set": (1.0, 1.0), "get": (1.5, None), "set": (None, None)}
"""Operation: how many times faster our client must be on our server, and on torch's."""
