//! A sign of life on the terminal for what takes longer than a second. Scripts and logs see nothing of it.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::live_line;

/// Shows what is being waited for, from the first second on until it is dropped.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    pub(crate) fn show(what: String) -> Waiting {
        if !std::io::stderr().is_terminal() {
            return Waiting(None);
        }
        let (what, start) = (crate::output::shown(what.as_bytes(), &[]), Instant::now());
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut pause = Duration::from_secs(1);
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                live_line::show(format!("{what} ({}s)", start.elapsed().as_secs()), false);
                pause = Duration::from_millis(100);
            }
            live_line::clear();
        });
        Waiting(Some((end, thread)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}
