//! A sign of life on the terminal for what takes longer than a second. Scripts and logs see nothing of it.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::live_line;

/// Shows what is being waited for, from the first second on until it is dropped.
pub(crate) struct Waiting(Option<(Sender<String>, JoinHandle<()>)>);

/// How long a wait lasts before it is shown.
const SHOW_GRACE: Duration = Duration::from_secs(1);
/// How often the live line is drawn.
const TICK_INTERVAL: Duration = Duration::from_millis(100);

impl Waiting {
    pub(crate) fn show(what: String) -> Waiting {
        if !std::io::stderr().is_terminal() {
            return Waiting(None);
        }
        let mut what = crate::output::shown(what.as_bytes(), &[]);
        let (updates, updated) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (start, mut pause) = (Instant::now(), SHOW_GRACE);
            loop {
                match updated.recv_timeout(pause) {
                    Ok(update) => what = update,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                pause = SHOW_GRACE.saturating_sub(start.elapsed());
                if pause.is_zero() {
                    pause = TICK_INTERVAL;
                    live_line::show(format!("{what} ({}s)", start.elapsed().as_secs()), None);
                }
            }
            live_line::clear();
        });
        Waiting(Some((updates, thread)))
    }

    /// Whether there is a terminal to show the wait on.
    pub(crate) fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    /// Replaces the text that is shown.
    pub(crate) fn update(&self, what: String) {
        if let Some((updates, _)) = &self.0 {
            // The thread ends only after the sender is dropped.
            let _ = updates.send(crate::output::shown(what.as_bytes(), &[]));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((updates, thread)) = self.0.take() {
            drop(updates);
            let _ = thread.join();
        }
    }
}
