//! Calls that may block: made without the interpreter's lock, and given up when a signal handler raises (Ctrl-C).
//!
//! Only the main thread runs signal handlers, so only there is a call looked up from.

use std::cell::{Cell, RefCell};

use pyo3::prelude::*;
use rallypoint_store::{Result, interruptible};

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
    let outer = RAISED.take();
    let outcome = py.detach(|| interruptible(should_stop, call));
    match RAISED.replace(outer) {
        Some(raised) => Err(raised),
        None => Ok(outcome),
    }
}

thread_local! {
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
