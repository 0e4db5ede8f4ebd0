"""Tests of `test_pages.run`: it accepts good pages, and reports the mistake in a bad page.

`blocks.py` describes what a page may contain.
"""

import re

import pytest
from test_pages import run


def page(*blocks):
    """Returns the text of a page. Each block is a tuple of its language, its text, and optionally its test comment."""
    parts = []
    for language, text, *comment in blocks:
        parts += [f"<!-- test: {each} -->" for each in comment]
        parts.append(f"```{language}\n{text}\n```\n")
    return "\n".join(parts)


GOOD = {
    "variables and the directory carry over": [("sh", "mkdir sub; cd sub; export NAME=x"), ("sh", 'test "$NAME $(basename $PWD)" = "x sub"')],
    "output may be shortened": [("sh", "echo one; echo two, three"), ("text", "two … three")],
    "a text block without a block before it is not compared": [("text", "anything")],
    "the comment after a print in a Python block is its expected output": [("python", "print(1 + 1)  # 2")],
    "a block may fail on purpose": [("sh", "exit 3", "exit 3")],
    "a command may fail on purpose": [("sh", "sh -c 'exit 3'   # exit code 3\ntrue   # exit code 3 if not true")],
    "a file is written and not run": [("python", "import missing", "file train.py"), ("sh", "grep -q missing train.py")],
    "terminals run at the same time": [
        ("sh", "until [ -e two ]; do sleep 0.01; done", "terminal 2"),
        ("sh", "touch two"),
    ],
    "nodes run at the same time": [("sh", "touch $$; until [ $(ls -d [0-9]* | wc -l) = 2 ]; do sleep 0.01; done", "nodes 2")],
    "a server runs until the end": [
        ("sh", "rallypoint serve --listen 0.0.0.0:29400"),
        ("sh", "rallypoint store --endpoint node0:29400 ping"),
    ],
    "a server other than `rallypoint serve` needs a comment": [("python", "import time\nprint('ready', flush=True)\ntime.sleep(600)", "server"), ("text", "ready")],
    "terminal 1 may also run at the same time as another terminal": [
        ("sh", "until [ -e two ]; do sleep 0.01; done", "terminal 1"),
        ("sh", "touch two", "terminal 2"),
    ],
    "a job of several hosts is only checked, because the lab runs it": [("sh", "rallypoint run --nnodes 2 --rdzv-endpoint node0:29400 train.py", "hosts")],
    "output of another terminal may depend on a later block": [
        ("sh", "until [ -e two ]; do sleep 0.01; done; echo done", "terminal 2"),
        ("text", "done"),
        ("sh", "touch two"),
    ],
    "a page may run train.py without showing it, because the test supplies one": [("sh", "rallypoint run --standalone train.py"), ("text", "rank 0 of 1")],
    "a script that needs GPUs is only checked": [
        ("sh", "srun rallypoint run --nproc-per-node gpu \\\n  train.py --epochs 3", "not run: needs Slurm, GPUs"),
    ],
}

BAD = [
    ("exit code 1, not 0", [("sh", "false\ntrue")]),
    ("exit code 0, not 3", [("sh", "true", "exit 3")]),
    ("exit code 1, not 0", [("sh", "true   # exit code 3")]),
    ("the output does not contain", [("sh", "echo one"), ("text", "two")]),
    ("these lines in this order", [("python", "print(1 + 1)  # 3")]),
    ("exit code 7, not 0", [("sh", "exit 7", "terminal 2"), ("sh", "sleep 60")]),
    ("the server exited before the end of the page", [("sh", "true", "server"), ("sh", "sleep 0.5")]),
    ("unexpected argument '--nosuch'", [("sh", "rallypoint run --nosuch 2 train.py", "not run: needs two hosts")]),
    ("a page must not run this", [("sh", "pip install rallypoint")]),
    ("unknown part 'background'", [("sh", "true", "background")]),
    ("unknown language 'bash'", [("bash", "true")]),
    ("no code block directly below", [("sh", "true\n```\n\n<!-- test: server -->\n\nText.\n\n```sh\ntrue")]),
    ("copy this example", [("rust", "let unheard_of = 1;")]),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_page_passes(name, tmp_path):
    run(page(*GOOD[name]), tmp_path)


@pytest.mark.parametrize(("fault", "blocks"), BAD)
def test_a_bad_page_is_refused(fault, blocks, tmp_path):
    with pytest.raises((AssertionError, ValueError), match=re.escape(fault)):
        run(page(*blocks), tmp_path)
