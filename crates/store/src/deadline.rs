//! The real clock, and pauses that end at a [`Deadline`].

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rallypoint_core::client::{Backoff, Cancellation, Deadline};

/// Returns the monotonic time, on which every [`Deadline`] of this crate is based.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// A timeout that several threads may read and set.
///
/// It uses an atomic because a forked child reads it. A mutex could be locked forever in the child if another thread of
/// the parent held it during the fork.
#[derive(Debug)]
pub(crate) struct AtomicTimeout(AtomicU64);

impl AtomicTimeout {
    pub(crate) fn new(timeout: Option<Duration>) -> AtomicTimeout {
        AtomicTimeout(micros(timeout).into())
    }

    pub(crate) fn load(&self) -> Option<Duration> {
        let micros = self.0.load(Ordering::Relaxed);
        (micros != u64::MAX).then(|| Duration::from_micros(micros))
    }

    pub(crate) fn store(&self, timeout: Option<Duration>) {
        self.0.store(micros(timeout), Ordering::Relaxed);
    }
}

impl Clone for AtomicTimeout {
    fn clone(&self) -> AtomicTimeout {
        AtomicTimeout::new(self.load())
    }
}

/// Converts a timeout to microseconds. `u64::MAX` means no timeout.
fn micros(timeout: Option<Duration>) -> u64 {
    let micros = |timeout: Duration| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1);
    timeout.map_or(u64::MAX, micros)
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Sleeps for `duration` or until `cancellation` is canceled. Returns `false` if the sleep was canceled.
pub fn sleep(duration: Duration, cancellation: Option<&Arc<dyn Cancellation>>) -> bool {
    let deadline = Deadline::after(now(), Some(duration)).or_canceled(cancellation.cloned());
    deadline.on_wait();
    sleep_until(&deadline);
    cancellation.is_none_or(|cancellation| !cancellation.is_canceled())
}

/// Sleeps until the deadline has passed or was canceled.
pub(crate) fn sleep_until(deadline: &Deadline) {
    while let Some(slice) = deadline.slice(now()).filter(|slice| !slice.is_zero()) {
        std::thread::sleep(slice);
        deadline.on_wait();
    }
}

/// Sleeps for the next pause of the backoff, at most until the deadline.
pub fn pause(backoff: &mut Backoff, deadline: &Deadline) {
    sleep_until(&deadline.or_after(now(), backoff.pause(random() as u32)));
}
