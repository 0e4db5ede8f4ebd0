"""The examples of `docs/python-rendezvous.md` print what stands beside them."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("rallypoint", reason="the Python package is not installed; scripts/python-venv has it")

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python-rendezvous.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_the_output_in_its_comments(number):
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", EXAMPLES[number], re.MULTILINE)
    assert expected, "an example that says nothing shows nothing"
    completed = subprocess.run([sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == expected
