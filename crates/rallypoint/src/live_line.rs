//! The live line on a terminal: a spinner and the reason why the command waits. A process has at most one. The
//! process clears it before it exits, also after Ctrl-C. From then on, threads that still wait can't draw it again.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use rallypoint_store::ConnectionFault;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::output::escape_control;

static LINE: Mutex<Line> = Mutex::new(Line { bar: None, is_over: false });

struct Line {
    /// The line, while it is on the terminal.
    bar: Option<ProgressBar>,
    /// Whether the process is about to exit, so that the line must not be shown again.
    is_over: bool,
}

/// Shows a message on the live line, with details on the lines below it. If the terminal is narrow, the end of the
/// message is cut off.
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

/// Returns a fault and its hint, as details for [`show`].
pub(crate) fn fault_details(fault: &ConnectionFault) -> String {
    escape_control(format!("  {fault}\n  hint: {}", fault.hint()).as_bytes(), &['\n'])
}

/// A writer to standard error. It clears the live line, writes the text, and draws the line again below the text.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let write = || io::stderr().write(text);
        // The lock is released before the write, because the write may block.
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

/// Clears the line, and makes later calls of [`show`] do nothing. Call this before the process exits.
pub(crate) fn end() {
    let mut line = lock();
    line.clear();
    line.is_over = true;
}

/// Installs a handler for SIGINT that clears the line and then ends the process, as SIGINT does by default. Commands
/// that handle SIGINT themselves must not call this.
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
