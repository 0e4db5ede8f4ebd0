//! The test harness: a server process, a client that sends raw frames, and measurements of the server.
//!
//! [`Server::assert_healthy`] checks the requirements that all rows share.

mod latency;
mod process;
mod server;

use std::fs::File;
use std::path::Path;

pub(crate) use latency::{LatencyProbe, assert_latency_unaffected, probe};
pub(crate) use process::{Process, TICK_INTERVAL};
/// The test process needs a file descriptor for each connection to a server.
pub(crate) use rallypoint_store::raise_file_limit;
pub(crate) use rallypoint_testkit::{
    Client, End, announced, eventually_within as eventually, header, is_soak, list, message, pairs, scaled,
    string,
};
pub(crate) use server::Server;

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;
/// Memory that glibc's allocator may keep after large requests. The allocator returns an area to the system only when
/// the area is completely free, so one small allocation can keep the whole area.
pub(crate) const HEAP_BYTES: usize = 64 * MIB;

/// Waits until no other test that calls this function runs, in this or in another process. Tests that need most of
/// the machine hold the returned lock.
pub(crate) fn exclusive() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("robustness.lock");
    let file = File::create(path).expect("the lock file");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("the lock");
    file
}
