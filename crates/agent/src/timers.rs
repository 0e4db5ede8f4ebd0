//! Timers that workers set through a pipe, in torch's format. A process that does not release its timer in time gets
//! the signal that it has requested.
//!
//! Torch's agent then sends the signal to itself as well. Ours keeps running and handles the exit of the worker.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Signal, getpid};
use serde::Deserialize;

use crate::error::{AgentError, Result};
use crate::guard::{descendants, send, timer_pipe};

/// Interval for checking timers.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The largest request. A pipe transfers up to this many bytes atomically.
const MAX_REQUEST_BYTES: usize = 4096;

/// The pipe for timers and the thread that reads it. Dropping this value deletes the pipe and stops the thread.
pub(crate) struct Timers {
    path: PathBuf,
    is_running: Option<Arc<AtomicBool>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Request {
    pid: i32,
    scope_id: String,
    expiration_time: f64,
    signal: i32,
}

impl Timers {
    pub(crate) fn new(path: Option<&Path>) -> Timers {
        let default_path = || std::env::temp_dir().join(format!("watchdog_timer_{}", std::process::id()));
        let path = path.map(Path::to_owned).or_else(timer_pipe).unwrap_or_else(default_path);
        Timers { path, is_running: None }
    }

    /// Creates a new pipe without the timers of earlier workers. Returns its path.
    pub(crate) fn restart(&mut self) -> Result<PathBuf> {
        self.stop();
        let path = self.path.as_path();
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, path, FileType::Fifo, mode, 0)
            .map_err(AgentError::file("create the timer pipe", path))?;
        // The pipe is also opened for writing, so that reading does not end when no worker has it open.
        let pipe = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .map_err(AgentError::file("open the timer pipe", path))?;
        let is_running = Arc::new(AtomicBool::new(true));
        self.is_running = Some(Arc::clone(&is_running));
        std::thread::Builder::new()
            .name("timers".into())
            .spawn(move || serve(pipe, &is_running))
            .map_err(AgentError::file("start a thread for the timer pipe", path))?;
        Ok(path.to_owned())
    }

    fn stop(&mut self) {
        if let Some(is_running) = self.is_running.take() {
            is_running.store(false, Ordering::SeqCst);
        }
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::debug!("cannot remove {}: {error}", self.path.display());
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(mut pipe: File, is_running: &AtomicBool) {
    let (mut timers, mut unread, mut bytes) = (Table::default(), Vec::new(), [0; MAX_REQUEST_BYTES]);
    while is_running.load(Ordering::SeqCst) {
        let time = Timespec::try_from(EXPIRY_CHECK_INTERVAL).ok();
        let _ = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], time.as_ref());
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            unread.extend_from_slice(&bytes[..count]);
        }
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            match serde_json::from_slice::<Request>(&line) {
                Ok(request) => timers.handle(request),
                Err(error) => tracing::warn!("a worker sent a malformed timer request: {error}"),
            }
        }
        if unread.len() > MAX_REQUEST_BYTES {
            unread.clear();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        timers.take_expired(now).iter().for_each(send_signal);
    }
}

/// Sends the signal of an expired timer. The process must be a descendant of the agent, because a worker may write any
/// process id to the pipe.
fn send_signal(request: &Request) {
    let Some(signal) = Signal::from_named_raw(request.signal) else { return };
    let processes = descendants(getpid());
    if let Some(process) = processes.iter().find(|process| process.pid.as_raw_nonzero().get() == request.pid)
    {
        tracing::error!(
            "the timer {:?} of process {} has expired; the process gets signal {}",
            request.scope_id,
            request.pid,
            request.signal
        );
        send(process, signal);
    }
}

/// The pending timers.
#[derive(Default)]
struct Table(BTreeMap<(i32, String), Request>);

impl Table {
    fn handle(&mut self, request: Request) {
        let key = (request.pid, request.scope_id.clone());
        match request.expiration_time < 0.0 {
            true => drop(self.0.remove(&key)),
            false => drop(self.0.insert(key, request)),
        }
    }

    /// Removes all timers of each process that has an expired timer. Returns, for each such process, its first expired
    /// timer with a signal.
    fn take_expired(&mut self, now: f64) -> Vec<Request> {
        let mut due: Vec<Request> =
            self.0.values().filter(|request| request.expiration_time <= now).cloned().collect();
        due.sort_by(|a, b| a.expiration_time.total_cmp(&b.expiration_time));
        let pids: Vec<i32> = due.iter().map(|request| request.pid).collect();
        self.0.retain(|(pid, _), _| !pids.contains(pid));
        let mut signaled = Vec::new();
        due.retain(|request| {
            let first = request.signal > 0 && !signaled.contains(&request.pid);
            if first {
                signaled.push(request.pid);
            }
            first
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;

    use super::*;

    fn request(pid: i32, scope_id: &str, expiration_time: f64, signal: i32) -> Request {
        Request { pid, scope_id: scope_id.into(), expiration_time, signal }
    }

    #[test]
    fn a_process_with_an_expired_timer_is_signaled_once() {
        let mut table = Table::default();
        table.handle(request(1, "a", 10.0, 9));
        table.handle(request(1, "b", 5.0, 15));
        table.handle(request(2, "a", 5.0, 9));
        table.handle(request(2, "a", -1.0, 0));
        table.handle(request(3, "a", 5.0, 0));
        assert_eq!(table.take_expired(4.0), []);
        assert_eq!(table.take_expired(20.0), [request(1, "b", 5.0, 15)]);
        assert_eq!(table.take_expired(20.0), []);
    }

    #[test]
    fn only_descendants_with_an_expired_timer_are_signaled() {
        let mut timers = Timers::new(None);
        let path = timers.restart().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let mut pipe = File::options().write(true).open(&path).unwrap();
        for pid in [std::process::id(), 1, child.id()] {
            writeln!(
                pipe,
                r#"{{"version": 1, "pid": {pid}, "scope_id": "x#1", "expiration_time": 1.5, "signal": 9}}"#
            )
            .unwrap();
        }
        assert!(child.wait().unwrap().code().is_none());
        drop(timers);
        assert!(!path.exists());
    }
}
