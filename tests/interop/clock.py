"""Timeouts, functions that wait for a condition, and functions that measure scheduling delays."""

import contextlib
import datetime
import pathlib
import time

WAIT_TIMEOUT = 20.0
"""Seconds to wait for an event that should happen immediately. Only a failure takes that long."""

REPLY_TIMEOUT = 3
"""Timeout in seconds for calls whose timeout error contains details from the server.

After the timeout, our client requests the details and waits for the reply for another 4 % of the timeout. With 3 s, that
is 120 ms, which is long enough on a busy machine.
"""


def ms(number):
    return datetime.timedelta(milliseconds=number)


def seconds(number):
    return datetime.timedelta(seconds=number)


def wait_until(what, condition, within=WAIT_TIMEOUT, details=None):
    """Polls `condition` until it is true, and returns its value.

    Raises TimeoutError after `within` seconds, with `what` and the result of `details` in the message. The polling
    interval grows from 1 ms to 20 ms.
    """
    deadline = time.monotonic() + within
    pause = 0.001
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within} s for {what}" + (f"\n{details()}" if details else ""))
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return found


def run_delays(*pids):
    """Returns, for each thread of these processes, the seconds for which it waited for a processor so far."""
    delays = {}
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has exited
                delays[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return delays


def delayed_since(before, *pids):
    """Returns the seconds for which these processes waited for a processor since `run_delays` returned `before`."""
    return sum(delay - before.get(task, 0) for task, delay in run_delays(*pids).items())


def assert_stays(what, condition, duration):
    """Asserts every 10 ms for `duration` seconds that `condition` is true."""
    end = time.monotonic() + duration
    while time.monotonic() < end:
        assert condition(), f"no longer true: {what}"
        time.sleep(0.01)
