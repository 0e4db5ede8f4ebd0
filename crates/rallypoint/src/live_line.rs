//! The live line of a terminal: a spinner and the reason why the command waits. A process has at most one. It is
//! cleared before the process ends, also by Ctrl-C, and is not drawn again by a thread that still waits.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

static LINE: Mutex<Line> = Mutex::new(Line { bar: None, is_over: false });

struct Line {
    /// The line that is on the terminal.
    bar: Option<ProgressBar>,
    /// Whether the line was cleared for good.
    is_over: bool,
}

/// Shows a message on the live line, with details on the lines below it. A narrow terminal cuts the end of the line.
pub(crate) fn show(message: String, details: Option<String>) {
    let mut line = lock();
    if line.is_over {
        return;
    }
    let bar = line.bar.get_or_insert_with(ProgressBar::new_spinner);
    let template = if details.is_some() { "{spinner} {wide_msg}\n{prefix}" } else { "{spinner} {wide_msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(details.unwrap_or_default());
    bar.set_message(message);
    bar.tick();
}

/// A writer to standard error that writes above the live line and draws the line again.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let write = || io::stderr().write(text);
        // The lock is not held during the write, which may block.
        let bar = lock().bar.clone();
        match bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Clears the line until the next [`show`].
pub(crate) fn clear() {
    lock().clear();
}

/// Clears the line for good, because the process ends.
pub(crate) fn end() {
    let mut line = lock();
    line.clear();
    line.is_over = true;
}

/// Clears the line when Ctrl-C ends this process. For commands that don't handle SIGINT.
pub(crate) fn clear_on_interrupt() {
    if rallypoint_agent::is_ignored(SIGINT) {
        return;
    }
    // If the handler can't be installed, the line stays on the terminal.
    let Ok(mut signals) = Signals::new([SIGINT]) else { return };
    std::thread::spawn(move || {
        signals.forever().for_each(|signal| {
            end();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        });
    });
}

impl Line {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn lock() -> MutexGuard<'static, Line> {
    LINE.lock().unwrap_or_else(PoisonError::into_inner)
}
