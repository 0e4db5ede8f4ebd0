//! Agents as a user starts them, each with a mark that all of its descendants carry in their environment.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::held_port::held_port;

/// Only a failure takes that long.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The variable that marks all that comes of one agent.
pub(crate) const MARK: &str = "RALLYPOINT_TEST_MARK";

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    until_within(SOON, || what.to_owned(), holds);
}

/// The same with a limit of its own; if it takes longer, `what` says what there is instead.
pub(crate) fn until_within(limit: Duration, what: impl Fn() -> String, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {}", what());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A port where nobody listens for now.
pub(crate) struct Port {
    pub(crate) number: u16,
}

impl Port {
    /// One that is the test's own for as long as the tests run.
    pub(crate) fn free() -> Port {
        Port { number: held_port() }
    }

    /// One that nobody holds, and that the system gives to nobody who asks for any, so that it is still free later on.
    pub(crate) fn of_nobody() -> Port {
        let number = || 20_000 + (random() % 12_000) as u16;
        let is_free = |number: &u16| TcpListener::bind(("127.0.0.1", *number)).is_ok();
        Port { number: std::iter::repeat_with(number).take(1000).find(is_free).expect("a port is free") }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}

/// An agent that runs.
pub(crate) struct Agent {
    child: Child,
    mark: String,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// What was left of an agent that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Agent {
    pub(crate) fn start(arguments: &[&str]) -> Agent {
        Agent::start_with(arguments, &[])
    }

    /// `rallypoint run` with these arguments and further environment variables.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &Path)]) -> Agent {
        Agent::spawn(&[], arguments, |command| {
            command.env("RALLYPOINT_LOG", "info").envs(variables.iter().copied());
        })
    }

    /// The same through another command, which becomes the agent.
    pub(crate) fn start_below(before: &[&str], arguments: &[&str]) -> Agent {
        Agent::spawn(before, arguments, |command| {
            command.env("RALLYPOINT_LOG", "info");
        })
    }

    /// The same without a word about how much it is to log.
    pub(crate) fn start_as_usual(arguments: &[&str]) -> Agent {
        Agent::spawn(&[], arguments, |command| {
            command.env_remove("RALLYPOINT_LOG").env_remove("LOGLEVEL");
        })
    }

    fn spawn(before: &[&str], arguments: &[&str], prepare: impl Fn(&mut Command)) -> Agent {
        let mark = format!("{:016x}", random());
        // Whoever runs the tests in the background, or under `nohup`, has these ignored.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT").args(before);
        command.args([env!("CARGO_BIN_EXE_rallypoint"), "run"]).args(arguments);
        command.env(MARK, &mark);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let (out, err) = (Arc::default(), Arc::default());
        let readers = [
            child.stdout.take().map(|stream| read(stream, &out)),
            child.stderr.take().map(|stream| read(stream, &err)),
        ];
        Agent { child, mark, out, err, readers: readers.into_iter().flatten().collect() }
    }

    pub(crate) fn out(&self) -> String {
        self.out.lock().unwrap().clone()
    }

    pub(crate) fn err(&self) -> String {
        self.err.lock().unwrap().clone()
    }

    /// Waits until its output has so many lines with this in them.
    pub(crate) fn says(&self, what: &str, times: usize) {
        let said = || self.out().lines().filter(|line| line.contains(what)).count();
        let instead = || format!("{what:?} {times} times in:\n{}\n{}", self.out(), self.err());
        until_within(SOON, instead, || said() >= times);
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The agent, once there is one: the child of the process that was started.
    pub(crate) fn inner(&self) -> Option<Pid> {
        children(self.pid()).first().copied()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn mark(&self) -> String {
        self.mark.clone()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.wait_within(SOON)
    }

    fn wait_within(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}\n{}", self.out(), self.err());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn ended(self) -> Ended {
        self.ended_within(SOON)
    }

    /// The same for one that has much to do.
    pub(crate) fn ended_within(mut self, limit: Duration) -> Ended {
        let status = self.wait_within(limit);
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        Ended { status, out: self.out(), err: self.err() }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stream: impl Read + Send + 'static, to: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let to = Arc::clone(to);
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            to.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    })
}

/// The command lines of the living processes that have a mark.
pub(crate) fn family(mark: &str) -> Vec<String> {
    relatives(mark).iter().map(|(pid, line)| format!("{pid:?}: {line}")).collect()
}

/// The living processes that have a mark, each with its command line.
pub(crate) fn relatives(mark: &str) -> Vec<(Pid, String)> {
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

/// The processes that this one has started, or adopted.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Kills all of these with one command, as close together as that can be done from outside.
pub(crate) fn kill_at_once(pids: &[Pid]) {
    let pids = pids.iter().map(|pid| pid.as_raw_nonzero().to_string());
    let script = r#"kill -9 "$@""#;
    // One may be gone because another was killed before it.
    Command::new("sh").args(["-c", script, "sh"]).args(pids).stderr(Stdio::null()).status().unwrap();
}

/// The full number with `RALLYPOINT_SOAK=1`.
pub(crate) fn rounds(few: usize, all: usize) -> usize {
    if std::env::var_os("RALLYPOINT_SOAK").is_some_and(|value| value == "1") { all } else { few }
}
