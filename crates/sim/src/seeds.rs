//! Runs many seeds on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls `run` for all seeds in a range, on all processors, until `stop` returns true. `run` gets a value of its thread.
/// Returns the values of all threads.
pub fn run_seeds<S: Default + Send>(
    seeds: std::ops::Range<u64>,
    stop: impl Fn() -> bool + Sync,
    run: impl Fn(&mut S, u64) + Sync,
) -> Vec<S> {
    let (next, results) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let work = || {
        let mut own = S::default();
        while !stop() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            run(&mut own, seed);
        }
        results.lock().expect("no thread panics with the lock").push(own);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    results.into_inner().expect("no thread panics with the lock")
}

/// Runs the seeds in a range until one fails. Returns the lowest seed that failed, and the sums of the runs that passed.
/// A panic counts as a failure.
pub fn first_failure<S: Default + Send, E>(
    seeds: std::ops::Range<u64>,
    run: impl Fn(&mut S, u64) -> Result<(), E> + Sync + std::panic::RefUnwindSafe,
) -> (Option<u64>, Vec<S>) {
    let failed = AtomicU64::new(u64::MAX);
    let stop = || failed.load(Ordering::Relaxed) != u64::MAX;
    let sums = run_seeds(seeds, stop, |sum: &mut S, seed| {
        let sum = std::panic::AssertUnwindSafe(sum);
        let result = std::panic::catch_unwind(|| {
            let sum = sum;
            run(sum.0, seed).is_ok()
        });
        if !matches!(result, Ok(true)) {
            failed.fetch_min(seed, Ordering::Relaxed);
        }
    });
    (Some(failed.into_inner()).filter(|seed| *seed != u64::MAX), sums)
}
