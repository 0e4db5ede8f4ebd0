//! Child processes that are killed when the test ends, and their output.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{WAIT_TIMEOUT, eventually_within};

/// A child process that is killed when the value is dropped.
#[derive(Debug)]
pub struct ChildGuard(Child);

impl ChildGuard {
    /// Starts a command.
    pub fn spawn(command: &mut Command) -> ChildGuard {
        ChildGuard(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the child has not been reaped");
    }

    /// Waits until the process has ended and returns its status. Panics after [`WAIT_TIMEOUT`].
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        self.ended_within(WAIT_TIMEOUT)
    }

    /// Like [`ChildGuard::ended`], with another timeout.
    #[track_caller]
    pub fn ended_within(&mut self, timeout: Duration) -> ExitStatus {
        let mut status = None;
        eventually_within(timeout, "the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap_or_else(|| unreachable!("the process has ended"))
    }
}

impl Deref for ChildGuard {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ChildGuard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of a process. A thread reads it, so that the process never blocks on a full pipe.
#[derive(Debug)]
pub struct Lines {
    shared: Arc<Shared>,
    /// The byte offset after the last line that [`Lines::line`] or [`Lines::find`] returned.
    taken: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shared {
    output: Mutex<Output>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Output {
    text: String,
    is_closed: bool,
}

impl Lines {
    /// Starts to read a stream to its end.
    pub fn read(stream: impl Read + Send + 'static) -> Lines {
        let shared = Arc::<Shared>::default();
        let reading = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                reading.output.lock().unwrap().text.push_str(&String::from_utf8_lossy(&line));
                reading.changed.notify_all();
                line.clear();
            }
            reading.output.lock().unwrap().is_closed = true;
            reading.changed.notify_all();
        });
        Lines { shared, taken: AtomicUsize::new(0) }
    }

    /// Returns the text that was printed so far.
    pub fn text(&self) -> String {
        self.shared.output.lock().unwrap().text.clone()
    }

    /// Waits until the stream is closed and returns the whole text.
    #[track_caller]
    pub fn all(&self) -> String {
        self.wait_for(|output| output.is_closed.then(|| output.text.clone())).expect("the output is closed")
    }

    /// Waits until the stream is closed and returns the text after the last line that was returned.
    #[track_caller]
    pub fn rest(&self) -> String {
        self.all().split_off(self.taken.load(Ordering::Relaxed))
    }

    /// Waits for the next line.
    #[track_caller]
    pub fn line(&self) -> String {
        self.find("")
    }

    /// Waits for the next line that contains `what`, and skips the lines before it.
    #[track_caller]
    pub fn find(&self, what: &str) -> String {
        let found = self.wait_for(|output| {
            let mut end = self.taken.load(Ordering::Relaxed);
            for line in output.text[end..].split_inclusive('\n') {
                end += line.len();
                if line.contains(what) {
                    self.taken.store(end, Ordering::Relaxed);
                    return Some(Some(line.trim_end_matches('\n').to_owned()));
                }
            }
            output.is_closed.then_some(None)
        });
        found.flatten().unwrap_or_else(|| panic!("the process did not print {what:?}:\n{}", self.text()))
    }

    /// Waits until `find` returns a value. Returns `None` if it does not within [`WAIT_TIMEOUT`].
    fn wait_for<T>(&self, mut find: impl FnMut(&Output) -> Option<T>) -> Option<T> {
        let mut found = None;
        let is_missing = |output: &mut Output| {
            found = find(output);
            found.is_none()
        };
        let output = self.shared.output.lock().unwrap();
        drop(self.shared.changed.wait_timeout_while(output, WAIT_TIMEOUT, is_missing).unwrap());
        found
    }
}

/// A `rallypoint serve` process.
#[derive(Debug)]
pub struct ServeProcess {
    /// The process.
    pub process: ChildGuard,
    /// The address it listens on.
    pub address: SocketAddr,
}

impl ServeProcess {
    /// Starts `BINARY serve` with these arguments, on a free port of the loopback address. Discards its log.
    pub fn start(binary: &str, arguments: &[&str]) -> ServeProcess {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = ChildGuard::spawn(&mut command);
        let stdout = Lines::read(process.stdout.take().expect("stdout is piped"));
        let line = stdout.line();
        let address = line.strip_prefix("listening on ").and_then(|address| address.parse().ok());
        ServeProcess { process, address: address.unwrap_or_else(|| panic!("{line:?}")) }
    }

    /// Returns the address as `HOST:PORT`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }
}
