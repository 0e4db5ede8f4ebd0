"""The workloads and the targets of our server on each. It runs nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    name: str
    group: str
    """The table that the workload belongs to."""
    target: float | None
    """The required ratio of our throughput to torch's, or None."""
    in_flight: int = 1
    limit: float | None = None
    """The required ratio to the limit server, which has fixed replies and knows only the small operations."""
    redis: str | None = None
    """The most similar test of redis-benchmark."""
    p99: bool = False
    """Whether our p99 latency must not exceed torch's."""
    rival: str = "torch"
    """The server of torch to compare with."""
    turns: int = 1
    """The number of turns per round.

    Each turn measures every server, which reduces noise for ratios near their target.
    """

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
    Workload("connect-10000", MANY_CLIENTS, 5, rival="torch with DNS lookups"),
    Workload("bootstrap-1024", MANY_CLIENTS, 2.5),
    Workload("barrier-10000", MANY_CLIENTS, 1.0, turns=5),
    Workload("get-8MiB", LARGE_VALUES, 1.0),
    Workload("set-8MiB", LARGE_VALUES, 1.0, turns=3),
]

MAX_REST_MIB = 10
"""Maximum memory of a server without connections."""
MAX_IDLE_KIB = 4
"""Maximum additional memory per idle connection."""
IDLE_CONNECTIONS = 10_000
"""The number of idle connections."""

NODES = {2: (0.1, None), 256: (0.1, None), 1000: (None, 2.0)}
"""Nodes: the largest part of torch's time, and the largest number of seconds, that a round may take."""
MAX_WRITES_PER_NODE = 3
"""Compare-and-sets that a round may take for each node."""
MAX_WAKE_SECONDS = 0.05
"""Seconds within which a change of the round must have woken the last node."""

STARTS = {1: (1 / 50, 16), 8: (1 / 40, 16), 32: (1 / 20, 24)}
"""Workers: the largest part of torchrun's time, and the largest number of MiB, that a start may take."""
RESTARTS = {"one node, the first time": 0.03, "one node, after that": 0.03, "two nodes": 0.3}
"""Seconds that a restart may take."""

PYTHON = {"add": (1.0, 1.0), "check": (1.0, 1.0), "compare_set": (1.0, 1.0), "get": (1.5, None), "set": (None, None)}
"""Operation: how many times faster our client must be on our server, and on torch's."""
MAX_SET_BY_ADD = 1.0
"""How many times as long as an `add` an acknowledged `set` of our client may take."""
MAX_IMPORT_SECONDS = 0.05
"""Seconds that `import rallypoint` may take."""
