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

/// Only a failure takes that long.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The variable that marks all that comes of one agent.
pub(crate) const MARK: &str = "RALLYPOINT_TEST_MARK";

pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Waits until something holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A port that nobody has for now.
pub(crate) struct Port {
    pub(crate) number: u16,
}

impl Port {
    pub(crate) fn free() -> Port {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Port { number: listener.local_addr().unwrap().port() }
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
        Agent::spawn(arguments, |command| {
            command.env("RALLYPOINT_LOG", "info").envs(variables.iter().copied());
        })
    }

    /// The same without a word about how much it is to log.
    pub(crate) fn start_as_usual(arguments: &[&str]) -> Agent {
        Agent::spawn(arguments, |command| {
            command.env_remove("RALLYPOINT_LOG").env_remove("LOGLEVEL");
        })
    }

    fn spawn(arguments: &[&str], prepare: impl Fn(&mut Command)) -> Agent {
        let mark = format!("{:016x}", random());
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.arg("run").args(arguments).env(MARK, &mark);
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
        let deadline = Instant::now() + SOON;
        while self.out().lines().filter(|line| line.contains(what)).count() < times {
            assert!(
                Instant::now() < deadline,
                "{what:?} not {times} times in:\n{}\n{}",
                self.out(),
                self.err()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The agent proper, which the process that was started watches over; once there is one.
    pub(crate) fn inner(&self) -> Option<Pid> {
        let pid = self.pid().as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn mark(&self) -> String {
        self.mark.clone()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}\n{}", self.out(), self.err());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn ended(mut self) -> Ended {
        let status = self.wait();
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
    let mark = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        if !environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            continue;
        }
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        found.push(format!("{:?}: {}", entry.file_name(), String::from_utf8_lossy(&line).replace('\0', " ")));
    }
    found
}
