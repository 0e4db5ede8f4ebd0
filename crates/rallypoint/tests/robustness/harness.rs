//! What the tests stand on: the server as a process, a client that speaks the wire by hand, and instruments.
//!
//! Nothing here knows a row of the table; the bounds that all rows share are in [`Server::assert_unharmed`].

mod latency;
mod process;
mod server;

use std::fs::File;
use std::path::Path;

pub(crate) use latency::{LatencyProbe, assert_latency_unaffected, probe};
pub(crate) use process::{Process, TICK_INTERVAL};
/// This process needs as many files as the servers it attacks.
pub(crate) use rallypoint_store::raise_file_limit;
pub(crate) use rallypoint_testkit::{
    Client, End, announced, eventually_within as eventually, header, is_soak, list, message, pairs, scaled,
    string,
};
pub(crate) use server::Server;

pub(crate) const KIB: usize = 1024;
pub(crate) const MIB: usize = 1024 * KIB;
/// What the C library takes from the system at a time for pieces of some mebibytes, once it has seen such. It gives that
/// back only when nothing is left in it, so one small piece may keep all of it: once, not once more each time.
pub(crate) const HEAP_BYTES: usize = 64 * MIB;

/// Tests that need most of the machine wait for each other, whether they are threads or processes.
pub(crate) fn exclusive() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("robustness.lock");
    let file = File::create(path).expect("the lock file");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("the lock");
    file
}
