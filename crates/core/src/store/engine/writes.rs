//! Requests that write: the checks that may refuse them, and their effects.

use std::collections::BTreeMap;

use super::{ClientId, Engine, Outcome, RESERVED_PREFIX, Result, WriteGuard, check};
use crate::error::{Refusal, printable};
use crate::number::parse_prefix;
use crate::store::effect::{Effect, EffectLog};
use crate::store::map::entry_cost;
use crate::value::Value;
use crate::wire::{Op, PairList, Payload, Reply};

impl<L: EffectLog> Engine<L> {
    #[inline(always)]
    pub(super) fn set(&mut self, key: &[u8], value: Payload<'_>) -> Result<Outcome> {
        self.check_put(Op::Set, key, value.bytes())?;
        self.apply(Effect::Put { key, value });
        Ok(Outcome::NoReply)
    }

    #[inline]
    pub(super) fn compare_set(
        &mut self,
        client: ClientId,
        key: &[u8],
        expected: &[u8],
        desired: Payload<'_>,
    ) -> Result<Value> {
        self.clients[client.index()].stored = false;
        self.check_name(Op::CompareSet, key)?;
        match self.map.get(key) {
            Some(current) if **current != *expected => return Ok(current.clone()),
            // Torch's server returns the expected value if the key is absent, and torch's own code relies on that.
            None if !expected.is_empty() => return Ok(Value::copied(expected)),
            _ => {}
        }
        self.check_put(Op::CompareSet, key, desired.bytes())?;
        self.apply(Effect::Put { key, value: desired });
        self.clients[client.index()].stored = true;
        Ok(self.value(key, || None))
    }

    #[inline]
    pub(super) fn add(&mut self, key: &[u8], delta: i64) -> Result<i64> {
        let value = match self.map.get(key) {
            None => 0,
            Some(value) => parse_prefix(value).ok_or_else(|| Refusal::NotANumber { key: printable(key) })?,
        };
        let overflow = || Refusal::Overflow { key: printable(key), value, delta };
        let sum = value.checked_add(delta).ok_or_else(overflow)?;
        let mut text = itoa::Buffer::new();
        let text = text.format(sum).as_bytes();
        self.check_put(Op::Add, key, text)?;
        self.apply(Effect::Put { key, value: text.into() });
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], more: &[u8]) -> Result<Outcome> {
        let current = self.map.get(key).map_or(&[][..], |current| current);
        let len = current.len() + more.len();
        check(Op::Append, key, "bytes of value", len, self.limits.value_len)?;
        self.check_name(Op::Append, key)?;
        if self.guard_of(key).is_some() {
            self.check_value(Op::Append, key, &[current, more].concat())?;
        }
        self.check_room(Op::Append, key, len)?;
        self.apply(Effect::Append { key, bytes: more });
        Ok(Outcome::NoReply)
    }

    pub(super) fn multi_set(&mut self, pairs: PairList<'_>) -> Result<Outcome> {
        let mut added = 0;
        for (key, value) in pairs.iter() {
            self.check_value(Op::MultiSet, key, value)?;
            added += entry_cost(key.len(), value.len());
        }
        let is_nearly_full =
            self.bytes() + added > self.limits.store_bytes || self.map.len() + pairs.len() > self.limits.keys;
        if is_nearly_full {
            self.check_pairs(pairs)?;
        }
        self.apply(Effect::PutAll { pairs });
        Ok(Outcome::NoReply)
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.check_name(Op::DeleteKey, key)?;
        let exists = self.map.get(key).is_some();
        if exists {
            self.apply(Effect::Delete { key });
        }
        Ok(exists)
    }

    pub(super) fn queue_push(&mut self, key: &[u8], item: Payload<'_>) -> Result<Outcome> {
        self.check_name(Op::QueuePush, key)?;
        check(Op::QueuePush, key, "items in queues", self.queues.items() + 1, self.limits.queue_items)?;
        self.check_bytes(Op::QueuePush, key, entry_cost(key.len(), item.bytes().len()))?;
        self.apply(Effect::Push { key, item });
        Ok(Outcome::NoReply)
    }

    pub(super) fn queue_pop(&mut self, key: &[u8]) -> Reply {
        let before = self.queues.len(key) as i64;
        let item = self.queues.head(key).cloned();
        if item.is_some() {
            self.apply(Effect::Pop { key });
        }
        Reply::Popped { before, item }
    }

    // ---- checks ----

    #[inline(always)]
    fn guard_of(&self, key: &[u8]) -> Option<&WriteGuard> {
        let guard = self.guard.as_ref()?;
        // Comparing the last byte of the prefix first avoids the slice comparison for nearly every key.
        let may_match = key.get(guard.prefix.len() - 1) == guard.prefix.last();
        (may_match && key.starts_with(guard.prefix)).then_some(guard)
    }

    /// Refuses a write to a reserved key.
    #[inline(always)]
    fn check_name(&self, op: Op, key: &[u8]) -> Result<()> {
        match self.identity.is_some() && key.starts_with(RESERVED_PREFIX) {
            true => Err(Refusal::Guarded { op, key: printable(key), why: "reserved key".into() }.into()),
            false => Ok(()),
        }
    }

    /// Refuses a write to a reserved key, and a write of a value that the guard rejects.
    #[inline(always)]
    fn check_value(&self, op: Op, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_name(op, key)?;
        let Some(guard) = self.guard_of(key) else { return Ok(()) };
        let checked = (guard.check)(key, value, &self.limits);
        checked.map_err(|why| Refusal::Guarded { op, key: printable(key), why }.into())
    }

    /// Refuses a write to a reserved key, a write of a value that the guard rejects, and a write that would exceed a
    /// limit of the store.
    #[inline(always)]
    fn check_put(&self, op: Op, key: &[u8], value: &[u8]) -> Result<()> {
        self.check_value(op, key, value)?;
        self.check_room(op, key, value.len())
    }

    /// Refuses to store a value of this length under `key` if that would exceed a limit of the store.
    #[inline(always)]
    fn check_room(&self, op: Op, key: &[u8], len: usize) -> Result<()> {
        let added = entry_cost(key.len(), len);
        if self.bytes() + added <= self.limits.store_bytes && self.map.len() < self.limits.keys {
            return Ok(());
        }
        self.check_room_exactly(op, key, added)
    }

    /// Repeats the check of [`Engine::check_room`] for a nearly full store, and counts the memory of the replaced value
    /// as freed.
    #[cold]
    fn check_room_exactly(&self, op: Op, key: &[u8], added: usize) -> Result<()> {
        let current = self.map.get(key);
        let freed = current.map_or(0, |current| entry_cost(key.len(), current.len()));
        self.check_bytes(op, key, added.saturating_sub(freed))?;
        check(op, key, "keys in the store", self.map.len() + usize::from(current.is_none()), self.limits.keys)
    }

    /// Refuses a request that needs `added` more bytes if the total would exceed
    /// [`Limits::store_bytes`](crate::Limits::store_bytes).
    pub(super) fn check_bytes(&self, op: Op, key: &[u8], added: usize) -> Result<()> {
        let needed = if added > 0 { self.bytes() + added } else { 0 };
        check(op, key, "bytes in the store", needed, self.limits.store_bytes)
    }

    /// Refuses a MULTI_SET that would exceed a limit, and counts the memory of the replaced values as freed.
    #[cold]
    fn check_pairs(&self, pairs: PairList<'_>) -> Result<()> {
        let last: BTreeMap<&[u8], usize> = pairs.iter().map(|(key, value)| (key, value.len())).collect();
        let (mut added, mut freed, mut keys) = (0, 0, self.map.len());
        for (key, len) in last {
            added += entry_cost(key.len(), len);
            match self.map.get(key) {
                Some(current) => freed += entry_cost(key.len(), current.len()),
                None => keys += 1,
            }
        }
        let first = pairs.iter().next().map_or(&[][..], |(key, _)| key);
        check(Op::MultiSet, first, "keys in the store", keys, self.limits.keys)?;
        self.check_bytes(Op::MultiSet, first, added.saturating_sub(freed))
    }
}
