//! Calls that may block. They run without the interpreter's lock, on the thread that makes them.
//!
//! Python runs signal handlers on the main thread only. So while a call of that thread waits, the wait is interrupted 20 times
//! per second to run the handlers of pending signals and to forward log lines. When a handler raises (Ctrl-C), everything
//! the call waits for ends, and the call raises that exception.

use std::cell::{Cell, RefCell};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rallypoint_store::{Result, interruptible};

use crate::error::to_python;
use crate::logging;

thread_local! {
    /// The exception that ends the call under way.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// A process, and whether this is its main thread: a fork makes the thread that forks the main thread of the child.
    static MAIN: Cell<(u32, bool)> = const { Cell::new((u32::MAX, false)) };
}

/// Runs a store's call without the interpreter's lock.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    detached(py, call)?.map_err(|error| to_python(py, error))
}

/// Runs `call` without the interpreter's lock. Fails with the exception that a signal handler raises meanwhile.
pub(crate) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread() {
        return Ok(py.detach(call));
    }
    // A signal handler, or a store written in Python, may call a store while this thread is in a call.
    let outer = RAISED.take();
    let outcome = py.detach(|| interruptible(is_interrupted, call));
    RAISED.replace(outer).map_or(Ok(outcome), Err)
}

/// Forwards log lines and runs the handlers of pending signals. Returns whether the call under way must end.
fn is_interrupted() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    let check = |py: Python<'_>| logging::forward(py).and_then(|()| py.check_signals());
    // Without an interpreter there are no handlers.
    let Some(Err(raised)) = Python::try_attach(check) else { return false };
    RAISED.set(Some(raised));
    true
}

/// Ends the call under way if `error`, which Python code below it raised, is no ordinary exception but Ctrl-C or the like:
/// the Rust code between must not take it for a failure of a store.
pub(crate) fn end_if_fatal(py: Python<'_>, error: &PyErr) {
    if is_main_thread() && !error.is_instance_of::<PyException>(py) {
        RAISED.set(Some(error.clone_ref(py)));
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
