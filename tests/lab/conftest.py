"""Lab tests: `rallypoint` on several hosts of one machine, over links that are bad or cut (see `lab.py`).

How to run, from the root of the repository, as root:

    cargo build
    "$(scripts/torch-venv)/bin/python" -m pytest -n 3 -m "not long" tests/lab

`scripts/test lab` does that; `scripts/test full` also runs the cases marked `long` and tries each case 5 times. Torch is not needed, only
pytest. These variables change a run:

    RALLYPOINT_BIN          the binary to test
    RALLYPOINT_LAB_TRIES    how often each case is tried
    RALLYPOINT_LAB_SEED     the seed of the first try; the next try has the next seed. A failure names the seed of its try

The figures of all tries are printed at the end.
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
    """Tries of one case, each with a seed of its own, and the durations that they report."""

    def __init__(self, item):
        self._item = item
        self._durations = {}

    def __call__(self, attempt, quick=1, allowed_to_fail=0):
        """Calls `attempt(seed, record)` `quick` times, or as often as RALLYPOINT_LAB_TRIES says.

        `record(name, seconds)` takes a duration for the table at the end. All tries are made, also after one has failed. At most the
        fraction `allowed_to_fail` of them may fail.
        """
        __tracebackhide__ = True
        count = int(os.environ.get("RALLYPOINT_LAB_TRIES", quick))
        first = int(os.environ.get("RALLYPOINT_LAB_SEED", random.randrange(1_000_000)))
        failed = []
        for seed in range(first, first + count):
            try:
                attempt(seed, self._record)
            except Exception:  # noqa: BLE001  each kind is a failed try
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
    """Prints the figures of all cases, also of those that ran in other processes.

    A try that fails before it gets to a figure is not in that figure's n. A try that is too late is in n and among the failed.
    """
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    rows = []
    for report in reports:
        if getattr(report, "when", None) == "call":
            rows += [(report.nodeid.rpartition("::")[2], *figure) for name, figure in report.user_properties if name == "lab"]
    if rows:
        terminalreporter.section("lab figures, in seconds")
    for case, name, count, failed, durations in sorted(rows):
        spread = f"median {statistics.median(durations):.2f}, {min(durations):.2f}–{max(durations):.2f}"
        terminalreporter.write_line(f"{case}: {failed} of {count} tries failed; {name}, n={len(durations)}: {spread}")
