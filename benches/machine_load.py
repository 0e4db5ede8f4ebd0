"""Is the machine ours? Measurements are taken again when something else ran meanwhile. It looks only at the kernel's
own counts of processor time."""

import os
import resource
import time

TICK = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Processor time that anybody has used on this machine."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def benchmark_seconds(servers) -> float:
    """What these servers, this process and its finished children have used of it."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(server.cpu_seconds() for server in servers) + sum(use.ru_utime + use.ru_stime for use in usages)


class LoadWatch:
    """How much others run from now on."""

    def __init__(self, servers):
        self.servers = servers
        self.start = time.monotonic(), busy_seconds(), benchmark_seconds(servers)

    def other_load(self) -> float:
        """As a share of one processor."""
        start, busy, own = self.start
        elapsed = max(time.monotonic() - start, 1 / TICK)
        return max(0.0, (busy_seconds() - busy) - (benchmark_seconds(self.servers) - own)) / elapsed


def wait_until_idle(servers, max_share: float, timeout: float) -> None:
    """Returns once others leave the machine alone for a moment, or after this many seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        watch = LoadWatch(servers)
        time.sleep(0.3)
        if watch.other_load() <= max_share:
            return
