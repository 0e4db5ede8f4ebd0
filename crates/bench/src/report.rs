//! The results of a run, as a table for users and as JSON for programs.

use std::time::Duration;

use serde::Serialize;

use crate::latencies::Latencies;

/// The result of one workload. The JSON output uses these field names.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The name of the workload.
    pub workload: String,
    /// The number of connections.
    pub connections: usize,
    /// The number of requests that a connection has in flight at the same time.
    pub in_flight: usize,
    /// The length of the values in bytes.
    pub value_bytes: usize,
    /// The number of completed requests, or of clients that finished a collective workload.
    pub operations: u64,
    /// The duration of the load in seconds.
    pub seconds: f64,
    /// The number of `operations` per second.
    pub operations_per_second: f64,
    /// The median latency in microseconds.
    pub p50_microseconds: Option<f64>,
    /// The 99th percentile of the latencies, in microseconds.
    pub p99_microseconds: Option<f64>,
    /// The number of connections that were lost during the load, or of clients of the `connect` workload that did not
    /// finish the handshake. 1 if there are none and the workload failed, for example while connections were opened.
    pub errors: u64,
    /// The error that ended the workload early, or the first error of a connection.
    pub error: Option<String>,
}

/// The results of a run, for JSON.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// The address of the server.
    pub endpoint: &'a str,
    /// One outcome for each workload and number of requests in flight.
    pub results: &'a [Outcome],
    /// The error that ended the run, if any.
    pub error: Option<String>,
}

impl Outcome {
    /// Sets the fields for the throughput and the latencies.
    pub(crate) fn set_measurements(&mut self, elapsed: Duration, latencies: &Latencies) {
        let micros = |share| latencies.percentile(share).map(|time| time.as_nanos() as f64 / 1000.0);
        self.operations = latencies.total();
        self.seconds = elapsed.as_secs_f64();
        self.operations_per_second =
            if self.operations == 0 { 0.0 } else { self.operations as f64 / self.seconds.max(1e-9) };
        (self.p50_microseconds, self.p99_microseconds) = (micros(0.5), micros(0.99));
    }

    /// Returns a row of the table whose header is [`table_header`].
    pub fn row(&self) -> String {
        format!(
            "{:<18} {:>6} {:>7} {:>9} {:>10} {:>9} {:>9} {:>7}",
            self.workload,
            self.connections,
            self.in_flight,
            self.operations,
            format_rate(self.operations_per_second),
            self.p50_microseconds.map_or("-".into(), format_time),
            self.p99_microseconds.map_or("-".into(), format_time),
            self.errors,
        )
    }
}

const COLUMNS: &str = "workload            conns  flight       ops      ops/s       p50       p99  errors";

/// Returns the header of the table.
pub fn table_header() -> &'static str {
    COLUMNS
}

fn format_rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1} k", rate / 1e3),
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate => format!("{rate:.2}"),
    }
}

fn format_time(micros: f64) -> String {
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
    fn a_row_is_as_wide_as_the_header() {
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
        assert_eq!(outcome.row().len(), table_header().len());
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_micros(1500), 3_000_000);
        outcome.set_measurements(Duration::from_secs(2), &latencies);
        assert_eq!(outcome.row().len(), table_header().len());
        assert!(outcome.row().contains("1.50 M"), "{}", outcome.row());
    }
}
