//! Detects workers in uninterruptible sleep. Such a worker waits in the kernel for a file system or a driver, and
//! signals don't reach it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rallypoint_core::supervise::LocalRank;

/// The workers in uninterruptible sleep, by process id, and when each was first seen in it.
pub(crate) struct StuckWorkers {
    limit: Duration,
    since: BTreeMap<u32, Instant>,
}

impl StuckWorkers {
    pub(crate) fn new(limit: Duration) -> StuckWorkers {
        StuckWorkers { limit, since: BTreeMap::new() }
    }

    /// Checks the workers. Returns whether one of them has been in uninterruptible sleep for `limit`.
    pub(crate) fn check(&mut self, workers: impl Iterator<Item = (LocalRank, u32)>) -> bool {
        let stuck: Vec<_> = workers.filter(|(_, pid)| is_uninterruptible(*pid)).collect();
        self.check_at(&stuck, Instant::now())
    }

    fn check_at(&mut self, stuck: &[(LocalRank, u32)], now: Instant) -> bool {
        self.since.retain(|pid, _| stuck.iter().any(|(_, stuck)| stuck == pid));
        for (rank, pid) in stuck {
            let since = *self.since.entry(*pid).or_insert_with(|| {
                tracing::warn!(
                    "worker {} (pid {pid}) is in uninterruptible sleep; the agent gives up if that lasts {} s",
                    rank.0,
                    self.limit.as_secs_f64()
                );
                now
            });
            if now.saturating_duration_since(since) >= self.limit {
                tracing::error!(
                    "worker {} (pid {pid}) was in uninterruptible sleep for {} s \
                     (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT)",
                    rank.0,
                    self.limit.as_secs_f64()
                );
                return true;
            }
        }
        false
    }
}

fn is_uninterruptible(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the process name, which is in parentheses and may itself contain a `)`.
    let end = stat.iter().rposition(|byte| *byte == b')');
    end.is_some_and(|end| stat.get(end + 2) == Some(&b'D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stays_uninterruptible_is_reported_and_one_that_recovers_is_not() {
        let mut workers = StuckWorkers::new(Duration::from_secs(5));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let worker = (LocalRank(1), 77);
        assert!(!workers.check_at(&[worker], at(0)));
        assert!(!workers.check_at(&[worker], at(4)));
        assert!(!workers.check_at(&[], at(5)), "the worker recovered");
        assert!(!workers.check_at(&[worker], at(6)));
        assert!(workers.check_at(&[worker], at(11)));
    }

    #[test]
    fn this_process_is_interruptible() {
        assert!(!StuckWorkers::new(Duration::ZERO).check([(LocalRank(0), std::process::id())].into_iter()));
    }
}
