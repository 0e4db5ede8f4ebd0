//! Meeting again: a node that was only waiting for others has lost nothing if the store goes with its host, so it starts
//! over at the store that comes up in its place. Who is in a round has something to lose, and is told.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{RendezvousError, RendezvousInfo, Result};

use super::{Node, create};

/// Between two tries where one fails at once.
const PAUSE: Duration = Duration::from_millis(500);

/// What is left of the times that were asked for.
pub(super) struct Hurry {
    /// Of the time to join, this once.
    pub(super) left: Duration,
    /// For each call to the store, as ever.
    pub(super) read_timeout: Duration,
}

impl Node {
    /// Joins, if need be at another store than the first, as long as there is time to.
    pub(super) fn join_in_the_end(&self) -> Result<RendezvousInfo> {
        let start = Instant::now();
        loop {
            let joined = self.handler().next_rendezvous();
            let was_forming = self.progress.end();
            match joined {
                Err(lost @ RendezvousError::Connection { .. }) if was_forming => {
                    self.meet_again(lost, start)?
                }
                other => return other,
            }
        }
    }

    /// Finds the store that has come in the place of the one that was lost, or hosts it.
    fn meet_again(&self, mut lost: RendezvousError, start: Instant) -> Result<()> {
        // There is nothing to leave in between: a signal ends it at once, also one that came just before.
        self.signals.set_handler(None);
        if self.signals.first() != 0 {
            return Err(RendezvousError::Interrupted { run_id: self.parameters.run_id.clone() });
        }
        tracing::warn!("{lost}; this node was only waiting for others, so it starts over");
        let limit = seconds(self.parameters.get_as_int("join_timeout")?, 600);
        let patience = seconds(self.parameters.get_as_int("read_timeout")?, 60);
        loop {
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(lost);
            }
            // For finding the store; once that is found, and in later rounds, its times are what was asked for.
            let mut parameters = self.parameters.clone();
            let time = i64::try_from(left.min(patience).as_secs()).unwrap_or(i64::MAX).max(1);
            parameters.config.insert("read_timeout".into(), time.into());
            let hurry = Hurry { left, read_timeout: patience };
            match create(&parameters, &self.progress, Some(hurry)) {
                Ok(handler) => {
                    self.signals.set_handler(Some(handler.clone()));
                    *self.handler.lock().unwrap_or_else(PoisonError::into_inner) = handler;
                    return Ok(());
                }
                Err(error @ RendezvousError::Connection { .. }) => {
                    lost = error;
                    std::thread::sleep(PAUSE.min(left));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn seconds(given: Option<i64>, default: u64) -> Duration {
    Duration::from_secs(given.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(default))
}
