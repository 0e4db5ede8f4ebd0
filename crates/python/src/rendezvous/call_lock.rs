//! A lock for calls that must not overlap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::calls::sleep;

/// How often a waiting call checks whether the lock is free.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A lock that a call takes before it joins a rendezvous.
///
/// Unlike with a mutex, another thread may release the lock, and waiting for it can be interrupted.
#[derive(Default)]
pub(super) struct CallLock(Arc<AtomicBool>);

/// Releases the lock when it is dropped.
pub(super) struct CallLockGuard(Arc<AtomicBool>);

impl CallLock {
    /// Waits until the lock is free and takes it. Returns `None` if a signal handler interrupts the wait.
    pub(super) fn lock(&self) -> Option<CallLockGuard> {
        while self.0.swap(true, Ordering::SeqCst) {
            if !sleep(POLL_INTERVAL) {
                return None;
            }
        }
        Some(CallLockGuard(Arc::clone(&self.0)))
    }
}

impl Drop for CallLockGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
