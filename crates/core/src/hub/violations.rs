//! The violations of each address. The hub refuses new connections of an address with too many violations.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::Limits;

/// The maximum number of addresses whose violations are counted. Violations of further addresses are ignored.
const MAX_ADDRESSES: usize = 16 * 1024;

/// The recent violations of each address.
#[derive(Debug, Default)]
pub(super) struct Violations(BTreeMap<IpAddr, Record>);

/// The violations of one address. `since` is the time of the first violation, or of the last one if the address is
/// refused.
#[derive(Debug, Clone, Copy)]
struct Record {
    since: Duration,
    count: u32,
}

impl Record {
    fn exceeds_limit(&self, limits: &Limits) -> bool {
        self.count > limits.violations_per_second
    }

    fn is_expired(&self, now: Duration, limits: &Limits) -> bool {
        let is_refused = self.exceeds_limit(limits);
        let period = if is_refused { limits.violation_penalty } else { Duration::from_secs(1) };
        now.saturating_sub(self.since) >= period
    }
}

impl Violations {
    /// Counts a violation. Loopback is exempt, because all programs of the machine share that address.
    pub(super) fn count(&mut self, address: IpAddr, now: Duration, limits: &Limits) {
        let address = address.to_canonical();
        let is_full = self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&address);
        if address.is_loopback() || is_full {
            return;
        }
        let fresh = Record { since: now, count: 0 };
        let record = self.0.entry(address).or_insert(fresh);
        if record.is_expired(now, limits) {
            *record = fresh;
        }
        record.count += 1;
        if record.exceeds_limit(limits) {
            record.since = now;
        }
    }

    /// Returns whether new connections from this address are refused now.
    pub(super) fn is_refused(&self, address: IpAddr, now: Duration, limits: &Limits) -> bool {
        let record = self.0.get(&address.to_canonical());
        record.is_some_and(|record| record.exceeds_limit(limits) && !record.is_expired(now, limits))
    }

    /// Removes the records of addresses without a recent violation.
    pub(super) fn remove_expired(&mut self, now: Duration, limits: &Limits) {
        self.0.retain(|_, record| !record.is_expired(now, limits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_21st_violation_in_1_s_refuses_an_address_for_10_s() {
        let (mut violations, limits, now) = (Violations::default(), Limits::default(), Duration::ZERO);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let is_refused = |violations: &Violations, address: &str, now| {
            violations.is_refused(address.parse().unwrap(), now, &limits)
        };
        for _ in 0..20 {
            violations.count(address, now, &limits);
        }
        assert!(!is_refused(&violations, "10.0.0.1", now));
        violations.count(address, now, &limits);
        assert!(is_refused(&violations, "10.0.0.1", now));
        assert!(is_refused(&violations, "::ffff:10.0.0.1", now));
        assert!(!is_refused(&violations, "10.0.0.2", now));
        let later = now + Duration::from_secs(10);
        assert!(!is_refused(&violations, "10.0.0.1", later));
        violations.remove_expired(later, &limits);
        assert!(violations.0.is_empty());
    }

    #[test]
    fn violations_of_different_seconds_do_not_add_up() {
        let (mut violations, limits) = (Violations::default(), Limits::default());
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        for number in 0..100 {
            violations.count(address, Duration::from_millis(100 * number), &limits);
        }
        assert!(!violations.is_refused(address, Duration::from_secs(10), &limits));
    }

    #[test]
    fn loopback_is_never_refused() {
        let (mut violations, limits, now) = (Violations::default(), Limits::default(), Duration::ZERO);
        let loopback: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        (0..100).for_each(|_| violations.count(loopback, now, &limits));
        assert!(!violations.is_refused(loopback, now, &limits));
    }
}
