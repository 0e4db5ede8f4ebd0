//! Tests of `rallypoint run`: the command lines that it refuses, its output, and its exit code. Most tests need no
//! Python, and none needs torch.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use serde_json::Value;
use tempfile::TempDir;

/// The working directory of a test, with its scripts and temporary files.
struct Workspace(TempDir);

impl Workspace {
    fn new() -> Workspace {
        Workspace(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a shell script for the workers, and returns its path.
    fn script(&self, text: &str) -> String {
        let path = self.path("script");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().into()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let temporary = self.path("tmp");
        fs::create_dir_all(&temporary).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.arg("run").args(arguments).current_dir(self.0.path()).env("TMPDIR", temporary);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["PET_", "TORCHELASTIC_", "RALLYPOINT_"].iter().any(|start| text.starts_with(start))
                || ["LOGLEVEL", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC"].contains(&&*text)
            {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a shell script in `count` workers, and waits for the end of the job.
    fn workers(&self, count: &str, flags: &[&str], script: &str) -> Output {
        let script = self.script(script);
        let all = [&["--nproc-per-node", count, "--no-python"], flags, &["sh", &script]].concat();
        self.run(&all)
    }

    /// Returns the names of the files that are left in the directory for temporary files.
    fn temporary_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("tmp")).unwrap().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn workers_run_and_leave_no_temporary_files() {
    let workspace = Workspace::new();
    let done = workspace.workers("3", &[], "echo $RANK of $WORLD_SIZE, $1 $TORCHELASTIC_USE_AGENT_STORE");
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(sorted(&done.stdout), ["0 of 3, True", "1 of 3, True", "2 of 3, True"]);
    assert!(workspace.temporary_files().is_empty(), "{:?}", workspace.temporary_files());
}

#[test]
fn after_a_failure_the_logs_are_kept_and_the_report_names_signal_node_and_last_lines_of_stderr() {
    let workspace = Workspace::new();
    let script = "if [ $RANK = 1 ]; then echo last words >&2; kill -SEGV $$; fi; sleep 100";
    let done = workspace.workers("2", &["-r", "3", "--log-dir", "logs", "--end-report", "end.json"], script);
    assert_eq!(done.status.code(), Some(1));
    let stderr = text(&done.stderr);
    for line in [
        "Root Cause (first observed failure):",
        "  rank      : 1 (local_rank: 1)",
        "  traceback : Signal 11 (SIGSEGV) received by PID ",
        "  node      : 0 (role: default)",
        "  restart   : 0 of 0",
        "    last words",
    ] {
        assert!(stderr.lines().any(|found| found.starts_with(line)), "{line:?} in {stderr}");
    }
    let report: Value = serde_json::from_slice(&fs::read(workspace.path("end.json")).unwrap()).unwrap();
    assert_eq!((&report["result"], &report["exit_code"]), (&"failed".into(), &1.into()));
    assert_eq!(report["first_failure"]["exit"]["signal_name"], "SIGSEGV");
    assert_eq!(report["first_failure"]["last_lines"][0], "last words");
    assert!(report["first_failure"]["ran"].as_f64().unwrap() > 0.0);
    let runs: Vec<_> = fs::read_dir(workspace.path("logs")).unwrap().flatten().collect();
    assert!(runs.len() == 1 && runs[0].path().join("attempt_0/1/stdout.log").is_file());
}

#[test]
fn the_failure_report_does_not_repeat_lines_that_the_console_has_shown() {
    let workspace = Workspace::new();
    let script = "echo last words >&2; exit 3";
    for (flags, shown, is_in_report) in [
        (&["-r", "1"][..], "last words", false),
        (&["-t", "2"], "[default0]:last words", false),
        (&["-r", "2"], "", true),
        (&["--local-ranks-filter", "1"], "", true),
    ] {
        let done = workspace.workers("1", &[flags, &["--end-report", "end.json"]].concat(), script);
        let stderr = text(&done.stderr);
        let lines: Vec<_> = stderr.lines().filter(|line| line.contains("last words")).collect();
        assert_eq!(lines, [if is_in_report { "    last words" } else { shown }], "{flags:?}: {stderr}");
        // The end report contains the last lines in every case.
        let report: Value = serde_json::from_slice(&fs::read(workspace.path("end.json")).unwrap()).unwrap();
        assert_eq!(report["failures"][0]["last_lines"][0], "last words", "{flags:?}");
    }
}

#[test]
fn workers_that_the_agent_stopped_do_not_count_as_failures() {
    let workspace = Workspace::new();
    // The worker of rank 2 fails. The agent then stops the others with SIGTERM, which kills the worker of rank 0 and
    // makes the worker of rank 1 exit with 5. Only rank 2 counts as failed.
    let script = "case $RANK in
        0) touch ready0; exec sleep 600;;
        1) trap 'exit 5' TERM; touch ready1; while :; do sleep 0.05; done;;
        2) while [ ! -e ready0 ] || [ ! -e ready1 ]; do sleep 0.01; done; exit 3;;
    esac";
    let done = workspace.workers("3", &["--end-report", "end.json"], script);
    let stderr = text(&done.stderr);
    assert!(stderr.contains("<NO_OTHER_FAILURES>") && stderr.contains("exitcode  : 3 "), "{stderr}");
    let report: Value = serde_json::from_slice(&fs::read(workspace.path("end.json")).unwrap()).unwrap();
    let failed: Vec<_> = report["failures"].as_array().unwrap().iter().map(|f| &f["rank"]).collect();
    assert_eq!(failed, [2], "{report}");
}

#[test]
fn workers_restart_until_they_succeed() {
    let workspace = Workspace::new();
    let script = "echo start $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ]";
    let flags = ["--max-restarts", "2", "--end-report", "-"];
    let done = workspace.workers("1", &flags, script);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let out = text(&done.stdout);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[..3], ["start 0", "start 1", "start 2"]);
    let report: Value = serde_json::from_str(lines[3]).unwrap();
    assert_eq!((&report["result"], &report["restarts"]), (&"succeeded".into(), &2.into()));
}

#[test]
fn the_first_failure_is_written_to_the_error_file_of_the_agent() {
    let workspace = Workspace::new();
    let script = workspace.script("exit 9");
    let file = workspace.path("error.json");
    let done = workspace
        .command(&["--no-python", "sh", &script])
        .env("TORCHELASTIC_ERROR_FILE", &file)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let failure: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(failure["message"]["errorCode"], 9);
}

#[test]
fn a_malformed_error_file_does_not_stop_restarts_and_is_reported_verbatim() {
    let workspace = Workspace::new();
    let script = "echo rubbish >$TORCHELASTIC_ERROR_FILE; [ $TORCHELASTIC_RESTART_COUNT = 1 ]";
    let done = workspace.workers("1", &["--max-restarts", "1"], script);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let done = workspace.workers("1", &[], script);
    assert!(text(&done.stderr).contains("rubbish"), "{}", text(&done.stderr));
}

#[test]
fn a_worker_inherits_the_terminal_of_the_agent() {
    let workspace = Workspace::new();
    let script =
        workspace.script("if [ -t 2 ]; then echo yes >&2; else echo no >&2; fi; printf 'no end' >&2; exit 3");
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let ours = openpt(flags).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
    let mut command = workspace.command(&["--log-level", "off", "--no-python", "sh", &script]);
    let mut child = command.stdout(Stdio::null()).stderr(theirs).spawn().unwrap();
    drop(command);
    let screen = read_terminal(ours);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(screen.contains("yes"), "{screen}");
    assert!(screen.matches("no end").count() == 1 && !screen.contains("its last lines"), "{screen}");
    let done = workspace.run(&["--log-level", "off", "--no-python", "sh", &script]);
    assert!(text(&done.stderr).starts_with("no\nno end"), "{}", text(&done.stderr));
}

/// Returns everything that was written to a terminal until its other end is closed. Reading fails from then on.
fn read_terminal(terminal: OwnedFd) -> String {
    let (mut file, mut screen, mut bytes) = (fs::File::from(terminal), Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = file.read(&mut bytes) {
        screen.extend_from_slice(&bytes[..read]);
    }
    text(&screen)
}

#[test]
fn log_format_and_log_level_control_the_log() {
    let workspace = Workspace::new();
    let json = workspace.workers("2", &["--log-format", "json", "--log-level", "debug"], "true");
    let lines: Vec<Value> =
        text(&json.stderr).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(
        lines
            .iter()
            .any(|line| line["level"] == "WARN"
                && line["message"].as_str().unwrap().contains("OMP_NUM_THREADS"))
    );
    // With `--log-format json`, the failure report is a line of JSON, too.
    let failed = workspace.workers("1", &["--log-format", "json"], "exit 3");
    assert_eq!(failed.status.code(), Some(1));
    let lines: Vec<Value> =
        text(&failed.stderr).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let report = lines.last().unwrap();
    assert_eq!(report["level"], "ERROR");
    assert!(report["message"].as_str().unwrap().contains("Root Cause (first observed failure)"), "{report}");
    let silent = workspace.workers("2", &["--log-level", "error"], "true");
    assert_eq!(text(&silent.stderr), "");
    let wrong = workspace.workers("1", &["--log-level", "loud"], "true");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("'loud' for '--log-level"), "{}", text(&wrong.stderr));
}

/// Creates a directory with a `python3` that prints its own path and arguments, and with a symbolic link `name` to the
/// `rallypoint` binary.
fn create_programs(workspace: &Workspace, directory: &str, name: &str) -> PathBuf {
    let directory = workspace.path(directory);
    fs::create_dir_all(&directory).unwrap();
    let python = directory.join("python3");
    fs::write(&python, "#!/bin/sh\necho $0 \"$@\"\n").unwrap();
    fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_rallypoint"), directory.join(name)).unwrap();
    directory
}

/// Returns a command that starts the `rallypoint` binary through the link `program`. The `PATH` has the directories in
/// `path`, `/usr/bin` and `/bin`.
fn command_named(workspace: &Workspace, program: &str, path: &[&Path], arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    let usual = workspace.command(&[]);
    for (name, value) in usual.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let path = path.iter().copied().chain([Path::new("/usr/bin"), Path::new("/bin")]);
    command.args([program]).args(arguments).current_dir(workspace.0.path());
    command.env("PATH", std::env::join_paths(path).unwrap()).stdin(Stdio::null());
    command
}

#[test]
fn workers_run_in_the_python_next_to_the_command_and_the_log_names_it() {
    let workspace = Workspace::new();
    let (venv, other) = (
        create_programs(&workspace, "venv/bin", "rallypoint"),
        create_programs(&workspace, "other/bin", "rallypoint"),
    );
    fs::write(workspace.path("s.py"), "").unwrap();
    let run = |program: &str, path: &[&Path], variables: &[(&str, PathBuf)]| {
        let done = command_named(&workspace, program, path, &["run", "s.py"])
            .envs(variables.iter().cloned())
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", text(&done.stderr));
        let out = text(&done.stdout);
        let (python, arguments) = out.trim_end().split_once(' ').unwrap();
        assert_eq!(arguments, "-u s.py");
        assert!(text(&done.stderr).contains(&format!("; interpreter {python}\n")), "{}", text(&done.stderr));
        PathBuf::from(python)
    };
    // The user types the path of the command, or its name, which is found on the `PATH`.
    assert_eq!(run("venv/bin/rallypoint", &[&other], &[]), venv.join("python3"));
    assert_eq!(run("rallypoint", &[&venv, &other], &[]), venv.join("python3"));
    let activated = [("VIRTUAL_ENV", workspace.path("other"))];
    assert_eq!(run("venv/bin/rallypoint", &[], &activated), other.join("python3"));
    let named = [("VIRTUAL_ENV", workspace.path("other")), ("PYTHON_EXEC", venv.join("python3"))];
    assert_eq!(run("other/bin/rallypoint", &[], &named), venv.join("python3"));
}

#[test]
fn a_link_named_torchrun_accepts_the_command_line_of_torchrun() {
    let workspace = Workspace::new();
    let directory = create_programs(&workspace, "bin", "torchrun");
    let script =
        workspace.script("echo $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]");
    let run = |arguments: &[&str]| {
        command_named(&workspace, "torchrun", &[&directory], arguments).output().unwrap()
    };
    // This is the command line with which torchx starts torchrun.
    let flags =
        ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--rdzv_id", "job", "--nnodes", "1"];
    let more = ["--nproc_per_node", "2", "--role", "", "--max_restarts", "1", "--no_python", "sh", &script];
    let done = run(&[&flags[..], &more].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let lines = sorted(&done.stdout);
    assert!(["0 1", "1 1"].iter().all(|line| lines.iter().any(|found| found == line)), "{lines:?}");

    for (arguments, code, expected) in [
        (&["--bogus", "x"][..], 2, "Usage: torchrun [OPTIONS] SCRIPT"),
        (&[], 2, "hint: `torchrun --help`"),
        (&["absent.py"], 1, "torchrun: there is no script"),
    ] {
        let done = run(arguments);
        let stderr = text(&done.stderr);
        assert!(done.status.code() == Some(code) && stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("rallypoint"), "{arguments:?}: {stderr}");
    }
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("Usage: torchrun") && !help.contains("rallypoint run"), "{help}");
    assert!(text(&run(&["--version"]).stdout).starts_with("torchrun (rallypoint "));
    assert!(text(&run(&["--print-completion", "bash"]).stdout).contains("_torchrun()"));
}

#[test]
fn events_are_written_to_the_event_log() {
    let workspace = Workspace::new();
    let done = workspace.workers("2", &["--event-log", "events"], "true");
    assert!(done.status.success(), "{}", text(&done.stderr));
    let events = fs::read_to_string(workspace.path("events")).unwrap();
    let names: Vec<String> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line)["name"].as_str().unwrap().to_owned())
        .collect();
    for name in ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED"] {
        assert!(names.iter().any(|found| found == &format!("torchelastic.worker.status.{name}")), "{events}");
    }
    // Like torch's agents, `rallypoint run` also writes an event for a failed rendezvous.
    let late = ["--rdzv-conf", "join_timeout=1", "--nnodes", "2", "--rdzv-backend", "c10d"];
    let endpoint = ["--rdzv-endpoint", "127.0.0.1:0", "--event-log", "late"];
    assert_eq!(workspace.workers("1", &[&late[..], &endpoint].concat(), "true").status.code(), Some(1));
    let events = fs::read_to_string(workspace.path("late")).unwrap();
    let event: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!(event["name"], "torchelastic.worker.status.RENDEZVOUS", "{events}");
    assert!(event["metadata"]["duration_ms"].as_f64().unwrap() >= 1000.0, "{events}");
}

#[test]
fn invalid_command_lines_are_refused_and_leave_no_temporary_files() {
    let workspace = Workspace::new();
    fs::write(workspace.path("file"), "").unwrap();
    for (arguments, code, expected) in [
        (&["--no-python", "absent"][..], 1, "there is no program \"absent\""),
        (&["--no-python", "./file"], 1, "chmod +x"),
        (&["absent.py"], 1, "there is no script \"absent.py\""),
        (&["--log-dir", "file", "--no-python", "true"], 1, "is a file"),
        (&["--log-dir", "/proc/nothing", "--no-python", "true"], 1, "cannot create \"/proc/nothing"),
        (
            &["--rdzv-backend", "etcd", "--no-python", "true"],
            1,
            "the backends are c10d, rallypoint and static",
        ),
        (&["--local-addr", "192.0.2.1", "--no-python", "true"], 1, "does not have that address"),
        (&["--end-report", "no/where", "--no-python", "true"], 1, "--end-report"),
        (&["--event-log", "no/where", "--no-python", "true"], 1, "--event-log"),
        (&["--event-log", "events", "absent.py"], 1, "there is no script \"absent.py\""),
        (&["--event-log", "events", "--end-report", "no/where", "--no-python", "true"], 1, "--end-report"),
        (&["--bogus", "--no-python", "true"], 2, "--bogus"),
        (
            &["--standalone", "--rdzv-endpoint", "node0:1", "--no-python", "true"],
            2,
            "--rdzv-endpoint node0:1 can't be",
        ),
        (&["--standalone", "--nnodes", "2", "--no-python", "true"], 2, "--nnodes 2 has more nodes"),
        (&["--node-rank", "1", "--no-python", "true"], 2, "--node-rank 1 can't be honored"),
        (&[], 2, "SCRIPT"),
    ] {
        let done = workspace.run(arguments);
        let stderr = text(&done.stderr);
        assert!(done.status.code() == Some(code) && stderr.contains(expected), "{arguments:?}: {stderr}");
        let more: Vec<_> = stderr.lines().skip(1).filter(|line| !line.starts_with("hint: ")).collect();
        assert!(code == 2 || more.is_empty(), "{arguments:?}: {stderr}");
        assert!(
            workspace.temporary_files().is_empty(),
            "{arguments:?} leaves {:?}",
            workspace.temporary_files()
        );
    }
}

/// In a new PID namespace, process ids are consecutive: the shell is 1 and the refused `rallypoint run` is 2. The
/// next shell is 3 only if `rallypoint run` has started no process.
#[test]
fn contradictory_flags_are_refused_before_any_process_starts() {
    let script = r#""$0" run "$@" 2>&1; sh -c 'echo next: $$'"#;
    let isolated = ["--map-root-user", "--user", "--pid", "--fork", "--mount-proc", "sh", "-c", script];
    for (arguments, expected_stdout) in [
        (&["--standalone", "--nnodes", "2", "true"][..], "has more nodes"),
        (&["--node-rank", "1", "--log-format", "json", "true"], "can't be honored"),
        (&["--no-python", "absent"], "there is no program"),
    ] {
        let mut command = Command::new("unshare");
        let run = command.args(isolated).arg(env!("CARGO_BIN_EXE_rallypoint")).args(arguments).output();
        let Some(done) = run.ok().filter(|done| done.status.success()) else {
            return println!("skipped: this machine does not allow PID namespaces");
        };
        let out = text(&done.stdout);
        assert!(out.contains(expected_stdout) && out.ends_with("next: 3\n"), "{arguments:?}: {out}");
    }
}

#[test]
fn a_missing_module_is_refused_before_any_worker_starts() {
    let workspace = Workspace::new();
    let python =
        ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists());
    let Some(python) = python else { return println!("skipped: no python3") };
    let run = |arguments: &[&str]| {
        let flags = ["--max-restarts", "3", "--event-log", "events"];
        workspace.command(&[&flags[..], arguments].concat()).env("PYTHON_EXEC", python).output().unwrap()
    };
    for module in ["nosuch_module", "nosuch_module.part"] {
        let done = run(&["-m", module]);
        let stderr = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{stderr}");
        let lines: Vec<_> = stderr.lines().collect();
        let expected = format!("rallypoint run: there is no module \"nosuch_module\" for {python}");
        assert!(
            lines.len() == 2 && lines[0] == expected && lines[1].starts_with("hint: `python -m` searches"),
            "{stderr}"
        );
        assert!(
            workspace.temporary_files().is_empty() && !workspace.path("events").exists(),
            "{:?}",
            workspace.temporary_files()
        );
    }
    // The check finds modules in the working directory, in packages there, and in Python's standard library.
    fs::write(workspace.path("mine.py"), "print('it runs')").unwrap();
    fs::create_dir_all(workspace.path("package")).unwrap();
    fs::write(workspace.path("package/part.py"), "print('it runs')").unwrap();
    for (arguments, expected_stdout) in [
        (&["-m", "mine"][..], "it runs\n"),
        (&["-m", "package.part"], "it runs\n"),
        (&["-m", "json.tool", "json.json", "out.json"], ""),
    ] {
        fs::write(workspace.path("json.json"), "[]").unwrap();
        let done = run(arguments);
        assert!(
            done.status.success() && text(&done.stdout) == expected_stdout,
            "{arguments:?}: {}",
            text(&done.stderr)
        );
    }
}

#[test]
fn a_port_in_use_is_reported_with_the_process_that_holds_it() {
    let workspace = Workspace::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let endpoint = format!("127.0.0.1:{port}");
    let fixed = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", &port];
    let c10d = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint];
    let health = ["--standalone", "--health-check", &endpoint];
    for (flags, expected) in [
        (&fixed[..], "already in use"),
        (&[&c10d[..], &["--rdzv-conf", "read_timeout=2"]].concat(), "does not answer as a store does"),
        (&health, "listen for health checks"),
    ] {
        let done = workspace.workers("1", flags, "echo it ran");
        let stderr = text(&done.stderr);
        assert_eq!((done.status.code(), text(&done.stdout).as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.contains(expected), "{flags:?}: {stderr}");
        let holder = format!("port {port} of this machine is in use by process {}", std::process::id());
        assert!(stderr.contains(&holder), "{flags:?}: {stderr}");
    }
}

#[test]
fn help_and_completions_are_printed() {
    let workspace = Workspace::new();
    let help = workspace.run(&["--help"]);
    assert!(help.status.success());
    for flag in ["--nproc-per-node", "--rdzv-endpoint", "--virtual-local-rank", "Examples:", "Exit codes:"] {
        assert!(text(&help.stdout).contains(flag), "{flag}");
    }
    for shell in ["bash", "zsh"] {
        let script = workspace.run(&["--print-completion", shell]);
        assert!(script.status.success() && text(&script.stdout).contains("nproc-per-node"), "{shell}");
    }
    let refused = workspace.run(&["--print-completion", "tcsh"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--print-completion tcsh"));
}

#[test]
fn the_last_lines_of_a_burst_are_not_lost_when_workers_end() {
    let workspace = Workspace::new();
    let script = "i=0; while [ $i -lt 2000 ]; do echo $RANK line $i; i=$((i+1)); done; printf 'no end'";
    let done = workspace.workers("4", &["-t", "1"], script);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let out = text(&done.stdout);
    for rank in 0..4 {
        let prefix = format!("[default{rank}]:");
        let lines: Vec<_> = out.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
        let expected: Vec<_> =
            (0..2000).map(|n| format!("{rank} line {n}")).chain(["no end".to_owned()]).collect();
        assert_eq!(lines, expected);
    }
}

/// Runs the demo job of README.md.
#[test]
fn the_demo_job_of_the_readme_restarts_after_a_failure_and_ends_within_5_s() {
    let workspace = Workspace::new();
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_rallypoint"));
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/recovery.sh");
    let mut path = binary.parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let flags = ["--nproc-per-node", "3", "--max-restarts", "1", "--tee", "3", "--no-python"];
    let start = Instant::now();
    let done = workspace.command(&flags).arg(example).env("PATH", path).output().unwrap();
    let took = start.elapsed();
    let (out, stderr) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{stderr}");
    for rank in 0..3 {
        let prefix = format!("[default{rank}]:");
        let lines: Vec<_> = out.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
        assert!(lines[0].starts_with(&format!("start 1: rank {rank} of 3, process ")), "{out}");
        assert_eq!(lines.iter().filter(|line| **line == "all 3 workers have arrived").count(), 2, "{out}");
        assert_eq!(lines.last(), Some(&"done"), "{out}");
    }
    assert!(stderr.contains("exitcode: -9"), "{stderr}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
