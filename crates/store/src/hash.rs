//! A store within one process: a map behind one lock, and one condition variable for all waits.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rallypoint_core::client::{Awaited, Cancellation, Deadline, Exchange, Failure};
use rallypoint_core::wire::Op;

use crate::deadline::{AtomicTimeout, now};
use crate::error::{Context, Result, StoreError, StoreKind};
use crate::store::{DEFAULT_TIMEOUT, Store, sum};

/// A store shared by the threads of one process. Clones share its contents.
///
/// A wait ends when all of its keys are present at the same time, as in torch's HashStore. It may miss a key that
/// another thread sets and immediately deletes.
#[derive(Clone)]
pub struct HashStore {
    shared: Arc<Shared>,
    /// Shared with clones, except those of [`Store::with_timeout`].
    timeout: Arc<AtomicTimeout>,
    cancellation: Option<Arc<dyn Cancellation>>,
}

#[derive(Default)]
struct Shared {
    contents: Mutex<Contents>,
    changed: Condvar,
}

#[derive(Default)]
struct Contents {
    values: HashMap<String, Vec<u8>>,
    /// The queues that have items.
    queues: HashMap<String, VecDeque<Vec<u8>>>,
    /// The callers that wait at each barrier, by the barrier's key and world size.
    barriers: HashMap<(String, u64), BTreeSet<u64>>,
    /// The number of arrivals at all barriers, from which each caller gets its number.
    arrivals: u64,
}

impl Contents {
    /// Returns whether `key` has a value or is a queue with items.
    fn has(&self, key: &str) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.values.insert(key.into(), value.into());
    }

    fn pop(&mut self, key: &str) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let item = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        item
    }
}

impl HashStore {
    /// Creates an empty store.
    pub fn new() -> HashStore {
        HashStore {
            shared: Arc::default(),
            timeout: Arc::new(AtomicTimeout::new(Some(DEFAULT_TIMEOUT))),
            cancellation: None,
        }
    }

    /// Returns a clone whose calls end early when `cancellation` is canceled.
    pub fn with_cancellation(&self, cancellation: impl Into<Option<Arc<dyn Cancellation>>>) -> HashStore {
        HashStore { cancellation: cancellation.into(), ..self.clone() }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.shared.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the contents and wakes the calls that wait.
    fn change<T>(&self, change: impl FnOnce(&mut Contents) -> T) -> T {
        let changed = change(&mut self.contents());
        self.shared.changed.notify_all();
        changed
    }

    /// Calls `poll` after every change until it returns a value.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::Timeout`] when the timeout passes. `on_timeout` returns what the error reports as awaited.
    fn wait_until<T>(
        &self,
        op: Op,
        keys: &[&str],
        timeout: Option<Duration>,
        mut poll: impl FnMut(&mut Contents) -> Option<T>,
        on_timeout: impl FnOnce(&mut Contents) -> Awaited,
    ) -> Result<T> {
        let deadline = Deadline::after(now(), timeout).or_canceled(self.cancellation.clone());
        let mut contents = self.contents();
        let mut last_on_wait = now();
        loop {
            if let Some(found) = poll(&mut contents) {
                return Ok(found);
            }
            let slice = deadline.slice(now()).unwrap_or(Duration::MAX);
            if slice.is_zero() {
                let failure = Failure::Timeout(on_timeout(&mut contents));
                return Err(context(op, keys).after(deadline.waited(now())).failed(failure));
            }
            let waited = self.shared.changed.wait_timeout(contents, slice);
            (contents, _) = waited.unwrap_or_else(PoisonError::into_inner);
            // The time is measured since the last `on_wait`, because changes of other keys may end every wait before
            // its slice has passed.
            if now() - last_on_wait >= slice {
                drop(contents);
                deadline.on_wait();
                last_on_wait = now();
                contents = self.contents();
            }
        }
    }

    /// Calls `poll` after every change until it returns a value. A timeout reports which of `keys` are present.
    fn wait_for_keys<T>(
        &self,
        op: Op,
        keys: &[&str],
        timeout: Option<Duration>,
        poll: impl FnMut(&mut Contents) -> Option<T>,
    ) -> Result<T> {
        self.wait_until(op, keys, timeout, poll, |contents| {
            Awaited::Keys(Some(keys.iter().map(|key| contents.has(key)).collect()))
        })
    }
}

fn context(op: Op, keys: &[&str]) -> Context {
    Context::new(StoreKind::Hash, "").with_call(op, keys.iter().map(|key| key.to_string()).collect())
}

impl Default for HashStore {
    fn default() -> Self {
        HashStore::new()
    }
}

impl fmt::Debug for HashStore {
    /// Omits the keys and values, which do not belong in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashStore").field("keys", &self.contents().values.len()).finish_non_exhaustive()
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.change(|contents| contents.set(key, value));
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.wait_for_keys(Op::Get, &[key], self.timeout(), |contents| contents.values.get(key).cloned())
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.change(|contents| {
            let sum = sum(contents.values.get(key).map(Vec::as_slice), delta);
            let sum = sum.map_err(|failure| context(Op::Add, &[key]).failed(failure))?;
            contents.set(key, sum.to_string().as_bytes());
            Ok(sum)
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let contents = self.contents();
        Ok(keys.iter().all(|key| contents.has(key)))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        self.wait_for_keys(Op::Wait, keys, timeout, |contents| {
            keys.iter().all(|key| contents.has(key)).then_some(())
        })
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        Ok(self.change(|contents| match contents.values.get(key) {
            Some(value) if value != expected => Exchange::Mismatch(value.clone()),
            None if !expected.is_empty() => Exchange::Absent,
            _ => {
                contents.set(key, desired);
                Exchange::Stored
            }
        }))
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        Ok(self.contents().values.remove(key).is_some())
    }

    fn num_keys(&self) -> Result<u64> {
        Ok(self.contents().values.len() as u64)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.change(|contents| contents.values.entry(key.into()).or_default().extend_from_slice(value));
        Ok(())
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        self.wait_for_keys(Op::MultiGet, keys, self.timeout(), |contents| {
            keys.iter().map(|key| contents.values.get(*key).cloned()).collect()
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        self.change(|contents| pairs.iter().for_each(|(key, value)| contents.set(key, value)));
        Ok(())
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.change(|contents| contents.queues.entry(key.into()).or_default().push_back(value.into()));
        Ok(())
    }

    /// As in torch, a value under the same key ends the wait, and the pop fails with [`StoreError::QueueEmpty`].
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let item = self.wait_for_keys(Op::QueuePop, &[key], self.timeout(), |contents| {
            contents.has(key).then(|| contents.pop(key))
        })?;
        item.ok_or_else(|| StoreError::QueueEmpty { key: key.into() })
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        self.contents().pop(key).ok_or_else(|| StoreError::QueueEmpty { key: key.into() })
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        Ok(self.contents().queues.get(key).map_or(0, |queue| queue.len() as u64))
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        Ok(self.contents().values.keys().cloned().collect())
    }

    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        if world_size == 0 {
            return Err(StoreError::zero_world_size(&format!("barrier {key}")));
        }
        let barrier = (key.to_owned(), world_size);
        let caller = self.change(|contents| {
            contents.arrivals += 1;
            let callers = contents.barriers.entry(barrier.clone()).or_default();
            callers.insert(contents.arrivals);
            if callers.len() as u64 == world_size {
                contents.barriers.remove(&barrier);
            }
            contents.arrivals
        });
        let is_over = |contents: &mut Contents| {
            let callers = contents.barriers.get(&barrier);
            (!callers.is_some_and(|callers| callers.contains(&caller))).then_some(())
        };
        self.wait_until(Op::Barrier, &[key], timeout, is_over, |contents| {
            let callers = contents.barriers.entry(barrier.clone()).or_default();
            callers.remove(&caller);
            if callers.is_empty() {
                contents.barriers.remove(&barrier);
            }
            Awaited::Arrivals(world_size)
        })
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout.load()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.store(timeout);
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(HashStore { timeout: Arc::new(AtomicTimeout::new(timeout)), ..self.clone() })
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.clone()))
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        self.cancellation.clone()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Hash
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct CancelOnThirdWait(AtomicU32);

    impl Cancellation for CancelOnThirdWait {
        fn is_canceled(&self) -> bool {
            self.0.load(Ordering::SeqCst) >= 3
        }
        fn on_wait(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_wait_is_canceled_while_another_thread_keeps_writing() {
        let store = HashStore::new();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    store.set("busy", b"1").unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let waiter = store.with_cancellation(Some(Arc::new(CancelOnThirdWait::default()) as _));
            let error = waiter.wait_for(&["absent"], Some(Duration::from_secs(60))).unwrap_err();
            is_over.store(true, Ordering::SeqCst);
            assert!(error.context().unwrap().waited < Duration::from_secs(30), "{error}");
        });
    }
}
