//! Waits for a condition with a deadline.

use std::time::{Duration, Instant};

/// The timeout of [`eventually`]. Only a failure takes this long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause between two evaluations of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until a condition is true. Returns how long that took.
///
/// # Panics
///
/// Panics with `what` if the condition is not true within [`WAIT_TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) -> Duration {
    eventually_within(WAIT_TIMEOUT, what, holds)
}

/// Like [`eventually`], with another timeout.
#[track_caller]
pub fn eventually_within(timeout: Duration, what: &str, holds: impl FnMut() -> bool) -> Duration {
    eventually_or(timeout, || what.to_owned(), holds)
}

/// Like [`eventually_within`], but calls `describe` for the message only if the condition is not true in time.
#[track_caller]
pub fn eventually_or(
    timeout: Duration,
    describe: impl Fn() -> String,
    mut holds: impl FnMut() -> bool,
) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < timeout, "not within {timeout:?}: {}", describe());
        std::thread::sleep(POLL_INTERVAL);
    }
    start.elapsed()
}
