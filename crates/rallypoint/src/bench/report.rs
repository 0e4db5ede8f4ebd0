//! What was measured: a table for people, JSON for programs.

use std::time::Duration;

use serde::Serialize;

use super::latencies::Latencies;

/// One workload, measured. The names are those of the JSON.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Outcome {
    pub(super) workload: String,
    pub(super) connections: usize,
    pub(super) in_flight: usize,
    pub(super) value_bytes: usize,
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) operations_per_second: f64,
    pub(super) p50_microseconds: Option<f64>,
    pub(super) p99_microseconds: Option<f64>,
    pub(super) errors: u64,
    /// The first thing that went wrong.
    pub(super) error: Option<String>,
}

/// A whole run, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) endpoint: &'a str,
    pub(super) results: &'a [Outcome],
    /// Why there are none.
    pub(super) error: Option<String>,
}

impl Outcome {
    /// Fills in what was measured.
    pub(super) fn measured(&mut self, elapsed: Duration, latencies: &Latencies) {
        let micros = |share| latencies.within(share).map(|time| time.as_nanos() as f64 / 1000.0);
        self.operations = latencies.total();
        self.seconds = elapsed.as_secs_f64();
        self.operations_per_second =
            if self.operations == 0 { 0.0 } else { self.operations as f64 / self.seconds.max(1e-9) };
        (self.p50_microseconds, self.p99_microseconds) = (micros(0.5), micros(0.99));
    }
}

const COLUMNS: &str = "workload            conns  flight       ops      ops/s       p50       p99  errors";

/// The table's head.
pub(super) fn head() -> String {
    COLUMNS.to_owned()
}

/// A row of the table.
pub(super) fn row(outcome: &Outcome) -> String {
    format!(
        "{:<18} {:>6} {:>7} {:>9} {:>10} {:>9} {:>9} {:>7}",
        outcome.workload,
        outcome.connections,
        outcome.in_flight,
        outcome.operations,
        rate(outcome.operations_per_second),
        outcome.p50_microseconds.map_or("-".into(), time),
        outcome.p99_microseconds.map_or("-".into(), time),
        outcome.errors,
    )
}

fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1} k", rate / 1e3),
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate => format!("{rate:.2}"),
    }
}

fn time(micros: f64) -> String {
    match micros {
        micros if micros >= 1e6 => format!("{:.2} s", micros / 1e6),
        micros if micros >= 1e3 => format!("{:.2} ms", micros / 1e3),
        micros => format!("{micros:.1} us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_lines_up_with_the_head() {
        let mut outcome = Outcome {
            workload: "multi_get-10000".into(),
            connections: 64,
            in_flight: 32,
            value_bytes: 64,
            operations: 0,
            seconds: 0.0,
            operations_per_second: 0.0,
            p50_microseconds: None,
            p99_microseconds: None,
            errors: 0,
            error: None,
        };
        assert_eq!(row(&outcome).len(), head().len());
        let mut latencies = Latencies::default();
        latencies.note(Duration::from_micros(1500), 3_000_000);
        outcome.measured(Duration::from_secs(2), &latencies);
        assert_eq!(row(&outcome).len(), head().len());
        assert!(row(&outcome).contains("1.50 M"), "{}", row(&outcome));
    }
}
