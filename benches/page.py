"""Turns measurements into docs/benchmarks.md. It measures nothing and hides nothing: what misses its target says so."""

import platform
from pathlib import Path
from statistics import median

from targets import IDLE_CONNECTIONS, IDLE_KIB, REST_MIB, Workload

HEAD = """\
# Benchmarks

Written by `benches/compare`; do not edit by hand.

Ratios of throughput, ours to another server's, taken within one round and then the median of {rounds} rounds, with
the smallest and the largest in brackets. Above 1 we are faster. *Target* is what was asked for against torch.

{machine}. All servers run on one processor, one at a time, and the load on another. The load is `rallypoint bench` for
all of them but Redis, which has `redis-benchmark` with as many connections, requests in flight, keys and bytes
({redis}). The *limit* is `benches/limit_server.rs`: it reads, parses and answers with fixed bytes, and has no store.
What has no reply (`set`, `multi_set`) is done when a PING behind it is answered, for every server alike.

Torch's server is that of `TCPStore(..., use_libuv=True)`, {torch}. It looks up the name of everybody who connects;
{names}

Run it again: `benches/compare` (`--help` says more). It needs Linux, a Rust toolchain, Python 3 and `taskset`.
"""


def ratios(workload: Workload, rounds: list[dict], ours: str, other: str, figure: str = "rate") -> list[float]:
    found = []
    for results in rounds:
        results = results.get(workload.title, {})
        a, b = (results.get(name, {}).get(figure) for name in (ours, other))
        if a and b:
            found.append(a / b)
    return found


def short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def spread(found: list[float]) -> str:
    if not found:
        return "–"
    return f"{short(median(found))} ({short(min(found))}–{short(max(found))})"


def thousands(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else short(rate)


def microseconds(time: float | None) -> str:
    if time is None:
        return "–"
    return f"{time / 1e6:.2f} s" if time >= 1e6 else f"{time / 1e3:.1f} ms" if time >= 1e4 else f"{time:.0f} µs"


def line(workload: Workload, results: dict) -> str:
    """One workload of one round, for who watches, with the processor time the server used for an operation."""
    parts = [f"{workload.title:<28}"]
    for name, result in results.items():
        cpu = f" ({result['cpu']:.3g} µs)" if "cpu" in result else ""
        others = f" [others {result['others']:.0%}]" if result.get("others", 0) > 0.05 else ""
        error = f" ERROR {result['error']}" if result["error"] else ""
        parts.append(f"{name} {thousands(result['rate'])}/s{cpu}{others}{error}")
    found = ratios(workload, [{workload.title: results}], "rallypoint", "torch")
    return "  ".join(parts + [f"x{short(found[0])}" if found else "no ratio"])


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
    found = ratios(workload, rounds, "rallypoint", "torch")
    missed = [] if found and median(found) >= workload.target else ["target"]
    if workload.p99:
        found = ratios(workload, rounds, "rallypoint", "torch", "p99")
        missed += [] if found and median(found) <= 1 else ["p99"]
    found = ratios(workload, rounds, "rallypoint", "limit") if workload.limit else []
    missed += ["limit"] if found and median(found) < workload.limit else []
    found = ratios(workload, rounds, "rallypoint", "redis") if workload.redis else []
    missed += ["redis"] if found and median(found) < 1 else []
    return "yes" if not missed else "no: " + ", ".join(missed)


def table(workloads: list[Workload], rounds: list[dict]) -> str:
    limit = any(workload.limit for workload in workloads)
    redis = any(workload.redis for workload in workloads)
    head = ["workload", "torch ops/s", "ours ops/s", "ours ÷ torch", "target", "p99 torch", "p99 ours"]
    head += [f"ours ÷ limit (≥ {workloads[0].limit})"] if limit else []
    head += ["ours ÷ Redis", "Redis ÷ torch"] if redis else []
    rows = [head + ["reached"], ["---"] * (len(head) + 1)]
    for workload in workloads:
        row = [f"`{workload.name}`"]
        figure = lambda server, what: [
            round[workload.title][server][what] for round in rounds if round[workload.title][server][what]
        ]
        for server in ("torch", "rallypoint"):
            rates = figure(server, "rate")
            row.append(thousands(median(rates)) if rates else "–")
        row += [spread(ratios(workload, rounds, "rallypoint", "torch")), f"{workload.target:g}"]
        for server in ("torch", "rallypoint"):
            times = figure(server, "p99")
            row.append(microseconds(median(times)) if times else "–")
        row += [spread(ratios(workload, rounds, "rallypoint", "limit"))] if limit else []
        row += [spread(ratios(workload, rounds, "rallypoint", "redis"))] if redis else []
        row += [spread(ratios(workload, rounds, "redis", "torch"))] if redis else []
        rows.append(row + [verdict(workload, rounds)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write(workloads: list[Workload], data: dict) -> str:
    rounds = data["rounds"]
    names = (
        "here it finds that name in a local file, without asking a name server, which only makes it faster."
        if data.get("no_name_server")
        else "here it asks this machine's name server for each."
    )
    parts = [
        HEAD.format(
            rounds=len(rounds),
            machine=machine(),
            torch=data.get("torch", "of the version in tests/interop/requirements.txt"),
            redis=data.get("redis") or "not on this machine",
            names=names,
        )
    ]
    for group in dict.fromkeys(workload.group for workload in workloads):
        parts.append(f"## {group[0].upper()}{group[1:]}\n")
        parts.append(table([workload for workload in workloads if workload.group == group], rounds) + "\n")
    rest, idle = data["rest_mib"], data["idle_kib"]
    parts.append("## Memory\n")
    parts.append("| | torch | ours | at most |\n| --- | --- | --- | --- |")
    parts.append(f"| at rest, MiB | {rest['torch']:.1f} (with Python) | {rest['rallypoint']:.1f} | {REST_MIB} |")
    count = f"{IDLE_CONNECTIONS:,}"
    parts.append(
        f"| an idle connection, of {count}, KiB | {idle['torch']:.2f} | {idle['rallypoint']:.2f} | {IDLE_KIB} |\n"
    )
    errors = [
        f"- {title}, {server}, round {number + 1}: {result['error']}"
        for number, round in enumerate(rounds)
        for title, results in round.items()
        for server, result in results.items()
        if result["error"]
    ]
    if errors:
        parts.append("## What went wrong\n")
        parts.append("\n".join(errors) + "\n")
    return "\n".join(parts)
