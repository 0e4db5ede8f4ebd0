//! Timers that workers set through a pipe, in torch's form: whoever has not released its timer in time gets the signal it
//! named. Torch's agent then sends that signal to itself as well; ours lives on and sees a worker that failed.

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

/// How often timers are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Requests are no longer than what a pipe takes at once.
const LONGEST: usize = 4096;

/// A pipe for timers and the thread that reads it; both end when it is dropped.
pub(crate) struct Timers {
    path: PathBuf,
    wanted: Option<Arc<AtomicBool>>,
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
        let own = || std::env::temp_dir().join(format!("watchdog_timer_{}", std::process::id()));
        let path = path.map(Path::to_owned).or_else(timer_pipe).unwrap_or_else(own);
        Timers { path, wanted: None }
    }

    /// Begins anew, without the timers of earlier workers; where the pipe is.
    pub(crate) fn restart(&mut self) -> Result<PathBuf> {
        self.stop();
        let path = self.path.as_path();
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, path, FileType::Fifo, mode, 0)
            .map_err(AgentError::file("create the timer pipe", path))?;
        // Opened for writing, too, so that it doesn't end when no worker has it open.
        let pipe = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .map_err(AgentError::file("open the timer pipe", path))?;
        let wanted = Arc::new(AtomicBool::new(true));
        self.wanted = Some(Arc::clone(&wanted));
        std::thread::Builder::new()
            .name("timers".into())
            .spawn(move || serve(pipe, &wanted))
            .map_err(AgentError::file("start a thread for the timer pipe", path))?;
        Ok(path.to_owned())
    }

    fn stop(&mut self) {
        if let Some(wanted) = self.wanted.take() {
            wanted.store(false, Ordering::SeqCst);
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

fn serve(mut pipe: File, wanted: &AtomicBool) {
    let (mut timers, mut unread, mut bytes) = (Table::default(), Vec::new(), [0; LONGEST]);
    while wanted.load(Ordering::SeqCst) {
        let time = Timespec::try_from(LOOK).ok();
        let _ = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], time.as_ref());
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            unread.extend_from_slice(&bytes[..count]);
        }
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            match serde_json::from_slice::<Request>(&line) {
                Ok(request) => timers.take(request),
                Err(error) => tracing::warn!("a worker set a timer that can't be read: {error}"),
            }
        }
        if unread.len() > LONGEST {
            unread.clear();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        timers.expired(now).iter().for_each(end);
    }
}

/// Only what comes of our workers is ended, whatever number was written into the pipe.
fn end(request: &Request) {
    let Some(signal) = Signal::from_named_raw(request.signal) else { return };
    let all = descendants(getpid());
    if let Some(process) = all.iter().find(|process| process.pid.as_raw_nonzero().get() == request.pid) {
        tracing::error!(
            "the timer {:?} of process {} has expired; it gets signal {}",
            request.scope_id,
            request.pid,
            request.signal
        );
        send(process, signal);
    }
}

/// The timers that run.
#[derive(Default)]
struct Table(BTreeMap<(i32, String), Request>);

impl Table {
    fn take(&mut self, request: Request) {
        let key = (request.pid, request.scope_id.clone());
        match request.expiration_time < 0.0 {
            true => drop(self.0.remove(&key)),
            false => drop(self.0.insert(key, request)),
        }
    }

    /// For each process whose time is up, the first of its timers that has a signal; all of its timers are over.
    fn expired(&mut self, now: f64) -> Vec<Request> {
        let mut due: Vec<Request> =
            self.0.values().filter(|request| request.expiration_time <= now).cloned().collect();
        due.sort_by(|one, other| one.expiration_time.total_cmp(&other.expiration_time));
        let pids: Vec<i32> = due.iter().map(|request| request.pid).collect();
        self.0.retain(|(pid, _), _| !pids.contains(pid));
        let mut told = Vec::new();
        due.retain(|request| {
            let first = request.signal > 0 && !told.contains(&request.pid);
            if first {
                told.push(request.pid);
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
    fn who_does_not_release_its_timer_in_time_is_due_once() {
        let mut table = Table::default();
        table.take(request(1, "a", 10.0, 9));
        table.take(request(1, "b", 5.0, 15));
        table.take(request(2, "a", 5.0, 9));
        table.take(request(2, "a", -1.0, 0));
        table.take(request(3, "a", 5.0, 0));
        assert_eq!(table.expired(4.0), []);
        assert_eq!(table.expired(20.0), [request(1, "b", 5.0, 15)]);
        assert_eq!(table.expired(20.0), []);
    }

    #[test]
    fn a_worker_whose_time_is_up_is_ended_and_nobody_else() {
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
