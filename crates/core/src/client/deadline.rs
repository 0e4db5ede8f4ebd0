//! Deadlines of calls, and pauses between attempts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A signal that ends calls before their deadline.
pub trait Cancellation: fmt::Debug + Send + Sync {
    /// Returns whether calls must end now. Callers may hold locks and call it often, so it must be fast and must not
    /// block.
    fn is_canceled(&self) -> bool;

    /// Called while a thread waits: after each interrupted system call and every [`Deadline::CANCELLATION_INTERVAL`].
    ///
    /// The thread holds no locks, so an implementation may run signal handlers here.
    fn on_wait(&self) {}
}

impl Cancellation for AtomicBool {
    fn is_canceled(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// The time by which a call must return, and the means to cancel the call earlier.
#[derive(Debug, Clone)]
pub struct Deadline {
    start: Duration,
    at: Option<Duration>,
    cancellation: Option<Arc<dyn Cancellation>>,
}

impl Deadline {
    /// How often a waiting call checks whether it was canceled.
    pub const CANCELLATION_INTERVAL: Duration = Duration::from_millis(50);

    /// Returns a deadline `timeout` after `now`. With `None`, the deadline never passes.
    pub fn after(now: Duration, timeout: Option<Duration>) -> Deadline {
        // A timeout beyond the range of the clock never passes.
        let at = timeout.and_then(|timeout| now.checked_add(timeout));
        Deadline { start: now, at, cancellation: None }
    }

    /// Returns the same deadline, which also passes when `cancellation` is canceled.
    pub fn or_canceled(self, cancellation: Option<Arc<dyn Cancellation>>) -> Deadline {
        Deadline { cancellation, ..self }
    }

    /// Returns a later deadline for the last steps of a call, such as cancelling a wait.
    ///
    /// The grace is 4 % of the timeout, but at least 60 ms and at most 2 s. It ends at least 30 ms after `now`, in case
    /// the process was not scheduled in time.
    pub fn grace(&self, now: Duration) -> Deadline {
        let at = self.at.map(|at| {
            let timeout = at.saturating_sub(self.start);
            let grace = (timeout / 25).clamp(Duration::from_millis(60), Duration::from_secs(2));
            at.saturating_add(grace).max(now.saturating_add(Duration::from_millis(30)))
        });
        Deadline { at, ..self.clone() }
    }

    /// Returns the earlier of this deadline and the time `max` after `now`.
    pub fn or_after(&self, now: Duration, max: Duration) -> Deadline {
        let limit = now.saturating_add(max);
        Deadline { at: Some(self.at.map_or(limit, |at| at.min(limit))), ..self.clone() }
    }

    /// Returns the remaining time: `None` if the deadline never passes, zero if it has passed or was canceled.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        if self.cancellation.as_ref().is_some_and(|cancellation| cancellation.is_canceled()) {
            return Some(Duration::ZERO);
        }
        self.at.map(|at| at.saturating_sub(now))
    }

    /// Returns how long a thread may wait before it must call [`Deadline::on_wait`]. `None` means without limit.
    pub fn slice(&self, now: Duration) -> Option<Duration> {
        match (self.left(now), &self.cancellation) {
            (left, None) => left,
            (left, Some(_)) => {
                Some(left.map_or(Self::CANCELLATION_INTERVAL, |left| left.min(Self::CANCELLATION_INTERVAL)))
            }
        }
    }

    /// Calls [`Cancellation::on_wait`]. The caller must hold no lock that a signal handler could need.
    pub fn on_wait(&self) {
        if let Some(cancellation) = &self.cancellation {
            cancellation.on_wait();
        }
    }

    /// Returns whether the deadline has passed or was canceled.
    pub fn has_passed(&self, now: Duration) -> bool {
        self.left(now) == Some(Duration::ZERO)
    }

    /// Returns how long the call has taken so far.
    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.start)
    }
}

/// Exponential backoff with jitter.
///
/// Each pause lasts between half of its interval and the whole interval, so that clients that failed at the same time
/// do not retry at the same time.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Creates a backoff whose interval starts at `first` and doubles up to `max`.
    pub fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { next: first, max }
    }

    /// Returns the next pause. `random` selects its jitter.
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
    fn a_canceled_deadline_has_passed_and_so_has_its_grace() {
        let flag = Arc::new(AtomicBool::new(false));
        let deadline = Deadline::after(NOW, None).or_canceled(Some(flag.clone()));
        assert_eq!((deadline.left(NOW), deadline.slice(NOW)), (None, Some(Deadline::CANCELLATION_INTERVAL)));
        flag.store(true, Ordering::Relaxed);
        assert!(deadline.has_passed(NOW) && deadline.grace(NOW).has_passed(NOW));
    }

    #[test]
    fn the_interval_doubles_up_to_the_maximum_and_each_pause_is_at_least_half_of_it() {
        for random in [0, 511, u32::MAX] {
            let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
            for millis in [10, 20, 40, 40, 40] {
                let (pause, interval) = (backoff.pause(random), Duration::from_millis(millis));
                assert!(pause >= interval / 2 && pause <= interval, "{pause:?} of {interval:?}");
            }
        }
    }
}
