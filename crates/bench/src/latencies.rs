//! A histogram of latencies. The width of a bucket grows with the latency. Individual measurements are not stored.

use std::time::Duration;

/// The number of buckets for each doubling of the latency. With 64 buckets, adjacent buckets differ by at most 1.6 %.
const BUCKETS_PER_DOUBLING: u64 = 64;

/// Latencies, counted in buckets. The counts need at most 64 KiB, whatever the number of measurements.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    counts: Vec<u64>,
    total: u64,
}

impl Latencies {
    /// Records a latency `times` times.
    pub(crate) fn record(&mut self, latency: Duration, times: u64) {
        let bucket = bucket(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += times;
        self.total += times;
    }

    /// Returns the number of recorded latencies.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns a latency that the given share of the measurements does not exceed. `share` is between 0 and 1. Returns
    /// `None` if there are no measurements.
    pub(crate) fn percentile(&self, share: f64) -> Option<Duration> {
        let rank = (self.total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Duration::from_nanos(upper_end(bucket)))
    }
}

/// Returns the bucket of a latency. Below `BUCKETS_PER_DOUBLING` each nanosecond has a bucket of its own; above, each
/// doubling is divided into that number of buckets.
fn bucket(nanos: u64) -> usize {
    let doublings = (nanos / BUCKETS_PER_DOUBLING).checked_ilog2().map_or(0, |log| u64::from(log) + 1);
    match doublings {
        0 => nanos as usize,
        _ => (doublings * BUCKETS_PER_DOUBLING + (nanos >> (doublings - 1)) - BUCKETS_PER_DOUBLING) as usize,
    }
}

/// Returns the longest latency of a bucket.
fn upper_end(bucket: usize) -> u64 {
    let (doublings, step) = (bucket as u64 / BUCKETS_PER_DOUBLING, bucket as u64 % BUCKETS_PER_DOUBLING);
    match doublings {
        0 => step,
        _ => ((u128::from(BUCKETS_PER_DOUBLING + step + 1) << (doublings - 1)) - 1)
            .try_into()
            .unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_at_most_two_percent_above_each_of_its_times() {
        for nanos in (0..5_000).chain([1_000_000, 123_456_789, 60_000_000_000, u64::MAX / 3, u64::MAX]) {
            let end = upper_end(bucket(nanos));
            assert!(end >= nanos, "{nanos} in a bucket up to {end}");
            assert!((end - nanos) as f64 <= nanos as f64 * 0.02, "{nanos} in a bucket up to {end}");
        }
    }

    #[test]
    fn percentiles_are_at_most_two_percent_too_high() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(0.5), None);
        for micros in 1..=1000 {
            latencies.record(Duration::from_micros(micros), 2);
        }
        assert_eq!(latencies.total(), 2000);
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let within = latencies.percentile(share).unwrap().as_nanos() as f64 / 1000.0;
            assert!((micros..micros * 1.02).contains(&within), "{share}: {within}");
        }
    }
}
