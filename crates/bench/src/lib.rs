//! Measures the throughput and latencies of any TCPStore server.

mod collective;
mod connection;
mod connection_pool;
mod control;
mod error;
mod exchange;
mod keys;
mod latencies;
mod monitor;
mod report;
mod run;
mod steady;
mod workload;

use std::time::Duration;

use rallypoint_store::Endpoint;

pub use error::{BenchError, ConnectionError};
pub use report::{Outcome, Report, table_header};
pub use run::Bench;
pub use steady::Until;
pub use workload::{DEFAULT_WORKLOADS, Workload};

/// Options of a benchmark run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address of the server.
    pub endpoint: Endpoint,
    /// The number of connections of steady workloads.
    pub connections: usize,
    /// When each steady workload ends.
    pub until: Until,
    /// The length of the values in bytes, unless the workload has a size in bytes.
    pub value_bytes: usize,
    /// The number of keys that the requests of a steady workload use. A workload uses fewer keys if its values are
    /// large, and more if one request or one batch needs more.
    pub keys: usize,
    /// The timeout of each workload.
    pub timeout: Duration,
}
