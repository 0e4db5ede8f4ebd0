//! The real clock, and pauses by it. When a call must return is decided by [`Deadline`].

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint_core::client::{Backoff, Cancellation, Deadline};

/// The time since the machine has started, by which a [`Deadline`] is measured.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A timeout that several threads may read and set. It is no mutex, because a forked child reads it: another thread of the
/// parent may have held the mutex at the fork.
#[derive(Debug)]
pub(crate) struct AtomicTimeout(AtomicU64);

impl AtomicTimeout {
    /// Stands for no timeout.
    const NONE: u64 = u64::MAX;

    pub(crate) fn new(timeout: Option<Duration>) -> AtomicTimeout {
        let shared = AtomicTimeout(AtomicU64::default());
        shared.store(timeout);
        shared
    }

    pub(crate) fn load(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            AtomicTimeout::NONE => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Sets the timeout, in microseconds: a longer one than 500,000 years is cut to that.
    pub(crate) fn store(&self, timeout: Option<Duration>) {
        let longest = AtomicTimeout::NONE - 1;
        let micros =
            timeout.map(|timeout| u64::try_from(timeout.as_micros()).unwrap_or(longest).min(longest));
        self.0.store(micros.unwrap_or(AtomicTimeout::NONE), Ordering::Relaxed);
    }
}

/// Returns a number that peers can't guess, from the hash seeds that the standard library draws from the system.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Sleeps for `duration`, or until cancelled; whether it was not cancelled.
pub fn sleep(duration: Duration, cancellation: Option<&Arc<dyn Cancellation>>) -> bool {
    let deadline = Deadline::after(now(), Some(duration)).or_cancelled(cancellation.cloned());
    deadline.on_wait();
    sleep_until(&deadline);
    cancellation.is_none_or(|cancellation| !cancellation.is_cancelled())
}

/// Sleeps until the deadline has passed or was cancelled.
pub(crate) fn sleep_until(deadline: &Deadline) {
    while let Some(slice) = deadline.slice(now()).filter(|slice| !slice.is_zero()) {
        std::thread::sleep(slice);
        deadline.on_wait();
    }
}

/// Sleeps for the next pause, but not past the deadline.
pub fn pause(backoff: &mut Backoff, deadline: &Deadline) {
    sleep_until(&deadline.or_after(now(), backoff.pause(random() as u32)));
}
