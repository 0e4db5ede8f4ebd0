//! Forwards log lines of the Rust crates to Python's logger `rallypoint`.
//!
//! Lines are buffered until a call from Python forwards them. The threads that log must never wait for the GIL, because
//! the thread that has the GIL may be waiting for them.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A level, as the number that Python's `logging` uses, and a message.
type Line = (u8, String);

static PENDING_LINES: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());

/// The lines that are not forwarded yet, locked.
pub(crate) type PendingLines = MutexGuard<'static, VecDeque<Line>>;

/// Locks the lines that are not forwarded yet.
///
/// A thread takes this lock before it forks. Otherwise another thread of the parent could hold it at that moment, and
/// it would stay locked in the child for good.
pub(crate) fn lock_pending_lines() -> PendingLines {
    PENDING_LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The maximum number of lines in the buffer. Beyond it, the oldest line is dropped.
const MAX_PENDING_LINES: usize = 256;

/// Starts to buffer log lines. Later calls do nothing.
pub(crate) fn start_capture(py: Python<'_>) -> PyResult<()> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // This cannot fail, because only this library uses its copy of `tracing`.
        let _ = tracing::subscriber::set_global_default(LineCollector);
    });
    // Import `logging` now and not when the first line is forwarded: the interpreter may lose the exception of a signal
    // that arrives during an import.
    py.import("logging").map(drop)
}

/// Passes the buffered lines to Python's `logging`.
///
/// Fails with an exception that `logging`, or a signal handler that runs meanwhile, raises.
pub(crate) fn forward(py: Python<'_>) -> PyResult<()> {
    let lines = std::mem::take(&mut *lock_pending_lines());
    if lines.is_empty() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("rallypoint",))?;
    // The line is an argument of the format "%s", so that `logging` does not interpret percent signs in it.
    lines.into_iter().try_for_each(|(level, text)| logger.call_method1("log", (level, "%s", text)).map(drop))
}

/// Appends each event of our crates with level INFO or above to the buffer.
struct LineCollector;

impl Subscriber for LineCollector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("rallypoint")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut text = EventLine(String::new());
        event.record(&mut text);
        let mut pending_lines = lock_pending_lines();
        if pending_lines.len() == MAX_PENDING_LINES {
            pending_lines.pop_front();
        }
        pending_lines.push_back((level, text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Formats an event as one line.
struct EventLine(String);

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
