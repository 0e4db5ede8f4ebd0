//! Requests that block their client, and the wake-ups that writes cause.

use super::{ClientId, Engine, Latch, Outcome, Result, State, check};
use crate::error::{Refusal, printable};
use crate::key::Key;
use crate::store::barriers::barrier_cost;
use crate::store::effect::EffectLog;
use crate::store::waiters::{Fulfilled, REGISTRATION_OVERHEAD_BYTES, Registrations, Waiters};
use crate::value::Value;
use crate::wire::{KeyList, Op, Reply};

impl<L: EffectLog> Engine<L> {
    pub(super) fn wait(&mut self, client: ClientId, keys: KeyList<'_>) -> Result<Outcome> {
        let mut latch = Box::<Latch>::default();
        let free_bytes = self.limits.latched_bytes - self.latched;
        latch.values.reserve_exact(keys.len().min(free_bytes / size_of::<(Key, Value)>()));
        let mut absent = Vec::new();
        for key in keys.iter() {
            match self.map.entry(key) {
                Some((key, value)) => {
                    let cost = latch_cost(key, value);
                    if latch.bytes + cost <= free_bytes {
                        latch.bytes += cost;
                        latch.values.push((key.clone(), value.clone()));
                    }
                }
                None if self.is_present(key) => {}
                None => absent.push(key),
            }
        }
        self.check_wait(&absent)?;
        self.latched += latch.bytes;
        let record = &mut self.clients[client.index()];
        record.latch = (!latch.values.is_empty()).then_some(latch);
        if absent.is_empty() {
            return Ok(Outcome::Reply(Reply::Stop));
        }
        let mut registrations = Registrations::default();
        for key in absent {
            self.waiters.register(client, &mut registrations, key);
        }
        record.state = State::Waiting(registrations);
        self.blocked += 1;
        Ok(Outcome::Blocked)
    }

    /// Refuses a WAIT for these absent keys if their number or their total length exceeds a limit.
    fn check_wait(&self, absent: &[&[u8]]) -> Result<()> {
        let first = absent.first().copied().unwrap_or_default();
        let (count, awaited) = (absent.len(), self.waiters.len());
        check(Op::Wait, first, "awaited keys of one client", count, self.limits.awaited_per_client)?;
        check(Op::Wait, first, "awaited keys", awaited + count, self.limits.awaited_total)?;
        let added = absent.iter().map(|key| key.len() + REGISTRATION_OVERHEAD_BYTES).sum();
        self.check_bytes(Op::Wait, first, added)
    }

    pub(super) fn barrier(&mut self, client: ClientId, key: &[u8], world_size: i64) -> Result<Outcome> {
        let size = u64::try_from(world_size).ok().filter(|&size| size > 0);
        let size = size.ok_or_else(|| Refusal::BadWorldSize { key: printable(key), world_size })?;
        if !self.barriers.has_round(key, size) {
            self.check_bytes(Op::Barrier, key, barrier_cost(key))?;
        }
        match self.barriers.arrive(client, key, size) {
            Ok(arrival) => {
                self.clients[client.index()].state = State::AtBarrier(Box::new(arrival));
                self.blocked += 1;
                Ok(Outcome::Blocked)
            }
            Err(waiting) => {
                waiting.into_iter().for_each(|client| self.release(client));
                Ok(Outcome::Reply(Reply::Stop))
            }
        }
    }

    /// Fulfills all registrations for a key that exists, and latches its value for their clients. Wakes each client
    /// that waits for no other key.
    #[inline]
    pub(super) fn wake(&mut self, key: &[u8]) {
        if self.waiters.len() > 0 && self.waiters.is_awaited(key) {
            self.wake_all(key);
        }
    }

    fn wake_all(&mut self, key: &[u8]) {
        let Some(value) = self.map.get(key).cloned() else { return };
        while let Some((fulfilled, key)) = self.waiters.take_oldest(key) {
            let cost = latch_cost(&key, &value);
            if self.latched + cost <= self.limits.latched_bytes {
                self.latched += cost;
                let latch = self.latch_of(&fulfilled);
                latch.bytes += cost;
                latch.values.push((key, value.clone()));
            }
            if self.complete_registration(&fulfilled) {
                self.release(fulfilled.client);
            }
        }
    }

    /// Fulfills the registrations for a queue that has an item, oldest first, until a waiter wakes. That waiter gets a
    /// claim on one item. Waiters that also wait for other keys stay blocked. Returns whether a waiter was woken.
    pub(super) fn wake_for_item(&mut self, key: &[u8]) -> bool {
        while let Some((fulfilled, name)) = self.waiters.take_oldest(key) {
            if self.complete_registration(&fulfilled) {
                self.release(fulfilled.client);
                self.queues.claim(key);
                self.latch_of(&fulfilled).claim = Some(name);
                return true;
            }
        }
        false
    }

    fn latch_of(&mut self, fulfilled: &Fulfilled) -> &mut Latch {
        self.clients[fulfilled.client.index()].latch.get_or_insert_default()
    }

    /// Ends a latch and its claim. If the client did not pop the claimed item, wakes the queue's next waiter.
    pub(super) fn end_latch(&mut self, latch: Latch) {
        self.latched -= latch.bytes;
        if let Some(queue) = latch.claim {
            self.queues.end_claim(&queue);
            while self.queues.has_unclaimed(&queue) && self.wake_for_item(&queue) {}
        }
    }

    /// Removes a fulfilled registration from its client. Returns whether it was the client's last registration.
    fn complete_registration(&mut self, fulfilled: &Fulfilled) -> bool {
        let State::Waiting(registrations) = &mut self.clients[fulfilled.client.index()].state else {
            unreachable!("only waiting clients are registered");
        };
        Waiters::mark_fulfilled(registrations, fulfilled);
        registrations.remaining() == 0
    }

    /// Ends the blocked request of a client with [`Reply::Stop`].
    fn release(&mut self, client: ClientId) {
        self.clients[client.index()].state = State::Idle;
        self.blocked -= 1;
        self.woken.push_back(client);
    }

    /// Ends the blocked request of a client without a reply.
    pub(super) fn unblock(&mut self, client: ClientId) {
        match std::mem::take(&mut self.clients[client.index()].state) {
            State::Idle => return,
            State::Waiting(mut registrations) => self.waiters.cancel(&mut registrations),
            State::AtBarrier(arrival) => self.barriers.leave(*arrival),
        }
        self.blocked -= 1;
    }
}

/// Returns the number of bytes by which a latched value counts toward the limit. The key and the value count in full,
/// because the latch keeps them alive after the store has deleted them.
fn latch_cost(key: &Key, value: &Value) -> usize {
    key.len() + value.len() + size_of::<(Key, Value)>()
}
