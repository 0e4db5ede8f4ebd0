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


ONE_IN_FLIGHT = "one request in flight, 64 connections"
MANY_IN_FLIGHT = "32 requests in flight, 64 connections"
MANY_KEYS = "one request with 10,000 keys, 64 connections"
MANY_CLIENTS = "many clients, once"
LARGE_VALUES = "8 MiB values, 64 connections"

WORKLOADS = [
    *(Workload(name, ONE_IN_FLIGHT, 1.1, limit=0.9, p99=True, turns=5) for name in ("add", "get", "set", "check", "compare_set")),
    Workload("wait", ONE_IN_FLIGHT, None, limit=0.9, p99=True, turns=5),
    Workload("add", MANY_IN_FLIGHT, 10, in_flight=32, limit=0.5, redis="incr"),
    Workload("get", MANY_IN_FLIGHT, 10, in_flight=32, limit=0.5, redis="get"),
    Workload("check", MANY_IN_FLIGHT, 10, in_flight=32, limit=0.5),
    Workload("wait", MANY_IN_FLIGHT, 10, in_flight=32, limit=0.5),
    Workload("compare_set", MANY_IN_FLIGHT, 10, in_flight=32, limit=0.5),
    Workload("set", MANY_IN_FLIGHT, 1.5, in_flight=32, limit=0.5, redis="set", turns=5),
    Workload("multi_get-10000", MANY_KEYS, 30),
    Workload("wait-10000", MANY_KEYS, 30, turns=3),
    Workload("multi_set-10000", MANY_KEYS, 100),
    Workload("cancel-2000", MANY_CLIENTS, 100),
    Workload("connect-10000", MANY_CLIENTS, None),
    Workload("connect-10000", MANY_CLIENTS, 5, rival="torch that asks"),
    Workload("bootstrap-1024", MANY_CLIENTS, 2.5),
    Workload("barrier-10000", MANY_CLIENTS, 1.0, turns=5),
    Workload("get-8MiB", LARGE_VALUES, 1.0),
    Workload("set-8MiB", LARGE_VALUES, 1.0, turns=3),
]

MAX_REST_MIB = 10
"""A server with no connections may take so much memory,"""
MAX_IDLE_KIB = 4
"""and so much more for each idle one of"""
IDLE_CONNECTIONS = 10_000
