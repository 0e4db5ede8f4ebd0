//! Child processes, among them real servers that tests stop, kill and restart.
//!
//! A child process runs this test program with the ignored test `process`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rallypoint_store::TcpStoreServer;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use rallypoint_testkit::{Port, eventually};

/// The environment variable with the role of the child and its arguments.
const ROLE_VARIABLE: &str = "CLIENT_FAULTS_CHILD_ROLE";

/// The prefix of lines that a child prints for the test. The test harness prints other lines.
const OUTPUT_PREFIX: &str = "child says ";

/// Starts this test program as a child process with a role. If `wrapper` is not empty, the command `wrapper` runs the
/// child.
///
/// The child exits when its work is done or when the thread that started it has exited.
pub(crate) fn start(wrapper: &[&str], role: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().expect("the path of the test program is UTF-8");
    let words: Vec<&str> = [wrapper, &[program]].concat();
    Command::new(words[0])
        .args(&words[1..])
        .args(["--exact", "child::process", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE_VARIABLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Reads the next line that a child prints for the test.
pub(crate) fn read_line(child: &mut Child) -> String {
    let line = BufReader::new(child.stdout.as_mut().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().split_once(OUTPUT_PREFIX)?.1.to_owned()));
    line.expect("the child exited without output")
}

pub(crate) fn print_line(line: &str) {
    println!("{OUTPUT_PREFIX}{line}");
}

#[test]
#[ignore = "runs in the child processes of the other tests"]
fn process() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else { return };
    // Without this, a stopped child would outlive a test process that is killed.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["serve", host, port] => {
            let server = TcpStoreServer::bind(host, port.parse().unwrap()).unwrap();
            print_line(&server.port().to_string());
            wait_for_stdin_end();
        }
        ["hold"] => {
            print_line("ready");
            wait_for_stdin_end();
        }
        ["read", port] => crate::memory::measure_read(port.parse().unwrap()),
        ["resolve", host, millis] => crate::dns::measure_resolve(host, millis.parse().unwrap()),
        _ => panic!("no such role: {role}"),
    }
}

/// Waits until the parent process closes the standard input or exits.
fn wait_for_stdin_end() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Starts a server in a child process. Returns the child and the port of the server.
fn serve(wrapper: &[&str], host: &str, port: u16) -> (Child, u16) {
    let mut child = start(wrapper, &format!("serve {host} {port}"));
    let port = read_line(&mut child).parse().unwrap();
    (child, port)
}

/// A server in a process of its own.
pub(crate) struct Server {
    child: Child,
    reserved: Port,
    port: u16,
}

impl Server {
    /// Starts a server on a port of this machine. The port stays reserved across restarts.
    pub(crate) fn start() -> Server {
        let reserved = Port::reserve();
        let (child, port) = serve(&[], "127.0.0.1", reserved.number);
        Server { child, reserved, port }
    }

    /// Starts a server on a simulated machine. The command `wrapper` runs the server there. [`Server::restart`] does
    /// not work for such a server.
    pub(crate) fn at(wrapper: &[&str], host: &str) -> Server {
        let (child, port) = serve(wrapper, host, 0);
        Server { child, reserved: Port::reserve(), port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process (SIGSTOP) and waits until all its threads are stopped.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        eventually("all threads of the server are stopped", || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
                stat.rsplit_once(") ").unwrap().1.starts_with('T')
            })
        });
    }

    /// Resumes the process (SIGCONT).
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process (SIGKILL) and waits until it has exited.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills the process and starts another server on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        (self.child, self.port) = serve(&[], "127.0.0.1", self.reserved.number);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
