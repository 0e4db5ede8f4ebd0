"""The workloads of the benchmarks, and the targets that Rallypoint must reach."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    name: str
    group: str
    """The table that the workload belongs to."""
    target: float | None
    """The required ratio of our throughput to torch's, or None if no ratio is required."""
    in_flight: int = 1
    limit: float | None = None
    """The required ratio of our throughput to that of the limit server, or None if the limit server is not measured."""
    redis: str | None = None
    """The most similar test of redis-benchmark, or None."""
    p99: bool = False
    """Whether our p99 latency must not exceed torch's."""
    rival: str = "torch"
    """The name of the torch server to compare with."""
    turns: int = 1
    """The number of turns per round. Each turn measures all servers that the workload compares.

    Workloads whose ratio is near its target have more turns, because that reduces the noise.
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
"""Maximum memory of our server without connections."""
MAX_IDLE_KIB = 4
"""Maximum additional memory of our server per idle connection."""
IDLE_CONNECTIONS = 10_000
"""The number of connections that are opened to measure the memory of an idle connection."""

NODES = {2: (0.1, None), 256: (0.1, None), 1000: (None, 2.0)}
"""For a number of nodes: two maximum times to form a round, as a fraction of torch's time and in seconds. None is no maximum."""
MAX_WRITES_PER_NODE = 3
"""Maximum number of compare-and-sets per node to form a round."""
MAX_WAKE_SECONDS = 0.05
"""Maximum seconds until all nodes know that one node re-forms the round."""

STARTS = {1: (1 / 50, 16), 8: (1 / 40, 16), 32: (1 / 20, 24)}
"""For a number of workers: the maximum duration of a run as a fraction of torchrun's, and the maximum memory in MiB."""
RESTARTS = {"one node, the first time": 0.03, "one node, after that": 0.03, "two nodes": 0.3}
"""Maximum seconds from the death of a worker until all workers have restarted."""

PYTHON = {"add": (1.0, 1.0), "check": (1.0, 1.0), "compare_set": (1.0, 1.0), "get": (1.5, None), "set": (None, None)}
"""For an operation: how many times faster than torch's client ours must be, on our server and on torch's server."""
MAX_SET_BY_ADD = 1.0
"""Maximum duration of our client's `set`, divided by that of its `add`. The server acknowledges both."""
MAX_IMPORT_SECONDS = 0.05
"""Maximum seconds that `import rallypoint` may take."""

LEASE = 5
"""Seconds after which a silent node counts as lost."""
DETECTION = {
    "one process of a node killed": 1,
    "all processes of a node killed": 1,
    "all processes of the leader's node killed": 3,
    "a spare replaces a killed node": 2,
    "power of a node lost": LEASE + 1,
    "link of a node cut": LEASE + 1,
    "link of the leader's node cut": LEASE + 3,
}
"""For a fault: the maximum p95 of the seconds until workers run again on all surviving nodes."""

AGENTS = [2500, 5000, 10_000]
"""The numbers of agents of one coordinator. The targets are for the largest one."""
LOST_AGENTS = 1000
"""The number of connections that are lost, and of agents that end."""
MAX_JOIN_SECONDS = 2.0
"""Maximum seconds from the first join until the last agent knows its rank."""
MAX_COORDINATOR_MIB = 100
"""Maximum memory of the server with the coordinator."""
MAX_HEARTBEAT_CPU = 0.2
"""Maximum share of a processor that the server uses while the agents only renew their leases."""
MAX_RESUME_SECONDS = 2.0
"""Maximum seconds until the lost connections are served again, or until the agents that are left know their new ranks."""
MAX_BYTES_GROWTH = 1.1
"""Maximum ratio of the bytes per agent with the largest number of agents to those with the smallest one."""
