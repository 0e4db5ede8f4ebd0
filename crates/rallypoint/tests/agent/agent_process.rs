//! Starts agents as a user starts them. An environment variable marks all processes of an agent, so that tests can
//! find them.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use rallypoint_testkit::{ChildGuard, Lines, WAIT_TIMEOUT, eventually_or};
use rustix::process::{Pid, Signal};

/// The environment variable that marks all processes of one agent. Its value is different for each agent.
pub(crate) const MARK: &str = "RALLYPOINT_TEST_MARK";

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A running agent: the outer process, which the test started, and its output.
pub(crate) struct Agent {
    child: ChildGuard,
    mark: String,
    out: Lines,
    err: Lines,
}

/// The exit status and the output of an agent that has exited.
#[derive(Debug)]
pub(crate) struct AgentOutput {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Agent {
    pub(crate) fn start(arguments: &[&str]) -> Agent {
        Agent::start_with(arguments, &[])
    }

    /// Starts `rallypoint run` with these arguments and environment variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &Path)]) -> Agent {
        Agent::spawn(&[], arguments, |command| {
            command.env("RALLYPOINT_LOG", "info").envs(variables.iter().copied());
        })
    }

    /// Starts the command `before` with the command line of the agent as its last arguments. `before` must execute
    /// that command line.
    pub(crate) fn start_through(before: &[&str], arguments: &[&str]) -> Agent {
        Agent::spawn(before, arguments, |command| {
            command.env("RALLYPOINT_LOG", "info");
        })
    }

    /// Starts the agent without an environment variable that sets the log level.
    pub(crate) fn start_with_default_log_level(arguments: &[&str]) -> Agent {
        Agent::spawn(&[], arguments, |command| {
            command.env_remove("RALLYPOINT_LOG").env_remove("LOGLEVEL");
        })
    }

    fn spawn(before: &[&str], arguments: &[&str], prepare: impl Fn(&mut Command)) -> Agent {
        let mark = format!("{:016x}", random());
        // If the tests run in the background or under `nohup`, SIGINT and SIGQUIT or SIGHUP are ignored, and child
        // processes inherit that. `env` resets all three.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT").args(before);
        command.args([env!("CARGO_BIN_EXE_rallypoint"), "run"]).args(arguments);
        command.env(MARK, &mark);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = ChildGuard::spawn(&mut command);
        let out = Lines::read(child.stdout.take().unwrap());
        let err = Lines::read(child.stderr.take().unwrap());
        Agent { child, mark, out, err }
    }

    pub(crate) fn out(&self) -> String {
        self.out.text()
    }

    pub(crate) fn err(&self) -> String {
        self.err.text()
    }

    /// Waits until standard output has at least `times` lines that contain `what`.
    pub(crate) fn wait_for_lines(&self, what: &str, times: usize) {
        let count = || self.out().lines().filter(|line| line.contains(what)).count();
        let message = || format!("{what:?} {times} times in:\n{}\n{}", self.out(), self.err());
        eventually_or(WAIT_TIMEOUT, message, || count() >= times);
    }

    pub(crate) fn outer_pid(&self) -> Pid {
        self.child.pid()
    }

    /// Returns the process id of the agent, which is the child of the outer process. Returns `None` if it has not
    /// started yet.
    pub(crate) fn agent_pid(&self) -> Option<Pid> {
        children(self.outer_pid()).first().copied()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    pub(crate) fn mark(&self) -> String {
        self.mark.clone()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.wait_within(WAIT_TIMEOUT)
    }

    fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let mut status = None;
        let message = || format!("the agent does not exit:\n{}\n{}", self.out.text(), self.err.text());
        eventually_or(limit, message, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn ended(self) -> AgentOutput {
        self.ended_within(WAIT_TIMEOUT)
    }

    /// Waits until the outer process exits, at most for `limit`, and returns its exit status and output.
    pub(crate) fn ended_within(mut self, limit: Duration) -> AgentOutput {
        let status = self.wait_within(limit);
        AgentOutput { status, out: self.out.all(), err: self.err.all() }
    }
}

/// Returns a line with the process id and the command line for each process that has this mark.
pub(crate) fn process_lines(mark: &str) -> Vec<String> {
    marked_processes(mark).iter().map(|(pid, line)| format!("{pid:?}: {line}")).collect()
}

/// Returns the ids and the command lines of the processes that have this mark.
pub(crate) fn marked_processes(mark: &str) -> Vec<(Pid, String)> {
    let mark = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        if !environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            continue;
        }
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let pid = entry.file_name().to_str().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        found.extend(pid.map(|pid| (pid, String::from_utf8_lossy(&line).replace('\0', " "))));
    }
    found
}

/// Returns the children of a process, including orphans that it has adopted.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Kills all of these processes with one `kill` command, so that they die nearly at the same time.
pub(crate) fn kill_together(pids: &[Pid]) {
    let pids = pids.iter().map(|pid| pid.as_raw_nonzero().to_string());
    let script = r#"kill -9 "$@""#;
    // A process may already have exited because another one was killed before it. Then `kill` fails for that process,
    // which is ignored.
    Command::new("sh").args(["-c", script, "sh"]).args(pids).stderr(Stdio::null()).status().unwrap();
}
