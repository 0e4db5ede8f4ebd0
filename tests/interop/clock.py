"""Time, in the forms torch and the tests want it."""

import contextlib
import datetime
import pathlib
import time

WAIT_TIMEOUT = 20.0
"""Seconds to wait for what should happen at once; only a failure takes that long."""

REPLY_TIMEOUT = 3
"""Seconds of a timeout whose error depends on what the server still answers. Our client waits for that answer for 4 % of the
timeout, which is long enough on a busy machine."""


def ms(number):
    return datetime.timedelta(milliseconds=number)


def seconds(number):
    return datetime.timedelta(seconds=number)


def wait_until(what, condition, within=WAIT_TIMEOUT, details=None):
    """Waits for a condition, looking often at first. If it doesn't come, `instead` tells what there is."""
    deadline = time.monotonic() + within
    pause = 0.001
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within} s for {what}" + (f"\n{details()}" if details else ""))
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return found


def run_delays(*pids):
    """The seconds for which each thread of these processes was ready to run so far, but other threads had the processors."""
    delays = {}
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
                delays[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return delays


def delayed_since(before, *pids):
    """The seconds for which these processes were kept from running since their `run_delays` were `before`."""
    return sum(delay - before.get(task, 0) for task, delay in run_delays(*pids).items())


def assert_stays(what, condition, time_long):
    """Looks often, for so many seconds, that something is so and stays so."""
    end = time.monotonic() + time_long
    while time.monotonic() < end:
        assert condition(), f"no longer so: {what}"
        time.sleep(0.01)
