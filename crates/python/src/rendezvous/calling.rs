//! Calls that wait: on a thread of their own, while the main thread, which called, looks for signals. So Ctrl-C ends them in
//! time whatever they wait for, a store that is away or a backend written in Python among it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::telling::tell;
use crate::blocking::is_main_thread;

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

/// Runs `work` without holding the interpreter. A signal whose handler raises makes `stop` be called, and is raised.
pub(super) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    stop: impl FnOnce(),
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
    let worker_phase = Arc::clone(&phase);
    let started = std::thread::Builder::new().name("rdzv-call".into()).spawn(move || {
        // A panic is told by nothing being sent.
        if let Ok(value) = catch_unwind(AssertUnwindSafe(work)) {
            let _ = sender.send(value);
        }
        if worker_phase.swap(DONE, Ordering::SeqCst) == LEFT_BEHIND {
            count(-1);
        }
    });
    started.map_err(|error| PyRuntimeError::new_err(format!("a thread could not be started: {error}")))?;
    loop {
        match py.detach(|| receive(&receiver, LOOK)) {
            Ok(value) => return tell(py).map(|()| value),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("rallypoint: the call failed by a defect of its own"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(raised) = tell(py).and_then(|()| py.check_signals()) {
            stop();
            // It has been told to stop, so whatever comes of it is not what was asked for.
            let _ = py.detach(|| receive(&receiver, PATIENCE));
            count(1);
            if phase.swap(LEFT_BEHIND, Ordering::SeqCst) == DONE {
                count(-1);
            }
            return Err(raised);
        }
    }
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
