//! Workers that can't be interrupted: the kernel holds them, in a file system or a driver, and no signal reaches them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rallypoint_core::supervise::LocalRank;

/// Since when which worker is held.
pub(crate) struct Stuck {
    limit: Duration,
    since: BTreeMap<u32, Instant>,
}

impl Stuck {
    pub(crate) fn new(limit: Duration) -> Stuck {
        Stuck { limit, since: BTreeMap::new() }
    }

    /// Looks at the workers. Returns whether one was held for too long.
    pub(crate) fn look(&mut self, workers: impl Iterator<Item = (LocalRank, u32)>) -> bool {
        let held: Vec<_> = workers.filter(|(_, pid)| is_held(*pid)).collect();
        self.look_at(&held, Instant::now())
    }

    fn look_at(&mut self, held: &[(LocalRank, u32)], now: Instant) -> bool {
        self.since.retain(|pid, _| held.iter().any(|(_, held)| held == pid));
        for (rank, pid) in held {
            let since = *self.since.entry(*pid).or_insert_with(|| {
                tracing::warn!(
                    "worker {} (pid {pid}) can't be interrupted; it is given up if that lasts {} s",
                    rank.0,
                    self.limit.as_secs_f64()
                );
                now
            });
            if now.saturating_duration_since(since) >= self.limit {
                tracing::error!("worker {} (pid {pid}) could not be interrupted for too long", rank.0);
                return true;
            }
        }
        false
    }
}

fn is_held(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let end = stat.iter().rposition(|byte| *byte == b')');
    end.is_some_and(|end| stat.get(end + 2) == Some(&b'D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_held_for_too_long_is_named_and_who_comes_back_is_not() {
        let mut stuck = Stuck::new(Duration::from_secs(5));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let worker = (LocalRank(1), 77);
        assert!(!stuck.look_at(&[worker], at(0)));
        assert!(!stuck.look_at(&[worker], at(4)));
        assert!(!stuck.look_at(&[], at(5)), "it came back");
        assert!(!stuck.look_at(&[worker], at(6)));
        assert!(stuck.look_at(&[worker], at(11)));
    }

    #[test]
    fn this_process_is_not_held() {
        assert!(!Stuck::new(Duration::ZERO).look([(LocalRank(0), std::process::id())].into_iter()));
    }
}
