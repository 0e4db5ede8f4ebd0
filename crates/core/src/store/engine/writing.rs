//! Requests that write: which are refused, and which effects the others have.

use std::collections::BTreeMap;

use super::{Answer, ClientId, Engine, RESERVED_PREFIX, WriteGuard};
use crate::error::{Refusal, printable};
use crate::number::{Decimal, parse_prefix};
use crate::store::effect::{Content, Effect, EffectLog};
use crate::store::map::cost;
use crate::value::Value;
use crate::wire::{Op, PairList, Payload, Reply};

/// Returns the content of a PUT. Fails if a large value cannot be allocated.
#[inline]
fn content<'a>(op: Op, key: &[u8], value: Payload<'a>) -> Result<Content<'a>, Refusal> {
    match value.bytes() {
        bytes if bytes.len() < Value::SHARED_FROM => Ok(Content::Bytes(bytes)),
        bytes => {
            let shared = value.to_value().map_err(|_| out_of_memory(op, key, bytes.len()))?;
            Ok(Content::Shared(shared))
        }
    }
}

#[cold]
fn out_of_memory(op: Op, key: &[u8], len: usize) -> Refusal {
    Refusal::OutOfMemory { op, key: printable(key), len }
}

impl<L: EffectLog> Engine<L> {
    #[inline]
    pub(super) fn set(&mut self, key: &[u8], value: Payload<'_>) -> Result<Answer, Refusal> {
        self.permit_value(Op::Set, key, value.bytes())?;
        self.permit_room(Op::Set, key, value.bytes().len())?;
        let value = content(Op::Set, key, value)?;
        self.apply(Effect::Put { key, value });
        Ok(Answer::Nothing)
    }

    #[inline]
    pub(super) fn compare_set(
        &mut self,
        client: ClientId,
        key: &[u8],
        expected: &[u8],
        desired: Payload<'_>,
    ) -> Result<Value, Refusal> {
        self.clients[client.index()].stored = false;
        self.permit_name(Op::CompareSet, key)?;
        match self.map.get(key) {
            Some(held) if **held != *expected => return Ok(held.clone()),
            // Torch answers what was expected of an absent key, and its own code relies on that.
            None if !expected.is_empty() => return Ok(Value::copied(expected)),
            _ => {}
        }
        self.permit_value(Op::CompareSet, key, desired.bytes())?;
        self.permit_room(Op::CompareSet, key, desired.bytes().len())?;
        let value = content(Op::CompareSet, key, desired)?;
        let stored = self.put(key, value).clone();
        self.clients[client.index()].stored = true;
        Ok(stored)
    }

    #[inline]
    pub(super) fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Refusal> {
        let held = match self.map.get(key) {
            None => 0,
            Some(value) => parse_prefix(value).ok_or_else(|| Refusal::NotANumber { key: printable(key) })?,
        };
        let sum =
            held.checked_add(delta).ok_or_else(|| Refusal::Overflow { key: printable(key), held, delta })?;
        let text = Decimal::of(sum);
        self.permit_value(Op::Add, key, text.text())?;
        self.permit_room(Op::Add, key, text.text().len())?;
        self.apply(Effect::Put { key, value: Content::Bytes(text.text()) });
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], value: Payload<'_>) -> Result<Answer, Refusal> {
        let held = self.map.get(key).map(|held| &**held);
        let len = held.map_or(0, <[u8]>::len) + value.bytes().len();
        let limit = self.limits.value_len;
        if len > limit {
            return Err(Refusal::ValueTooLong { key: printable(key), len, limit });
        }
        if self.guard_of(key).is_some() {
            let appended = [held.unwrap_or_default(), value.bytes()].concat();
            self.permit_value(Op::Append, key, &appended)?;
        }
        let exists = held.is_some();
        self.permit_name(Op::Append, key)?;
        self.permit_room(Op::Append, key, len)?;
        if exists {
            self.map.reserve(key, value.bytes().len()).map_err(|_| out_of_memory(Op::Append, key, len))?;
            self.apply(Effect::Append { key, bytes: value.bytes() });
        } else {
            let value = content(Op::Append, key, value)?;
            self.apply(Effect::Put { key, value });
        }
        Ok(Answer::Nothing)
    }

    pub(super) fn multi_set(&mut self, pairs: PairList<'_>) -> Result<Answer, Refusal> {
        let mut added = 0;
        for (key, value) in pairs.iter() {
            self.permit_value(Op::MultiSet, key, value)?;
            added += cost(key.len(), value.len());
        }
        let is_nearly_full =
            self.bytes() + added > self.limits.store_bytes || self.map.len() + pairs.len() > self.limits.keys;
        if is_nearly_full {
            self.permit_pairs(pairs)?;
        }
        self.apply(Effect::PutAll { pairs });
        Ok(Answer::Nothing)
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool, Refusal> {
        self.permit_name(Op::DeleteKey, key)?;
        let exists = self.map.get(key).is_some();
        if exists {
            self.apply(Effect::Delete { key });
        }
        Ok(exists)
    }

    pub(super) fn queue_push(&mut self, key: &[u8], value: Payload<'_>) -> Result<Answer, Refusal> {
        self.permit_name(Op::QueuePush, key)?;
        if self.queues.items() >= self.limits.queue_items {
            return Err(Refusal::TooManyItems { key: printable(key), limit: self.limits.queue_items });
        }
        self.permit_bytes(Op::QueuePush, key, cost(key.len(), value.bytes().len()))?;
        let len = value.bytes().len();
        let item = value.to_value().map_err(|_| out_of_memory(Op::QueuePush, key, len))?;
        self.apply(Effect::Push { key, item });
        Ok(Answer::Nothing)
    }

    pub(super) fn queue_pop(&mut self, key: &[u8]) -> Reply {
        let before = self.queues.len(key) as i64;
        let item = self.queues.head(key).cloned();
        if item.is_some() {
            self.apply(Effect::Pop { key });
        }
        Reply::Popped { before, item }
    }

    /// Does what [`Engine::apply`] does with a PUT, and returns the value as it is kept.
    #[inline]
    fn put(&mut self, key: &[u8], value: Content<'_>) -> &Value {
        let effect = Effect::Put { key, value };
        self.log.record(&effect);
        let Effect::Put { value, .. } = effect else { unreachable!("it was just made") };
        self.store(key, value)
    }

    /// Stores a value, answers the clients that waited for it, and returns it.
    #[inline]
    pub(super) fn store(&mut self, key: &[u8], value: Content<'_>) -> &Value {
        if self.waiters.len() == 0 {
            return self.map.put(key, value);
        }
        self.map.put(key, value);
        self.wake(key);
        self.map.get(key).expect("the value was just stored")
    }

    // ---- what is refused ----

    #[inline]
    fn guard_of(&self, key: &[u8]) -> Option<WriteGuard> {
        // Comparing one byte first spares nearly every key a call that compares slices.
        let last = |key: &[u8], guard: &WriteGuard| key.get(guard.prefix.len() - 1) == guard.prefix.last();
        self.guard.filter(|guard| last(key, guard) && key.starts_with(guard.prefix))
    }

    /// Refuses a write to a reserved name.
    #[inline]
    fn permit_name(&self, op: Op, key: &[u8]) -> Result<(), Refusal> {
        match self.identity.is_some() && key.starts_with(RESERVED_PREFIX) {
            true => Err(Refusal::Reserved { op, key: printable(key) }),
            false => Ok(()),
        }
    }

    /// Refuses a write to a reserved name, or of a value that the guard rejects.
    #[inline]
    fn permit_value(&self, op: Op, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        self.permit_name(op, key)?;
        match self.guard_of(key) {
            Some(guard) => (guard.check)(key, value, &self.limits).map_err(|why| Refusal::Guarded {
                op,
                key: printable(key),
                why,
            }),
            None => Ok(()),
        }
    }

    /// Refuses a value of this length if the store has no room for it.
    #[inline]
    fn permit_room(&self, op: Op, key: &[u8], len: usize) -> Result<(), Refusal> {
        let added = cost(key.len(), len);
        if self.bytes() + added <= self.limits.store_bytes && self.map.len() < self.limits.keys {
            return Ok(());
        }
        self.permit_room_exactly(op, key, added)
    }

    /// The check for a store that is nearly full: the new value may replace an old one.
    #[cold]
    fn permit_room_exactly(&self, op: Op, key: &[u8], added: usize) -> Result<(), Refusal> {
        let held = self.map.get(key);
        let freed = held.map_or(0, |held| cost(key.len(), held.len()));
        self.permit_bytes(op, key, added.saturating_sub(freed))?;
        match held.is_none() && self.map.len() >= self.limits.keys {
            true => Err(Refusal::TooManyKeys { op, key: printable(key), limit: self.limits.keys }),
            false => Ok(()),
        }
    }

    /// Refuses a request that makes the store this many bytes larger, if there is no room.
    pub(super) fn permit_bytes(&self, op: Op, key: &[u8], added: usize) -> Result<(), Refusal> {
        let (held, limit) = (self.bytes(), self.limits.store_bytes);
        match added > 0 && held + added > limit {
            true => Err(Refusal::StoreFull { op, key: printable(key), held, limit }),
            false => Ok(()),
        }
    }

    /// The exact check of a MULTI_SET, for a store that is nearly full: all pairs fit, or none is stored.
    #[cold]
    fn permit_pairs(&self, pairs: PairList<'_>) -> Result<(), Refusal> {
        let last: BTreeMap<&[u8], usize> = pairs.iter().map(|(key, value)| (key, value.len())).collect();
        let (mut added, mut freed, mut keys) = (0, 0, self.map.len());
        for (key, len) in last {
            added += cost(key.len(), len);
            match self.map.get(key) {
                Some(held) => freed += cost(key.len(), held.len()),
                None => keys += 1,
            }
        }
        let first = pairs.iter().next().map_or(&[][..], |(key, _)| key);
        if keys > self.limits.keys {
            let (op, key) = (Op::MultiSet, printable(first));
            return Err(Refusal::TooManyKeys { op, key, limit: self.limits.keys });
        }
        self.permit_bytes(Op::MultiSet, first, added.saturating_sub(freed))
    }
}
