"""The examples in `docs/python-rendezvous.md` print the output in their comments."""

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
    assert expected, "an example without expected output"
    completed = subprocess.run([sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == expected
