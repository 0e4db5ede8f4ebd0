//! How long a node tolerates calls to the store that fail, and when it logs a warning about them.

use std::time::Duration;

use super::operation::{Fault, Notice};
use super::settings::Settings;
use super::time::MonoTime;

/// The duration of an outage before the first warning. Each further warning is due when the outage has lasted twice as
/// long as at the warning before.
const FIRST_WARNING_GRACE: Duration = Duration::from_secs(5);

/// The duration of an outage after which a node that may host the store takes over as its host.
const HOST_GRACE: Duration = Duration::from_secs(5);

/// How long a node tolerates a corrupt state, which another node may overwrite in the meantime.
const CORRUPT_TIMEOUT: Duration = Duration::from_secs(10);

/// The outage of the store that one node observes, if there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outage {
    /// The fault of the last call, and when the first call with this fault began. `None` after a successful call.
    failing: Option<(Fault, MonoTime)>,
    /// The duration of the outage at which the next warning is due.
    next_warning: Duration,
}

impl Outage {
    /// Records that a call that began at `began` failed at `now`. Returns a warning if one is due. The caller repeats
    /// the call.
    ///
    /// # Errors
    ///
    /// Fails with the duration of the outage if it has reached the limit: `store_outage_timeout`, or 10 s for a corrupt
    /// state.
    pub fn handle_failure(
        &mut self,
        fault: Fault,
        began: MonoTime,
        now: MonoTime,
        settings: &Settings,
    ) -> Result<Option<Notice>, Duration> {
        let (limit, first_warning) = match fault {
            Fault::Outage => (settings.store_outage_timeout, FIRST_WARNING_GRACE),
            Fault::Corrupt => (CORRUPT_TIMEOUT, Duration::ZERO),
        };
        if self.failing.is_none_or(|(before, _)| before != fault) {
            (self.failing, self.next_warning) = (Some((fault, began)), first_warning);
        }
        let lasted = self.failing.map_or(Duration::ZERO, |(_, since)| now.since(since));
        if lasted >= limit {
            return Err(lasted);
        }
        if lasted < self.next_warning {
            return Ok(None);
        }
        self.next_warning = 2 * lasted.max(FIRST_WARNING_GRACE);
        Ok(Some(Notice::Failing { fault, lasted }))
    }

    /// Returns how long the store has not answered, or zero if the last call got an answer.
    pub fn lasted(&self, now: MonoTime) -> Duration {
        match self.failing {
            Some((Fault::Outage, since)) => now.since(since),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether the outage has lasted for 5 s or longer, so that the host of the store counts as lost.
    pub fn is_host_lost(&self, now: MonoTime) -> bool {
        self.lasted(now) >= HOST_GRACE
    }

    /// Records that a call succeeded. Returns a notice with the duration of the outage, if a warning was logged about
    /// it.
    pub fn handle_success(&mut self, now: MonoTime) -> Option<Notice> {
        let lasted = self.lasted(now);
        let (fault, _) = self.failing.take()?;
        let was_reported = fault == Fault::Outage && self.next_warning > FIRST_WARNING_GRACE;
        was_reported.then_some(Notice::StoreAnswers { lasted })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::*;

    fn fail(outage: &mut Outage, fault: Fault, began: u64, now: u64) -> Result<Option<Notice>, Duration> {
        outage.handle_failure(fault, at(began), at(now), &Settings::new("job", 1, 1))
    }

    fn failing(fault: Fault, lasted: u64) -> Option<Notice> {
        Some(Notice::Failing { fault, lasted: seconds(lasted) })
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn warnings_are_due_at_growing_intervals_until_the_limit() {
        let mut outage = Outage::default();
        let warned: Vec<u64> = (1..600)
            .filter(|second| {
                let warning = fail(&mut outage, Fault::Outage, second - 1, *second).unwrap();
                assert!(warning.is_none() || warning == failing(Fault::Outage, *second));
                warning.is_some()
            })
            .collect();
        assert_eq!(warned, [5, 10, 20, 40, 80, 160, 320]);
        assert_eq!(fail(&mut outage, Fault::Outage, 599, 600), Err(seconds(600)));
        assert_eq!(outage.handle_success(at(700)), Some(Notice::StoreAnswers { lasted: seconds(700) }));
    }

    #[test]
    fn a_reply_ends_an_outage_and_a_short_outage_is_not_reported() {
        let mut outage = Outage::default();
        assert_eq!(outage.handle_success(at(1)), None);
        assert_eq!(fail(&mut outage, Fault::Outage, 1, 3), Ok(None));
        assert_eq!(outage.handle_success(at(4)), None);
        assert_eq!(fail(&mut outage, Fault::Outage, 500, 504), Ok(None));
        assert_eq!(fail(&mut outage, Fault::Outage, 504, 1100), Err(seconds(600)));
    }

    #[test]
    fn a_corrupt_state_is_reported_immediately_and_tolerated_for_10_s() {
        let mut outage = Outage::default();
        assert_eq!(fail(&mut outage, Fault::Outage, 0, 4), Ok(None));
        assert_eq!(fail(&mut outage, Fault::Corrupt, 4, 4), Ok(failing(Fault::Corrupt, 0)));
        assert!(outage.lasted(at(5)).is_zero(), "the store answers, with a corrupt state");
        assert_eq!(fail(&mut outage, Fault::Corrupt, 12, 13), Ok(None));
        assert_eq!(fail(&mut outage, Fault::Corrupt, 13, 14), Err(seconds(10)));
        assert_eq!(outage.handle_success(at(15)), None);
    }
}
