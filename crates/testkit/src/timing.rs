//! Calls that must take a certain time.

use std::fmt::{Debug, Display};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Long enough for anything that should happen at once.
pub const SOON: Duration = Duration::from_secs(30);

/// Calls something that must fail when its time is up: not before, and at most 5 % or 100 ms later. Time in which a thread of
/// this process was ready to run but got no processor does not count.
#[track_caller]
pub fn fails_in_time<T: Debug, E: Display>(timeout: Duration, call: impl FnOnce() -> Result<T, E>) -> E {
    let (start, delay) = (Instant::now(), run_delay());
    let result = call();
    let (took, delay) = (start.elapsed(), run_delay().saturating_sub(delay));
    let error = match result {
        Ok(result) => panic!("did not fail within {took:?}: {result:?}"),
        Err(error) => error,
    };
    let most = timeout + (timeout / 20).max(Duration::from_millis(100));
    assert!(took >= timeout, "took {took:?} with {timeout:?}: {error}");
    assert!(
        took.saturating_sub(delay) <= most,
        "took {took:?}, {delay:?} not running, with {timeout:?}: {error}"
    );
    error
}

/// How long the threads of this process have waited for a processor so far.
fn run_delay() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs").flatten();
    let nanos = tasks.filter_map(|task| {
        let schedstat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        schedstat.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
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
