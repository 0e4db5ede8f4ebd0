//! Starts `rallypoint join` as a user starts it.

use std::process::{Command, Output, Stdio};

use rallypoint_store::TcpStoreServer;
use rallypoint_testkit::{ChildGuard, Lines};
use rustix::process::Signal;
use serde_json::Value;

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.arg("join").args(arguments).env_remove("RALLYPOINT_LOG").env_remove("SLURM_JOB_NODELIST");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PET_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A running node, with its standard output and its log.
pub(crate) struct Node {
    pub(crate) child: ChildGuard,
    lines: Lines,
    log: Lines,
}

impl Node {
    /// Starts a node of the job `job` that uses this server. `nodes` is `--nnodes`, and `more` has further arguments.
    pub(crate) fn start(server: &TcpStoreServer, nodes: &str, more: &[&str]) -> Node {
        Node::at(server.port(), nodes, more)
    }

    /// Starts a node of the job `job` with the endpoint `127.0.0.1:port`.
    pub(crate) fn at(port: u16, nodes: &str, more: &[&str]) -> Node {
        let endpoint = format!("127.0.0.1:{port}");
        let mut arguments = vec!["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", nodes];
        arguments.extend(more);
        Node::run(command(&arguments))
    }

    /// Starts the node that `command` runs.
    pub(crate) fn run(mut command: Command) -> Node {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ChildGuard::spawn(&mut command);
        let lines = Lines::read(child.stdout.take().unwrap());
        let log = Lines::read(child.stderr.take().unwrap());
        Node { child, lines, log }
    }

    pub(crate) fn line(&self) -> String {
        self.lines.line()
    }

    /// Waits for the next line of standard output, which must be the JSON that a node prints when it has joined.
    pub(crate) fn joined(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits until the node exits. Returns its exit code, or -1 if a signal killed it, and the log lines that were not
    /// read before.
    pub(crate) fn ended(mut self) -> (i32, String) {
        let status = self.child.ended();
        (status.code().unwrap_or(-1), self.log.rest())
    }

    /// Waits for the next log line that contains `what`, and returns that line.
    pub(crate) fn wait_for_log(&mut self, what: &str) -> String {
        self.log.find(what)
    }
}

pub(crate) fn server() -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1", 0).unwrap()
}
