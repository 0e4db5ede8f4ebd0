//! The real server as a process of its own, to be stopped, killed and started again: this test program itself, started
//! for the one test that is a server when it is told to be.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use rallypoint_store::TcpStoreServer;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use rallypoint_testkit::{Port, eventually};

/// Says what the child is to be, and with what arguments.
const ROLE_VARIABLE: &str = "CLIENT_FAULTS_CHILD_ROLE";

/// What a child puts before each line that is meant for the test: the test harness writes lines of its own.
const OUTPUT_PREFIX: &str = "child says ";

/// Starts this program again as something else, behind `wrapper` if there is one. It ends when it has done its work, or
/// when whoever started it is gone.
pub(crate) fn start(wrapper: &[&str], role: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().expect("the tests are built under a path of text");
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

/// The next line that a child says.
pub(crate) fn read_line(child: &mut Child) -> String {
    let line = BufReader::new(child.stdout.as_mut().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().split_once(OUTPUT_PREFIX)?.1.to_owned()));
    line.expect("the child ended without a word")
}

pub(crate) fn print_line(line: &str) {
    println!("{OUTPUT_PREFIX}{line}");
}

#[test]
#[ignore = "is another process of the other tests"]
fn process() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else { return };
    // Also when it is stopped and whoever started it was killed, it must not stay behind.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["serve", host, port] => {
            let server = TcpStoreServer::bind(host, port.parse().unwrap()).unwrap();
            print_line(&server.port().to_string());
            wait_for_end();
        }
        ["hold"] => {
            print_line("held");
            wait_for_end();
        }
        ["read", port] => crate::memory::measure_read(port.parse().unwrap()),
        ["resolve", host, millis] => crate::dns::measure_resolve(host, millis.parse().unwrap()),
        _ => panic!("no such role: {role}"),
    }
}

/// The other end of the input is closed by whoever started this process, or with them.
fn wait_for_end() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Starts a server; its port.
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
    /// On a port of this machine, which stays its own when it is restarted.
    pub(crate) fn start() -> Server {
        let reserved = Port::held();
        let (child, port) = serve(&[], "127.0.0.1", reserved.number);
        Server { child, reserved, port }
    }

    /// On another machine.
    pub(crate) fn at(wrapper: &[&str], host: &str) -> Server {
        let (child, port) = serve(wrapper, host, 0);
        Server { child, reserved: Port::held(), port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process (SIGSTOP); it is stopped when this returns.
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

    /// Lets it go on (SIGCONT).
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it (SIGKILL); it is gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it and starts another on the same port.
    pub(crate) fn restart(&mut self) {
        self.kill();
        (self.child, self.port) = serve(&[], "127.0.0.1", self.reserved.number);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be stopped, or gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
