"""Reads the code blocks of a Markdown page, with the comment that says how to test each of them.

A comment stands directly above its block, and may have several parts, separated by commas:

    <!-- test: terminal 2, exit 1 -->

| part | meaning |
|---|---|
| default | the block runs in terminal 1, and the next block starts after it has exited |
| `terminal N` | the block runs in terminal N, and only the next block of that terminal waits for it to exit |
| `server` | the block runs in its own terminal until the end of the page, where SIGINT stops it; the next block starts after this block has printed its expected output |
| `hosts` | the block needs several hosts; `tests/lab/test_docs.py` runs it, and `tests/docs` checks it like `not run` |
| `nodes N` | the block runs in N terminals at the same time |
| `exit N` | the block exits with code N instead of 0 |
| `file NAME` | the block is the content of the file NAME, and does not run |
| `not run: REASON` | the block does not run; only its syntax and the flags of `rallypoint` command lines are checked |

A block that ends with `rallypoint serve …` is a server and needs no comment. A `text` or `json` block directly after a block that runs is that block's expected output: the block must have printed each line, in any order, and `…` stands for any text.
"""

import dataclasses
import re
import textwrap

PART = re.compile(
    r"terminal (?P<terminal>\d+)|(?P<server>server)|nodes (?P<nodes>\d+)|exit (?P<exit>\d+)|file (?P<file>\S+)"
    r"|(?P<reason>hosts)|not run: (?P<why>.+)"
)

SERVE_COMMAND = re.compile(r"^rallypoint serve(?!.*--(?:help|list-limits)).*\s*\Z", re.MULTILINE)

RUN_LANGUAGES = {"sh", "python"}
OUTPUT_LANGUAGES = {"text", "json"}
UNCHECKED_LANGUAGES = {"", "dockerfile", "ini", "toml", "yaml"}
LANGUAGES = RUN_LANGUAGES | OUTPUT_LANGUAGES | UNCHECKED_LANGUAGES | {"rust"}


@dataclasses.dataclass
class Block:
    """One code block. The fields from `terminal` to `reason` are the parts of its comment."""

    line: int
    language: str
    text: str
    terminal: int | None = None
    server: bool = False
    nodes: int = 1
    exit: int = 0
    file: str | None = None
    reason: str | None = None
    """Why `tests/docs` does not run the block, from `hosts` or `not run: REASON`. None if it runs."""
    output: list[str] = dataclasses.field(default_factory=list)
    """The lines of the output block that follows this block."""

    def __post_init__(self):
        if SERVE_COMMAND.search(self.text) and not self.reason:
            self.server = True
            self.output = ["listening on …"]

    @property
    def runs(self):
        return self.language in RUN_LANGUAGES and not self.file and not self.reason


def read(page):
    """Returns the blocks of a page, given the text of the page."""
    found = []
    pattern = re.compile(
        r"(?:^ *<!-- test: (?P<parts>.*?) -->\s*)?^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```\s*?$",
        re.MULTILINE | re.DOTALL,
    )
    for match in pattern.finditer(page):
        line = page.count("\n", 0, match.start("indent")) + 1
        block = Block(line, match["language"].strip(), textwrap.dedent(match["text"]), **parts(match["parts"], line))
        if block.language not in LANGUAGES:
            raise ValueError(f"line {line}: unknown language {block.language!r}; known are {', '.join(sorted(LANGUAGES))}")
        # Output belongs to the block directly before it.
        if block.language in OUTPUT_LANGUAGES and not block.reason and found and found[-1].runs:
            found[-1].output = block.text.splitlines()
        found.append(block)
    comments = len(re.findall("<!-- test:", page))
    if comments != sum(1 for match in pattern.finditer(page) if match["parts"]):
        raise ValueError("a `<!-- test: … -->` comment has no code block directly below it")
    return found


def parts(comment, line):
    """Returns the fields of `Block` that a test comment sets."""
    fields = {}
    for part in re.split(r", (?=terminal |server|nodes |exit |file |hosts|not run:)", comment) if comment else []:
        match = PART.fullmatch(part)
        if not match:
            raise ValueError(f"line {line}: unknown part {part!r} of a test comment")
        (name, value), *_ = ((name, value) for name, value in match.groupdict().items() if value)
        name = "reason" if name == "why" else name
        fields[name] = int(value) if value.isdecimal() else True if name == "server" else value
    return fields
