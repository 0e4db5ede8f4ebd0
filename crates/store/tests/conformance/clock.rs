//! How long a call took, held against what it was given. The lower bound is strict; the upper one is tried a few times,
//! because other programs use this machine too.

use std::fmt::Debug;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rallypoint_store::{Result, StoreError};

/// Long enough for anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Tries before a call counts as late.
const TRIES: u32 = 5;

/// Calls something that must time out, and within the time-out and what the house allows on top of it.
#[track_caller]
pub(crate) fn times_out_after<T: Debug>(timeout: Duration, call: impl Fn() -> Result<T>) -> StoreError {
    let most = timeout + (timeout / 20).max(Duration::from_millis(100));
    for tried in 1.. {
        let started = Instant::now();
        let error = call().expect_err("there was nothing to come");
        let took = started.elapsed();
        assert!(took >= timeout, "took {took:?} with a time-out of {timeout:?}: {error}");
        if took <= most && was_heard(&error) {
            return error;
        }
        assert!(tried < TRIES, "took {took:?} with a time-out of {timeout:?}: {error}");
    }
    unreachable!("the loop returns or fails")
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "still not so after {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A call in another thread goes on for at least so long.
#[track_caller]
pub(crate) fn goes_on_for<T>(time: Duration, call: &ScopedJoinHandle<'_, T>) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        assert!(!call.is_finished(), "ended before its time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the server answered what it was asked after the time-out. On a busy machine that may come too late.
pub(crate) fn was_heard(error: &StoreError) -> bool {
    match error {
        StoreError::Timeout { keys, .. } => keys.present.is_some(),
        StoreError::NoAnswer { .. } | StoreError::Indeterminate { .. } => false,
        _ => true,
    }
}
