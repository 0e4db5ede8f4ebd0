//! Assertions on how long calls take.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::{Debug, Display};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The timeout of calls that should return immediately. Only a failure takes this long.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a call that must fail at its timeout: not before it, and at most 5 % or 100 ms after it, whichever is longer.
/// Returns the error.
///
/// Time during which a thread of this process was ready to run but had no processor does not count as lateness.
#[track_caller]
pub fn fails_in_time<T: Debug, E: Display>(timeout: Duration, call: impl FnOnce() -> Result<T, E>) -> E {
    fails_within(timeout, (timeout / 20).max(Duration::from_millis(100)), call)
}

/// Like [`fails_in_time`], but the call may fail up to `max_late` after its timeout. Unoptimized builds need this for
/// calls with long computations.
#[track_caller]
pub fn fails_within<T: Debug, E: Display>(
    timeout: Duration,
    max_late: Duration,
    call: impl FnOnce() -> Result<T, E>,
) -> E {
    let (start, before) = (Instant::now(), run_delays());
    let result = call();
    let took = start.elapsed();
    let increase =
        |(task, delay): (_, Duration)| delay.saturating_sub(before.get(&task).copied().unwrap_or_default());
    let delay = run_delays().into_iter().map(increase).sum::<Duration>();
    let error = match result {
        Ok(result) => panic!("the call succeeded after {took:?}: {result:?}"),
        Err(error) => error,
    };
    assert!(took >= timeout, "took {took:?} with a timeout of {timeout:?}: {error}");
    assert!(
        took.saturating_sub(delay) <= timeout + max_late,
        "took {took:?}, of which {delay:?} without a processor, with a timeout of {timeout:?}: {error}"
    );
    error
}

/// Returns how long each thread of this process has waited for a processor so far.
fn run_delays() -> HashMap<OsString, Duration> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let delays = tasks.filter_map(|task| {
        let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = schedstat.split_whitespace().nth(1)?.parse().ok()?;
        Some((task.file_name(), Duration::from_nanos(nanos)))
    });
    delays.collect()
}

/// Asserts that a call in another thread does not return for this time.
#[track_caller]
pub fn assert_blocked_for<T>(time: Duration, call: &ScopedJoinHandle<'_, T>) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        assert!(!call.is_finished(), "the call returned within {time:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
