//! What may end a workload before it is done: its deadline, or somebody who presses Ctrl-C. It also shows how far it is.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::BenchError;

/// How often it looks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Ends a workload in time.
#[derive(Debug)]
pub(crate) struct Monitor {
    name: String,
    timeout: Duration,
    started: Instant,
    last_check: Instant,
    interrupted: Arc<AtomicBool>,
    bar: ProgressBar,
}

/// How far something has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) unit: &'static str,
}

impl Monitor {
    /// Starts the clock of a workload. The bar is for terminals only.
    pub(crate) fn start(name: String, timeout: Duration, interrupted: Arc<AtomicBool>) -> Monitor {
        let now = Instant::now();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{prefix:<24} {bar:32} {pos}/{len} {msg}");
        bar.set_style(style.expect("the template is a constant, and right"));
        bar.set_prefix(name.clone());
        Monitor { name, timeout, started: now, last_check: now, interrupted, bar }
    }

    /// How long to wait for sockets before the next look.
    pub(crate) fn poll_timeout(&self) -> Duration {
        CHECK_INTERVAL.min(self.remaining())
    }

    /// Time left.
    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// Whether it may go on. `done` is asked for only now and then.
    pub(crate) fn check(&mut self, done: impl FnOnce() -> Progress) -> Result<(), BenchError> {
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
        let Progress { done, total, unit } = done();
        if now.duration_since(self.started) >= self.timeout {
            let during = self.name.clone();
            return Err(BenchError::TimedOut { during, waited: self.timeout, done, total, unit });
        }
        self.bar.set_length(total);
        self.bar.set_position(done.min(total));
        self.bar.set_message(unit);
        Ok(())
    }

    /// The name of what is watched.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
