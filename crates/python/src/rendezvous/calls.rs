//! Calls that wait: on a thread of their own, while the main thread, which called, looks for signals. So Ctrl-C ends them in
//! time whatever they wait for, a store that is away or a backend written in Python among it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::logging::tell;
use crate::calls::is_main_thread;

/// How often to look for signals.
const LOOK: Duration = Duration::from_millis(20);
/// How long a call that was told to stop may take to do so before it is left behind.
const PATIENCE: Duration = Duration::from_millis(40);

/// Calls that were left behind and go on, to leave a rendezvous in good order.
static LEFT: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// How far a call is.
const RUNNING: u8 = 0;
const DONE: u8 = 1;
const LEFT_BEHIND: u8 = 2;

/// Runs `work` without holding the interpreter. A signal whose handler raises makes `stop` be called, and is raised; what came of
/// the work nevertheless is given to `undo`.
pub(super) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    stop: impl FnOnce(),
    undo: impl FnOnce(T) + Clone + Send + 'static,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread() {
        let value = py.detach(work);
        return tell(py).map(|()| value);
    }
    let (sender, receiver) = channel();
    // Behind a lock only because what is used without the interpreter must be shareable.
    let receiver = Mutex::new(receiver);
    let phase = Arc::new(AtomicU8::new(RUNNING));
    let (worker_phase, worker_undo) = (Arc::clone(&phase), undo.clone());
    spawn(move || {
        // A panic is told by nothing being sent.
        let value = catch_unwind(AssertUnwindSafe(work));
        let is_wanted = turn_to(&worker_phase, DONE);
        match value {
            Ok(value) if is_wanted => drop(sender.send(value)),
            Ok(value) => worker_undo(value),
            Err(_) => {}
        }
        if !is_wanted {
            count(-1);
        }
    })?;
    loop {
        let received = py.detach(|| receive(&receiver, LOOK));
        if let Err(RecvTimeoutError::Disconnected) = received {
            return Err(PyRuntimeError::new_err("rallypoint: the call failed by a defect of its own"));
        }
        // Also when it is done: a signal that came meanwhile would be raised just after it otherwise, and nobody could undo it.
        let signalled = tell(py).and_then(|()| py.check_signals());
        let (raised, received) = match (signalled, received) {
            (Ok(()), Ok(value)) => return Ok(value),
            (Ok(()), Err(_)) => continue,
            (Err(raised), received) => (raised, received),
        };
        count(1);
        if turn_to(&phase, LEFT_BEHIND) {
            stop();
            // Nothing is sent any more; but if it ends in time, nothing is left behind either.
            let _ = py.detach(|| receive(&receiver, PATIENCE));
            return Err(raised);
        }
        // It is done. What came of it may still be on its way.
        let value = received.or_else(|_| py.detach(|| receive(&receiver, PATIENCE)));
        let undone = spawn(move || {
            value.map(undo).ok();
            count(-1);
        });
        if undone.is_err() {
            count(-1);
        }
        return Err(raised);
    }
}

/// Whether this is the first to say how it ends.
fn turn_to(phase: &AtomicU8, end: u8) -> bool {
    phase.compare_exchange(RUNNING, end, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

fn spawn(body: impl FnOnce() + Send + 'static) -> PyResult<()> {
    let started = std::thread::Builder::new().name("rdzv-call".into()).spawn(body);
    started
        .map(drop)
        .map_err(|error| PyRuntimeError::new_err(format!("a thread could not be started: {error}")))
}

fn receive<T>(receiver: &Mutex<std::sync::mpsc::Receiver<T>>, most: Duration) -> Result<T, RecvTimeoutError> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(most)
}

fn count(change: isize) {
    let mut left = LEFT.0.lock().unwrap_or_else(PoisonError::into_inner);
    *left = left.saturating_add_signed(change);
    LEFT.1.notify_all();
}

/// Waits until the calls that were interrupted have ended, at most so many seconds.
#[pyfunction]
pub(super) fn await_leaving(py: Python<'_>, seconds: f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 60.0));
    py.detach(|| {
        let mut left = LEFT.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *left > 0 {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            left = LEFT.1.wait_timeout(left, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    });
}

/// The process that made something, which is of no use in one that was forked from it: threads are not copied.
#[derive(Debug)]
pub(super) struct Maker(u32);

impl Maker {
    /// This process.
    pub(super) fn here() -> Maker {
        Maker(std::process::id())
    }

    /// Whether it is this process.
    pub(super) fn is_here(&self) -> bool {
        self.0 == std::process::id()
    }

    /// An error unless it is this process.
    pub(super) fn check(&self) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this rendezvous handler was made by process {}, from which process {} was forked; make another one here",
            self.0,
            std::process::id()
        )))
    }
}
