"""Writes docs/benchmarks.md and its plots from benches/results.json. The page lists the targets that were missed."""

import textwrap

import results
import svg
from targets import (
    AGENTS,
    DETECTION,
    IDLE_CONNECTIONS,
    LEASE,
    LOST_AGENTS,
    MAX_BYTES_GROWTH,
    MAX_COORDINATOR_MIB,
    MAX_HEARTBEAT_CPU,
    MAX_IDLE_KIB,
    MAX_IMPORT_SECONDS,
    MAX_JOIN_SECONDS,
    MAX_REST_MIB,
    MAX_RESUME_SECONDS,
    MAX_SET_BY_ADD,
    MAX_WAKE_SECONDS,
    MAX_WRITES_PER_NODE,
    NODES,
    PYTHON,
    RESTARTS,
    STARTS,
    WORKLOADS,
)

PAGE = results.ROOT / "docs" / "benchmarks.md"
IMAGES = results.ROOT / "docs" / "images"
BOTH = {"torch": "torch", "ours": "rallypoint"}


def format_number(number: float) -> str:
    """Returns a number as text, with at least three digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def format_seconds(time: float) -> str:
    """Returns a time in seconds as text, in s, ms or µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if time >= size * 0.9999:
            return f"{time / size:.3g} {unit}"
    return f"{time * 1e6:.3g} µs"


def format_spread(found: list[float] | None, show=format_number) -> str:
    """Returns the median of `found` as text, followed by the minimum and the maximum in brackets if `found` has them."""
    if not found:
        return "–"
    middle, *ends = found
    return show(middle) + (f" ({show(ends[0])}–{show(ends[1])})" if ends else "")


def times_faster(ratio: list[float] | None, at_least: bool = False) -> str:
    """Returns as text how many times faster Rallypoint is. `ratio` is Rallypoint's time divided by torch's."""
    if not ratio:
        return "–"
    middle, *ends = [1 / value for value in ratio]
    return ("more than " if at_least else "") + format_spread([middle, *reversed(ends)], lambda value: f"{value:.0f}") + " ×"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def fill(text: str) -> str:
    """Returns the paragraphs of `text`, wrapped at 120 columns."""
    return "\n\n".join(textwrap.fill(" ".join(part.split()), 120, break_on_hyphens=False) for part in text.strip().split("\n\n"))


def missed(targets: dict[str, bool]) -> list[str]:
    """Returns a list with one paragraph that names the missed targets, or an empty list if none was missed."""
    names = [name for name, is_reached in targets.items() if not is_reached]
    return [f"Targets that were missed: {', '.join(names)}."] if names else []


def about(data: dict) -> str:
    rounds = f"the median of {data['rounds']} rounds" if data["rounds"] > 1 else "one round"
    return f"{data['machine']}, torch {data['torch_version']}, {rounds}."


# The sections of the page. Each function returns the Markdown of its section, given that section of the results.


def store(data: dict) -> str:
    measured = {row["title"]: row for row in data["workloads"]}
    names = (
        """Torch's server looks up the name of every client. The server *torch* finds these names in a local file, which makes it faster.
        The server *torch with DNS lookups* queries a name server on the same machine, which replies immediately, so it shows the
        minimum cost of DNS lookups."""
        if data["names_from_files"]
        else "Torch's server looks up the name of every client at this machine's name server."
    )
    parts = [
        "## Store server",
        "![Throughput of our server divided by torch's, by workload, on a logarithmic scale](images/benchmark-store.svg)",
        fill(f"""{about(data)} Each workload runs on the servers that its row compares, one right after the other, and a ratio is taken
        within a round. The smallest and the largest ratio are in brackets. Above 1 our server is faster. *Target* is the ratio that we require of
        ourselves. A connection sends its requests in flight as one batch.
        Their latency is the time from the first byte of the batch to the last byte of the replies.

        The servers run on one processor, and the load on another one. The load is `rallypoint bench`; for Redis it is
        `redis-benchmark` with the same numbers of connections, requests in flight, keys and bytes ({data["redis_version"] or "not on this machine"}).
        *Limit* is a server that parses requests and sends fixed replies (`benches/limit_server.rs`). Torch's protocol has no reply to `set` and
        `multi_set`, so the load sends a PING after them and measures the time until the reply to the PING. During the measurements, other
        programs used {data["other_load"][0]:.1%} of a processor (median), and {data["other_load"][1]:.0%} at most. {names}"""),
    ]
    reached = {}
    for group in dict.fromkeys(workload.group for workload in WORKLOADS):
        rows = [(workload, measured[workload.title]) for workload in WORKLOADS if workload.group == group and workload.title in measured]
        if not rows:
            continue
        has_limit, has_redis = (any(getattr(workload, name) for workload, _ in rows) for name in ("limit", "redis"))
        head = ["workload", "torch, per s", "ours, per s", "ours ÷ torch", "target", "p99 torch", "p99 ours"]
        head += ["ours ÷ limit"] * has_limit + ["ours ÷ Redis", "Redis ÷ torch"] * has_redis
        lines = []
        for workload, row in rows:
            rival = "" if workload.rival == "torch" else f", {workload.rival}"
            line = [f"`{workload.name}`{rival}", format_number(row["torch"]), format_number(row["ours"]), format_spread(row["ratio"])]
            line += [f"{workload.target:g}" if workload.target else "–", format_seconds(row["p99_torch"]), format_seconds(row["p99_ours"])]
            line += [format_spread(row["of_limit"])] * has_limit
            line += [format_spread(row[name]) for name in ("to_redis", "redis_to_torch")] * has_redis
            lines.append(line)
            reached[f"`{workload.title}`"] = is_reached(workload, row)
        parts += [f"### {group[0].upper()}{group[1:]}", table(head, lines)]
    rest, idle = data["rest_mib"], data["idle_kib"]
    memory = [
        ["at rest", f"{rest['torch']:.1f} MiB, with Python", f"{rest['ours']:.1f} MiB", f"{MAX_REST_MIB} MiB"],
        [f"per idle connection, of {IDLE_CONNECTIONS:,}", f"{idle['torch']:.2f} KiB", f"{idle['ours']:.2f} KiB", f"{MAX_IDLE_KIB} KiB"],
    ]
    reached |= {"memory at rest": rest["ours"] <= MAX_REST_MIB, "memory of a connection": idle["ours"] <= MAX_IDLE_KIB}
    parts += ["### Memory", table(["", "torch", "ours", "target"], memory), *missed(reached)]
    if data["errors"]:
        parts += ["### Errors", "\n".join(f"- {error}" for error in data["errors"])]
    return "\n\n".join(parts)


def is_reached(workload, row: dict) -> bool:
    return (
        (not workload.target or row["ratio"][0] >= workload.target)
        and (not workload.p99 or row["p99_ours"] <= row["p99_torch"])
        and (not workload.limit or row["of_limit"][0] >= workload.limit)
        and (not row["to_redis"] or row["to_redis"][0] >= 1)
    )


def rendezvous(data: dict) -> str:
    head = ["nodes", "torch", "ours", "faster by", "target", "compare-and-sets, torch", "ours", "woken: half, last"]
    lines, reached = [], {}
    for row in data["sizes"]:
        nodes, bound = row["nodes"], "more than " * row["torch_gave_up"]
        share, limit = NODES.get(nodes, (None, None))
        target = times_faster([share]) if share else format_seconds(limit) if limit else "–"
        lines.append(
            [
                *(f"{nodes:,}", bound + format_spread(row["torch"], format_seconds), format_spread(row["ours"], format_seconds)),
                *(times_faster(row["ratio"], row["torch_gave_up"]), target),
                *(bound + format_spread(row["torch_writes"], "{:.0f}".format), format_spread(row["ours_writes"], "{:.0f}".format)),
                ", ".join(map(format_seconds, row["woken"])),
            ]
        )
        fast = (not share or row["ratio"][0] <= share) and (not limit or row["ours"][0] <= limit)
        reached[f"{nodes:,} nodes"] = fast and row["ours_writes"][0] <= MAX_WRITES_PER_NODE * nodes and row["woken"][1] <= MAX_WAKE_SECONDS
    text = f"""{about(data)} The table shows the time from the moment at which N nodes begin to join until all of them are in a round of
    N nodes. The nodes are threads of one process. For torch's nodes and for ours, the store is `rallypoint serve` on the same machine.
    Torch's threads share Python's interpreter lock, and torch's nodes poll the store once per second. *Woken* is the time from the moment
    at which one of our nodes begins to re-form the round until half of the other nodes know that, and until all of them do.
    Further targets: {MAX_WRITES_PER_NODE} compare-and-sets per node, and {format_seconds(MAX_WAKE_SECONDS)} until the last node is woken."""
    image = "![Time until N nodes are in a round, torch and Rallypoint](images/benchmark-rendezvous.svg)"
    return "\n\n".join(["## Rendezvous", image, fill(text), table(head, lines), *missed(reached)])


def coordinator(data: dict) -> str:
    rows, reached = [], {}
    for row in data["sizes"]:
        per_agent = (row["sent"][0] + row["received"][0]) / row["agents"]
        rows.append(
            [
                *(f"{row['agents']:,}", format_spread(row["joined"], format_seconds), f"{per_agent:,.0f} bytes"),
                *(format_spread(row["peak_mib"], "{:.0f} MiB".format), format_spread(row["cpu"], "{:.1%}".format)),
                *(format_spread(row[name], format_seconds) for name in ("resumed", "re_formed")),
            ]
        )
    first, last = data["sizes"][0], data["sizes"][-1]
    growth = (last["sent"][0] + last["received"][0]) / last["agents"] / (first["sent"][0] + first["received"][0]) * first["agents"]
    reached["time to join"] = last["joined"][0] <= MAX_JOIN_SECONDS
    reached["growth of the bytes per agent"] = growth <= MAX_BYTES_GROWTH
    reached["memory"] = last["peak_mib"][0] <= MAX_COORDINATOR_MIB
    reached["processor time of heartbeats"] = last["cpu"][0] <= MAX_HEARTBEAT_CPU
    reached["time to resume"] = last["resumed"][0] <= MAX_RESUME_SECONDS
    reached["time to re-form"] = last["re_formed"][0] <= MAX_RESUME_SECONDS
    rounds = f"the median of {data['rounds']} rounds" if data["rounds"] > 1 else "one round"
    text = f"""{data["machine"]}, {rounds}. One `rallypoint serve` coordinates a job with the native rendezvous. It has one
    processor. A load generator (`crates/drivers/src/bin/many_agents.rs`) on another processor has the connections of all agents and
    runs the same client as `rallypoint run`, without workers. *Joined* is the time from the first connection until the last agent knows its
    rank, and the bytes are those that agents send and receive in that time. *Heartbeats* is the share of a processor that the server uses
    while the agents only renew their leases, once per second. *Resumed* is the time from the reset of {LOST_AGENTS:,} connections until the
    coordinator serves these agents again. *Re-formed* is the time from the end of {LOST_AGENTS:,} agents until the last of the others knows its rank in
    the next round. Targets for {AGENTS[-1]:,} agents: {format_seconds(MAX_JOIN_SECONDS)}, {MAX_COORDINATOR_MIB} MiB,
    {MAX_HEARTBEAT_CPU:.0%} of a processor, {format_seconds(MAX_RESUME_SECONDS)} to resume and to re-form, and as many bytes per agent as with
    {AGENTS[0]:,} agents."""
    head = ["agents", "joined", "bytes per agent", "memory", "heartbeats", "resumed", "re-formed"]
    return "\n\n".join(["## Coordinator of the native rendezvous", fill(text), table(head, rows), *missed(reached)])


def detection(data: dict) -> str:
    rows, reached = [], {}
    for row in data["cases"]:
        target, (middle, high) = DETECTION[row["case"]], row["ours"]
        torch = "–"
        if row["torch"] or row["torch_never"]:
            found = [", ".join(map(format_seconds, row["torch"]))] if row["torch"] else []
            torch = ", ".join(found + [f"{row['torch_never']} of {data['torch_runs']} never"] * bool(row["torch_never"]))
        rows.append([row["case"], torch, f"{format_seconds(middle)}, {format_seconds(high)}", format_seconds(target)])
        reached[row["case"]] = high <= target
    text = f"""{data["machine"]}, torch {data["torch_version"]}. The time from a fault until workers run again on all surviving nodes, as
    p50 and p95 of {data["runs"]} runs with the native rendezvous (lease {LEASE} s) and of {data["torch_runs"]} run{"s" * (data["torch_runs"] != 1)} with torchrun. The nodes are three hosts in network
    namespaces, and two of them suffice. The workers start within a millisecond. The leader's node leads the coordinator of the native rendezvous; in a job of
    torchrun, it hosts the store. A run of torchrun whose nodes exit, or that has no running workers after {data["bound"]:g} s, counts as one that never
    recovers: torchrun restarts only if a worker fails or a node joins, and these workers do not notice that another node is lost. In a training, they fail
    when their connections are closed, or hang until a collective times out. *Target* is for p95."""
    head = ["fault", "torchrun: p50, p95", "ours: p50, p95", "target"]
    return "\n\n".join(["## Loss of a node", fill(text), table(head, rows), *missed(reached)])


def launcher(data: dict) -> str:
    starts, restarts, reached = [], [], {}
    for row in data["starts"]:
        share, mib = STARTS[row["workers"]]
        starts.append(
            [
                *(f"{row['workers']}", format_spread(row["torch"], format_seconds), format_spread(row["ours"], format_seconds)),
                *(times_faster(row["ratio"]), times_faster([share])),
                *(f"{row['torch_mib']:.0f} MiB", f"{row['ours_mib']:.1f} MiB", f"{mib} MiB"),
            ]
        )
        reached[f"start of {row['workers']} worker{'s' * (row['workers'] > 1)}"] = row["ratio"][0] <= share and row["ours_mib"] <= mib
    for row in data["restarts"]:
        target = RESTARTS[row["case"]]
        restarts.append([row["case"], format_spread(row["torch"], format_seconds), format_spread(row["ours"], format_seconds), format_seconds(target)])
        reached[f"restart, {row['case']}"] = row["ours"][0] <= target
    text = f"""{about(data)} Memory is the peak memory of the agent. `rallypoint run` has a second process, which guards the agent; both
    processes together use {format_spread(data["both_processes_mib"])} MiB with one worker.

    The time of `--standalone --nproc-per-node N --no-python /bin/true`, from start to end:"""
    deaths = """The time from the death of a worker (SIGKILL) until all restarted workers have printed a line. `rallypoint run`
    is started with `--max-restart-backoff 0`, because the benchmark kills workers shortly after their start."""
    image = "![Time to start workers and to recover from a worker's death, torchrun and Rallypoint](images/benchmark-launcher.svg)"
    memory = ["torchrun, memory", "ours", "target"]
    return "\n\n".join(
        [
            *("## Launcher", image, fill(text)),
            table(["workers", "torchrun", "ours", "faster by", "target", *memory], starts),
            *(fill(deaths), table(["case", "torchrun", "ours", "target"], restarts)),
            *missed(reached),
        ]
    )


def python(data: dict) -> str:
    parts, reached = [], {}
    for place, (title, key) in enumerate({"On our server:": "on_ours", "On torch's server:": "on_torch"}.items()):
        lines = []
        for row in data[key]:
            target = PYTHON[row["operation"]][place]
            line = [f"`{row['operation']}`", format_seconds(row["torch"]), format_seconds(row["ours"]), f"{format_spread(row['ratio'])} ×"]
            lines.append([*line, f"{target:g} ×" if target else "–"])
            reached[f"`{row['operation']}` {title.lower().strip(':')}"] = not target or row["ratio"][0] >= target
        parts += [title, table(["operation", "torch's client", "ours", "faster by", "target"], lines)]
    reached["`set` ÷ `add` of our client"] = data["set_by_add"][0] <= MAX_SET_BY_ADD
    reached["`import rallypoint`"] = data["import"][0] <= MAX_IMPORT_SECONDS
    text = f"""{about(data)} One Python process has a connection of torch's client and one of ours to the same server, which runs
    on another processor. The clients alternate after each batch of calls. `get` reads a key that exists. Torch's `set` does not
    wait for a reply, so its time includes a `check` that does; our `set` is acknowledged, and takes {format_spread(data["set_by_add"])} times as long as our `add`. `import rallypoint`
    takes {format_spread(data["import"], format_seconds)}."""
    return "\n\n".join(["## Python client", fill(text), *parts, *missed(reached)])


SECTIONS = {
    "store": store,
    "rendezvous": rendezvous,
    "coordinator": coordinator,
    "detection": detection,
    "launcher": launcher,
    "python": python,
}

HEAD = """\
# Benchmarks

<!-- Written by benches/plot from benches/results.json. Do not edit. -->

Measurements of Rallypoint and torch alternate on the same machine. Repeat them with `benches/compare` (store server, half an hour),
`benches/rendezvous`, `benches/coordinator`, `benches/detection` (loss of a node, half an hour), `benches/launcher` and `benches/python`
(Python client); each needs Linux, a Rust toolchain, Python 3.10 or newer with `venv` and `taskset`, and replaces its section of this page.
`benches/detection` also needs network namespaces. Redis is measured if it is installed."""


# The plots. Each function returns an SVG, given its section of the results.


def plot_store(data: dict) -> str:
    measured = {row["title"]: row["ratio"] for row in data["workloads"]}
    groups: dict[str, list] = {}
    for workload in WORKLOADS:
        if workload.title in measured:
            label = workload.name + ("" if workload.rival == "torch" else " *")
            groups.setdefault(workload.group, []).append((label, [("ours", measured[workload.title])]))
    title = "Throughput of our store server ÷ torch's (* torch with DNS lookups)"
    return svg.bars(title, groups, 0.5, 500, lambda value: f"{value:.3g} ×", {})


def plot_rendezvous(data: dict) -> str:
    series = {
        "torch": [(row["nodes"], row["torch"][0], row["torch_gave_up"]) for row in data["sizes"] if row["torch"]],
        "ours": [(row["nodes"], row["ours"][0], False) for row in data["sizes"]],
    }
    return svg.lines("Time until N nodes are in a round", series, (1.3, 1300), (2e-3, 60), format_seconds, BOTH, "nodes")


def plot_launcher(data: dict) -> str:
    groups = {
        "from the start of a job to its end": [
            (f"{row['workers']} worker{'s' * (row['workers'] > 1)}", [(kind, row[kind]) for kind in BOTH]) for row in data["starts"]
        ],
        "from the death of a worker to its successor": [(row["case"], [(kind, row[kind]) for kind in BOTH]) for row in data["restarts"]],
    }
    title = "Time to start workers, and to replace a worker that died"
    return svg.bars(title, groups, 1e-3, 5, format_seconds, {"torch": "torchrun", "ours": "rallypoint run"})


PLOTS = {"store": plot_store, "rendezvous": plot_rendezvous, "launcher": plot_launcher}


def files() -> dict:
    """Returns the text of the page and of each plot, by path."""
    data = results.load()
    found = {IMAGES / f"benchmark-{name}.svg": draw(data[name]) for name, draw in PLOTS.items()}
    # A section without results is left out.
    found[PAGE] = "\n\n".join([HEAD, *(write(data[name]) for name, write in SECTIONS.items() if name in data)]) + "\n"
    return found


def publish(section: str, data: dict, output: str) -> None:
    """Saves the results of a benchmark and writes the page, or only prints the section if `output` is `-`."""
    if output == "-":
        print(SECTIONS[section](data))
        return
    results.save(section, data)
    for path, text in files().items():
        path.write_text(text)
