//! How long a node tolerates a store that does not answer, and when it warns about it.

use std::time::Duration;

use super::mono::MonoTime;

/// How long an outage lasts before the first warning. Each further warning comes when the outage has lasted twice as long.
const FIRST_WARNING_GRACE: Duration = Duration::from_secs(5);

/// How long an outage lasts before a node that may host the store does so.
const HOST_GRACE: Duration = Duration::from_secs(5);

/// An outage of the store, as one node observes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outage {
    /// When the first call began that failed; `None` while the store answers.
    since: Option<MonoTime>,
    /// How long the outage must have lasted for the next warning.
    next_warning: Duration,
}

/// What to do about a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Repeat the call without a warning.
    Quiet,
    /// Repeat the call, and warn that the outage has lasted this long.
    Warn(Duration),
    /// Give up: the outage has lasted this long, which is longer than allowed.
    GiveUp(Duration),
}

impl Outage {
    /// Records that a call begun at `began` failed at `now`. `limit` is how long an outage may last.
    pub fn handle_failure(&mut self, began: MonoTime, now: MonoTime, limit: Duration) -> Tolerance {
        if self.since.is_none() {
            self.next_warning = FIRST_WARNING_GRACE;
        }
        let lasted = now.since(*self.since.get_or_insert(began));
        if lasted >= limit {
            return Tolerance::GiveUp(lasted);
        }
        if lasted < self.next_warning {
            return Tolerance::Quiet;
        }
        while self.next_warning <= lasted {
            self.next_warning *= 2;
        }
        Tolerance::Warn(lasted)
    }

    /// Returns how long the outage has lasted; zero while the store answers.
    pub fn lasted(&self, now: MonoTime) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns whether the outage has lasted long enough to take the host of the store for dead.
    pub fn is_host_gone(&self, now: MonoTime) -> bool {
        self.lasted(now) >= HOST_GRACE
    }

    /// Records that a call was answered. Returns how long the outage lasted, if it was long enough for a warning.
    pub fn handle_answer(&mut self, now: MonoTime) -> Option<Duration> {
        let lasted = now.since(self.since.take()?);
        (self.next_warning > FIRST_WARNING_GRACE).then_some(lasted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::at;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(600);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn warnings_come_at_growing_intervals_until_the_limit() {
        let mut outage = Outage::default();
        let warned: Vec<u64> = (1..600)
            .filter(|second| {
                outage.handle_failure(at(second - 1), at(*second), LIMIT) == Tolerance::Warn(seconds(*second))
            })
            .collect();
        assert_eq!(warned, [5, 10, 20, 40, 80, 160, 320]);
        assert_eq!(outage.handle_failure(at(599), at(600), LIMIT), Tolerance::GiveUp(LIMIT));
        assert_eq!(outage.handle_answer(at(700)), Some(seconds(700)));
    }

    #[test]
    fn an_answer_ends_an_outage_and_a_short_one_is_not_mentioned() {
        let mut outage = Outage::default();
        assert_eq!(outage.handle_answer(at(1)), None);
        assert_eq!(outage.handle_failure(at(1), at(3), LIMIT), Tolerance::Quiet);
        assert_eq!(outage.handle_answer(at(4)), None);
        assert_eq!(outage.handle_failure(at(500), at(504), LIMIT), Tolerance::Quiet);
        assert_eq!(outage.handle_failure(at(504), at(1100), LIMIT), Tolerance::GiveUp(LIMIT));
    }
}
