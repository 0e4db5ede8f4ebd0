"""The same scripts under `rallypoint run` and `torchrun`: environments of workers, logs, exit codes and failure reports
must be equal. Comments name the differences that are on purpose."""

import json
import re
import signal
import time

import pytest
from clock import wait_until
from launchers import LAUNCHERS, PROCESS_TIMEOUT, SCRIPTS, Run, run_both

REPORT, PRINT, FAIL, AWAIT_SIGNAL = (
    SCRIPTS / f"{name}.py" for name in ("report_environment", "print_lines", "fail", "await_signal")
)

NOT_COMPARED = {
    # Random, or chosen by the system, in each run.
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    # Torch uses the machine's name, which other machines may be unable to resolve. Our launcher uses a reachable
    # address. With --local-addr or --master-addr, both use the given address, and the tests compare it.
    "MASTER_ADDR",
    # Paths in the run's own directory.
    "TMPDIR",
    "OUT",
    "PWD",
    # Under a C locale, a Python agent sets this for itself, and its workers inherit it.
    "LC_CTYPE",
}
"""Environment variables whose values are not compared."""


def equal_or_differences(ours, torchs):
    """Returns True if the reports are equal, or else their differences."""
    differences = {}
    for worker in torchs.keys() | ours.keys():
        theirs, mine = flatten(torchs.get(worker, {})), flatten(ours.get(worker, {}))
        for field in theirs.keys() | mine.keys():
            if theirs.get(field) != mine.get(field):
                differences[(worker, field)] = {"torchrun": theirs.get(field), "ours": mine.get(field)}
    return differences == {} or differences


def flatten(report):
    return {key: value for key, value in report.items() if key != "values"} | report.get("values", {})


def environments(runs, with_master_addr=False):
    """Returns the reports of the workers of each run, without values that differ in each run.

    With `with_master_addr`, the reports include MASTER_ADDR.
    """
    found = []
    for run in runs:
        assert run.code == 0, run.err
        workers = run.worker_reports()
        for report in workers.values():
            environment = report.pop("environment")
            report["directory"] = report["directory"].replace(str(run.directory), "")
            report["variables"] = set(environment) - {"LC_CTYPE"}
            report["values"] = {name: value for name, value in environment.items() if name not in NOT_COMPARED}
            if with_master_addr:
                report["address"] = environment["MASTER_ADDR"]
            report["port"] = 0 < int(environment["MASTER_PORT"]) < 65536
            report["error file"] = re.sub(r".*/", "", environment["TORCHELASTIC_ERROR_FILE"])
        found.append(workers)
    return found


@pytest.mark.parametrize(
    "args, env",
    [
        (["--nproc-per-node", 2, REPORT, "a", "${local_rank}", "$$x", "--nnodes"], {}),
        (["--standalone", "--nproc_per_node=2", "--role", "trainer", "--max-restarts", 3, REPORT], {"OMP_NUM_THREADS": "4"}),
        (["--nproc-per-node", 2, "--virtual-local-rank", REPORT], {"CUDA_VISIBLE_DEVICES": "4,7"}),
        (["--nproc-per-node", 2, "--virtual-local-rank", "--log-dir", "/dev/null", REPORT], {}),
        (["--signals-to-handle", "SIGTERM,SIGUSR1", REPORT], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_DEBUG": "x"}),
        (["-m", "report_environment"], {"PYTHONPATH": str(SCRIPTS)}),
        ([], {"PET_NPROC_PER_NODE": "2", "PET_NO_PYTHON": "1", "PET_ROLE": "ü"}),
        (["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", REPORT], {}),
    ],
    ids=["arguments", "standalone", "devices", "no-logs", "signals", "module", "variables", "c10d"],
)
def test_every_worker_has_the_same_environment_under_both_launchers(tmp_path, args, env):
    if not args:
        program = tmp_path / "report"
        program.write_text(f"#!/bin/sh\nexec python {REPORT}\n")
        program.chmod(0o755)
        args = [program]
    torchs, ours = environments(run_both(tmp_path, *args, env=env), with_master_addr="--local-addr" in args)
    assert equal_or_differences(ours, torchs) is True


def test_every_worker_of_a_static_job_has_the_same_environment_under_both_launchers(tmp_path, port):
    def job(name):
        static = ["--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--rdzv-id", "static", "--nproc-per-node"]
        directory = tmp_path / name
        with Run(name, directory / "0", *static, 1, "--node-rank", 0, REPORT, wait=False) as first:
            with Run(name, directory / "1", *static, 2, "--node-rank", 1, "--role", "other", REPORT) as second:
                return environments([first.wait(), second], with_master_addr=True)

    torchs, ours = (job(name) for name in LAUNCHERS)
    for torchs_node, our_node in zip(torchs, ours, strict=True):
        assert equal_or_differences(our_node, torchs_node) is True
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
def test_both_launchers_write_the_same_log_directories(tmp_path, args):
    runs = run_both(tmp_path, "--nproc-per-node", 2, "--log-dir", "logs", *args, PRINT)
    trees = []
    for run in runs:
        assert run.code == 0, run.err
        # The order of lines of different workers differs between runs.
        trees.append(
            {name: text if "filtered" not in name else sorted(text.splitlines()) for name, text in run.log_tree().items()}
        )
    assert trees[1] == trees[0]
    output_lines = [sorted(run.out.splitlines()) for run in runs]
    assert output_lines[1] == output_lines[0]
    error_lines = [sorted(line for line in run.err.splitlines() if re.match(r"\S*err \d", line)) for run in runs]
    assert error_lines[1] == error_lines[0]


def test_each_restart_has_its_own_log_directory(tmp_path):
    runs = run_both(tmp_path, "--nproc-per-node", 2, "--max-restarts", 2, "-r", 3, "--log-dir", "logs", FAIL, "exit")
    trees = [run.log_tree() for run in runs]
    assert [run.code for run in runs] == [1, 1]
    assert set(trees[1]) == set(trees[0])
    assert {f"RUN/attempt_{n}" for n in range(3)} <= set(trees[0])


def reports(runs):
    """Returns the exit code and failure report of each run, without values that differ in each run.

    Workers that torch's agent stopped are omitted, because our agent does not list them.
    """
    found = []
    for run in runs:
        report = run.failure_report()
        for failure in report["failures"] + report["cause"]:
            assert abs(time.time() - time.mktime(time.strptime(failure.pop("time"), "%Y-%m-%d_%H:%M:%S"))) < 300
            failure["exitcode"] = re.sub(r"pid: \d+", "pid: PID", failure["exitcode"])
            failure["traceback"] = re.sub(r"PID \d+", "PID PID", failure["traceback"])
            failure["error_file"] = re.sub(r".*/(attempt_)", r"\1", failure["error_file"])
        report["title"] = report["title"].replace(str(run.directory), "")
        if run.name == "torchrun":
            report["failures"] = [failure for failure in report["failures"] if "(SIGTERM)" not in failure["exitcode"]]
        found.append((run.code, report))
    return found


@pytest.mark.parametrize("how", ["exit", "signal", "exception", "string", "raise"])
def test_both_launchers_report_a_failure_with_the_same_fields(tmp_path, how):
    torchs, ours = reports(run_both(tmp_path, "--nproc-per-node", 2, FAIL, how))
    if how == "exception":
        # The traceback is already on the console, so our report has only its last line.
        assert torchs[1]["cause"][0].pop("traceback") == "Traceback (most recent call last):"
        assert ours[1]["cause"][0].pop("traceback") == "ValueError: what went wrong (the traceback is in the output above)"
    assert ours == torchs
    assert torchs[0] == 1


def test_a_recorded_exception_is_shown_once(tmp_path):
    on_console = Run("rallypoint", tmp_path / "console", FAIL, "exception")
    assert on_console.err.count("Traceback (most recent call last)") == 1, on_console.err
    in_a_file = Run("rallypoint", tmp_path / "file", "-r", 2, FAIL, "exception")
    assert in_a_file.err.count("Traceback (most recent call last)") == 1, in_a_file.err


def test_both_launchers_report_exceeded_restarts_with_the_same_fields(tmp_path):
    torchs, ours = reports(run_both(tmp_path, "--nproc-per-node", 2, "--max-restarts", 1, FAIL, "object"))
    assert ours == torchs
    assert "attempt_1" in torchs[1]["cause"][0]["error_file"]


def test_the_workers_error_is_passed_to_the_agents_own_error_file(tmp_path):
    found = []
    for name in LAUNCHERS:
        path = tmp_path / f"{name}.json"
        run = Run(name, tmp_path, FAIL, "object", env={"TORCHELASTIC_ERROR_FILE": str(path)})
        assert run.code == 1
        error = json.loads(path.read_text())
        assert int(error["message"]["extraInfo"].pop("timestamp")) > 0
        found.append(error)
    assert found[1] == found[0]
    assert found[0]["message"]["message"] == "ValueError: what went wrong"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_agent_reaches_the_workers_and_the_agent_exits_with_1(tmp_path, number):
    outcomes = []
    for name in LAUNCHERS:
        handled = ["--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1"]
        with Run(name, tmp_path, "--nproc-per-node", 2, *handled, AWAIT_SIGNAL, wait=False) as run:
            ready_files = [run.directory / "out" / f"ready{rank}" for rank in range(2)]

            def are_ready_or_agent_exited():
                return all(path.exists() for path in ready_files) or run.process.poll() is not None

            wait_until("the workers", are_ready_or_agent_exited, within=PROCESS_TIMEOUT)
            assert run.process.poll() is None, run.wait().err
            run.signal(number)
            outcomes.append((run.wait().code, run.worker_reports()))
    assert outcomes[1] == outcomes[0]
    assert outcomes[0] == (1, {"0.json": number.name, "1.json": number.name})


@pytest.mark.parametrize(
    "args, code",
    [
        (["--no-such-flag", REPORT], 2),
        (["--max-restarts", "x", REPORT], 2),
        ([], 2),
        (["--numa-binding", "nowhere", REPORT], 2),
        (["--start-method", "x", REPORT], 2),
        (["--nnodes", "1:2:3", REPORT], 1),
        (["--nnodes", "2:1", REPORT], 1),
        (["--nproc-per-node", "0", REPORT], 1),
        (["--nproc-per-node", "tpu", REPORT], 1),
        (["--nproc-per-node", "gpu", REPORT], 1),
        (["--max-restarts", "-1", REPORT], 1),
        (["--shutdown-timeout", "-1", REPORT], 1),
        (["-r", "4", REPORT], 1),
        (["--local-ranks-filter", "x", REPORT], 1),
        (["--no-python", "-m", REPORT], 1),
        (["--rdzv-backend", "nothing", "--rdzv-endpoint", "h:1", REPORT], 1),
        (["--rdzv-conf", "x", REPORT], 1),
        (["--logs-specs", "nothing", REPORT], 1),
        (["--event-log-handler", "nothing", REPORT], 1),
        (["--log-dir", SCRIPTS / "report_environment.py", REPORT], 1),
        (["--signals-to-handle", "SIGKILL", REPORT], 1),
        (["absent.py"], 1),
        (["-m", "nosuch_module"], 1),
        (["--no-python", "absent"], 1),
        (["--help"], 0),
    ],
    ids=lambda value: "-".join(str(word).strip("-") for word in value[:2]) or "nothing" if isinstance(value, list) else None,
)
def test_invalid_input_and_help_have_the_same_exit_code_and_ours_starts_no_worker(tmp_path, args, code):
    torchs, ours = run_both(tmp_path, *args)
    assert (torchs.code, ours.code) == (code, code), (torchs.err, ours.err)
    assert not ours.worker_reports()
    assert "Traceback" not in ours.err and "panicked" not in ours.err
    if code == 1:
        [line] = [line for line in ours.err.splitlines() if not line.startswith("hint: ")]
        assert line.startswith("rallypoint run: "), line
    # The launcher has created no files.
    assert not [path for path in ours.directory.iterdir() if path.name != "out"]


def run_path(directory, *args):
    """Runs both launchers with --run-path.

    Torch's launcher forks its worker, which saves an import of torch. Our launcher always spawns its worker.
    """
    torchs = Run("torchrun", directory, "--start-method", "fork", "--run-path", *args)
    return [torchs, Run("rallypoint", directory, "--run-path", *args)]


def test_run_path_runs_a_script_the_same_way(tmp_path):
    found = environments(run_path(tmp_path, REPORT, "a"))
    for workers in found:
        for report in workers.values():
            # Our workers always lead their own sessions. Torch's worker has open file descriptors of multiprocessing.
            del report["leads its session"], report["open files"]
    assert equal_or_differences(found[1], found[0]) is True
    torchs, ours = reports(run_path(tmp_path / "fails", FAIL, "raise"))
    # The stack frames above the script differ between launchers, and our report has only the last line of a traceback
    # that is already on the console.
    assert torchs[1]["cause"][0].pop("traceback").startswith("Traceback")
    assert ours[1]["cause"][0].pop("traceback").startswith("ValueError: what went wrong (")
    assert ours == torchs
