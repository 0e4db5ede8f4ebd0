"""Formats measurements as docs/benchmarks.md, including the targets that were missed. It measures nothing."""

import platform
import textwrap
from pathlib import Path
from statistics import median

from targets import IDLE_CONNECTIONS, MAX_IDLE_KIB, MAX_REST_MIB, Workload

HEAD = """\
# Benchmarks

Written by `benches/compare`. Do not edit by hand.

Ratios compare the throughput of our server with that of another server within one round. The tables show the median of
{rounds}, with the minimum and the maximum in parentheses. Above 1, our server is faster. *Target* is the required ratio
to torch's server. The latency of a batch of requests is measured from the first byte sent to the last reply received.
Operations per second and latencies are medians, too.

{machine}. All servers run on one processor, one at a time, and the load on another. The load is `rallypoint bench`,
except for Redis: `redis-benchmark` with the same numbers of connections, requests in flight, keys and bytes
({redis}). The *limit* is `benches/limit_server.rs`, which parses requests and replies with fixed bytes, without a
store. A request without a reply (`set`, `multi_set`) is complete when a PING after it is answered. Every server gets
one PING per batch. {disturbance}

Torch's server is `TCPStore(..., use_libuv=True)` of torch {torch}. It looks up the name of every client that connects.
{names}

To repeat the benchmark, run `benches/compare`; see `--help`. It needs Linux, a Rust toolchain, Python 3 and `taskset`.
"""

NAMES_FROM_FILES_NOTE = """Here it reads only a local file and sends no query, which makes it faster. The server *with
DNS lookups* sends queries to a name server on the same machine that replies immediately, which is the minimum cost of a
query. The load spends about as much time on a connection as the servers do, and both run on this machine, so the ratio
shows only part of the difference between servers."""


def replace_section(output: str, title: str, text: str) -> None:
    """Replaces the section with this title in a file, or appends it. With `-`, prints the section."""
    if output == "-":
        print(text)
        return
    page = Path(output)
    before, _, rest = page.read_text().partition(f"\n{title}\n")
    _, separator, after = rest.partition("\n## ")
    page.write_text(f"{before.rstrip()}\n\n{text.rstrip()}\n{separator}{after}")


def ratios_of(workload: Workload, rounds: list[dict], ours: str, other: str, figure: str = "rate") -> list[float]:
    values = []
    for results in rounds:
        results = results.get(workload.title, {})
        a, b = (results.get(name, {}).get(figure) for name in (ours, other))
        if a and b:
            values.append(a / b)
    return values


def fill(text: str) -> str:
    """Wraps paragraphs at 120 columns."""
    return "\n\n".join(textwrap.fill(part, 120) for part in text.strip().split("\n\n")) + "\n"


def short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{short(median(values))} ({short(min(values))}–{short(max(values))})"


def thousands(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else short(rate)


def microseconds(time: float | None) -> str:
    if time is None:
        return "–"
    return f"{time / 1e6:.2f} s" if time >= 1e6 else f"{time / 1e3:.1f} ms" if time >= 1e4 else f"{time:.0f} µs"


def line(workload: Workload, results: dict) -> str:
    """Returns a progress line for one workload of one round, with the server's processor time per operation."""
    parts = [f"{workload.title:<28}"]
    for name, result in results.items():
        cpu = f" ({result['cpu']:.3g} µs)" if "cpu" in result else ""
        others = f" [others {result['others']:.0%}]" if result.get("others", 0) > 0.05 else ""
        error = f" ERROR {result['error']}" if result["error"] else ""
        parts.append(f"{name} {thousands(result['rate'])}/s{cpu}{others}{error}")
    values = ratios_of(workload, [{workload.title: results}], "rallypoint", workload.rival)
    return "  ".join(parts + [f"x{short(values[0])}" if values else "no ratio"])


def machine() -> str:
    model, count = "", 0
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            model, count = row.split(":", 1)[1].strip(), count + 1
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / (1 << 20)
    kernel = ".".join(platform.release().split(".")[:2])
    plural = "s" if count != 1 else ""
    return f"One machine with {count} processor{plural} ({model}), {memory:.0f} GiB of memory, Linux {kernel}"


def verdict(workload: Workload, rounds: list[dict]) -> str:
    if workload.target is None:
        return "–"
    values = ratios_of(workload, rounds, "rallypoint", workload.rival)
    missed = [] if values and median(values) >= workload.target else ["target"]
    if workload.p99:
        values = ratios_of(workload, rounds, "rallypoint", workload.rival, "p99")
        missed += [] if values and median(values) <= 1 else ["p99"]
    values = ratios_of(workload, rounds, "rallypoint", "limit") if workload.limit else []
    missed += ["limit"] if values and median(values) < workload.limit else []
    values = ratios_of(workload, rounds, "rallypoint", "redis") if workload.redis else []
    missed += ["redis"] if values and median(values) < 1 else []
    return "yes" if not missed else "no: " + ", ".join(missed)


def table(workloads: list[Workload], rounds: list[dict]) -> str:
    limit = any(workload.limit for workload in workloads)
    redis = any(workload.redis for workload in workloads)
    head = ["workload", "torch ops/s", "ours ops/s", "ours ÷ torch", "target", "p99 torch", "p99 ours"]
    head += [f"ours ÷ limit (≥ {workloads[0].limit})"] if limit else []
    head += ["ours ÷ Redis", "Redis ÷ torch"] if redis else []
    rows = [head + ["reached"], ["---"] * (len(head) + 1)]
    for workload in workloads:
        rival = "" if workload.rival == "torch" else f", {workload.rival}"
        row = [f"`{workload.name}`{rival}"]
        for server in (workload.rival, "rallypoint"):
            rates = values_of(workload, rounds, server, "rate")
            row.append(thousands(median(rates)) if rates else "–")
        target = "–" if workload.target is None else f"{workload.target:g}"
        row += [spread(ratios_of(workload, rounds, "rallypoint", workload.rival)), target]
        for server in (workload.rival, "rallypoint"):
            times = values_of(workload, rounds, server, "p99")
            row.append(microseconds(median(times)) if times else "–")
        row += [spread(ratios_of(workload, rounds, "rallypoint", "limit"))] if limit else []
        row += [spread(ratios_of(workload, rounds, "rallypoint", "redis"))] if redis else []
        row += [spread(ratios_of(workload, rounds, "redis", "torch"))] if redis else []
        rows.append(row + [verdict(workload, rounds)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def values_of(workload: Workload, rounds: list[dict], server: str, figure: str) -> list[float]:
    values = [results.get(workload.title, {}).get(server, {}).get(figure) for results in rounds]
    return [number for number in values if number]


def describe_disturbance(rounds: list[dict]) -> str:
    others = [result["others"] for results in rounds for servers in results.values() for result in servers.values()]
    return (
        "A measurement during which other programs used more than 5 % of a processor was repeated. During the "
        f"measurements that count, they used {median(others):.1%} at the median and {max(others):.0%} at most."
    )


def write(workloads: list[Workload], data: dict) -> str:
    rounds = data["rounds"]
    head = HEAD.format(
        rounds=f"{len(rounds)} rounds" if len(rounds) > 1 else "one round",
        machine=machine(),
        torch=data["torch"],
        redis=data["redis"] or "not installed on this machine",
        names=NAMES_FROM_FILES_NOTE if data["names_from_files"] else "Here it queries this machine's name server.",
        disturbance=describe_disturbance(rounds),
    )
    parts = [fill(head)]
    for group in dict.fromkeys(workload.group for workload in workloads):
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        parts.append(table([workload for workload in workloads if workload.group == group], rounds) + "\n")
    rest, idle = data["rest_mib"], data["idle_kib"]
    parts.append("## Memory\n")
    parts.append("| | torch | ours | at most |\n| --- | --- | --- | --- |")
    parts.append(f"| at rest, MiB | {rest['torch']:.1f} (with Python) | {rest['rallypoint']:.1f} | {MAX_REST_MIB} |")
    count = f"{IDLE_CONNECTIONS:,}"
    parts.append(
        f"| an idle connection, of {count}, KiB | {idle['torch']:.2f} | {idle['rallypoint']:.2f} | {MAX_IDLE_KIB} |\n"
    )
    errors = [
        f"- {title}, {server}, round {number + 1}: {result['error']}"
        for number, round in enumerate(rounds)
        for title, results in round.items()
        for server, result in results.items()
        if result["error"]
    ]
    if errors:
        parts.append("## Errors\n")
        parts.append("\n".join(errors) + "\n")
    return "\n".join(parts)
