//! The timeout, the interruption and the progress bar of a workload.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::BenchError;

/// The interval for checking whether the workload has timed out or was interrupted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Ends a workload at its timeout or when the user interrupts it.
#[derive(Debug)]
pub(crate) struct Monitor {
    name: String,
    timeout: Duration,
    started: Instant,
    last_check: Instant,
    interrupted: Arc<AtomicBool>,
    bar: ProgressBar,
}

/// The progress of a workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) unit: &'static str,
}

impl Monitor {
    /// Starts the timeout of a workload. The progress bar is shown only if stderr is a terminal.
    pub(crate) fn start(name: String, timeout: Duration, interrupted: Arc<AtomicBool>) -> Monitor {
        let now = Instant::now();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{prefix:<24} {bar:32} {pos}/{len} {msg}");
        bar.set_style(style.expect("the template is valid"));
        bar.set_prefix(name.clone());
        Monitor { name, timeout, started: now, last_check: now, interrupted, bar }
    }

    /// Returns the maximum time for which the next poll may block.
    pub(crate) fn poll_timeout(&self) -> Duration {
        CHECK_INTERVAL.min(self.remaining())
    }

    /// Returns the time until the timeout.
    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// Fails if the user has interrupted the workload or if it has timed out. Otherwise updates the progress bar. Does
    /// nothing if the last check was less than `CHECK_INTERVAL` ago and the workload has not timed out.
    pub(crate) fn check(&mut self, progress: impl FnOnce() -> Progress) -> Result<(), BenchError> {
        let now = Instant::now();
        if now.duration_since(self.last_check) < CHECK_INTERVAL
            && now.duration_since(self.started) < self.timeout
        {
            return Ok(());
        }
        self.last_check = now;
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted { leaves_keys: false });
        }
        let Progress { done, total, unit } = progress();
        if now.duration_since(self.started) >= self.timeout {
            let during = self.name.clone();
            return Err(BenchError::TimedOut { during, waited: self.timeout, done, total, unit });
        }
        self.bar.set_length(total);
        self.bar.set_position(done.min(total));
        self.bar.set_message(unit);
        Ok(())
    }

    /// Returns the name of the workload.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
