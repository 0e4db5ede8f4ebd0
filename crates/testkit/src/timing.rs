//! Calls that must take a certain time.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::{Debug, Display};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Long enough for anything that should happen at once.
pub const SOON: Duration = Duration::from_secs(30);

/// Calls something that must fail when its time is up: not before, and at most 5 % or 100 ms later. Time in which a thread of
/// this process was ready to run but got no processor does not count.
#[track_caller]
pub fn fails_in_time<T: Debug, E: Display>(timeout: Duration, call: impl FnOnce() -> Result<T, E>) -> E {
    fails_within(timeout, (timeout / 20).max(Duration::from_millis(100)), call)
}

/// Like [`fails_in_time`], but at most `max_late` after the timeout: for calls that have much to compute, which an unoptimized build
/// does slowly.
#[track_caller]
pub fn fails_within<T: Debug, E: Display>(
    timeout: Duration,
    max_late: Duration,
    call: impl FnOnce() -> Result<T, E>,
) -> E {
    let (start, before) = (Instant::now(), run_delays());
    let result = call();
    let took = start.elapsed();
    let delay =
        |(task, delay): (_, Duration)| delay.saturating_sub(before.get(&task).copied().unwrap_or_default());
    let delay = run_delays().into_iter().map(delay).sum::<Duration>();
    let error = match result {
        Ok(result) => panic!("did not fail within {took:?}: {result:?}"),
        Err(error) => error,
    };
    assert!(took >= timeout, "took {took:?} with {timeout:?}: {error}");
    assert!(
        took.saturating_sub(delay) <= timeout + max_late,
        "took {took:?}, {delay:?} not running, with {timeout:?}: {error}"
    );
    error
}

/// How long each thread of this process has waited for a processor so far.
fn run_delays() -> HashMap<OsString, Duration> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let delays = tasks.filter_map(|task| {
        let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = schedstat.split_whitespace().nth(1)?.parse().ok()?;
        Some((task.file_name(), Duration::from_nanos(nanos)))
    });
    delays.collect()
}

/// Checks that a call in another thread goes on for at least this time.
#[track_caller]
pub fn goes_on_for<T>(time: Duration, call: &ScopedJoinHandle<'_, T>) {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        assert!(!call.is_finished(), "ended before its time");
        std::thread::sleep(Duration::from_millis(5));
    }
}
