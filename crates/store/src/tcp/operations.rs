//! The store's operations as requests: what each sends, what it reads, and whether it may be sent again.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rallypoint_core::number::parse_prefix;
use rallypoint_core::store::STORED_KEY;
use rallypoint_core::wire::{KeyList, Op, PairList, Reply, ReplyKind, Request};
use rallypoint_core::{Value, printable};

use super::TcpStore;
use super::broken::Broken;
use super::connection::Connection;
use super::link::user_key;
use crate::deadline::Deadline;
use crate::error::{Oversize, Result, StoreError, StoreKind};
use crate::store::{Exchange, Store};

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = self.wire_key(key)?;
        let deadline = self.deadline();
        self.check_values(Op::Set, &[&key], &[(&key, value)], &deadline)?;
        self.acknowledged(&[&key], true, Request::Set { key: &key, value: value.into() }, &deadline)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let key = self.wire_key(key)?;
        let request = Request::Get { key: &key };
        match self.wait_then(Op::Get, &[&key], Some((request, ReplyKind::Value)), self.timeout())? {
            Some(Reply::Value(value)) => {
                self.witness(&key, &value);
                Ok(value.to_vec())
            }
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let key = self.wire_key(key)?;
        self.add_at(&key, delta, &self.deadline())
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let keys = self.wire_keys(keys)?;
        let keys = as_slices(&keys);
        let request = Request::Check { keys: KeyList::new(&keys) };
        Ok(self.exchange(&keys, true, request, &self.deadline())? == Reply::Checked(true))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let keys = self.wire_keys(keys)?;
        self.wait_then(Op::Wait, &as_slices(&keys), None, timeout).map(|_| ())
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let key = self.wire_key(key)?;
        let deadline = self.deadline();
        self.check_values(Op::CompareSet, &[&key], &[(&key, expected), (&key, desired)], &deadline)?;
        let request = Request::CompareSet { key: &key, expected, desired: desired.into() };
        match self.exchange(&[&key], false, request, &deadline)? {
            Reply::Value(held) => {
                // An answer that is what was expected may mean that nothing is there.
                if *held != *expected || expected.is_empty() {
                    self.link.known().witness(&key);
                }
                Ok(held.to_vec())
            }
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        let wire = self.wire_key(key)?;
        let deadline = self.deadline();
        if !self.link.server(Op::CompareSet, &[&wire], &deadline)?.is_capable_of("stored") {
            return Exchange::read(self, key, expected, desired);
        }
        let key = wire;
        self.check_values(Op::CompareSet, &[&key], &[(&key, expected), (&key, desired)], &deadline)?;
        let request = Request::CompareSet { key: &key, expected, desired: desired.into() };
        let (held, stored) =
            self.link.call(Op::CompareSet, &[&key], false, &deadline, |connection, deadline| {
                connection.queue(&request);
                connection.queue(&Request::Check { keys: KeyList::new(&[STORED_KEY]) });
                connection.send(deadline)?;
                let held = connection.receive(ReplyKind::Value, deadline)?;
                Ok((held, connection.receive(ReplyKind::Checked, deadline)?))
            })?;
        match held {
            _ if stored == Reply::Checked(true) => Ok(Exchange::Stored),
            // The one answer that is not what is held; and a value that was held and equal would have been replaced.
            Reply::Value(held) if *held == *expected => Ok(Exchange::Absent),
            Reply::Value(held) => Ok(Exchange::Held(held.to_vec())),
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        let key = self.wire_key(key)?;
        self.link.known().forget(&key);
        let mut unanswered = false;
        let deadline = self.deadline();
        let deleted = self.link.call(Op::DeleteKey, &[&key], true, &deadline, |connection, deadline| {
            let reply = one(connection, &Request::DeleteKey { key: &key }, deadline);
            unanswered |= matches!(reply, Err(Broken::Lost { sent: true, .. }));
            reply
        })?;
        // Again: another thread may have seen it just before it went.
        self.link.known().forget(&key);
        match deleted {
            // Gone it is, but whether this call did it nobody knows.
            Reply::Number(0) if unanswered => Err(StoreError::Indeterminate {
                context: self.link.context().during(Op::DeleteKey, vec![user_key(&key)]),
                reason: "the first try got no answer, the second found no such key".into(),
            }),
            deleted => Ok(deleted == Reply::Number(1)),
        }
    }

    fn num_keys(&self) -> Result<u64> {
        self.count(&[], Request::NumKeys)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = self.wire_key(key)?;
        let deadline = self.deadline();
        self.check_values(Op::Append, &[&key], &[(&key, value)], &deadline)?;
        let request = Request::Append { key: &key, value: value.into() };
        match self.acknowledged(&[&key], false, request, &deadline) {
            // Our servers close the connection when the value would be too long, and can't say so: look.
            Err(error @ StoreError::Indeterminate { .. }) => {
                Err(self.explain_append(&key, value.len(), &deadline).unwrap_or(error))
            }
            other => other,
        }
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        let keys = self.wire_keys(keys)?;
        let keys = as_slices(&keys);
        let request = Request::MultiGet { keys: KeyList::new(&keys) };
        let kind = ReplyKind::Values(keys.len() as u64);
        match self.wait_then(Op::MultiGet, &keys, Some((request, kind)), self.timeout())? {
            Some(Reply::Values(values)) => {
                if let (Some(key), Some(value)) = (keys.first(), values.first()) {
                    self.witness(key, value);
                }
                Ok(values.iter().map(|value| value.to_vec()).collect())
            }
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let keys = self.wire_keys(&pairs.iter().map(|(key, _)| *key).collect::<Vec<_>>())?;
        let keys = as_slices(&keys);
        let wire: Vec<_> = keys.iter().copied().zip(pairs.iter().map(|(_, value)| *value)).collect();
        let deadline = self.deadline();
        self.check_values(Op::MultiSet, &keys, &wire, &deadline)?;
        let pairs_len: usize = wire.iter().map(|(key, value)| 16 + key.len() + value.len()).sum();
        self.check_request(9 + pairs_len)?;
        self.acknowledged(&keys, true, Request::MultiSet { pairs: PairList::new(&wire) }, &deadline)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = self.wire_key(key)?;
        let deadline = self.deadline();
        self.check_values(Op::QueuePush, &[&key], &[(&key, value)], &deadline)?;
        self.acknowledged(&[&key], false, Request::QueuePush { key: &key, value: value.into() }, &deadline)
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let wire = self.wire_key(key)?;
        let deadline = self.deadline();
        self.require_queues(&wire, &deadline)?;
        self.wait_then_pop(&wire, &deadline)?.ok_or_else(|| StoreError::QueueEmpty { key: key.into() })
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        let wire = self.wire_key(key)?;
        self.pop(&wire, &self.deadline())?.ok_or_else(|| StoreError::QueueEmpty { key: key.into() })
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        let key = self.wire_key(key)?;
        self.count(&[&key], Request::QueueLen { key: &key })
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        match self.exchange(&[], true, Request::ListKeys, &self.deadline())? {
            // Names without the slash are not users' keys.
            Reply::Keys(keys) => Ok(keys
                .iter()
                .filter_map(|key| key.strip_prefix(b"/"))
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .collect()),
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    fn barrier_for(&self, key: &str, world_size: u64, timeout: Option<Duration>) -> Result<()> {
        let size = i64::try_from(world_size)
            .ok()
            .filter(|&size| size > 0)
            .ok_or_else(|| StoreError::bad_world_size(&format!("barrier {key}"), 0))?;
        self.meet(key, &self.wire_key(key)?, size, &Deadline::after(timeout))
    }

    fn timeout(&self) -> Option<Duration> {
        self.load_timeout()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(TcpStore::over(Arc::clone(&self.link), self.server.clone(), timeout))
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.another()?))
    }

    fn generation(&self) -> u64 {
        self.link.known().generation()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Tcp
    }
}

impl TcpStore {
    fn deadline(&self) -> Deadline {
        Deadline::after(self.load_timeout())
    }

    /// One request and its reply.
    fn exchange(
        &self,
        keys: &[&[u8]],
        repeatable: bool,
        request: Request<'_>,
        deadline: &Deadline,
    ) -> Result<Reply> {
        self.link.call(request.op(), keys, repeatable, deadline, |connection, deadline| {
            one(connection, &request, deadline)
        })
    }

    fn count(&self, keys: &[&[u8]], request: Request<'_>) -> Result<u64> {
        match self.exchange(keys, true, request, &self.deadline())? {
            Reply::Number(number) => Ok(u64::try_from(number).unwrap_or(0)),
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    /// Sends a request that has no reply, and waits until the server has handled it: [`Connection::acknowledge`].
    fn acknowledged(
        &self,
        keys: &[&[u8]],
        repeatable: bool,
        request: Request<'_>,
        deadline: &Deadline,
    ) -> Result<()> {
        self.link.call(request.op(), keys, repeatable, deadline, |connection, deadline| {
            connection.queue(&request);
            connection.acknowledge(deadline)
        })?;
        // A queue comes and goes, and no pairs at all have no key.
        if let (false, Some(key)) = (matches!(request, Request::QueuePush { .. }), keys.first()) {
            self.link.known().witness(key);
        }
        Ok(())
    }

    /// ADD at a key as it travels.
    pub(super) fn add_at(&self, key: &[u8], delta: i64, deadline: &Deadline) -> Result<i64> {
        match self.exchange(&[key], false, Request::Add { key, delta }, deadline) {
            Ok(Reply::Number(sum)) => {
                self.link.known().witness(key);
                Ok(sum)
            }
            Ok(_) => unreachable!("the decoder answers with the kind asked for"),
            // Servers close the connection when the value is not a number, and can't say so: look.
            Err(error @ StoreError::Indeterminate { .. }) => {
                Err(self.explain_add(key, delta, deadline).unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }

    fn explain_add(&self, key: &[u8], delta: i64, deadline: &Deadline) -> Option<StoreError> {
        let held = self.look_at(key, deadline)??;
        match parse_prefix(&held).and_then(|number| number.checked_add(delta)) {
            Some(_) => None,
            None => Some(StoreError::NotANumber { key: user_key(key), delta, held: printable(&held) }),
        }
    }

    /// Why an append got no answer, if it is for what the server says to be its limit. Torch's have none.
    fn explain_append(&self, key: &[u8], len: usize, deadline: &Deadline) -> Option<StoreError> {
        let limit = self.link.known().value_len()?;
        let held = self.look_at(key, deadline)?.map_or(0, |held| held.len());
        // More than its limit it can't hold: then that is not what it said.
        let too_long = held <= limit && held.saturating_add(len) > limit;
        too_long.then(|| StoreError::TooLarge(Oversize::Append { key: user_key(key), len, held, limit }))
    }

    /// What a key holds after a failure, if anything; `None` if that can't be learned soon.
    fn look_at(&self, key: &[u8], deadline: &Deadline) -> Option<Option<Value>> {
        let brief = deadline.or_after(Duration::from_secs(1));
        if !self.link.is_reachable(&brief) {
            return None;
        }
        let keys = [key];
        let there = Request::Check { keys: KeyList::new(&keys) };
        if self.exchange(&keys, true, there, &brief).ok()? != Reply::Checked(true) {
            return Some(None);
        }
        match self.exchange(&[key], true, Request::Get { key }, &brief) {
            Ok(Reply::Value(held)) => Some(Some(held)),
            _ => None,
        }
    }

    /// The number at a key that is known to be there.
    pub(super) fn number_at(&self, key: &[u8], deadline: &Deadline) -> Result<i64> {
        match self.exchange(&[key], true, Request::Get { key }, deadline)? {
            Reply::Value(value) => Ok(parse_prefix(&value).unwrap_or(0)),
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    /// Remembers a key that was read. An empty value may be a queue's, which comes and goes.
    fn witness(&self, key: &[u8], value: &[u8]) {
        if !value.is_empty() {
            self.link.known().witness(key);
        }
    }

    fn pop(&self, key: &[u8], deadline: &Deadline) -> Result<Option<Vec<u8>>> {
        match self.exchange(&[key], false, Request::QueuePop { key }, deadline)? {
            Reply::Popped { item, .. } => Ok(item.map(|item| item.to_vec())),
            _ => unreachable!("the decoder answers with the kind asked for"),
        }
    }

    /// Fails with [`StoreError::Unsupported`] if the server has no queues. Without this check, a pop from such a server
    /// would wait until its timeout.
    fn require_queues(&self, key: &[u8], deadline: &Deadline) -> Result<()> {
        if !self.link.server(Op::QueuePop, &[key], deadline)?.has_queues() {
            self.link.call(Op::QueuePop, &[key], true, deadline, |connection, deadline| {
                one(connection, &Request::QueueLen { key }, deadline)
            })?;
            self.link.known().set_has_queues();
        }
        Ok(())
    }

    // ---- what the caller may ask for ----

    /// Torch's clients put a slash before every key of their users.
    fn wire_key(&self, key: &str) -> Result<Vec<u8>> {
        let limit = self.link.limits().key_len;
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
        let limit = self.link.limits().keys_per_request;
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
        let limit = self.link.server(op, keys, deadline)?.value_len();
        let limit = limit.unwrap_or(self.link.limits().value_len);
        match pairs.iter().find(|(_, value)| value.len() > limit) {
            Some((key, value)) => {
                Err(StoreError::TooLarge(Oversize::Value { key: user_key(key), len: value.len(), limit }))
            }
            None => Ok(()),
        }
    }

    fn check_request(&self, len: usize) -> Result<()> {
        let limit = self.link.limits().frame_len;
        if len > limit { Err(StoreError::TooLarge(Oversize::Request { len, limit })) } else { Ok(()) }
    }
}

/// Sends one request and reads its reply.
pub(super) fn one(
    connection: &mut Connection,
    request: &Request<'_>,
    deadline: &Deadline,
) -> Result<Reply, Broken> {
    let kind = request.reply_kind().expect("asked only of requests that are answered");
    connection.queue(request);
    connection.send(deadline)?;
    connection.receive(kind, deadline)
}

fn as_slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}
