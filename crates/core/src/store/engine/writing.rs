//! What writes do: what may be written, what it replaces, and the limits of the whole store.

use std::collections::BTreeMap;

use super::{Engine, RESERVED_PREFIX};
use crate::error::{Refusal, printable};
use crate::number::{Decimal, parse_prefix};
use crate::rendezvous::{StateError, cell};
use crate::store::ClientId;
use crate::store::map::cost;
use crate::value::Value;
use crate::wire::{Op, PairList, Payload};

/// The keys of states. Those of a round's own store have a slash behind this, and so would the state of a job with a slash
/// in its run id, which is not looked at.
fn is_state_key(key: &[u8]) -> bool {
    key.strip_prefix(b"/torch.rendezvous.").is_some_and(|run_id| !run_id.contains(&b'/'))
}

/// Copies or shares the value for the store.
fn kept(op: Op, key: &[u8], value: Payload<'_>) -> Result<Value, Refusal> {
    value.to_value().map_err(|_| out_of_memory(op, key, value.bytes().len()))
}

#[cold]
fn out_of_memory(op: Op, key: &[u8], len: usize) -> Refusal {
    Refusal::OutOfMemory { op, key: printable(key), len }
}

/// What it makes room for to replace this: nothing while replies hold it, too.
fn freed(key: &[u8], held: &Value) -> usize {
    if held.is_shared() { 0 } else { cost(key.len(), held.room()) }
}

impl Engine {
    /// May anybody write this key?
    pub(super) fn writable(&self, op: Op, key: &[u8]) -> Result<(), Refusal> {
        match self.identity.is_some() && key.starts_with(RESERVED_PREFIX) {
            true => Err(Refusal::Reserved { op, key: printable(key) }),
            false => Ok(()),
        }
    }

    /// May this key hold that value? Torch's agents unpickle, and so execute, what lies under the key of a rendezvous'
    /// state; only what can do no harm gets there.
    pub(super) fn harmless(&self, op: Op, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if !is_state_key(key) || self.identity.is_none() {
            return Ok(());
        }
        match cell::read(value, &self.limits) {
            // Agents of an older torch may share a rendezvous among themselves.
            Ok(_) | Err(StateError::OldAgent) => Ok(()),
            Err(error) => Err(Refusal::NotAState { op, key: printable(key), found: error.to_string() }),
        }
    }

    /// Sees how full the store is to the byte: some of what is counted may be held by nobody any more, and what is being
    /// written may take the place of something.
    pub fn make_room(&mut self) {
        self.do_all();
        self.rubbish.clear();
        loop {
            let before = self.bytes();
            self.tidy();
            if self.bytes() == before {
                break;
            }
        }
    }

    /// May this key be written, and is there room for it to hold so many bytes?
    pub(super) fn permit(&mut self, op: Op, key: &[u8], len: usize) -> Result<(), Refusal> {
        self.writable(op, key)?;
        let limit = self.limits.store_bytes;
        let keys = self.map.len() + self.adding_keys();
        if self.bytes() + cost(key.len(), len) > limit || keys >= self.limits.keys {
            self.make_room();
            let bytes = self.bytes();
            let freed = self.map.get(key).map_or(0, |held| freed(key, held));
            if bytes - freed + cost(key.len(), len) > limit {
                return Err(Refusal::StoreFull { op, key: printable(key), held: bytes, limit });
            }
        }
        if self.map.len() >= self.limits.keys && self.map.get(key).is_none() {
            return Err(Refusal::TooManyKeys { op, key: printable(key), limit: self.limits.keys });
        }
        Ok(())
    }

    /// Stores a value and wakes who waited for it.
    pub(super) fn put(&mut self, key: &[u8], value: Value) {
        if self.waiters.len() == 0 {
            return self.map.set(key, value);
        }
        self.map.set(key, value.clone());
        self.wake(key, &value);
    }

    #[inline]
    pub(super) fn set(&mut self, key: &[u8], value: &Payload<'_>) -> Result<(), Refusal> {
        if is_state_key(key) {
            self.harmless(Op::Set, key, value.bytes())?;
        }
        // Nobody waits for a key that is there, and what is as long takes no more room.
        if self.map.get_mut(key).is_some_and(|held| held.overwrite(value.bytes())) {
            return Ok(());
        }
        self.permit(Op::Set, key, value.bytes().len())?;
        self.put(key, kept(Op::Set, key, *value)?);
        Ok(())
    }

    pub(super) fn compare_set(
        &mut self,
        client: ClientId,
        key: &[u8],
        expected: &[u8],
        desired: Payload<'_>,
    ) -> Result<Value, Refusal> {
        self.clients[client.index()].stored = false;
        // First, lest it seem absent to those who expect something there.
        self.writable(Op::CompareSet, key)?;
        // Losing changes nothing, so it is no reason to look.
        if is_state_key(key) && self.map.get(key).is_none_or(|held| **held == *expected) {
            self.harmless(Op::CompareSet, key, desired.bytes())?;
        }
        let fits = match self.map.get_mut(key) {
            Some(held) if **held != *expected => return Ok(held.clone()),
            Some(held) => {
                if held.overwrite(desired.bytes()) {
                    self.clients[client.index()].stored = true;
                    return Ok(held.clone());
                }
                true
            }
            None => expected.is_empty(),
        };
        if !fits {
            // Absent although a value was expected: torch answers the expectation, and its own code relies on it.
            return Ok(Value::copied(expected));
        }
        self.permit(Op::CompareSet, key, desired.bytes().len())?;
        let value = kept(Op::CompareSet, key, desired)?;
        self.put(key, value.clone());
        self.clients[client.index()].stored = true;
        Ok(value)
    }

    pub(super) fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Refusal> {
        let mut place = self.map.get_mut(key);
        let held = match &place {
            None => 0,
            Some(value) => parse_prefix(value).ok_or_else(|| Refusal::NotANumber { key: printable(key) })?,
        };
        let sum =
            held.checked_add(delta).ok_or_else(|| Refusal::Overflow { key: printable(key), held, delta })?;
        let sum_text = Decimal::of(sum);
        if place.as_mut().is_some_and(|value| value.overwrite(sum_text.text())) {
            return Ok(sum);
        }
        self.permit(Op::Add, key, sum_text.text().len())?;
        self.put(key, Value::copied(sum_text.text()));
        Ok(sum)
    }

    pub(super) fn append(&mut self, key: &[u8], value: Payload<'_>) -> Result<(), Refusal> {
        let held = self.map.get(key).map(|held| held.len());
        let len = held.unwrap_or(0) + value.bytes().len();
        if len > self.limits.value_len {
            let limit = self.limits.value_len;
            return Err(Refusal::ValueTooLong { key: printable(key), len, limit });
        }
        if is_state_key(key) {
            // A state is only ever replaced.
            let appended = [self.map.get(key).map_or(&[][..], |held| held), value.bytes()].concat();
            self.harmless(Op::Append, key, &appended)?;
        }
        if held.is_none() {
            self.permit(Op::Append, key, len)?;
            self.put(key, kept(Op::Append, key, value)?);
            return Ok(());
        }
        // Reserve capacity for further appends if the store has room for it.
        let mut room = len + len / 2;
        if self.permit(Op::Append, key, room).is_err() {
            self.permit(Op::Append, key, len)?;
            room = len;
        }
        // No client waits for a key that exists, so no waiter is woken.
        self.map.append(key, value.bytes(), room).map_err(|_| out_of_memory(Op::Append, key, len))
    }

    pub(super) fn multi_set(&mut self, pairs: PairList<'_>) -> Result<(), Refusal> {
        let mut added = 0;
        for (key, value) in pairs.iter() {
            self.writable(Op::MultiSet, key)?;
            self.harmless(Op::MultiSet, key, value.bytes())?;
            added += cost(key.len(), value.bytes().len());
        }
        self.permit_all(pairs, added)?;
        pairs.iter().for_each(|(key, value)| self.store(key, value));
        if self.waiters.len() > 0 {
            self.wake_for_pairs(pairs);
        }
        Ok(())
    }

    /// Stores a value that is permitted, and wakes nobody.
    pub(super) fn store(&mut self, key: &[u8], value: Payload<'_>) {
        match value.to_shared() {
            Some(value) => self.map.set(key, value),
            None => self.map.set_copy(key, value.bytes()),
        }
    }

    /// Is there room for all of them, which take so many bytes?
    pub(super) fn permit_all(&mut self, pairs: PairList<'_>, bytes: usize) -> Result<(), Refusal> {
        let keys = self.map.len() + self.adding_keys() + pairs.len();
        if self.bytes() + bytes > self.limits.store_bytes || keys > self.limits.keys {
            self.make_room();
            self.permit_exactly(pairs)?;
        }
        Ok(())
    }

    /// The exact form of the check, for a store that is nearly full: all of it fits or none is stored.
    pub(super) fn permit_exactly(&self, pairs: PairList<'_>) -> Result<(), Refusal> {
        let last: BTreeMap<&[u8], usize> =
            pairs.iter().map(|(key, value)| (key, value.bytes().len())).collect();
        let (mut bytes, mut keys) = (self.bytes(), self.map.len());
        for (key, len) in &last {
            match self.map.get(key) {
                Some(held) => bytes = bytes - freed(key, held) + cost(key.len(), *len),
                None => {
                    bytes += cost(key.len(), *len);
                    keys += 1;
                }
            }
        }
        let first = || pairs.iter().next().map(|(key, _)| printable(key)).unwrap_or_default();
        let op = Op::MultiSet;
        if keys > self.limits.keys {
            return Err(Refusal::TooManyKeys { op, key: first(), limit: self.limits.keys });
        }
        if bytes > self.limits.store_bytes {
            let (held, limit) = (self.bytes(), self.limits.store_bytes);
            return Err(Refusal::StoreFull { op, key: first(), held, limit });
        }
        Ok(())
    }

    pub(super) fn queue_push(&mut self, key: &[u8], value: Payload<'_>) -> Result<(), Refusal> {
        self.writable(Op::QueuePush, key)?;
        if self.queues.items() >= self.limits.queue_items {
            return Err(Refusal::TooManyItems { key: printable(key), limit: self.limits.queue_items });
        }
        let limit = self.limits.store_bytes;
        if self.bytes() + cost(key.len(), value.bytes().len()) > limit {
            self.make_room();
        }
        let held = self.bytes();
        if held + cost(key.len(), value.bytes().len()) > limit {
            return Err(Refusal::StoreFull { op: Op::QueuePush, key: printable(key), held, limit });
        }
        self.queues.push(key, kept(Op::QueuePush, key, value)?);
        // Always one, even if another was woken for an item that is gone: that one may be in no hurry.
        self.wake_for_item(key);
        Ok(())
    }
}
