//! Load on any TCPStore server, and how fast the server answers. This crate measures; it judges nothing.

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

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server.
    pub endpoint: Endpoint,
    /// Connections of the workloads that are not gatherings.
    pub connections: usize,
    /// How much load each workload that is not a gathering makes.
    pub until: Until,
    /// Length of the values.
    pub value_bytes: usize,
    /// Keys over which the requests are spread.
    pub keys: usize,
    /// After this time a workload is given up.
    pub timeout: Duration,
}
