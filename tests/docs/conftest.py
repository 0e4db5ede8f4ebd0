"""Tests of the documentation: every code block runs (`test_pages.py`), and mistakes in a page are found (`test_convention.py`).

How to run, from the root of the repository:

    cargo build
    "$(scripts/python-venv)/bin/python" -m pytest -n 4 tests/docs

The binary is `$RALLYPOINT_BIN`, or else the newest build in `target`.
"""

import pathlib
import signal
import sys

import pytest

# The tests send SIGINT. A shell ignores it in background jobs, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "interop")]
pytest.register_assert_rewrite("terminals")
