//! One call at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::calls::sleep;

/// How often a call that waits for its turn looks whether it has come.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A lock that a call takes before it joins a rendezvous. Unlike a mutex, the holder may hand it to another thread, and a
/// wait for it can be interrupted.
#[derive(Default)]
pub(super) struct CallLock(Arc<AtomicBool>);

/// Holds a turn until it is dropped.
pub(super) struct CallLockGuard(Arc<AtomicBool>);

impl CallLock {
    /// Waits for the turn. Returns `None` if this thread is interrupted.
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
