//! The harness: the server as a process, a client that sends raw frames, and measurements.
//!
//! The bounds that all rows share are in [`Server::assert_healthy`].

mod latency;
mod process;
mod server;

use std::fs::File;
use std::path::Path;

pub(crate) use latency::{LatencyProbe, assert_latency_unaffected, probe};
pub(crate) use process::{Process, TICK_INTERVAL};
/// This process needs as many files as its servers.
pub(crate) use rallypoint_store::raise_file_limit;
pub(crate) use rallypoint_testkit::{
    Client, End, announced, eventually_within as eventually, header, is_soak, list, message, pairs, scaled,
    string,
};
pub(crate) use server::Server;

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;
/// Memory that the C library takes from the system for allocations of a few MiB. It is returned only when it is
/// completely free, so one small allocation can keep all of it.
pub(crate) const HEAP_BYTES: usize = 64 * MIB;

/// Locks out other tests that need most of the machine, in this and in other processes.
pub(crate) fn exclusive() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("robustness.lock");
    let file = File::create(path).expect("the lock file");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("the lock");
    file
}
