//! The interface of all stores. It has the operations of torch's `Store`.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::Value;
use rallypoint_core::client::{Cancellation, Deadline, Exchange, Failure, Oversized};
use rallypoint_core::number::parse_prefix;
use rallypoint_core::wire::Op;

use crate::deadline::now;
use crate::error::{Context, Result, StoreError, StoreKind};

/// The default timeout of a store, which is torch's: 300 s.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store that the processes of a job share.
///
/// All methods may be called concurrently. Methods that wait use the [`timeout`](Store::timeout) of the store. `None`
/// means no timeout. Keys are text and values are bytes.
///
/// The provided methods are torch's fallbacks. [`compare_set`](Store::compare_set) and
/// [`compare_exchange`](Store::compare_exchange) each have a default that calls the other one, so an implementation
/// must define at least one of them.
///
/// # Errors
///
/// All methods fail with [`StoreError::Call`] if the server fails or the store refuses the operation. The methods of
/// [`FileStore`](crate::FileStore) also fail with [`StoreError::File`] and [`StoreError::FileTimeout`]. A method that
/// waits fails with [`Failure::Timeout`] in a [`StoreError::Call`] when its timeout passes.
pub trait Store: Send + Sync {
    /// Stores `value` under `key` and replaces the previous value.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// Waits until `key` is present and returns its value.
    fn get(&self, key: &str) -> Result<Vec<u8>>;

    /// Adds `delta` to the number under `key` and returns the sum. The number is stored as decimal text, and an absent
    /// key counts as 0.
    ///
    /// # Errors
    ///
    /// Fails with [`Failure::NotANumber`] if the value does not start with a number or the sum overflows.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Returns whether all keys are present, without waiting.
    fn check(&self, keys: &[&str]) -> Result<bool>;

    /// Waits until all keys are present, at most for `timeout`.
    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()>;

    /// Waits until all keys are present, at most for the timeout of the store.
    fn wait(&self, keys: &[&str]) -> Result<()> {
        self.wait_for(keys, self.timeout())
    }

    /// Stores `desired` if the value of `key` is `expected`, or if the key is absent and `expected` is empty.
    ///
    /// Returns the value after the operation, as torch does. There is one exception: if the key is absent and
    /// `expected` is not empty, this method returns `expected` although nothing is stored.
    /// [`compare_exchange`](Store::compare_exchange) distinguishes these outcomes.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Ok(match self.compare_exchange(key, expected, desired)? {
            Exchange::Stored => desired.into(),
            Exchange::Mismatch(value) => value,
            Exchange::Absent => expected.into(),
        })
    }

    /// Does the same as [`compare_set`](Store::compare_set) and returns the exact outcome.
    ///
    /// Torch's servers reply only with a value. With such a server, [`Exchange::Stored`] may also mean that `desired`
    /// was already stored, so concurrent callers must use different values for `desired`. Our stores and servers report
    /// the exact outcome.
    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        exchange_from_compare_set(self, key, expected, desired)
    }

    /// Deletes `key` and returns whether it was present. [`FileStore`](crate::FileStore) always returns `true`, as
    /// torch's does.
    fn delete_key(&self, key: &str) -> Result<bool>;

    /// Returns the number of keys in the whole store.
    fn num_keys(&self) -> Result<u64>;

    /// Appends to the value of `key`. An absent key counts as empty.
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut current = Vec::new();
        loop {
            let grown = [current.as_slice(), value].concat();
            match self.compare_exchange(key, &current, &grown)? {
                Exchange::Stored => return Ok(()),
                Exchange::Mismatch(value) => current = value,
                Exchange::Absent => current.clear(),
            }
        }
    }

    /// Waits until all keys are present and returns their values.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Stores several values.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    /// Appends an item to a queue.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        let _ = (key, value);
        Err(unsupported(self.kind(), Op::QueuePush))
    }

    /// Waits until a queue has an item, and removes and returns the first one.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::QueueEmpty`] if the queue is empty but `key` has a value, which also ends the wait.
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let _ = key;
        Err(unsupported(self.kind(), Op::QueuePop))
    }

    /// Removes and returns the first item of a queue, without waiting.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::QueueEmpty`] if the queue has no items.
    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let _ = key;
        Err(unsupported(self.kind(), Op::QueuePop))
    }

    /// Returns the number of items in a queue.
    fn queue_len(&self, key: &str) -> Result<u64> {
        let _ = key;
        Err(unsupported(self.kind(), Op::QueueLen))
    }

    /// Returns the names of all keys, in no particular order.
    fn list_keys(&self) -> Result<Vec<String>> {
        Err(unsupported(self.kind(), Op::ListKeys))
    }

    /// Waits until `world_size` callers have arrived at the barrier `key`, at most for the timeout of the store.
    fn barrier(&self, key: &str, world_size: u64) -> Result<()> {
        self.barrier_for(key, world_size, self.timeout())
    }

    /// Waits until `world_size` callers have arrived at the barrier `key`, at most for `timeout`.
    ///
    /// The default implementation uses the same keys as torch's. As in torch, each `key` can be used for one barrier
    /// only.
    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        if world_size == 0 {
            return Err(StoreError::zero_world_size(&format!("barrier {key}")));
        }
        let deadline = Deadline::after(now(), timeout);
        let last = arrive_at_barrier(self, world_size, key, b"1", &deadline)?;
        self.wait_for(&[&last], deadline.left(now()))
    }

    /// Returns the timeout of this store.
    fn timeout(&self) -> Option<Duration>;

    /// Sets the timeout of this store. `None` means no timeout.
    fn set_timeout(&self, timeout: Option<Duration>);

    /// Returns the same client with another timeout, for calls that need a shorter or longer one.
    ///
    /// The result shares the resources of the store, which are released when both are dropped.
    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store>;

    /// Returns the same as torch's `has_extended_api`: whether `append`, `multi_get` and `multi_set` are single
    /// operations of the store instead of loops. As in torch, [`FileStore`](crate::FileStore) returns `false`, although
    /// ours has these operations.
    fn has_extended_api(&self) -> bool {
        false
    }

    /// Returns another client of the same store, as torch's `clone` does. The clone has a timeout of its own, except
    /// that clones of a [`HashStore`](crate::HashStore) share one timeout.
    fn clone_store(&self) -> Result<Box<dyn Store>>;

    /// Returns how many times this client has continued after its server was restarted ([`OnReset::Continue`]).
    /// Whenever the number increases, everything that the client stored before is lost.
    ///
    /// [`OnReset::Continue`]: crate::OnReset::Continue
    fn generation(&self) -> u64 {
        0
    }

    /// Returns the cancellation of the calls of this store.
    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        None
    }

    /// Returns the kind of this store.
    fn kind(&self) -> StoreKind;
}

/// Counts the caller at a barrier, under torch's keys.
///
/// Returns the name of the key for which all callers wait. The last of `world_size` callers stores `value` under it.
/// Each `prefix` can be used for one barrier only.
///
/// # Errors
///
/// Fails like [`Store::add`] and [`Store::set`].
pub fn arrive_at_barrier<S: Store + ?Sized>(
    store: &S,
    world_size: u64,
    prefix: &str,
    value: &[u8],
    deadline: &Deadline,
) -> Result<String> {
    let last = format!("{prefix}/last_member");
    let arrived = store.with_timeout(deadline.left(now())).add(&format!("{prefix}/num_members"), 1)?;
    if arrived == world_size as i64 {
        store.with_timeout(deadline.left(now())).set(&last, value)?;
    }
    Ok(last)
}

/// Calls [`Store::compare_set`] and derives the outcome from the returned value, as far as that is possible.
pub(crate) fn exchange_from_compare_set<S: Store + ?Sized>(
    store: &S,
    key: &str,
    expected: &[u8],
    desired: &[u8],
) -> Result<Exchange> {
    let value = store.compare_set(key, expected, desired)?;
    Ok(if expected == desired && value == desired && !expected.is_empty() {
        // The value is the same for `Stored` and `Absent`. Nothing changed in either case, so a check distinguishes
        // them.
        if store.check(&[key])? { Exchange::Stored } else { Exchange::Absent }
    } else if value == desired {
        Exchange::Stored
    } else if value == expected && !expected.is_empty() {
        Exchange::Absent
    } else {
        Exchange::Mismatch(value)
    })
}

/// Returns the sum of a stored number and `delta`.
pub(crate) fn sum(value: Option<&[u8]>, delta: i64) -> Result<i64, Failure> {
    let Some(value) = value else { return Ok(delta) };
    let sum = parse_prefix(value).and_then(|number| number.checked_add(delta));
    sum.ok_or_else(|| Failure::NotANumber { delta, value: Value::copied(value) })
}

/// Fails with [`Failure::TooLarge`] if `len` exceeds the limit.
pub(crate) fn within(what: Oversized, len: usize, limit: usize) -> Result<(), Failure> {
    if len > limit { Err(Failure::TooLarge { what, len: len as u64, limit }) } else { Ok(()) }
}

fn unsupported(store: StoreKind, op: Op) -> StoreError {
    Context::new(store, "").with_call(op, Vec::new()).failed(Failure::Unsupported(None))
}
