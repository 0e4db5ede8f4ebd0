//! Time in the tests of stores. A call must not return before its timeout. How late it may be is tested in virtual time; here
//! it must only return.

use std::fmt::Debug;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rallypoint_store::{Result, StoreError};
pub(crate) use rallypoint_testkit::eventually;

/// Long enough for anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Calls something that must fail when its time is up.
#[track_caller]
pub(crate) fn fails_in_time<T: Debug>(
    timeout: Duration,
    name: &str,
    call: impl FnOnce() -> Result<T>,
) -> StoreError {
    let started = Instant::now();
    let result = call();
    let took = started.elapsed();
    let error = result.expect_err(name);
    assert!(took >= timeout && took < timeout + SOON, "{name} took {took:?} with {timeout:?}: {error}");
    error
}

/// The time for which a call in another thread goes on at least.
#[track_caller]
pub(crate) fn goes_on_for<T>(time: Duration, call: &ScopedJoinHandle<'_, T>) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        assert!(!call.is_finished(), "ended before its time");
        std::thread::sleep(Duration::from_millis(5));
    }
}
