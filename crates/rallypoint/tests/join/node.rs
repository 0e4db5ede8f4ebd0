//! A node that runs, as a user starts it, with what it says.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rallypoint_store::TcpStoreServer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Only a failure takes that long.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Waits until something is so.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.arg("join").args(arguments).env_remove("RALLYPOINT_LOG").env_remove("SLURM_JOB_NODELIST");
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A node that runs, with what it says.
pub(crate) struct Node {
    pub(crate) child: Child,
    lines: Receiver<String>,
    log: Receiver<String>,
}

impl Node {
    /// A node of a job at this server, with further arguments.
    pub(crate) fn start(server: &TcpStoreServer, nodes: &str, more: &[&str]) -> Node {
        Node::at(server.port(), nodes, more)
    }

    /// A node of a job at this port.
    pub(crate) fn at(port: u16, nodes: &str, more: &[&str]) -> Node {
        let endpoint = format!("127.0.0.1:{port}");
        let mut arguments = vec!["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", nodes];
        arguments.extend(more);
        Node::run(command(&arguments))
    }

    /// A node as this command starts it.
    pub(crate) fn run(mut command: Command) -> Node {
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let (lines, log) = (read(child.stdout.take().unwrap()), read(child.stderr.take().unwrap()));
        Node { child, lines, log }
    }

    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(SOON).expect("it says something")
    }

    pub(crate) fn joined(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn ended(mut self) -> (i32, String) {
        let deadline = Instant::now() + SOON;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut log = String::new();
        while let Ok(line) = self.log.recv_timeout(SOON) {
            log += &(line + "\n");
        }
        (status.code().unwrap_or(-1), log)
    }

    /// Reads the log up to a line with this.
    pub(crate) fn logs(&mut self, what: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let line = self.log.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            match line.unwrap_or_else(|_| panic!("it never says {what:?}")) {
                line if line.contains(what) => return line,
                _ => {}
            }
        }
    }
}

/// What comes from there, line by line.
fn read(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = channel();
    let from = BufReader::new(from);
    std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    lines
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn server() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1", 0).unwrap()
}
