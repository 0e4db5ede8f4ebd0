//! Shows what a command waits for, if the wait takes longer than `SHOW_GRACE` and standard error is a terminal.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rallypoint_store::ConnectionFault;

use crate::live_line;

/// A live line that appears after `SHOW_GRACE` and is cleared when this value is dropped.
pub(crate) struct WaitIndicator(Option<(Sender<String>, JoinHandle<()>)>);

/// Time after which a wait is shown.
const SHOW_GRACE: Duration = Duration::from_secs(1);
/// Interval between two updates of the live line.
const TICK_INTERVAL: Duration = Duration::from_millis(100);

impl WaitIndicator {
    /// Starts to show `text`. Does nothing if standard error is not a terminal.
    pub(crate) fn show(text: String) -> WaitIndicator {
        if !std::io::stderr().is_terminal() {
            return WaitIndicator(None);
        }
        let text = crate::output::escape_control(text.as_bytes(), &[]);
        let (updates, updated) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (start, mut pause, mut details) = (Instant::now(), SHOW_GRACE, None);
            loop {
                match updated.recv_timeout(pause) {
                    Ok(update) => details = Some(update),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                pause = SHOW_GRACE.saturating_sub(start.elapsed());
                if pause.is_zero() {
                    pause = TICK_INTERVAL;
                    live_line::show(format!("{text} ({}s)", start.elapsed().as_secs()), details.clone());
                }
            }
            live_line::clear();
        });
        WaitIndicator(Some((updates, thread)))
    }

    /// Returns whether standard error is a terminal. If not, the live line never appears.
    pub(crate) fn is_on_terminal(&self) -> bool {
        self.0.is_some()
    }

    /// Shows a fault and its hint below the line.
    pub(crate) fn show_fault(&self, fault: &ConnectionFault) {
        if let Some((updates, _)) = &self.0 {
            // Sending can't fail, because the thread runs until the sender is dropped.
            let _ = updates.send(live_line::fault_details(fault));
        }
    }
}

impl Drop for WaitIndicator {
    fn drop(&mut self) {
        if let Some((updates, thread)) = self.0.take() {
            drop(updates);
            let _ = thread.join();
        }
    }
}
