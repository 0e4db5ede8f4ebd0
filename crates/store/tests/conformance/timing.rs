//! Time in the tests of stores: how long a call took, held against what it was given, and waiting for what must come. The
//! lower bounds are strict; the upper ones are tried a few times, because other programs use this machine too.

use std::fmt::Debug;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rallypoint_store::{Result, StoreError};
pub(crate) use rallypoint_testkit::eventually;

/// Long enough for anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Tries before a call counts as late.
pub(crate) const TRIES: u32 = 5;

/// The latest moment at which a call with this time-out may return.
pub(crate) fn latest(timeout: Duration) -> Duration {
    timeout + (timeout / 20).max(Duration::from_millis(100))
}

/// Calls something that must fail when its time is up, not before, and hardly after. An error that is not `fair` is the
/// machine's doing as well.
#[track_caller]
pub(crate) fn fails_in_time<T: Debug>(
    timeout: Duration,
    name: &str,
    is_fair: impl Fn(&StoreError) -> bool,
    call: impl Fn() -> Result<T>,
) -> StoreError {
    for tried in 1.. {
        let started = Instant::now();
        let result = call();
        let took = started.elapsed();
        let error = result.expect_err(name);
        assert!(took >= timeout, "{name} took {took:?} with a time-out of {timeout:?}: {error}");
        if took <= latest(timeout) && is_fair(&error) {
            return error;
        }
        assert!(tried < TRIES, "{name} took {took:?} with a time-out of {timeout:?}: {error}");
    }
    unreachable!("the loop returns or fails")
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
