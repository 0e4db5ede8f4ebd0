"""The results of the benchmarks: benches/results.json. Each benchmark replaces its own section, and `benches/plot` draws the page.

Times are in seconds. A figure of several rounds is a list: the median, the smallest and the largest, or the median alone.
"""

import json
import platform
import re
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benches" / "results.json"


def load() -> dict:
    return json.loads(FILE.read_text())


def save(section: str, data: dict) -> None:
    """Replaces one section of the file."""
    text = json.dumps({**load(), section: data}, indent=1, ensure_ascii=False)
    # A list of numbers, or an object without lists of objects, is one line.
    for innermost in (r"\[\s*([^][{}]*?)\s*\]", r"(?<=  )\{\s*((?:[^][{}]|\[[^][{}]*\])*?)\s*\}"):
        text = re.sub(innermost, lambda match: match[0][0] + re.sub(r"\s*\n\s*", " ", match[1]) + match[0][-1], text)
    FILE.write_text(text + "\n")


def spread(values: list[float]) -> list[float]:
    """Returns the median, the smallest and the largest of what the rounds measured, to four digits."""
    return [float(f"{value:.4g}") for value in (median(values), min(values), max(values))]


def machine() -> str:
    """Returns a description of this machine."""
    model, count = "", 0
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            model, count = row.split(":", 1)[1].strip(), count + 1
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / (1 << 20)
    kernel = ".".join(platform.release().split(".")[:2])
    plural = "s" if count != 1 else ""
    return f"One machine with {count} processor{plural} ({model}), {memory:.0f} GiB of memory, Linux {kernel}"
