//! Calls that may block. They run without the interpreter's lock, on the thread that makes them.
//!
//! Python runs signal handlers on the main thread only. So while a call of that thread waits, the wait is interrupted 20 times
//! per second to run the handlers of pending signals and to forward log lines. When a handler raises (Ctrl-C), everything
//! the call waits for ends, and the call raises that exception.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rallypoint_store::{Cancellation, Result};

use crate::error::to_python;
use crate::logging;

thread_local! {
    /// Whether this is the main thread, in a call.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
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
    let was_watched = IS_WATCHED.replace(true);
    let outcome = py.detach(call);
    IS_WATCHED.set(was_watched);
    RAISED.replace(outer).map_or(Ok(outcome), Err)
}

/// Ends what the call under way on this thread waits for. Every store and rendezvous that Python has carries it.
#[derive(Debug)]
struct Signals;

impl Cancellation for Signals {
    fn is_cancelled(&self) -> bool {
        IS_WATCHED.get() && RAISED.with_borrow(Option::is_some)
    }

    /// Forwards log lines and runs the handlers of pending signals.
    fn on_wait(&self) {
        if !IS_WATCHED.get() || self.is_cancelled() {
            return;
        }
        let check = |py: Python<'_>| logging::forward(py).and_then(|()| py.check_signals());
        // Without an interpreter there are no handlers.
        if let Some(Err(raised)) = Python::try_attach(check) {
            RAISED.set(Some(raised));
        }
    }
}

/// What a store needs so that its calls end when a signal handler raises.
pub(crate) fn signals() -> Option<Arc<dyn Cancellation>> {
    Some(Arc::new(Signals))
}

/// Sleeps for `duration`, or until a signal handler raises; whether none did.
pub(crate) fn sleep(duration: Duration) -> bool {
    rallypoint_store::sleep(duration, signals().as_ref())
}

/// Ends the call under way if `error`, which Python code below it raised, is no ordinary exception but Ctrl-C or the like:
/// the Rust code between must not take it for a failure of a store.
pub(crate) fn end_if_fatal(py: Python<'_>, error: &PyErr) {
    if IS_WATCHED.get() && !error.is_instance_of::<PyException>(py) {
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
