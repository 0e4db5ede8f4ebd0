"""Time, in the forms torch and the tests want it."""

import datetime
import time

DEADLINE = 20.0
"""Seconds to wait for what should happen at once; only a failure takes that long."""


def ms(number):
    return datetime.timedelta(milliseconds=number)


def seconds(number):
    return datetime.timedelta(seconds=number)


def until(what, condition, within=DEADLINE, instead=None):
    """Waits for a condition, looking often at first. If it doesn't come, `instead` tells what there is."""
    deadline = time.monotonic() + within
    pause = 0.001
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within} s for {what}" + (f"\n{instead()}" if instead else ""))
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return found


def tried(attempt):
    """Makes an attempt, which is told its number, until one ends well: what answers a moment before the end of a short time-out
    may be late on a busy machine. If none does, the last error is raised."""
    for number in range(4):
        try:
            return attempt(number)
        except Exception:  # noqa: BLE001  whatever it is, the next must do
            pass
    return attempt(4)


def stays(what, condition, time_long):
    """Looks often, for so many seconds, that something is so and stays so."""
    end = time.monotonic() + time_long
    while time.monotonic() < end:
        assert condition(), f"no longer so: {what}"
        time.sleep(0.01)
