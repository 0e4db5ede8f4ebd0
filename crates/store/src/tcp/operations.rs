//! The store's operations: keys as they travel, what is refused before anything is sent, and the call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rallypoint_core::client::{Cancellation, Deadline, Exchange, Failure, ready, user_key};
use rallypoint_core::printable;
use rallypoint_core::wire::{KeyList, Op, PairList, Reply, Request};

use super::TcpStore;
use crate::error::{Oversize, Result, StoreError, StoreKind};
use crate::store::{Store, exchange_of};

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        self.check_values(Op::Set, &[&key], &[(&key, value)], &deadline)?;
        let request = Request::Set { key: &key, value: value.into() };
        self.run(Op::Set, &[&key], &deadline, self.client.acknowledged(Some(&key), request, &deadline))
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        let value = self.run(Op::Get, &[&key], &deadline, self.client.get(&key, &deadline))?;
        Ok(value.to_vec())
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        self.run(Op::Add, &[&key], &deadline, self.client.add(&key, delta, &deadline))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let keys = self.wire_keys(keys)?;
        let keys = as_slices(&keys);
        let request = Request::Check { keys: KeyList::new(&keys) };
        Ok(self.exchange(&keys, request)? == Reply::Checked(true))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let (keys, deadline) = (self.wire_keys(keys)?, self.deadline_after(timeout));
        let keys = as_slices(&keys);
        let wait = self.client.wait_then(Op::Wait, &keys, None, &deadline);
        self.run(Op::Wait, &keys, &deadline, wait).map(drop)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        self.check_values(Op::CompareSet, &[&key], &[(&key, expected), (&key, desired)], &deadline)?;
        let held = self.client.compare_set(&key, expected, desired, &deadline);
        Ok(self.run(Op::CompareSet, &[&key], &deadline, held)?.to_vec())
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        let (wire, deadline) = (self.wire_key(key)?, self.deadline());
        self.check_values(Op::CompareSet, &[&wire], &[(&wire, expected), (&wire, desired)], &deadline)?;
        let outcome = self.client.compare_exchange(&wire, expected, desired, &deadline);
        match self.run(Op::CompareSet, &[&wire], &deadline, outcome)? {
            Some(outcome) => Ok(outcome),
            None => exchange_of(self, key, expected, desired),
        }
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        self.run(Op::DeleteKey, &[&key], &deadline, self.client.delete_key(&key, &deadline))
    }

    fn num_keys(&self) -> Result<u64> {
        self.count(&[], Request::NumKeys)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        self.check_values(Op::Append, &[&key], &[(&key, value)], &deadline)?;
        self.run(Op::Append, &[&key], &deadline, self.client.append(&key, value, &deadline))
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        let (keys, deadline) = (self.wire_keys(keys)?, self.deadline());
        let keys = as_slices(&keys);
        let values = self.run(Op::MultiGet, &keys, &deadline, self.client.multi_get(&keys, &deadline))?;
        Ok(values.iter().map(|value| value.to_vec()).collect())
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let keys = self.wire_keys(&pairs.iter().map(|(key, _)| *key).collect::<Vec<_>>())?;
        let keys = as_slices(&keys);
        let wire: Vec<_> = keys.iter().copied().zip(pairs.iter().map(|(_, value)| *value)).collect();
        let deadline = self.deadline();
        self.check_values(Op::MultiSet, &keys, &wire, &deadline)?;
        self.check_request(9 + wire.iter().map(|(key, value)| 16 + key.len() + value.len()).sum::<usize>())?;
        let request = Request::MultiSet { pairs: PairList::new(&wire) };
        let acknowledged = self.client.acknowledged(keys.first().copied(), request, &deadline);
        self.run(Op::MultiSet, &keys, &deadline, acknowledged)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        let (key, deadline) = (self.wire_key(key)?, self.deadline());
        self.check_values(Op::QueuePush, &[&key], &[(&key, value)], &deadline)?;
        let request = Request::QueuePush { key: &key, value: value.into() };
        self.run(Op::QueuePush, &[&key], &deadline, self.client.acknowledged(None, request, &deadline))
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let (wire, deadline) = (self.wire_key(key)?, self.deadline());
        let item = self.client.wait_then_pop(&wire, &deadline);
        let item = self.run(Op::QueuePop, &[&wire], &deadline, item)?;
        item.ok_or_else(|| StoreError::QueueEmpty { key: key.into() })
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let wire = self.wire_key(key)?;
        match self.exchange(&[&wire], Request::QueuePop { key: &wire })? {
            Reply::Popped { item: Some(item), .. } => Ok(item.to_vec()),
            _ => Err(StoreError::QueueEmpty { key: key.into() }),
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        let key = self.wire_key(key)?;
        self.count(&[&key], Request::QueueLen { key: &key })
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        let Reply::Keys(keys) = self.exchange(&[], Request::ListKeys)? else { return Ok(Vec::new()) };
        // Names without the slash are not users' keys.
        let names = keys.iter().filter_map(|key| key.strip_prefix(b"/"));
        Ok(names.map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        let size = i64::try_from(world_size).ok().filter(|&size| size > 0);
        let size = size.ok_or_else(|| StoreError::bad_world_size(&format!("barrier {key}"), 0))?;
        let (key, deadline) = (self.wire_key(key)?, self.deadline_after(timeout));
        self.run(Op::Barrier, &[&key], &deadline, self.client.barrier(&key, size, &deadline))
    }

    fn timeout(&self) -> Option<Duration> {
        self.load_timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(TcpStore { timeout: Mutex::new(timeout), ..self.clone() })
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.another()?))
    }

    fn generation(&self) -> u64 {
        self.client.server().generation()
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        self.cancellation.clone()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Tcp
    }
}

impl TcpStore {
    /// Drives a call to its end.
    fn run<T>(
        &self,
        op: Op,
        keys: &[&[u8]],
        deadline: &Deadline,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T> {
        ready(call).map_err(|failure| self.error(Some(op), keys, failure, deadline))
    }

    /// One request and its reply.
    fn exchange(&self, keys: &[&[u8]], request: Request<'_>) -> Result<Reply> {
        let deadline = self.deadline();
        self.run(request.op(), keys, &deadline, self.client.exchange(request, &deadline))
    }

    fn count(&self, keys: &[&[u8]], request: Request<'_>) -> Result<u64> {
        match self.exchange(keys, request)? {
            Reply::Number(number) => Ok(u64::try_from(number).unwrap_or(0)),
            other => unreachable!("the decoder returns the kind asked for, not {other:?}"),
        }
    }

    // ---- what the caller may ask for ----

    /// Torch's clients put a slash before every key of their users.
    fn wire_key(&self, key: &str) -> Result<Vec<u8>> {
        let limit = self.client.limits().key_len;
        if key.len() + 1 > limit {
            return Err(StoreError::TooLarge(Oversize::Key {
                key: printable(key.as_bytes()),
                len: key.len() + 1,
                limit,
            }));
        }
        let mut wire = Vec::with_capacity(key.len() + 1);
        wire.push(b'/');
        wire.extend_from_slice(key.as_bytes());
        Ok(wire)
    }

    fn wire_keys(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        let limit = self.client.limits().keys_per_request;
        if keys.len() > limit {
            return Err(StoreError::TooLarge(Oversize::Keys { count: keys.len(), limit }));
        }
        let wire = keys.iter().map(|key| self.wire_key(key)).collect::<Result<Vec<_>>>()?;
        self.check_request(9 + wire.iter().map(|key| 8 + key.len()).sum::<usize>())?;
        Ok(wire)
    }

    /// Fails with [`Oversize::Value`] if the server does not take one of these values.
    fn check_values(
        &self,
        op: Op,
        keys: &[&[u8]],
        pairs: &[(&[u8], &[u8])],
        deadline: &Deadline,
    ) -> Result<()> {
        self.run(op, keys, deadline, self.client.identify(op, deadline))?;
        let limit = self.client.server().value_len().unwrap_or(self.client.limits().value_len);
        match pairs.iter().find(|(_, value)| value.len() > limit) {
            Some((key, value)) => {
                Err(StoreError::TooLarge(Oversize::Value { key: user_key(key), len: value.len(), limit }))
            }
            None => Ok(()),
        }
    }

    fn check_request(&self, len: usize) -> Result<()> {
        let limit = self.client.limits().frame_len;
        if len > limit { Err(StoreError::TooLarge(Oversize::Request { len, limit })) } else { Ok(()) }
    }
}

fn as_slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}
