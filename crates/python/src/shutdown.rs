//! The end of the interpreter, as seen by other threads than the main one. A thread that waits for the interpreter then is
//! ended by it in the midst of Rust, which aborts the process. So calls into Python are counted; at the end those under way
//! are waited for, and no other begins.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::calls::is_main_thread;

/// The program is about to end.
static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// Calls into Python under way, of threads that are not the main one.
static CALLS_IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// How long the end waits for them.
const CALLS_GRACE: Duration = Duration::from_millis(500);

/// Has the interpreter say when it ends, from now on.
pub(crate) fn register_exit_hook(py: Python<'_>) -> PyResult<()> {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(on_exit, py)?,)).map(drop)
}

/// Called by the interpreter before it ends.
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

/// Runs `body` with the interpreter; `None` if that is about to end, and this is not its main thread.
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
