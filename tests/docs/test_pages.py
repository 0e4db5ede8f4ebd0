"""Runs every code block of the READMEs and of docs/, as `blocks.py` describes. Checks the flags in the generated pages (docs/reference)."""

import contextlib
import itertools
import re
import shlex
import shutil
import socket
import subprocess

import pytest
from binaries import ROOT, binary
from blocks import read
from terminals import Terminals

pytest.importorskip("rallypoint", reason="the Python package is not installed; scripts/python-venv installs it")

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("crates/*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = [page for page in PAGES if page.parent.name == "reference"]
PAGES = [page for page in PAGES if page not in GENERATED]

HOST = re.compile(r"\bnode0\b")
PORT = re.compile(r"\b(?:29\d{3}|8080)\b")
TRAINING_SCRIPT = """\
import os
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
"""
SUBCOMMANDS = {"bench", "completions", "join", "run", "serve", "store"}


@contextlib.contextmanager
def free_ports(count):
    """Yields `count` free ports, which stay bound with SO_REUSEADDR. The kernel assigns them to no other process, but a server
    can listen on them."""
    with contextlib.ExitStack() as sockets:
        reserved = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in reserved:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [str(each.getsockname()[1]) for each in reserved]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page, tmp_path):
    run(page.read_text(), tmp_path)


def test_examples_of_generated_pages_have_valid_flags():
    blocks = [block for page in GENERATED for block in read(page.read_text()) if block.language == "sh"]
    assert sum(len(check_flags(block)) for block in blocks) > 20


def run(text, directory):
    """Runs the blocks of a page in `directory`, with 127.0.0.1 in place of `node0` and free ports in place of the documented ones.

    The directory has the examples, and a `train.py` in place of the reader's training script.
    """
    documented = sorted(set(PORT.findall(text)))
    with free_ports(len(documented)) as ports:
        replaced = dict(zip(documented, ports, strict=True))
        text = PORT.sub(lambda match: replaced[match[0]], HOST.sub("127.0.0.1", text))
        shutil.copytree(ROOT / "examples", directory / "examples")
        (directory / "train.py").write_text(TRAINING_SCRIPT)
        terminals = Terminals(directory)
        try:
            for block in read(text):
                check(block)
                if block.runs or block.file:
                    terminals.run(block)
            terminals.finish()
        finally:
            terminals.kill()


def check(block):
    """Checks a block without running it: its syntax, its flags if it never runs, and that a Rust example is tested elsewhere."""
    if block.language == "python":
        compile(block.text, f"line {block.line}", "exec")
    if block.language == "sh":
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        if block.reason:
            check_flags(block)
    if block.language == "rust":
        assert is_in_doc_comments(block.text), f"line {block.line}: copy this example to a doc comment of a crate, where `cargo test` runs it"


def check_flags(block):
    """Checks the flags of the `rallypoint` commands in a block. Returns their arguments."""
    commands = rallypoint_commands(block.text)
    for words in commands:
        parsed = subprocess.run([binary(), *words], capture_output=True, text=True, timeout=20, check=False)
        assert parsed.returncode == 0, f"line {block.line}: {shlex.join(words)}\n{parsed.stderr}"
    return commands


def rallypoint_commands(text):
    """Returns the arguments of each `rallypoint` command in a script, with `--help` in place of the worker's command line.

    The program then checks the flags before `--help`, prints its help and exits.
    """
    text = re.sub(r"(^|\s)# .*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(text.replace("\n", " ;\n"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words, found = [], []
    for word in [*lexer, ";"]:
        if not set(word) <= set("();<>|&"):
            words.append(word)
            continue
        for index, pair in enumerate(itertools.pairwise(words)):
            if pair[0].endswith("rallypoint") and pair[1] in SUBCOMMANDS:
                found.append(up_to_script(words[index + 1 :]))
        words = []
    return found


def up_to_script(words):
    for index, word in enumerate(words):
        if word in ("--", "…") or word.endswith((".py", ".sh")):
            return [*words[:index], "--help"]
        if word in ("--no-python", "-m", "--module"):
            return [*words[: index + 1], "--help"]
    return [*words, "--help"]


def is_in_doc_comments(example):
    """Returns whether the doc comments of a crate contain `example`. `cargo test` runs examples in doc comments."""
    wanted = [line.strip() for line in example.splitlines() if line.strip()]
    for source in (ROOT / "crates").rglob("src/**/*.rs"):
        comments = re.findall(r"^ *//[/!] ?(.*)$", source.read_text(), re.MULTILINE)
        # The page may omit lines of the doc comment.
        lines = iter([line.strip() for line in comments])
        if all(line in lines for line in wanted):
            return True
    return False
