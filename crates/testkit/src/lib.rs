//! Support for the tests of the other crates: waits with a deadline, reserved ports, processes that are killed when the
//! test ends, and peers that misbehave.
//!
//! The functions panic on failure, because their callers are tests.

mod client;
mod peer;
mod port;
mod process;
mod relay;
mod timing;
mod wait;

pub use client::{Client, End, announced, header, list, message, pairs, string};
pub use peer::serve_connections;
pub use port::{Port, reserve_port};
pub use process::{ChildGuard, Lines, ServeProcess};
pub use relay::Relay;
pub use timing::{CALL_TIMEOUT, assert_blocked_for, fails_in_time, fails_within};
pub use wait::{WAIT_TIMEOUT, eventually, eventually_or, eventually_within};

/// Returns whether the tests run at full scale (`RALLYPOINT_SOAK=1`).
pub fn is_soak() -> bool {
    std::env::var_os("RALLYPOINT_SOAK").is_some_and(|soak| soak == "1")
}

/// Returns `full` in a run at full scale, and otherwise `affordable`, which suits an ordinary run.
pub fn scaled(affordable: usize, full: usize) -> usize {
    if is_soak() { full } else { affordable }
}
