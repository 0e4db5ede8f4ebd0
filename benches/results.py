"""Reads and writes benches/results.json, the results of the benchmarks. Each benchmark replaces its own section.

Times are in seconds. A list of three numbers has the median, the minimum and the maximum of several measurements. A
list of one number has only the median.
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
    # Write each list of numbers, and each object without lists of objects, on one line.
    for innermost in (r"\[\s*([^][{}]*?)\s*\]", r"(?<=  )\{\s*((?:[^][{}]|\[[^][{}]*\])*?)\s*\}"):
        text = re.sub(innermost, lambda match: match[0][0] + re.sub(r"\s*\n\s*", " ", match[1]) + match[0][-1], text)
    FILE.write_text(text + "\n")


def spread(values: list[float]) -> list[float]:
    """Returns the median, the minimum and the maximum of the values, rounded to four significant digits."""
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
