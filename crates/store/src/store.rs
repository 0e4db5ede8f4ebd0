//! The one interface of all stores. What it does is torch's `Store`; how it says so is Rust's.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::Value;
use rallypoint_core::client::{Cancellation, Deadline, Exchange, Failure, Oversized};
use rallypoint_core::number::parse_prefix;
use rallypoint_core::wire::Op;

use crate::deadline::now;
use crate::error::{Context, Result, StoreError, StoreKind};

/// How long a store waits unless told otherwise: 300 s, as torch's.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store that the processes of a job share.
///
/// All methods may be called from many threads at once. Those that wait do so for the store's
/// [`timeout`](Store::timeout); `None` means without end. Keys are text and values are bytes.
///
/// The provided methods are torch's fallbacks for stores that have no better way. Each of
/// [`compare_set`](Store::compare_set) and [`compare_exchange`](Store::compare_exchange) is provided by way of the other, so an
/// implementation must have at least one of them.
pub trait Store: Send + Sync {
    /// Stores `value` under `key`, whatever was there.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of `key`, waiting until there is one.
    fn get(&self, key: &str) -> Result<Vec<u8>>;

    /// Adds `delta` to the number that `key` holds as decimal text (an absent key counts as 0); the new number.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Whether all these keys are present. Never waits.
    fn check(&self, keys: &[&str]) -> Result<bool>;

    /// Waits until all these keys are present, at most for `timeout`.
    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()>;

    /// Waits until all these keys are present, at most for the store's own timeout.
    fn wait(&self, keys: &[&str]) -> Result<()> {
        self.wait_for(keys, self.timeout())
    }

    /// Stores `desired` if `key` holds `expected`, or if it is absent and `expected` is empty. Returns what torch
    /// returns: the value held afterwards, except that for an absent key and a non-empty `expected` (where nothing is
    /// stored) it returns `expected`. [`compare_exchange`](Store::compare_exchange) says plainly which it was.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Ok(match self.compare_exchange(key, expected, desired)? {
            Exchange::Stored => desired.into(),
            Exchange::Held(value) => value,
            Exchange::Absent => expected.into(),
        })
    }

    /// [`compare_set`](Store::compare_set) with a result that can't be misread.
    ///
    /// Torch's servers answer only with a value, so with them [`Exchange::Stored`] may also mean that `desired` was held
    /// already: give each caller a `desired` of its own there. Our stores and servers tell the two apart.
    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        exchange_from_compare_set(self, key, expected, desired)
    }

    /// Removes `key`; whether it was there (a [`FileStore`](crate::FileStore) always says yes, as torch's does).
    fn delete_key(&self, key: &str) -> Result<bool>;

    /// How many keys the whole store holds.
    fn num_keys(&self) -> Result<u64>;

    /// Puts `value` after what `key` holds.
    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut current = Vec::new();
        loop {
            let grown = [current.as_slice(), value].concat();
            match self.compare_exchange(key, &current, &grown)? {
                Exchange::Stored => return Ok(()),
                Exchange::Held(value) => current = value,
                Exchange::Absent => current.clear(),
            }
        }
    }

    /// The values of these keys, waiting until all are there.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Stores several values.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        pairs.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    /// Puts an item at the end of a queue.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        let _ = (key, value);
        Err(unsupported(self.kind(), Op::QueuePush))
    }

    /// Takes the item at the head of a queue, waiting until there is one.
    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let _ = key;
        Err(unsupported(self.kind(), Op::QueuePop))
    }

    /// Takes the item at the head of a queue; [`StoreError::QueueEmpty`] if there is none.
    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let _ = key;
        Err(unsupported(self.kind(), Op::QueuePop))
    }

    /// How many items a queue holds.
    fn queue_len(&self, key: &str) -> Result<u64> {
        let _ = key;
        Err(unsupported(self.kind(), Op::QueueLen))
    }

    /// The names of all keys, in no order.
    fn list_keys(&self) -> Result<Vec<String>> {
        Err(unsupported(self.kind(), Op::ListKeys))
    }

    /// Waits until `world_size` callers have come to the barrier `key`, at most for the store's timeout.
    fn barrier(&self, key: &str, world_size: u64) -> Result<()> {
        self.barrier_for(key, world_size, self.timeout())
    }

    /// Waits until `world_size` callers have come to the barrier `key`, at most for `timeout`.
    ///
    /// This fallback uses the keys torch's uses and, like it, each `key` once only.
    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        if world_size == 0 {
            return Err(StoreError::bad_world_size(&format!("barrier {key}"), 0));
        }
        let deadline = Deadline::after(now(), timeout);
        let last = arrive(self, world_size, key, b"1", &deadline)?;
        self.wait_for(&[&last], deadline.left(now()))
    }

    /// How long this store waits.
    fn timeout(&self) -> Option<Duration>;

    /// Sets how long this store waits from now on; `None` for without end.
    fn set_timeout(&self, timeout: Option<Duration>);

    /// This same client with a timeout of its own, for a few calls that have less time, or more. It is meant to be
    /// dropped before the store is.
    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store>;

    /// Whether `append`, `multi_get` and `multi_set` are single operations here rather than loops.
    fn has_extended_api(&self) -> bool {
        false
    }

    /// An independent client of the same store.
    fn clone_store(&self) -> Result<Box<dyn Store>>;

    /// How often this client has found its server restarted and empty, and gone on ([`OnReset::Continue`]). What it
    /// published before is lost whenever this number grows.
    ///
    /// [`OnReset::Continue`]: crate::OnReset::Continue
    fn generation(&self) -> u64 {
        0
    }

    /// What ends calls of this store early.
    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        None
    }

    /// What kind of store this is.
    fn kind(&self) -> StoreKind;
}

/// Counts the caller at a barrier of torch's: the last of `world_size` callers sets the key that all of them wait for to `value`.
/// Returns the name of that key. Each `prefix` serves one barrier.
pub fn arrive<S: Store + ?Sized>(
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

/// What the answer of [`Store::compare_set`] means, as far as it can be told.
pub(crate) fn exchange_from_compare_set<S: Store + ?Sized>(
    store: &S,
    key: &str,
    expected: &[u8],
    desired: &[u8],
) -> Result<Exchange> {
    let value = store.compare_set(key, expected, desired)?;
    Ok(if expected == desired && value == desired && !expected.is_empty() {
        // "Stored" and "absent" read the same; but nothing changed either way, so presence tells.
        if store.check(&[key])? { Exchange::Stored } else { Exchange::Absent }
    } else if value == desired {
        Exchange::Stored
    } else if value == expected && !expected.is_empty() {
        Exchange::Absent
    } else {
        Exchange::Held(value)
    })
}

/// What a key holds once `delta` is added to it.
pub(crate) fn sum(value: Option<&[u8]>, delta: i64) -> Result<i64, Failure> {
    let Some(value) = value else { return Ok(delta) };
    let sum = parse_prefix(value).and_then(|number| number.checked_add(delta));
    sum.ok_or_else(|| Failure::NotANumber { delta, value: Value::copied(value) })
}

/// Fails with [`Failure::TooLarge`] if `len` is over the limit.
pub(crate) fn within(what: Oversized, len: usize, limit: usize) -> Result<(), Failure> {
    if len > limit { Err(Failure::TooLarge { what, len: len as u64, limit }) } else { Ok(()) }
}

fn unsupported(store: StoreKind, op: Op) -> StoreError {
    Context::new(store, "").with_call(op, Vec::new()).failed(Failure::Unsupported(None))
}
