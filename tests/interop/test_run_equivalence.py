"""`rallypoint run` beside `torchrun`: the same script under both, and the same found by the workers, left in the logs and
told by exit codes and reports. What differs on purpose is named in each test, and nowhere else."""

import json
import re
import signal
import time

import pytest
from clock import until
from launchers import LAUNCHERS, SCRIPTS, SLOW, Run, both

TELL, SAY, FAIL, WAIT = (SCRIPTS / f"{name}.py" for name in ("tell", "say", "fail", "wait"))

OTHERWISE = {
    # Drawn at random, or chosen by the system, in each run.
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    # Torch takes the machine's name, which may be one that nobody can resolve; ours takes an address that reaches it. The same if
    # it is given (--local-addr, --master-addr), which is compared where it is.
    "MASTER_ADDR",
    # Of each run's own folder.
    "TMPDIR",
    "OUT",
    "PWD",
    # A Python agent under a C locale sets it for itself, and it leaks.
    "LC_CTYPE",
}
"""Variables whose values are not compared."""


def same(ours, torchs):
    """They are, or it is said in what they differ."""
    differences = {}
    for worker in torchs.keys() | ours.keys():
        theirs, mine = flat(torchs.get(worker, {})), flat(ours.get(worker, {}))
        for what in theirs.keys() | mine.keys():
            if theirs.get(what) != mine.get(what):
                differences[(worker, what)] = {"torchrun": theirs.get(what), "ours": mine.get(what)}
    return differences == {} or differences


def flat(told):
    return {key: value for key, value in told.items() if key != "values"} | told.get("values", {})


def environments(runs, addressed=False):
    """What each worker of each run found, without what can't be the same."""
    found = []
    for run in runs:
        assert run.code == 0, run.err
        workers = run.seen()
        for told in workers.values():
            environment = told.pop("environment")
            told["folder"] = told["folder"].replace(str(run.folder), "")
            told["variables"] = set(environment) - {"LC_CTYPE"}
            told["values"] = {name: value for name, value in environment.items() if name not in OTHERWISE}
            if addressed:
                told["address"] = environment["MASTER_ADDR"]
            told["port"] = 0 < int(environment["MASTER_PORT"]) < 65536
            told["error file"] = re.sub(r".*/", "", environment["TORCHELASTIC_ERROR_FILE"])
        found.append(workers)
    return found


@pytest.mark.parametrize(
    "args, env",
    [
        (["--nproc-per-node", 2, TELL, "a", "${local_rank}", "$$x", "--nnodes"], {}),
        (["--standalone", "--nproc_per_node=2", "--role", "trainer", "--max-restarts", 3, TELL], {"OMP_NUM_THREADS": "4"}),
        (["--nproc-per-node", 2, "--virtual-local-rank", TELL], {"CUDA_VISIBLE_DEVICES": "4,7"}),
        (["--nproc-per-node", 2, "--virtual-local-rank", "--log-dir", "/dev/null", TELL], {}),
        (["--signals-to-handle", "SIGTERM,SIGUSR1", TELL], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_DEBUG": "x"}),
        (["-m", "tell"], {"PYTHONPATH": str(SCRIPTS)}),
        ([], {"PET_NPROC_PER_NODE": "2", "PET_NO_PYTHON": "1", "PET_ROLE": "ü"}),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", TELL], {}),
    ],
    ids=["arguments", "standalone", "devices", "no-logs", "signals", "module", "variables", "c10d"],
)
def test_every_worker_finds_the_same(tmp_path, args, env):
    if not args:
        program = tmp_path / "tell"
        program.write_text(f"#!/bin/sh\nexec python {TELL}\n")
        program.chmod(0o755)
        args = [program]
    torchs, ours = environments(both(tmp_path, *args, env=env), addressed="--local-addr" in args)
    assert same(ours, torchs) is True


def test_every_worker_of_a_static_job_of_two_nodes_finds_the_same(tmp_path, port):
    def job(name):
        static = ["--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--rdzv-id", "static", "--nproc-per-node"]
        folder = tmp_path / name
        with Run(name, folder / "0", *static, 1, "--node-rank", 0, TELL, wait=False) as first:
            with Run(name, folder / "1", *static, 2, "--node-rank", 1, "--role", "other", TELL) as second:
                return [*environments([first.wait()], True), *environments([second], True)]

    torchs, ours = (job(name) for name in LAUNCHERS)
    for torchs_node, our_node in zip(torchs, ours, strict=True):
        assert same(our_node, torchs_node) is True
    assert [worker["values"]["RANK"] for worker in torchs[1].values()] == ["1", "2"]


@pytest.mark.parametrize(
    "args",
    [
        ["-r", 3],
        ["-t", 3],
        ["-r", "0:1,1:2"],
        ["-r", 1, "-t", "1:3", "--local-ranks-filter", "0"],
        ["-t", 3, "--duplicate-stdout-filters", "begins,line 7", "--duplicate-stderr-filters", "none of it"],
        ["-t", 1, "--log-line-prefix-template", "${role_name}/${rank}/${local_rank} $x:", "--duplicate-stdout-filters", "1"],
        [],
    ],
    ids=["redirects", "tee", "by-rank", "filter", "duplicates", "template", "none"],
)
def test_log_folders_and_what_is_in_them_are_the_same(tmp_path, args):
    runs = both(tmp_path, "--nproc-per-node", 2, "--log-dir", "logs", *args, SAY)
    trees = []
    for run in runs:
        assert run.code == 0, run.err
        # Lines of different workers come in any order.
        trees.append(
            {name: text if "filtered" not in name else sorted(text.splitlines()) for name, text in run.tree().items()}
        )
    assert trees[1] == trees[0]
    shown = [sorted(run.out.splitlines()) for run in runs]
    assert shown[1] == shown[0]
    told = [sorted(line for line in run.err.splitlines() if re.match(r"\S*err \d", line)) for run in runs]
    assert told[1] == told[0]


def test_each_restart_has_its_folder(tmp_path):
    runs = both(tmp_path, "--nproc-per-node", 2, "--max-restarts", 2, "-r", 3, "--log-dir", "logs", FAIL, "exit")
    trees = [run.tree() for run in runs]
    assert [run.code for run in runs] == [1, 1]
    assert set(trees[1]) == set(trees[0])
    assert {f"RUN/attempt_{n}" for n in range(3)} <= set(trees[0])


def reports(runs):
    """The reports without what is each run's own; exit codes beside them. Torch also lists workers that its agent stopped."""
    found = []
    for run in runs:
        report = run.report()
        for failure in report["failures"] + report["cause"]:
            assert abs(time.time() - time.mktime(time.strptime(failure.pop("time"), "%Y-%m-%d_%H:%M:%S"))) < 300
            failure["exitcode"] = re.sub(r"pid: \d+", "pid: PID", failure["exitcode"])
            failure["traceback"] = re.sub(r"PID \d+", "PID PID", failure["traceback"])
            failure["error_file"] = re.sub(r".*/(attempt_)", r"\1", failure["error_file"])
        report["title"] = report["title"].replace(str(run.folder), "")
        if run.name == "torchrun":
            report["failures"] = [failure for failure in report["failures"] if "(SIGTERM)" not in failure["exitcode"]]
        found.append((run.code, report))
    return found


@pytest.mark.parametrize("how", ["exit", "signal", "exception", "string", "raise"])
def test_a_failure_is_told_in_the_same_fields(tmp_path, how):
    torchs, ours = reports(both(tmp_path, "--nproc-per-node", 2, FAIL, how))
    if how == "exception":
        # The console has shown it, so ours has its last line only.
        assert torchs[1]["cause"][0].pop("traceback") == "Traceback (most recent call last):"
        assert ours[1]["cause"][0].pop("traceback") == "ValueError: what went wrong (the traceback is in the output above)"
    assert ours == torchs
    assert torchs[0] == 1


def test_a_recorded_exception_is_shown_once(tmp_path):
    shown = Run("rallypoint", tmp_path / "shown", FAIL, "exception")
    assert shown.err.count("Traceback (most recent call last)") == 1, shown.err
    in_a_file = Run("rallypoint", tmp_path / "file", "-r", 2, FAIL, "exception")
    assert in_a_file.err.count("Traceback (most recent call last)") == 1, in_a_file.err


def test_exceeded_restarts_are_told_in_the_same_fields(tmp_path):
    torchs, ours = reports(both(tmp_path, "--nproc-per-node", 2, "--max-restarts", 1, FAIL, "object"))
    assert ours == torchs
    assert "attempt_1" in torchs[1]["cause"][0]["error_file"]


def test_whoever_started_the_agent_finds_the_workers_error(tmp_path):
    found = []
    for name in LAUNCHERS:
        path = tmp_path / f"{name}.json"
        run = Run(name, tmp_path, FAIL, "object", env={"TORCHELASTIC_ERROR_FILE": str(path)})
        assert run.code == 1
        told = json.loads(path.read_text())
        assert int(told["message"]["extraInfo"].pop("timestamp")) > 0
        found.append(told)
    assert found[1] == found[0]
    assert found[0]["message"]["message"] == "ValueError: what went wrong"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_agent_reaches_the_workers_and_ends_it_with_1(tmp_path, number):
    outcomes = []
    for name in LAUNCHERS:
        handled = ["--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1"]
        with Run(name, tmp_path, "--nproc-per-node", 2, *handled, WAIT, wait=False) as run:
            workers = [run.folder / "out" / f"ready{rank}" for rank in range(2)]
            until("the workers", lambda: all(path.exists() for path in workers) or run.process.poll() is not None, within=SLOW)
            assert run.process.poll() is None, run.wait().err
            run.signal(number)
            outcomes.append((run.wait().code, run.seen()))
    assert outcomes[1] == outcomes[0]
    assert outcomes[0] == (1, {"0.json": number.name, "1.json": number.name})


@pytest.mark.parametrize(
    "args, code",
    [
        (["--no-such-flag", TELL], 2),
        (["--max-restarts", "x", TELL], 2),
        ([], 2),
        (["--numa-binding", "nowhere", TELL], 2),
        (["--start-method", "x", TELL], 2),
        (["--nnodes", "1:2:3", TELL], 1),
        (["--nnodes", "2:1", TELL], 1),
        (["--nproc-per-node", "0", TELL], 1),
        (["--nproc-per-node", "tpu", TELL], 1),
        (["--nproc-per-node", "gpu", TELL], 1),
        (["--max-restarts", "-1", TELL], 1),
        (["--shutdown-timeout", "-1", TELL], 1),
        (["-r", "4", TELL], 1),
        (["--local-ranks-filter", "x", TELL], 1),
        (["--no-python", "-m", TELL], 1),
        (["--rdzv-backend", "nothing", "--rdzv-endpoint", "h:1", TELL], 1),
        (["--rdzv-conf", "x", TELL], 1),
        (["--logs-specs", "nothing", TELL], 1),
        (["--event-log-handler", "nothing", TELL], 1),
        (["--log-dir", SCRIPTS / "tell.py", TELL], 1),
        (["--signals-to-handle", "SIGKILL", TELL], 1),
        (["absent.py"], 1),
        (["-m", "nosuch_module"], 1),
        (["--no-python", "absent"], 1),
        (["--help"], 0),
    ],
    ids=lambda value: "-".join(str(word).strip("-") for word in value[:2]) or "nothing" if isinstance(value, list) else None,
)
def test_bad_input_has_the_same_exit_code_and_ours_is_said_in_a_line_before_anything_starts(tmp_path, args, code):
    torchs, ours = both(tmp_path, *args)
    assert (torchs.code, ours.code) == (code, code), (torchs.err, ours.err)
    assert not ours.seen()
    assert "Traceback" not in ours.err and "panicked" not in ours.err
    if code == 1:
        [line] = [line for line in ours.err.splitlines() if not line.startswith("hint: ")]
        assert line.startswith("rallypoint run: "), line
    # Nothing is left of what was not started.
    assert not [path for path in ours.folder.iterdir() if path.name != "out"]


def run_path(folder, *args):
    """Torch's worker is forked, which spares it another import of torch; ours can only be spawned."""
    torchs = Run("torchrun", folder, "--start-method", "fork", "--run-path", *args)
    return [torchs, Run("rallypoint", folder, "--run-path", *args)]


def test_a_script_inside_of_python_is_run_the_same(tmp_path):
    found = environments(run_path(tmp_path, TELL, "a"))
    for workers in found:
        for told in workers.values():
            # Ours lead sessions of their own however they are started, and Python's own plumbing is Python's.
            del told["leads its session"], told["open files"]
    assert same(found[1], found[0]) is True
    torchs, ours = reports(run_path(tmp_path / "fails", FAIL, "raise"))
    # The frames above the script are each launcher's own, and ours does not repeat what the console has shown.
    assert torchs[1]["cause"][0].pop("traceback").startswith("Traceback")
    assert ours[1]["cause"][0].pop("traceback").startswith("ValueError: what went wrong (")
    assert ours == torchs
