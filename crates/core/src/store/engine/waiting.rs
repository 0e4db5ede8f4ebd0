//! What waiting does: who is blocked in what, who has seen what, and whom a write wakes.

use super::{Engine, Keepsake, LATCH_KEEP, State};
use crate::error::{Refusal, printable};
use crate::key::Key;
use crate::store::barriers::barrier_cost;
use crate::store::waiters::{ClientIndex, Places, Seen, WAIT_OVERHEAD, Waiters};
use crate::store::{ClientId, Output};
use crate::value::Value;
use crate::wire::{KeyList, Op, PairList, Reply};

impl Engine {
    pub(super) fn wait(&mut self, client: ClientId, keys: KeyList<'_>) -> Result<Option<Reply>, Refusal> {
        let mut keepsake = self.spare.take().unwrap_or_default();
        let latch = &mut keepsake.latch;
        // All at once: many keys in steps would be moved again and again.
        latch.reserve_exact(keys.len().min(self.latches_left()));
        let mut bytes = 0;
        let mut absent = Vec::new();
        for key in keys.iter() {
            match self.map.entry(key) {
                Some((key, value)) => {
                    let cost = latch_cost(key, value);
                    if self.latched + bytes + cost <= self.limits.latched_bytes {
                        latch.push((key.clone(), value.clone()));
                        bytes += cost;
                    }
                }
                None if self.is_present_otherwise(key) => {}
                None => absent.push(key),
            }
        }
        if latch.len() < latch.capacity() / 2 {
            latch.shrink_to(LATCH_KEEP);
        }
        let names = absent.iter().map(|key| key.len() + WAIT_OVERHEAD).sum();
        self.permit_awaiting(0, absent.len(), names, || absent.first().copied().unwrap_or_default())?;
        let known = &mut self.clients[client.index()];
        match keepsake.latch.is_empty() {
            true => self.spare = Some(keepsake),
            false => {
                keepsake.bytes = bytes;
                self.latched += bytes;
                known.keepsake = Some(keepsake);
            }
        }
        if absent.is_empty() {
            return Ok(Some(Reply::Stop));
        }
        let mut places = Places::default();
        for key in absent {
            self.waiters.register(client.index, &mut places, key);
        }
        known.state = State::Waiting(places);
        self.blocked += 1;
        Ok(None)
    }

    /// May a client that waits for so many keys wait for more of them? Their names take room, too.
    pub(super) fn permit_awaiting<'a>(
        &mut self,
        own: usize,
        asked: usize,
        bytes: usize,
        key: impl Fn() -> &'a [u8],
    ) -> Result<(), Refusal> {
        for (held, limit) in
            [(own, self.limits.awaited_per_client), (self.waiters.len(), self.limits.awaited_total)]
        {
            if held + asked > limit {
                return Err(Refusal::TooManyAwaited { asked, held, limit });
            }
        }
        let limit = self.limits.store_bytes;
        if asked > 0 && self.bytes() + bytes > limit {
            self.make_room();
            let held = self.bytes();
            if held + bytes > limit {
                return Err(Refusal::StoreFull { op: Op::Wait, key: printable(key()), held, limit });
            }
        }
        Ok(())
    }

    pub(super) fn barrier(
        &mut self,
        client: ClientId,
        key: &[u8],
        world_size: i64,
    ) -> Result<Option<Reply>, Refusal> {
        let size = u64::try_from(world_size)
            .ok()
            .filter(|&size| size > 0)
            .ok_or_else(|| Refusal::BadWorldSize { key: printable(key), world_size })?;
        let limit = self.limits.store_bytes;
        if self.bytes() + barrier_cost(key) > limit {
            self.make_room();
            let held = self.bytes();
            if held + barrier_cost(key) > limit {
                return Err(Refusal::StoreFull { op: Op::Barrier, key: printable(key), held, limit });
            }
        }
        match self.barriers.arrive(client.index, key, size) {
            Ok(arrival) => {
                self.clients[client.index()].state = State::AtBarrier(arrival);
                self.blocked += 1;
                Ok(None)
            }
            Err(others) => {
                for other in others {
                    self.release(other);
                }
                Ok(Some(Reply::Stop))
            }
        }
    }

    /// A key has come: all who waited for it have seen it.
    pub(super) fn wake(&mut self, key: &[u8], value: &Value) {
        while let Some((seen, key)) = self.waiters.take_oldest(key) {
            self.latch(seen.client, key, value.clone());
            if self.strike(&seen) {
                self.release(seen.client);
            }
        }
    }

    /// Several keys have come at once: what is seen is what all of it left, not a value that a later pair replaced.
    pub(super) fn wake_for_pairs(&mut self, pairs: PairList<'_>) {
        pairs.iter().for_each(|(key, _)| self.wake_if_present(key));
    }

    pub(super) fn wake_if_present(&mut self, key: &[u8]) {
        if self.waiters.is_awaited(key)
            && let Some(value) = self.map.get(key).cloned()
        {
            self.wake(key, &value);
        }
    }

    /// A queue has items: one waiter for each that nobody is on its way to.
    pub(super) fn wake_for_items(&mut self, key: &[u8]) {
        while self.queues.has_unclaimed(key) && self.wake_for_item(key) {}
    }

    /// A queue has an item: wakes the oldest who waits for nothing else. Whether there is one.
    pub(super) fn wake_for_item(&mut self, key: &[u8]) -> bool {
        while let Some((seen, name)) = self.waiters.take_oldest(key) {
            if self.strike(&seen) {
                self.release(seen.client);
                self.queues.claim(key);
                self.keepsake(seen.client).claim = Some(name);
                return true;
            }
        }
        false
    }

    /// A waiter has seen this.
    pub(super) fn latch(&mut self, index: ClientIndex, key: Key, value: Value) {
        let cost = latch_cost(&key, &value);
        if self.latched + cost <= self.limits.latched_bytes {
            self.latched += cost;
            let keepsake = self.keepsake(index);
            keepsake.bytes += cost;
            keepsake.latch.push((key, value));
        }
    }

    /// Returns an upper bound on the number of values that can still be latched.
    pub(super) fn latches_left(&self) -> usize {
        self.limits.latched_bytes.saturating_sub(self.latched) / size_of::<(Key, Value)>()
    }

    pub(super) fn keepsake(&mut self, index: ClientIndex) -> &mut Keepsake {
        self.clients[index as usize].keepsake.get_or_insert_default()
    }

    /// Notes that a waiter has seen one of its keys; whether it was the last.
    pub(super) fn strike(&mut self, seen: &Seen) -> bool {
        let is_registered = !self.is_registering(seen.client);
        let State::Waiting(places) = &mut self.clients[seen.client as usize].state else {
            unreachable!("only waiting clients are registered");
        };
        Waiters::strike(places, seen);
        places.left() == 0 && is_registered
    }

    /// A blocked request is over.
    pub(super) fn release(&mut self, index: ClientIndex) {
        let known = &mut self.clients[index as usize];
        known.state = State::Free;
        self.blocked -= 1;
        let client = ClientId::new(index, known.generation);
        self.effect(Output::Reply { client, reply: Reply::Stop });
    }

    /// A blocked request is given up, without a reply. Its keepsake is with the caller: what half a wait has seen is not
    /// for a later `get`.
    pub(super) fn unblock(&mut self, index: ClientIndex) {
        match std::mem::take(&mut self.clients[index as usize].state) {
            State::Free => return,
            State::Waiting(mut places) => self.waiters.cancel(&mut places),
            State::AtBarrier(arrival) => self.barriers.leave(arrival),
        }
        self.blocked -= 1;
    }
}

/// Bytes that a latched value may cost: key and value in full, because the store may delete them meanwhile.
fn latch_cost(key: &Key, value: &Value) -> usize {
    key.len() + value.len() + size_of::<(Key, Value)>()
}
