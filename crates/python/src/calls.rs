//! Calls that may block: made without the interpreter's lock, and given up when a signal handler raises (Ctrl-C).
//!
//! Only the main thread runs signal handlers, so only there is a call looked up from.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pyo3::prelude::*;
use rallypoint_store::{Cancellation, Result};

use crate::error::to_python;

/// Runs a store's call without the interpreter's lock.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    detached(py, call)?.map_err(|error| to_python(py, error))
}

/// Runs anything without the interpreter's lock. What stores it uses end at once when a signal handler raises; then
/// that exception is what came of it.
pub(crate) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread() {
        return Ok(py.detach(call));
    }
    detached_watching(py, is_signalled, call)
}

/// As [`detached`], on any thread. `should_stop` is called 20 times per second while a store waits. It ends the call by
/// returning `true`, and raises an exception with [`raises`].
pub(crate) fn detached_watching<T: Send>(
    py: Python<'_>,
    should_stop: fn() -> bool,
    call: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let outer = (RAISED.take(), WATCH.replace(Watch { should_stop: Some(should_stop), is_stopped: false }));
    let outcome = py.detach(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)));
    WATCH.set(outer.1);
    let raised = RAISED.replace(outer.0);
    let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match raised {
        Some(raised) => Err(raised),
        None => Ok(outcome),
    }
}

/// Ends the calls of every store that Python has, when the call of [`detached_watching`] on this thread must stop.
#[derive(Debug)]
struct Signals;

impl Cancellation for Signals {
    fn is_cancelled(&self) -> bool {
        WATCH.get().is_stopped
    }

    fn on_wait(&self) {
        let watch = WATCH.get();
        if let Some(should_stop) = watch.should_stop
            && !watch.is_stopped
            && should_stop()
        {
            WATCH.set(Watch { is_stopped: true, ..watch });
        }
    }
}

/// What a store needs so that its calls end when a signal handler raises.
pub(crate) fn signals() -> Option<Arc<dyn Cancellation>> {
    Some(Arc::new(Signals))
}

#[derive(Clone, Copy)]
struct Watch {
    should_stop: Option<fn() -> bool>,
    /// `should_stop` has returned `true`. It is not called again, because a signal is told only once.
    is_stopped: bool,
}

thread_local! {
    /// The call under way on this thread.
    static WATCH: Cell<Watch> = const { Cell::new(Watch { should_stop: None, is_stopped: false }) };
    /// What a signal handler raised while this thread was in a call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// A process, and whether this is its main thread: a fork makes one of the thread that forks.
    static MAIN: Cell<(u32, bool)> = const { Cell::new((u32::MAX, false)) };
}

/// Runs the handlers of signals that have come. Whether one raised.
pub(crate) fn is_signalled() -> bool {
    raises(|py| py.check_signals())
}

/// Runs `body` with the interpreter. If `body` raises, returns `true` and keeps the exception for the call under way.
pub(crate) fn raises(body: impl FnOnce(Python<'_>) -> PyResult<()>) -> bool {
    // No interpreter any more: nobody to raise, and nobody to raise to.
    let Some(outcome) = Python::try_attach(body) else { return false };
    match outcome {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    }
}

/// Whether this is the thread that signal handlers run on.
pub(crate) fn is_main_thread() -> bool {
    let process = crate::process::current();
    let (known, is_main) = MAIN.get();
    if known == process {
        return is_main;
    }
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    MAIN.set((process, is_main));
    is_main
}
