//! Calls into Python while the interpreter exits.
//!
//! If a thread waits for the GIL during finalization, the interpreter unwinds the thread in the middle of Rust code,
//! which aborts the process. So calls to stores written in Python are counted, except on the main thread. At exit, a
//! hook waits up to 500 ms for the calls in flight, and no further call starts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::calls::is_main_thread;

/// Whether the interpreter has begun to exit.
static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// The number of calls in flight to stores written in Python, on threads other than the main thread.
static CALLS_IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// How long the exit of the interpreter waits for the calls in flight.
const CALLS_GRACE: Duration = Duration::from_millis(500);

/// Registers `on_exit` with Python's `atexit`. Later calls do nothing.
pub(crate) fn register_exit_hook(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(on_exit, py)?,)).map(drop)
}

/// Waits for the calls in flight. The interpreter runs this before it finalizes.
#[pyfunction]
fn on_exit(py: Python<'_>) {
    IS_EXITING.store(true, Ordering::SeqCst);
    py.detach(|| {
        let start = Instant::now();
        while CALLS_IN_FLIGHT.load(Ordering::SeqCst) > 0 && start.elapsed() < CALLS_GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Runs `body` with the GIL. Returns `None` if the interpreter is exiting and this is not its main thread.
pub(crate) fn attach_unless_exiting<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    struct CallGuard;
    impl Drop for CallGuard {
        fn drop(&mut self) {
            CALLS_IN_FLIGHT.fetch_sub(1, Ordering::SeqCst);
        }
    }
    if is_main_thread() {
        return Python::try_attach(body);
    }
    CALLS_IN_FLIGHT.fetch_add(1, Ordering::SeqCst);
    let _guard = CallGuard;
    if IS_EXITING.load(Ordering::SeqCst) { None } else { Python::try_attach(body) }
}
