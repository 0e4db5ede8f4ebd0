//! When a call must return, and pauses between attempts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ends calls before their deadline.
pub trait Cancellation: fmt::Debug + Send + Sync {
    /// Whether calls must end now. It may be called with locks held, and often.
    fn is_cancelled(&self) -> bool;

    /// Called by a thread that waits, without locks, after each interrupted system call and every
    /// [`Deadline::CANCELLATION_INTERVAL`]. Signal handlers can run here.
    fn on_wait(&self) {}
}

impl Cancellation for AtomicBool {
    fn is_cancelled(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// The end of one call's time.
#[derive(Debug, Clone)]
pub struct Deadline {
    start: Duration,
    at: Option<Duration>,
    cancellation: Option<Arc<dyn Cancellation>>,
}

impl Deadline {
    /// How often a call that can be cancelled checks for it while it waits.
    pub const CANCELLATION_INTERVAL: Duration = Duration::from_millis(50);

    /// A deadline `timeout` after `now`; `None` for never.
    pub fn after(now: Duration, timeout: Option<Duration>) -> Deadline {
        // A timeout beyond what the clock can count is never, too.
        let at = timeout.and_then(|timeout| now.checked_add(timeout));
        Deadline { start: now, at, cancellation: None }
    }

    /// The same deadline, which passes early when `cancellation` says so.
    pub fn or_cancelled(self, cancellation: Option<Arc<dyn Cancellation>>) -> Deadline {
        Deadline { cancellation, ..self }
    }

    /// A later deadline for what must be asked or cancelled after this one has passed: within 5 % of a long timeout and
    /// within 100 ms of a short one. At least 30 ms from `now`, in case the process did not get to run in time.
    pub fn grace(&self, now: Duration) -> Deadline {
        let at = self.at.map(|at| {
            let timeout = at.saturating_sub(self.start);
            let grace = (timeout / 25).clamp(Duration::from_millis(60), Duration::from_secs(2));
            at.saturating_add(grace).max(now.saturating_add(Duration::from_millis(30)))
        });
        Deadline { at, ..self.clone() }
    }

    /// This deadline, or `max` after `now` if that is earlier.
    pub fn or_after(&self, now: Duration, max: Duration) -> Deadline {
        let limit = now.saturating_add(max);
        Deadline { at: Some(self.at.map_or(limit, |at| at.min(limit))), ..self.clone() }
    }

    /// What is left: `None` for without end, zero if the deadline has passed or was cancelled.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        if self.cancellation.as_ref().is_some_and(|cancellation| cancellation.is_cancelled()) {
            return Some(Duration::ZERO);
        }
        self.at.map(|at| at.saturating_sub(now))
    }

    /// How long to wait at most before [`Deadline::on_wait`] must be called.
    pub fn slice(&self, now: Duration) -> Option<Duration> {
        match (self.left(now), &self.cancellation) {
            (left, None) => left,
            (left, Some(_)) => {
                Some(left.map_or(Self::CANCELLATION_INTERVAL, |left| left.min(Self::CANCELLATION_INTERVAL)))
            }
        }
    }

    /// Lets the cancellation run what it has to run. No lock may be held that a signal handler could want.
    pub fn on_wait(&self) {
        if let Some(cancellation) = &self.cancellation {
            cancellation.on_wait();
        }
    }

    /// Whether the deadline has passed or was cancelled.
    pub fn has_passed(&self, now: Duration) -> bool {
        self.left(now) == Some(Duration::ZERO)
    }

    /// How long the call has taken so far.
    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.start)
    }
}

/// Pauses that grow from attempt to attempt. Each is between half and all of its length, so that clients that failed
/// together don't come back together.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Pauses from `first` to `max`.
    pub fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { next: first, max }
    }

    /// The next pause.
    pub fn pause(&mut self, random: u32) -> Duration {
        let interval = self.next;
        self.next = (interval * 2).min(self.max);
        interval / 2 + interval * (random % 1024) / 2048
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    #[test]
    fn a_timeout_beyond_the_range_of_the_clock_never_passes() {
        for timeout in [None, Some(Duration::MAX)] {
            let deadline = Deadline::after(NOW, timeout);
            assert_eq!((deadline.left(NOW), deadline.grace(NOW).left(NOW)), (None, None));
        }
        assert!(Deadline::after(NOW, Some(Duration::ZERO)).has_passed(NOW));
    }

    #[test]
    fn the_grace_ends_within_5_percent_or_100_ms_of_the_timeout() {
        for millis in [0, 1, 1_000, 10_000, 300_000] {
            let timeout = Duration::from_millis(millis);
            let end = NOW + timeout;
            let late = end + Duration::from_millis(60);
            let deadline = Deadline::after(NOW, Some(timeout));
            for now in [NOW, end, late] {
                let grace = deadline.grace(now).left(end).unwrap();
                assert!(grace >= Duration::from_millis(60), "{grace:?}");
                assert!(grace <= (timeout / 20).max(Duration::from_millis(100)), "{grace:?} of {timeout:?}");
            }
        }
    }

    #[test]
    fn a_cancelled_deadline_has_passed_and_so_has_its_grace() {
        let flag = Arc::new(AtomicBool::new(false));
        let deadline = Deadline::after(NOW, None).or_cancelled(Some(flag.clone()));
        assert_eq!((deadline.left(NOW), deadline.slice(NOW)), (None, Some(Deadline::CANCELLATION_INTERVAL)));
        flag.store(true, Ordering::Relaxed);
        assert!(deadline.has_passed(NOW) && deadline.grace(NOW).has_passed(NOW));
    }

    #[test]
    fn pauses_double_up_to_the_maximum_and_are_at_least_half_as_long() {
        for random in [0, 511, u32::MAX] {
            let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
            for millis in [10, 20, 40, 40, 40] {
                let (pause, interval) = (backoff.pause(random), Duration::from_millis(millis));
                assert!(pause >= interval / 2 && pause <= interval, "{pause:?} of {interval:?}");
            }
        }
    }
}
