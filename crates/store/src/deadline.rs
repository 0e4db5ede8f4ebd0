//! The real clock, and pauses by it. When a call must return is decided by [`Deadline`].

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::client::{Backoff, Cancellation, Deadline};

/// The time since the machine has started.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub(crate) fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
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
pub(crate) fn pause(backoff: &mut Backoff, deadline: &Deadline) {
    sleep_until(&deadline.or_after(now(), backoff.pause(random())));
}
