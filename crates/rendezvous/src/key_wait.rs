//! A wait for keys in a store with an unknown latency.

use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::CALL_TIMEOUT;
use rallypoint_store::{Result, Store};

/// The longest interval between two polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A wait for keys that the caller polls, so that it can check other conditions in between.
pub struct KeyWait<'a> {
    store: &'a dyn Store,
    keys: &'a [&'a str],
    interval: Duration,
    min_interval: Duration,
}

impl<'a> KeyWait<'a> {
    /// Creates a wait for all of these keys. One [`poll`](KeyWait::poll) waits up to `interval`, at most 2 s, or longer
    /// if the store is slow.
    pub fn new(store: &'a dyn Store, keys: &'a [&'a str], interval: Duration) -> KeyWait<'a> {
        let interval = interval.min(MAX_POLL_INTERVAL);
        KeyWait { store, keys, interval, min_interval: interval }
    }

    /// Waits for the keys until one interval or `timeout` has passed. Returns whether all of them exist.
    ///
    /// The interval may be shorter than a round trip to the store. If the store does not reply in time, this function
    /// queries it once more with a timeout of 10 s. From then on the interval is four times the duration of that query,
    /// but at least the original interval and at most 2 s.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be used, or if it does not reply to that query.
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
