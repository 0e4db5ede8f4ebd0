//! The server as a child process, which is killed at the end of the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rallypoint_testkit::ChildGuard;

use super::{Client, MIB, Process, eventually, probe};

/// A running server. It is killed on drop.
pub(crate) struct Server {
    child: ChildGuard,
    address: SocketAddr,
    /// The address for health checks.
    health: Option<SocketAddr>,
    started: Instant,
    /// The number of open file descriptors after the first client has disconnected.
    files: usize,
    /// The resident memory in bytes after the first client has disconnected.
    memory: usize,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with_limits(&[])
    }

    /// Starts a server with these limits, as `--limit` takes them.
    pub(crate) fn with_limits(limits: &[&str]) -> Server {
        Server::listening_on("127.0.0.1:0", limits)
    }

    /// Starts a server that may open this number of files and that answers health checks.
    pub(crate) fn with_files(files: usize, limits: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &format!("ulimit -n {files}; exec \"$@\""),
            "sh",
            env!("CARGO_BIN_EXE_rallypoint"),
        ]);
        shell.args(["serve", "--health-check", "0"]);
        Server::launch(shell, "127.0.0.1:0", limits)
    }

    /// Sends a health check, and returns the JSON of the reply.
    pub(crate) fn health(&self) -> serde_json::Value {
        let mut stream =
            TcpStream::connect(self.health.expect("an address")).expect("health checks are answered");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("the server accepts a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server replies");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{answer}");
        serde_json::from_str(body).expect("JSON")
    }

    pub(crate) fn listening_on(listen: &str, limits: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.arg("serve");
        Server::launch(command, listen, limits)
    }

    /// Starts the server that `command` runs, with this address and these limits.
    pub(crate) fn launch(mut command: Command, listen: &str, limits: &[&str]) -> Server {
        command.args(["--listen", listen]);
        for limit in limits {
            command.args(["--limit", limit]);
        }
        Server::spawn(command)
    }

    /// Starts the server that `command` runs, and waits until it listens and has served a first client.
    pub(crate) fn spawn(mut command: Command) -> Server {
        let directory = tempfile::tempdir().expect("a directory for the log");
        let log = directory.path().join("log");
        command.env_remove("RALLYPOINT_LOG").stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).expect("the log file"));
        let mut child = ChildGuard::spawn(&mut command);
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let mut stdout = BufReader::new(stdout);
        // If the command is a test that runs an embedded server, the test framework prints other lines first.
        while !line.starts_with("listening on ") {
            line.clear();
            if stdout.read_line(&mut line).expect("the output can be read") == 0 {
                break;
            }
        }
        let address = line.trim().strip_prefix("listening on ").and_then(|address| address.parse().ok());
        let address =
            address.unwrap_or_else(|| panic!("{line:?}; {}", fs::read_to_string(&log).unwrap_or_default()));
        let health = command.get_args().any(|arg| arg == "--health-check").then(|| {
            line.clear();
            stdout.read_line(&mut line).expect("the second line can be read");
            let address =
                line.trim().strip_prefix("health checks on http://").and_then(|at| at.strip_suffix('/'));
            address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
        });
        let (started, files, memory) = (Instant::now(), 0, 0);
        let mut server =
            Server { child, address, health, started, files, memory, log, _directory: directory };
        // For the first client, the server allocates everything that it allocates only once. The baseline of files and
        // memory is measured after that client has disconnected.
        let before = server.process().files();
        probe(server.local()).expect("a new server answers");
        eventually(Duration::from_secs(5), "the first client's file is closed", || {
            server.process().files() <= before
        });
        (server.files, server.memory) = (server.process().files(), server.process().memory());
        server
    }

    /// Returns the address that the server has printed.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address to connect to: loopback, if the server listens on all addresses.
    fn local(&self) -> SocketAddr {
        match self.address.ip().is_unspecified() {
            true => ([127, 0, 0, 1], self.address.port()).into(),
            false => self.address,
        }
    }

    pub(crate) fn process(&self) -> Process {
        Process(self.child.id())
    }

    /// Connects without a handshake.
    pub(crate) fn dial(&self) -> Client {
        Client::dial(self.local())
    }

    /// Connects and completes the handshake.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.local())
    }

    /// Returns the number of open connections, counted by the server's file descriptors.
    pub(crate) fn connections(&self) -> usize {
        self.process().files().saturating_sub(self.files)
    }

    /// Returns the number of bytes by which the memory has grown since the first client disconnected.
    pub(crate) fn memory_growth(&self) -> usize {
        self.process().memory().saturating_sub(self.memory)
    }

    /// Waits until the server is idle, which means that it has read and handled everything that it can.
    pub(crate) fn wait_until_idle(&self) {
        let mut before = self.process().cpu();
        let mut was_sleeping = false;
        eventually(Duration::from_secs(30), "the server is idle", || {
            // The CPU time that the server uses in this interval is measured.
            std::thread::sleep(Duration::from_millis(20));
            let now = self.process().cpu();
            let is_quiet = now - std::mem::replace(&mut before, now) < Duration::from_micros(500);
            // A thread that waits for a CPU uses no CPU time either, but it does not sleep.
            let is_sleeping = self.process().is_sleeping();
            is_quiet && is_sleeping && std::mem::replace(&mut was_sleeping, is_sleeping)
        });
    }

    /// Returns the log lines about closed connections.
    pub(crate) fn disconnects(&self) -> Vec<String> {
        self.log().into_iter().filter(|line| line.contains("closed ")).collect()
    }

    /// Returns the size of the log in bytes.
    pub(crate) fn log_len(&self) -> usize {
        fs::metadata(&self.log).expect("the log").len() as usize
    }

    /// Returns the lines of the log.
    pub(crate) fn log(&self) -> Vec<String> {
        let log = fs::read(&self.log).expect("the log");
        String::from_utf8(log).expect("the log is text").lines().map(str::to_owned).collect()
    }

    /// Waits for the first log line about a closed connection, and returns it. The server writes its log in the
    /// background, so the line may appear after the close.
    pub(crate) fn first_disconnect(&self) -> String {
        eventually(Duration::from_secs(5), "a line about a closed connection", || {
            !self.disconnects().is_empty()
        });
        self.disconnects().remove(0)
    }

    /// Waits for a log line about a closed connection, and returns it. Panics if there are several.
    pub(crate) fn only_disconnect(&self) -> String {
        self.first_disconnect();
        let lines = self.disconnects();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        lines[0].clone()
    }

    /// Checks what docs/internals/robustness.md requires in every row of the tables C, V, W and R: after all clients
    /// have disconnected, the server runs, answers within 5 ms, has closed their file descriptors, has freed their
    /// memory, and has not flooded its log.
    pub(crate) fn assert_healthy(&mut self) {
        self.assert_healthy_with_stored(0);
    }

    /// Like `assert_healthy`, for a server that may keep `stored` bytes of memory more, for example for its keys and
    /// values.
    pub(crate) fn assert_healthy_with_stored(&mut self, stored: usize) {
        assert!(
            self.child.try_wait().expect("the child can be waited for").is_none(),
            "the server has ended:\n{:#?}",
            self.log()
        );
        eventually(Duration::from_secs(5), "files are closed", || self.process().files() <= self.files);
        // On a busy machine a single probe may be slow, so the check is repeated.
        eventually(Duration::from_secs(20), "a probe takes less than 5 ms", || {
            probe(self.local()).expect("the server accepts connections") < Duration::from_millis(5)
        });
        eventually(Duration::from_secs(2), "memory is freed", || self.memory_growth() <= stored + 16 * MIB);
        let log = self.log();
        for line in &log {
            assert!(line.len() <= 256, "a line of {} bytes: {line}", line.len());
        }
        // The time is read after the log, so that it covers every line of the log.
        let seconds = self.started.elapsed().as_secs() as usize;
        let max_lines = 10 * (seconds + 2);
        assert!(log.len() <= max_lines, "{} lines in {seconds} s", log.len());
    }
}
