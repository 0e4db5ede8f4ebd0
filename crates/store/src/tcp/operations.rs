//! The implementation of [`Store`] for [`TcpStore`].

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::client::{Cancellation, Client, Deadline, Exchange, Failure, Oversized, ready};
use rallypoint_core::wire::{KeyList, Op, PairList, Reply, Request};

use super::TcpStore;
use super::sockets::Sockets;
use crate::error::{Result, StoreError, StoreKind};
use crate::store::{Store, exchange_from_compare_set, within};

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(Op::Set, &[key], &[value], async |client, keys, deadline| {
            let request = Request::Set { key: keys[0], value: value.into() };
            client.send_acknowledged(Some(keys[0]), request, deadline).await
        })
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.call(Op::Get, &[key], &[], async |client, keys, deadline| {
            Ok(client.get(keys[0], deadline).await?.to_vec())
        })
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.call(Op::Add, &[key], &[], async |client, keys, deadline| {
            client.add(keys[0], delta, deadline).await
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.call(Op::Check, keys, &[], async |client, keys, deadline| {
            let request = Request::Check { keys: KeyList::new(keys) };
            Ok(client.request(request, deadline).await? == Reply::Checked(true))
        })
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        self.clone_with_timeout(timeout).call(Op::Wait, keys, &[], async |client, keys, deadline| {
            client.wait_then(Op::Wait, keys, None, deadline).await.map(drop)
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.call(Op::CompareSet, &[key], &[expected, desired], async |client, keys, deadline| {
            Ok(client.compare_set(keys[0], expected, desired, deadline).await?.to_vec())
        })
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        let values = [expected, desired];
        let outcome = self.call(Op::CompareSet, &[key], &values, async |client, keys, deadline| {
            client.compare_exchange(keys[0], expected, desired, deadline).await
        })?;
        outcome.map_or_else(|| exchange_from_compare_set(self, key, expected, desired), Ok)
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        self.call(Op::DeleteKey, &[key], &[], async |client, keys, deadline| {
            client.delete_key(keys[0], deadline).await
        })
    }

    fn num_keys(&self) -> Result<u64> {
        self.call(Op::NumKeys, &[], &[], async |client, _, deadline| {
            Ok(client.request_number(Request::NumKeys, deadline).await?.max(0) as u64)
        })
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(Op::Append, &[key], &[value], async |client, keys, deadline| {
            client.append(keys[0], value, deadline).await
        })
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        self.call(Op::MultiGet, keys, &[], async |client, keys, deadline| {
            let values = client.multi_get(keys, deadline).await?;
            Ok(values.iter().map(|value| value.to_vec()).collect())
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let (keys, values): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        self.call(Op::MultiSet, &keys, &values, async |client, keys, deadline| {
            let pairs: Vec<_> = keys.iter().copied().zip(values.iter().copied()).collect();
            let request = Request::MultiSet { pairs: PairList::new(&pairs) };
            client.send_acknowledged(keys.first().copied(), request, deadline).await
        })
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(Op::QueuePush, &[key], &[value], async |client, keys, deadline| {
            let request = Request::QueuePush { key: keys[0], value: value.into() };
            client.send_acknowledged(None, request, deadline).await
        })
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let item = self.call(Op::QueuePop, &[key], &[], async |client, keys, deadline| {
            client.wait_then_pop(keys[0], deadline).await
        })?;
        item.ok_or_else(|| StoreError::QueueEmpty { key: key.into() })
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let reply = self.call(Op::QueuePop, &[key], &[], async |client, keys, deadline| {
            client.request(Request::QueuePop { key: keys[0] }, deadline).await
        })?;
        match reply {
            Reply::Popped { item: Some(item), .. } => Ok(item.to_vec()),
            _ => Err(StoreError::QueueEmpty { key: key.into() }),
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        self.call(Op::QueueLen, &[key], &[], async |client, keys, deadline| {
            Ok(client.request_number(Request::QueueLen { key: keys[0] }, deadline).await?.max(0) as u64)
        })
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        let reply = self.call(Op::ListKeys, &[], &[], async |client, _, deadline| {
            client.request(Request::ListKeys, deadline).await
        })?;
        let Reply::Keys(keys) = reply else { return Ok(Vec::new()) };
        // Only users' keys start with a slash.
        let names = keys.iter().filter_map(|key| key.strip_prefix(b"/"));
        Ok(names.map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        if world_size == 0 {
            return Err(StoreError::zero_world_size(&format!("barrier {key}")));
        }
        // The protocol's largest world size is `i64::MAX`. Neither a barrier of that size nor a larger one ever
        // completes, so the replacement makes no difference.
        let size = i64::try_from(world_size).unwrap_or(i64::MAX);
        self.clone_with_timeout(timeout).call(Op::Barrier, &[key], &[], async |client, keys, deadline| {
            client.barrier(keys[0], size, deadline).await
        })
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout.load()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.store(timeout);
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(self.clone_with_timeout(timeout))
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.try_clone()?))
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
    /// Runs one call with the keys in their wire form.
    ///
    /// Does not send the request if a key, a value or the whole request exceeds a limit. Adds the context to a failure.
    /// `values` are the values of `keys`, or several values of one key.
    pub(super) fn call<T>(
        &self,
        op: Op,
        keys: &[&str],
        values: &[&[u8]],
        run: impl AsyncFnOnce(&Client<Sockets>, &[&[u8]], &Deadline) -> Result<T, Failure>,
    ) -> Result<T> {
        let deadline = self.deadline();
        let failed = |keys: &[&[u8]], failure| self.error(Some(op), keys, failure, &deadline);
        // Torch's clients prepend a slash to every user's key.
        let wire: Vec<_> = keys.iter().map(|key| [b"/", key.as_bytes()].concat()).collect();
        let wire: Vec<_> = wire.iter().map(Vec::as_slice).collect();
        let limits = self.client.limits();
        within(Oversized::Keys, keys.len(), limits.keys_per_request)
            .map_err(|failure| failed(&[], failure))?;
        for key in &wire {
            within(Oversized::Key, key.len(), limits.key_len).map_err(|failure| failed(&[key], failure))?;
        }
        if !values.is_empty() {
            let identified = ready(self.client.identify(&deadline));
            identified.map_err(|failure| failed(&wire, failure))?;
            let limit = self.client.server().value_len().unwrap_or(limits.value_len);
            for (key, value) in wire.iter().cycle().zip(values) {
                within(Oversized::Value, value.len(), limit).map_err(|failure| failed(&[key], failure))?;
            }
        }
        // An upper bound of the length of the frame: the operation, one number, and each field with its length.
        let len = 9 + wire.iter().chain(values).map(|field| 8 + field.len()).sum::<usize>();
        within(Oversized::Request, len, limits.frame_len).map_err(|failure| failed(&[], failure))?;
        ready(run(&self.client, &wire, &deadline)).map_err(|failure| failed(&wire, failure))
    }
}
