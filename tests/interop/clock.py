"""Time, in the forms torch and the tests want it."""

import datetime
import time

DEADLINE = 20.0
"""Seconds to wait for what should happen at once; only a failure takes that long."""


def ms(number):
    return datetime.timedelta(milliseconds=number)


def seconds(number):
    return datetime.timedelta(seconds=number)


def until(what, condition):
    """Waits for a condition, looking often."""
    deadline = time.monotonic() + DEADLINE
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {DEADLINE} s for {what}")
        time.sleep(0.001)
    return found
