//! The offences of each address. The hub refuses new connections of an address with too many offences.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::Limits;

/// The maximum number of addresses whose offences are counted. Offences of further addresses are ignored.
const MAX_ADDRESSES: usize = 16 * 1024;

/// The recent offences of each address.
#[derive(Debug, Default)]
pub(super) struct Offences(BTreeMap<IpAddr, Record>);

/// The offences of one address. `since` is the time of the first offence, or of the last one if the address is refused.
#[derive(Debug, Clone, Copy)]
struct Record {
    since: Duration,
    count: u32,
}

impl Record {
    fn is_too_many(&self, limits: &Limits) -> bool {
        self.count > limits.offences_per_second
    }

    fn is_expired(&self, now: Duration, limits: &Limits) -> bool {
        let is_refused = self.is_too_many(limits);
        let period = if is_refused { limits.offence_penalty } else { Duration::from_secs(1) };
        now.saturating_sub(self.since) >= period
    }
}

impl Offences {
    /// Counts an offence. Loopback is exempt, because all programs of the machine share that address.
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
        if record.is_too_many(limits) {
            record.since = now;
        }
    }

    /// Returns whether new connections from this address are refused now.
    pub(super) fn is_refused(&self, address: IpAddr, now: Duration, limits: &Limits) -> bool {
        let record = self.0.get(&address.to_canonical());
        record.is_some_and(|record| record.is_too_many(limits) && !record.is_expired(now, limits))
    }

    /// Removes the records of addresses without a recent offence.
    pub(super) fn remove_expired(&mut self, now: Duration, limits: &Limits) {
        self.0.retain(|_, record| !record.is_expired(now, limits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_21st_offence_in_1_s_refuses_an_address_for_10_s() {
        let (mut offences, limits, now) = (Offences::default(), Limits::default(), Duration::ZERO);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let is_refused = |offences: &Offences, address: &str, now| {
            offences.is_refused(address.parse().unwrap(), now, &limits)
        };
        for _ in 0..20 {
            offences.count(address, now, &limits);
        }
        assert!(!is_refused(&offences, "10.0.0.1", now));
        offences.count(address, now, &limits);
        assert!(is_refused(&offences, "10.0.0.1", now));
        assert!(is_refused(&offences, "::ffff:10.0.0.1", now));
        assert!(!is_refused(&offences, "10.0.0.2", now));
        let later = now + Duration::from_secs(10);
        assert!(!is_refused(&offences, "10.0.0.1", later));
        offences.remove_expired(later, &limits);
        assert!(offences.0.is_empty());
    }

    #[test]
    fn offences_of_different_seconds_do_not_add_up() {
        let (mut offences, limits) = (Offences::default(), Limits::default());
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        for number in 0..100 {
            offences.count(address, Duration::from_millis(100 * number), &limits);
        }
        assert!(!offences.is_refused(address, Duration::from_secs(10), &limits));
    }

    #[test]
    fn loopback_is_never_refused() {
        let (mut offences, limits, now) = (Offences::default(), Limits::default(), Duration::ZERO);
        let loopback: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        (0..100).for_each(|_| offences.count(loopback, now, &limits));
        assert!(!offences.is_refused(loopback, now, &limits));
    }
}
