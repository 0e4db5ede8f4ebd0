//! Requests that write: which are refused, and which effects the others have.

use std::collections::BTreeMap;

use super::{Answer, ClientId, Engine, RESERVED_PREFIX, Result, WriteGuard, permit};
use crate::error::{Refusal, printable};
use crate::number::parse_prefix;
use crate::store::effect::{Effect, EffectLog};
use crate::store::map::cost;
use crate::value::Value;
use crate::wire::{Op, PairList, Payload, Reply};

impl<L: EffectLog> Engine<L> {
    #[inline(always)]
    pub(super) fn set(&mut self, key: &[u8], value: Payload<'_>) -> Result<Answer> {
        self.permit_put(Op::Set, key, value.bytes())?;
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
    ) -> Result<Value> {
        self.clients[client.index()].stored = false;
        self.permit_name(Op::CompareSet, key)?;
        match self.map.get(key) {
            Some(held) if **held != *expected => return Ok(held.clone()),
            // Torch answers what was expected of an absent key, and its own code relies on that.
            None if !expected.is_empty() => return Ok(Value::copied(expected)),
            _ => {}
        }
        self.permit_put(Op::CompareSet, key, desired.bytes())?;
        self.apply(Effect::Put { key, value: desired });
        self.clients[client.index()].stored = true;
        Ok(self.value(key, || None))
    }

    #[inline]
    pub(super) fn add(&mut self, key: &[u8], delta: i64) -> Result<i64> {
        let held = match self.map.get(key) {
            None => 0,
            Some(value) => parse_prefix(value).ok_or_else(|| Refusal::NotANumber { key: printable(key) })?,
        };
        let sum =
            held.checked_add(delta).ok_or_else(|| Refusal::Overflow { key: printable(key), held, delta })?;
        let mut text = itoa::Buffer::new();
        let text = text.format(sum).as_bytes();
        self.permit_put(Op::Add, key, text)?;
        self.apply(Effect::Put { key, value: text.into() });
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], more: &[u8]) -> Result<Answer> {
        let held = self.map.get(key).map_or(&[][..], |held| held);
        let len = held.len() + more.len();
        permit(Op::Append, key, "bytes of value", len, self.limits.value_len)?;
        self.permit_name(Op::Append, key)?;
        if self.guard_of(key).is_some() {
            self.permit_value(Op::Append, key, &[held, more].concat())?;
        }
        self.permit_room(Op::Append, key, len)?;
        self.apply(Effect::Append { key, bytes: more });
        Ok(Answer::Nothing)
    }

    pub(super) fn multi_set(&mut self, pairs: PairList<'_>) -> Result<Answer> {
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

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool> {
        self.permit_name(Op::DeleteKey, key)?;
        let exists = self.map.get(key).is_some();
        if exists {
            self.apply(Effect::Delete { key });
        }
        Ok(exists)
    }

    pub(super) fn queue_push(&mut self, key: &[u8], item: Payload<'_>) -> Result<Answer> {
        self.permit_name(Op::QueuePush, key)?;
        permit(Op::QueuePush, key, "items in queues", self.queues.items() + 1, self.limits.queue_items)?;
        self.permit_bytes(Op::QueuePush, key, cost(key.len(), item.bytes().len()))?;
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

    // ---- what is refused ----

    #[inline(always)]
    fn guard_of(&self, key: &[u8]) -> Option<&WriteGuard> {
        let guard = self.guard.as_ref()?;
        // Comparing one byte first spares nearly every key a call that compares slices.
        let may_match = key.get(guard.prefix.len() - 1) == guard.prefix.last();
        (may_match && key.starts_with(guard.prefix)).then_some(guard)
    }

    /// Refuses a write to a reserved name.
    #[inline(always)]
    fn permit_name(&self, op: Op, key: &[u8]) -> Result<()> {
        match self.identity.is_some() && key.starts_with(RESERVED_PREFIX) {
            true => Err(Refusal::Guarded { op, key: printable(key), why: "a reserved name".into() }.into()),
            false => Ok(()),
        }
    }

    /// Refuses a write to a reserved name, or of a value that the guard rejects.
    #[inline(always)]
    fn permit_value(&self, op: Op, key: &[u8], value: &[u8]) -> Result<()> {
        self.permit_name(op, key)?;
        let Some(guard) = self.guard_of(key) else { return Ok(()) };
        let checked = (guard.check)(key, value, &self.limits);
        checked.map_err(|why| Refusal::Guarded { op, key: printable(key), why }.into())
    }

    /// Refuses a write of this value to this key.
    #[inline(always)]
    fn permit_put(&self, op: Op, key: &[u8], value: &[u8]) -> Result<()> {
        self.permit_value(op, key, value)?;
        self.permit_room(op, key, value.len())
    }

    /// Refuses a value of this length if the store has no room for it.
    #[inline(always)]
    fn permit_room(&self, op: Op, key: &[u8], len: usize) -> Result<()> {
        let added = cost(key.len(), len);
        if self.bytes() + added <= self.limits.store_bytes && self.map.len() < self.limits.keys {
            return Ok(());
        }
        self.permit_room_exactly(op, key, added)
    }

    /// The check for a store that is nearly full: the new value may replace an old one.
    #[cold]
    fn permit_room_exactly(&self, op: Op, key: &[u8], added: usize) -> Result<()> {
        let held = self.map.get(key);
        let freed = held.map_or(0, |held| cost(key.len(), held.len()));
        self.permit_bytes(op, key, added.saturating_sub(freed))?;
        permit(op, key, "keys in the store", self.map.len() + usize::from(held.is_none()), self.limits.keys)
    }

    /// Refuses a request that makes the store this many bytes larger, if there is no room.
    pub(super) fn permit_bytes(&self, op: Op, key: &[u8], added: usize) -> Result<()> {
        let needed = if added > 0 { self.bytes() + added } else { 0 };
        permit(op, key, "bytes in the store", needed, self.limits.store_bytes)
    }

    /// The exact check of a MULTI_SET, for a store that is nearly full: all pairs fit, or none is stored.
    #[cold]
    fn permit_pairs(&self, pairs: PairList<'_>) -> Result<()> {
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
        permit(Op::MultiSet, first, "keys in the store", keys, self.limits.keys)?;
        self.permit_bytes(Op::MultiSet, first, added.saturating_sub(freed))
    }
}
