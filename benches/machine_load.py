"""Measures the load of other programs on this machine from the kernel's counters of processor time.

`benches/compare` repeats a measurement during which other programs used too much processor time.
"""

import os
import resource
import time

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Returns the processor time that all programs have used on this machine."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def benchmark_seconds(servers) -> float:
    """Returns the processor time that these servers, this process and its finished children have used."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(server.cpu_seconds() for server in servers) + sum(use.ru_utime + use.ru_stime for use in usages)


class LoadWatch:
    """Measures the load of other programs from its creation on."""

    def __init__(self, servers):
        self.servers = servers
        self.start = time.monotonic(), busy_seconds(), benchmark_seconds(servers)

    def other_load(self) -> float:
        """Returns the load of other programs as a share of one processor."""
        start, busy, own = self.start
        elapsed = max(time.monotonic() - start, 1 / TICKS_PER_SECOND)
        return max(0.0, (busy_seconds() - busy) - (benchmark_seconds(self.servers) - own)) / elapsed


def wait_until_idle(servers, max_share: float, timeout: float) -> None:
    """Waits up to `timeout` seconds until other programs use at most `max_share` of a processor for 0.3 s."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        watch = LoadWatch(servers)
        time.sleep(0.3)
        if watch.other_load() <= max_share:
            return
