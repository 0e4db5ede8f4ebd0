"""Lab tests: `rallypoint` on several hosts of one machine, over links with faults (see `lab.py`).

How to run, from the root of the repository, as root or as a user who may create user namespaces:

    cargo build
    "$(scripts/python-venv)/bin/python" -m pytest -n 3 -m "not long" tests/lab

`scripts/test lab` does that, with more cases in parallel. `scripts/test full` also runs the cases marked `long`, and
tries each case 3 times. The tests need pytest. `test_docs.py` also needs torch, and skips a block if our Python package is
not installed. These environment variables change a run:

    RALLYPOINT_BIN          the binary to test
    RALLYPOINT_LAB_TRIES    the number of tries of each case
    RALLYPOINT_LAB_SEED     the seed of the first try; each further try has the next seed. A failure reports its seed

The durations that the tries record are printed at the end.
"""

import os
import pathlib
import random
import statistics
import sys
import traceback

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "interop")]
pytest.register_assert_rewrite("job")

import lab  # noqa: E402


def pytest_collection_modifyitems(items):
    reason = lab.missing_requirement()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


class Tries:
    """The tries of one case, each with its own seed, and the durations that they record."""

    def __init__(self, item):
        self._item = item
        self._durations = {}

    def __call__(self, attempt, default_count=1, allowed_to_fail=0):
        """Calls `attempt(seed, record)` `default_count` times, or RALLYPOINT_LAB_TRIES times if that variable is set.

        `record(name, seconds)` records a duration for the table at the end. A failed try does not end the case. At most
        the fraction `allowed_to_fail` of the tries may fail.
        """
        __tracebackhide__ = True
        count = int(os.environ.get("RALLYPOINT_LAB_TRIES", default_count))
        first = int(os.environ.get("RALLYPOINT_LAB_SEED", random.randrange(1_000_000)))
        failed = []
        for seed in range(first, first + count):
            try:
                attempt(seed, self._record)
            except Exception:  # noqa: BLE001  any exception is a failed try
                failed.append(seed)
                print(f"the try with RALLYPOINT_LAB_SEED={seed} failed\n{traceback.format_exc()}")
        for name, durations in self._durations.items():
            self._item.user_properties.append(("lab", (name, count, len(failed), durations)))
        assert len(failed) <= count * allowed_to_fail, f"{len(failed)} of {count} tries failed; their seeds: {failed}"

    def _record(self, name, seconds):
        self._durations.setdefault(name, []).append(seconds)


@pytest.fixture
def tries(request):
    return Tries(request.node)


def pytest_terminal_summary(terminalreporter):
    """Prints the durations of all cases, including cases that ran in other processes.

    `n` is the number of tries that recorded the duration. A try that fails before it records one is not in `n`. A try
    that was too slow is in `n` and also counts as failed.
    """
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    rows = []
    for report in reports:
        if getattr(report, "when", None) == "call":
            rows += [(report.nodeid.rpartition("::")[2], *values) for name, values in report.user_properties if name == "lab"]
    if rows:
        terminalreporter.section("durations in the lab, in seconds")
    for case, name, count, failed, durations in sorted(rows):
        spread = f"median {statistics.median(durations):.2f}, {min(durations):.2f}–{max(durations):.2f}"
        terminalreporter.write_line(f"{case}: {failed} of {count} tries failed; {name}, n={len(durations)}: {spread}")
