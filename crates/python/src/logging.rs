//! What the rendezvous logs, for Python's `logging`, under the name `rallypoint`.
//!
//! It is kept until a call of Python's is at hand and told then: the threads that log must never wait for the interpreter,
//! whose holder may be waiting for them.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Python's numbers for levels, and what was said.
type Line = (u8, String);

static PENDING_LINES: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());

/// What was logged and is not forwarded yet.
pub(crate) type PendingLines = MutexGuard<'static, VecDeque<Line>>;

/// Locks what is kept. A thread that forks holds this lock, so that no other thread of the parent holds it in the child.
pub(crate) fn lock_pending_lines() -> PendingLines {
    PENDING_LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// More than this are not kept; the oldest go first.
const MAX_PENDING_LINES: usize = 256;

/// Begins to keep what is logged.
pub(crate) fn start_capture(py: Python<'_>) -> PyResult<()> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // No other code can have set one: only this library uses its copy of `tracing`.
        let _ = tracing::subscriber::set_global_default(LineCollector);
    });
    // Now, not when the first line is told: the interpreter may lose the exception of a signal that comes during an import.
    py.import("logging").map(drop)
}

/// Forwards what was kept to Python's `logging`. Fails with the exception of a signal that came meanwhile.
pub(crate) fn forward(py: Python<'_>) -> PyResult<()> {
    let lines = std::mem::take(&mut *lock_pending_lines());
    if lines.is_empty() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("rallypoint",))?;
    // As it stands: a percent sign in it is no place for an argument.
    lines.into_iter().try_for_each(|(level, text)| logger.call_method1("log", (level, "%s", text)).map(drop))
}

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

/// An event as one line.
struct EventLine(String);

impl Visit for EventLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string can't fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
