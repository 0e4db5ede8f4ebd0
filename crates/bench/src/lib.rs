//! Measures the throughput and latencies of any TCPStore server.
//!
//! In a steady workload, each connection repeats its requests until the workload ends. In a collective workload, many
//! clients run the same steps once.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//!
//! use rallypoint_bench::{Bench, Options, Until, Workload, table_header};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options {
//!     endpoint: "node0:29400".parse()?,
//!     connections: 8,
//!     until: Until::After(Duration::from_secs(2)),
//!     value_bytes: 64,
//!     keys: 1024,
//!     timeout: Duration::from_secs(60),
//! };
//! let mut bench = Bench::connect(options, Arc::new(AtomicBool::new(false)))?;
//! println!("{}", table_header());
//! for workload in Workload::list("get,set")? {
//!     // 16 requests in flight on each connection.
//!     let (outcome, result) = bench.measure(workload, 16);
//!     println!("{}", outcome.row());
//!     result?;
//! }
//! # Ok(())
//! # }
//! ```

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
    /// The condition on which each steady workload ends.
    pub until: Until,
    /// The length of the values in bytes, unless the workload has a size in bytes.
    pub value_bytes: usize,
    /// The number of keys that the requests of a steady workload use. A workload uses fewer keys if its values are
    /// large, and more if one request or one batch needs more.
    pub keys: usize,
    /// The timeout of each workload.
    pub timeout: Duration,
}
