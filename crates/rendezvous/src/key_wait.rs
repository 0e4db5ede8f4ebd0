//! Waiting for keys on a store that may be far away, or answer late.

use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::CALL_TIMEOUT;
use rallypoint_store::{Result, Store};

/// The longest slice of a wait.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A wait for keys, cut into slices so that its caller can check other conditions in between.
pub struct KeyWait<'a> {
    store: &'a dyn Store,
    keys: &'a [&'a str],
    interval: Duration,
    min_interval: Duration,
}

impl<'a> KeyWait<'a> {
    /// Creates a wait for all these keys, in slices of this length. [`PatientWait::poll`] lengthens them for a slow store.
    pub fn new(store: &'a dyn Store, keys: &'a [&'a str], interval: Duration) -> KeyWait<'a> {
        KeyWait { store, keys, interval, min_interval: interval }
    }

    /// Waits for one slice, at most for `most`. Returns whether all keys exist.
    ///
    /// A slice may be shorter than a round trip to the store. If the store does not answer within the slice, it is asked
    /// once more with a timeout of 10 s, and the following slices last four times as long as that answer took.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer within 10 s.
    pub fn poll(&mut self, timeout: Duration) -> Result<bool> {
        match self.store.wait_for(self.keys, Some(self.interval.min(timeout))) {
            Ok(()) => return Ok(true),
            Err(error) if error.is_outage() => {}
            Err(error) if error.awaited().is_some() => return Ok(false),
            Err(error) => return Err(error),
        }
        let start = Instant::now();
        let present = self.store.with_timeout(Some(CALL_TIMEOUT)).check(self.keys)?;
        self.interval = (4 * start.elapsed()).clamp(self.min_interval, MAX_POLL_INTERVAL);
        Ok(present)
    }
}
