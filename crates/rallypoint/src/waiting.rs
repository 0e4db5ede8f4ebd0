//! A sign of life on the terminal for what takes longer than a second. Scripts and logs see nothing of it.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows what is being waited for, from the first second on until it is dropped.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    pub(crate) fn show(what: String) -> Waiting {
        if !std::io::stderr().is_terminal() {
            return Waiting(None);
        }
        let what = crate::output::shown(what.as_bytes(), &[]);
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
            let bar = ProgressBar::new_spinner().with_elapsed(Duration::from_secs(1)).with_message(what);
            if let Ok(style) = style {
                bar.set_style(style);
            }
            while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                bar.tick();
            }
            bar.finish_and_clear();
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
