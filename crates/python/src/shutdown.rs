//! The end of the interpreter, as seen by other threads than the main one. A thread that waits for the interpreter then is
//! ended by it in the midst of Rust, which aborts the process. So calls into Python are counted; at the end those under way
//! are waited for, and no other begins.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::calls::is_main_thread;

/// The program is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);
/// Calls into Python under way, of threads that are not the main one.
static ABROAD: AtomicUsize = AtomicUsize::new(0);

/// How long the end waits for them.
const PATIENCE: Duration = Duration::from_millis(500);

/// Has the interpreter say when it ends, from now on.
pub(crate) fn watch_end(py: Python<'_>) -> PyResult<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(end, py)?,)).map(drop)
}

/// Called by the interpreter before it ends.
#[pyfunction]
fn end(py: Python<'_>) {
    ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        let since = Instant::now();
        while ABROAD.load(Ordering::SeqCst) > 0 && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Runs `body` with the interpreter; `None` if that is about to end, and this is not its main thread.
pub(crate) fn attached<T>(body: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            ABROAD.fetch_sub(1, Ordering::SeqCst);
        }
    }
    if is_main_thread() {
        return Python::try_attach(body);
    }
    ABROAD.fetch_add(1, Ordering::SeqCst);
    let _counted = Counted;
    if ENDING.load(Ordering::SeqCst) { None } else { Python::try_attach(body) }
}
