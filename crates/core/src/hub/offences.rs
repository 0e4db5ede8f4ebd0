//! Counts the offences of each address, and limits how many lines the log gets about them.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::Limits;

/// The recent offences of one address.
#[derive(Debug)]
struct Record {
    since: Duration,
    count: u32,
    refused_until: Option<Duration>,
}

/// Offences by address, and the budget of the log.
#[derive(Debug)]
pub(super) struct Offences {
    per_second: u32,
    penalty: Duration,
    records: BTreeMap<IpAddr, Record>,
    lines_per_second: u32,
    lines: (Option<Duration>, u32),
    suppressed: u64,
}

/// The most addresses with a record. Offences of further addresses are not counted.
const MOST_ADDRESSES: usize = 16 * 1024;

impl Offences {
    pub(super) fn new(limits: &Limits) -> Offences {
        Offences {
            per_second: limits.offences_per_second,
            penalty: limits.offence_penalty,
            records: BTreeMap::new(),
            lines_per_second: limits.log_lines_per_second,
            lines: (None, 0),
            suppressed: 0,
        }
    }

    /// Counts an offence. Loopback is exempt, because all programs of the machine share that address.
    pub(super) fn count(&mut self, address: IpAddr, now: Duration) {
        let address = address.to_canonical();
        if address.is_loopback() {
            return;
        }
        if self.records.len() >= MOST_ADDRESSES {
            self.forget_old(now);
            if self.records.len() >= MOST_ADDRESSES {
                return;
            }
        }
        let record =
            self.records.entry(address).or_insert(Record { since: now, count: 0, refused_until: None });
        if now.saturating_sub(record.since) >= Duration::from_secs(1) {
            (record.since, record.count) = (now, 0);
        }
        record.count += 1;
        if record.count > self.per_second {
            record.refused_until = Some(now + self.penalty);
        }
    }

    /// Returns whether new connections from this address are refused now.
    pub(super) fn is_refused(&self, address: IpAddr, now: Duration) -> bool {
        !self.records.is_empty()
            && self
                .records
                .get(&address.to_canonical())
                .and_then(|record| record.refused_until)
                .is_some_and(|until| now < until)
    }

    /// Returns whether one more line may be logged: then, how many lines were suppressed since the last one.
    pub(super) fn may_log(&mut self, now: Duration) -> Option<u64> {
        let (since, count) = &mut self.lines;
        if since.is_none_or(|since| now.saturating_sub(since) >= Duration::from_secs(1)) {
            (*since, *count) = (Some(now), 0);
        }
        if *count >= self.lines_per_second {
            self.suppressed += 1;
            return None;
        }
        *count += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// Removes records without a recent offence.
    pub(super) fn forget_old(&mut self, now: Duration) {
        self.records.retain(|_, record| {
            record.refused_until.is_some_and(|until| now < until)
                || now.saturating_sub(record.since) < Duration::from_secs(1)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences() -> Offences {
        Offences::new(&Limits::default())
    }

    #[test]
    fn an_address_is_refused_after_twenty_offences_in_a_second_and_for_ten() {
        let (mut offences, now) = (offences(), Duration::ZERO);
        let bad: IpAddr = "10.0.0.1".parse().unwrap();
        for _ in 0..20 {
            offences.count(bad, now);
        }
        assert!(!offences.is_refused(bad, now));
        offences.count(bad, now);
        assert!(offences.is_refused(bad, now));
        assert!(offences.is_refused("::ffff:10.0.0.1".parse().unwrap(), now));
        assert!(!offences.is_refused("10.0.0.2".parse().unwrap(), now));
        let later = now + Duration::from_secs(10);
        assert!(!offences.is_refused(bad, later));
        offences.forget_old(later);
        assert!(offences.records.is_empty());
    }

    #[test]
    fn loopback_is_never_refused() {
        let (mut offences, now) = (offences(), Duration::ZERO);
        let here: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
        (0..100).for_each(|_| offences.count(here, now));
        assert!(!offences.is_refused(here, now));
    }

    #[test]
    fn the_log_gets_ten_lines_a_second_and_the_number_of_the_rest() {
        let (mut offences, now) = (offences(), Duration::ZERO);
        let said = (0..100).filter(|_| offences.may_log(now).is_some()).count();
        assert_eq!(said, 10);
        assert_eq!(offences.may_log(now + Duration::from_secs(1)), Some(90));
    }
}
