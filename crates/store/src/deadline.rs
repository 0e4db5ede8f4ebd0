//! When a call must return, whatever happens.

use std::time::{Duration, Instant};

use crate::interrupt;

/// The end of one call's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    start: Instant,
    at: Option<Instant>,
}

impl Deadline {
    /// So long from now; `None` is never.
    pub(crate) fn after(timeout: Option<Duration>) -> Deadline {
        let start = Instant::now();
        // A time-out beyond what the clock can count is never, too.
        let at = timeout.and_then(|timeout| start.checked_add(timeout));
        Deadline { start, at }
    }

    /// A little more time for what must be tidied up or asked after the end: within 5 % of a long time-out, and
    /// within 100 ms of a short one, with room for a busy machine.
    pub(crate) fn grace(&self) -> Deadline {
        let at = self.at.map(|at| {
            let grace = ((at - self.start) / 25).clamp(Duration::from_millis(60), Duration::from_secs(2));
            at + grace
        });
        Deadline { start: self.start, at }
    }

    /// The same after something that should have ended with this and was begun then: what it took longer was the machine's
    /// doing, and is not taken from what comes now.
    pub(crate) fn grace_after(&self, begun: Instant) -> Deadline {
        let Deadline { start, at } = self.grace();
        let lost = self.at.map_or(Duration::ZERO, |at| at.max(begun).elapsed());
        Deadline { start, at: at.map(|at| at + lost) }
    }

    /// This one, or so long from now if that is sooner.
    pub(crate) fn or_after(&self, most: Duration) -> Deadline {
        let soon = Instant::now() + most;
        Deadline { start: self.start, at: Some(self.at.map_or(soon, |at| at.min(soon))) }
    }

    /// What is left: `None` without end, zero if it has passed, or if the caller has said to stop.
    pub(crate) fn left(&self) -> Option<Duration> {
        if interrupt::is_stopped() {
            return Some(Duration::ZERO);
        }
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// How long to wait at most before looking up (`interrupt::look_up`): what is left, or less where that is asked for.
    pub(crate) fn slice(&self) -> Option<Duration> {
        match self.left() {
            left if !interrupt::is_watched() => left,
            left => Some(left.map_or(interrupt::SLICE, |left| left.min(interrupt::SLICE))),
        }
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// How long the call has taken so far.
    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sleeps so long, but not past the end.
    pub(crate) fn sleep(&self, most: Duration) {
        let woken = self.or_after(most);
        while let Some(slice) = woken.slice().filter(|slice| !slice.is_zero()) {
            std::thread::sleep(slice);
            interrupt::look_up();
        }
    }
}

/// Pauses that grow from try to try and differ from client to client, so that a crowd doesn't come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { next: first, most }
    }

    /// The next pause: between half and all of it.
    pub(crate) fn pause(&mut self) -> Duration {
        use std::hash::{BuildHasher, Hasher, RandomState};
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        let part = RandomState::new().build_hasher().finish() % 1024;
        whole / 2 + whole * part as u32 / 2048
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_that_the_clock_cannot_hold_is_never() {
        assert_eq!(Deadline::after(None).left(), None);
        assert_eq!(Deadline::after(Some(Duration::MAX)).left(), None);
        assert!(Deadline::after(Some(Duration::ZERO)).has_passed());
        assert!(Deadline::after(Some(Duration::ZERO)).grace().left().unwrap() > Duration::ZERO);
    }

    #[test]
    fn the_grace_of_a_long_time_out_is_less_than_a_twentieth() {
        let deadline = Deadline::after(Some(Duration::from_secs(10)));
        let left = deadline.grace().left().unwrap();
        assert!(left > Duration::from_secs(10) && left < Duration::from_millis(10_500), "{left:?}");
    }

    #[test]
    fn a_grace_is_whole_after_a_stall_and_not_after_a_late_beginning() {
        let now = Instant::now();
        let ago = |millis| now - Duration::from_millis(millis);
        let deadline = Deadline { start: ago(1_100), at: Some(ago(1_000)) };
        let left = |deadline: Deadline| deadline.left().unwrap();
        assert!(left(deadline.grace_after(ago(1_050))) > Duration::ZERO);
        assert!(left(deadline.grace_after(now)).is_zero());
    }

    #[test]
    fn pauses_grow_to_their_most_and_stay_within_half() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(40));
        for whole in [10, 20, 40, 40, 40] {
            let pause = backoff.pause();
            let whole = Duration::from_millis(whole);
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
        }
    }
}
