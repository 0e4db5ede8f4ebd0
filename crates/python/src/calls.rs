//! Runs calls that may block. They run without the GIL, on the thread that makes them.
//!
//! Python runs signal handlers on the main thread only. While a call of that thread waits, the wait is therefore
//! interrupted every 50 ms to run the handlers of pending signals and to forward log lines. When a handler raises an
//! exception (Ctrl-C), all waits of the call are canceled, and the call raises that exception.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rallypoint_store::{Cancellation, Result};

use crate::error::to_python;
use crate::logging;

thread_local! {
    /// Whether this thread is the main thread and is in a call. If so, its waits run signal handlers.
    static RUNS_HANDLERS: Cell<bool> = const { Cell::new(false) };
    /// The exception that cancels the current call.
    static PENDING_EXCEPTION: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The number of a process (see `process::current`), and whether this thread is the main thread of that process.
    /// The thread that forks becomes the main thread of the child, so the answer is cached per process.
    static MAIN_THREAD: Cell<(u32, bool)> = const { Cell::new((u32::MAX, false)) };
}

/// Runs a call of a store without the GIL, and turns its error into an exception.
pub(crate) fn run<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    detached(py, call)?.map_err(|error| to_python(py, error))
}

/// Runs `call` without the GIL.
///
/// Fails with the exception that a signal handler raises during the call.
pub(crate) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if !is_main_thread() {
        return Ok(py.detach(call));
    }
    // Calls can be nested: a signal handler, or a store written in Python, may call a store during a call of this
    // thread.
    let outer_exception = PENDING_EXCEPTION.take();
    let outer_runs_handlers = RUNS_HANDLERS.replace(true);
    let outcome = py.detach(call);
    RUNS_HANDLERS.set(outer_runs_handlers);
    PENDING_EXCEPTION.replace(outer_exception).map_or(Ok(outcome), Err)
}

/// Cancels the waits of this thread's current call once a signal handler has raised an exception.
///
/// Every store and rendezvous handler that is created from Python has one.
#[derive(Debug)]
struct SignalCancellation;

impl Cancellation for SignalCancellation {
    fn is_canceled(&self) -> bool {
        RUNS_HANDLERS.get() && PENDING_EXCEPTION.with_borrow(Option::is_some)
    }

    /// Forwards log lines and runs the handlers of pending signals.
    fn on_wait(&self) {
        if !RUNS_HANDLERS.get() || self.is_canceled() {
            return;
        }
        let check = |py: Python<'_>| logging::forward(py).and_then(|()| py.check_signals());
        // `try_attach` returns `None` if the interpreter is finalized. Then there are no handlers to run.
        if let Some(Err(exception)) = Python::try_attach(check) {
            PENDING_EXCEPTION.set(Some(exception));
        }
    }
}

/// Returns the cancellation for stores whose calls end when a signal handler raises an exception.
pub(crate) fn signal_cancellation() -> Option<Arc<dyn Cancellation>> {
    Some(Arc::new(SignalCancellation))
}

/// Sleeps for `duration`, or until a signal handler raises an exception. Returns false in the latter case.
pub(crate) fn sleep(duration: Duration) -> bool {
    rallypoint_store::sleep(duration, signal_cancellation().as_ref())
}

/// Cancels the current call if `error` does not derive from `Exception`. That holds for `KeyboardInterrupt` and
/// `SystemExit`.
///
/// `error` comes from Python code that the call runs, such as a store written in Python. Without this function, the
/// Rust code in between would treat it as a failure of that store.
pub(crate) fn cancel_if_fatal(py: Python<'_>, error: &PyErr) {
    if RUNS_HANDLERS.get() && !error.is_instance_of::<PyException>(py) {
        PENDING_EXCEPTION.set(Some(error.clone_ref(py)));
    }
}

/// Returns whether this is the main thread, on which Python runs signal handlers.
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
