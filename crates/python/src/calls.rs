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
    static RUNS_HANDLERS: Cell<bool> = const { Cell::new(false) };
    /// The exception that ends the call under way.
    static PENDING_EXCEPTION: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// A process, and whether this is its main thread: a fork makes the thread that forks the main thread of the child.
    static MAIN_THREAD: Cell<(u32, bool)> = const { Cell::new((u32::MAX, false)) };
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
    let outer_exception = PENDING_EXCEPTION.take();
    let outer_runs_handlers = RUNS_HANDLERS.replace(true);
    let outcome = py.detach(call);
    RUNS_HANDLERS.set(outer_runs_handlers);
    PENDING_EXCEPTION.replace(outer_exception).map_or(Ok(outcome), Err)
}

/// Ends what the call under way on this thread waits for. Every store and rendezvous that Python has carries it.
#[derive(Debug)]
struct SignalCancellation;

impl Cancellation for SignalCancellation {
    fn is_cancelled(&self) -> bool {
        RUNS_HANDLERS.get() && PENDING_EXCEPTION.with_borrow(Option::is_some)
    }

    /// Forwards log lines and runs the handlers of pending signals.
    fn on_wait(&self) {
        if !RUNS_HANDLERS.get() || self.is_cancelled() {
            return;
        }
        let check = |py: Python<'_>| logging::forward(py).and_then(|()| py.check_signals());
        // Without an interpreter there are no handlers.
        if let Some(Err(exception)) = Python::try_attach(check) {
            PENDING_EXCEPTION.set(Some(exception));
        }
    }
}

/// What a store needs so that its calls end when a signal handler raises.
pub(crate) fn signal_cancellation() -> Option<Arc<dyn Cancellation>> {
    Some(Arc::new(SignalCancellation))
}

/// Sleeps for `duration`, or until a signal handler raises; whether none did.
pub(crate) fn sleep(duration: Duration) -> bool {
    rallypoint_store::sleep(duration, signal_cancellation().as_ref())
}

/// Ends the call under way if `error`, which Python code below it raised, is no ordinary exception but Ctrl-C or the like:
/// the Rust code between must not take it for a failure of a store.
pub(crate) fn cancel_if_fatal(py: Python<'_>, error: &PyErr) {
    if RUNS_HANDLERS.get() && !error.is_instance_of::<PyException>(py) {
        PENDING_EXCEPTION.set(Some(error.clone_ref(py)));
    }
}

/// Whether this is the thread that signal handlers run on.
pub(crate) fn is_main_thread() -> bool {
    let process = crate::process::current();
    let (cached, is_main) = MAIN_THREAD.get();
    if cached == process {
        return is_main;
    }
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    MAIN_THREAD.set((process, is_main));
    is_main
}
