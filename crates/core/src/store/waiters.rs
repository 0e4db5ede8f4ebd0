//! The index of waiters, by key and by client.
//!
//! Each awaited key has a linked list of registrations, oldest first. Each waiter has the ids of its registrations. The
//! cost of a cancel or a disconnect therefore depends only on the number of keys that the client waits for.

use ahash::RandomState;
use hashbrown::HashTable;
use slab::Slab;

use super::engine::ClientId;
use crate::key::Key;

/// The id that means no registration.
const NONE: u32 = u32::MAX;
/// The maximum capacity, in registrations, that the index keeps when its last registration ends.
const MAX_RETAINED_CAPACITY: usize = 16 * 1024;

/// The registration of one client for one key.
#[derive(Debug)]
struct Registration {
    client: ClientId,
    /// The position of this registration in the client's [`Registrations::ids`].
    position: u32,
    awaited: u32,
    older: u32,
    newer: u32,
}

/// A key with waiters.
#[derive(Debug)]
struct Awaited {
    key: Key,
    /// The hash of the key, so that a removal does not hash the key again.
    hash: u64,
    oldest: u32,
    newest: u32,
}

/// The ids of one client's registrations in [`Waiters`], one for each key in its WAIT that was absent.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// [`NONE`] marks a fulfilled registration.
    ids: Vec<u32>,
    remaining: usize,
}

impl Registrations {
    /// Returns the number of keys that the client still waits for.
    pub(super) fn remaining(&self) -> usize {
        self.remaining
    }
}

/// The index of all registrations.
#[derive(Debug)]
pub(super) struct Waiters {
    by_key: HashTable<u32>,
    awaited: Slab<Awaited>,
    registrations: Slab<Registration>,
    hasher: RandomState,
    /// The approximate memory of the registrations and of the awaited keys, in bytes.
    bytes: usize,
}

/// The approximate memory of a registration beyond its key, including the slot that the client's latch reserves for it.
pub(super) const REGISTRATION_OVERHEAD_BYTES: usize = 128;

/// A registration that was removed from the index because its key is present now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fulfilled {
    pub(super) client: ClientId,
    position: u32,
}

impl Waiters {
    pub(super) fn new(hasher: RandomState) -> Waiters {
        Waiters {
            by_key: HashTable::new(),
            awaited: Slab::new(),
            registrations: Slab::new(),
            hasher,
            bytes: 0,
        }
    }

    /// Returns the number of registrations.
    pub(super) fn len(&self) -> usize {
        self.registrations.len()
    }

    /// Returns the memory of the index, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        if self.by_key.is_empty() {
            return None;
        }
        self.find_hashed(self.hasher.hash_one(key), key)
    }

    fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.by_key.find(hash, |&at| *self.awaited[at as usize].key == *key).copied()
    }

    /// Registers `client` as the newest waiter of `key`.
    pub(super) fn register(&mut self, client: ClientId, registrations: &mut Registrations, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        let at = self.find_hashed(hash, key).unwrap_or_else(|| self.insert(hash, key));
        let awaited = &mut self.awaited[at as usize];
        let position = registrations.ids.len() as u32;
        let older = awaited.newest;
        let id = self.registrations.insert(Registration { client, position, awaited: at, older, newer: NONE })
            as u32;
        awaited.newest = id;
        match older {
            NONE => awaited.oldest = id,
            older => self.registrations[older as usize].newer = id,
        }
        self.bytes += REGISTRATION_OVERHEAD_BYTES;
        registrations.ids.push(id);
        registrations.remaining += 1;
    }

    fn insert(&mut self, hash: u64, key: &[u8]) -> u32 {
        self.bytes += key.len();
        let awaited = Awaited { key: Key::from(key), hash, oldest: NONE, newest: NONE };
        let at = self.awaited.insert(awaited) as u32;
        let awaited = &self.awaited;
        self.by_key.insert_unique(hash, at, |&at| awaited[at as usize].hash);
        at
    }

    /// Removes the oldest registration for `key` from the index. Returns it together with a clone of the index's own
    /// key, so that the caller can store the key in a latch without an allocation.
    pub(super) fn take_oldest(&mut self, key: &[u8]) -> Option<(Fulfilled, Key)> {
        let at = self.find(key)?;
        let awaited = &self.awaited[at as usize];
        let (id, key) = (awaited.oldest, awaited.key.clone());
        let Registration { client, position, .. } = self.unlink(id);
        Some((Fulfilled { client, position }, key))
    }

    /// Returns whether `key` has a waiter.
    pub(super) fn is_awaited(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Marks a registration as fulfilled, after [`Waiters::take_oldest`] has removed it from the index.
    pub(super) fn mark_fulfilled(registrations: &mut Registrations, fulfilled: &Fulfilled) {
        registrations.ids[fulfilled.position as usize] = NONE;
        registrations.remaining -= 1;
    }

    /// Removes all registrations of a client.
    pub(super) fn cancel(&mut self, registrations: &mut Registrations) {
        for id in registrations.ids.drain(..).filter(|&id| id != NONE) {
            self.unlink(id);
        }
        registrations.remaining = 0;
    }

    /// Iterates over the keys that a client still waits for.
    pub(super) fn missing<'a>(&'a self, registrations: &'a Registrations) -> impl Iterator<Item = &'a Key> {
        registrations
            .ids
            .iter()
            .filter(|&&id| id != NONE)
            .map(|&id| &self.awaited[self.registrations[id as usize].awaited as usize].key)
    }

    fn unlink(&mut self, id: u32) -> Registration {
        let removed = self.registrations.remove(id as usize);
        self.bytes -= REGISTRATION_OVERHEAD_BYTES;
        let awaited = &mut self.awaited[removed.awaited as usize];
        match removed.older {
            NONE => awaited.oldest = removed.newer,
            older => self.registrations[older as usize].newer = removed.newer,
        }
        match removed.newer {
            NONE => awaited.newest = removed.older,
            newer => self.registrations[newer as usize].older = removed.older,
        }
        if awaited.oldest == NONE {
            if let Ok(slot) = self.by_key.find_entry(awaited.hash, |&at| at == removed.awaited) {
                slot.remove();
            }
            self.bytes -= self.awaited.remove(removed.awaited as usize).key.len();
        }
        if self.registrations.is_empty() {
            self.release_capacity();
        }
        removed
    }

    /// Frees the capacity of the empty index if it exceeds [`MAX_RETAINED_CAPACITY`].
    fn release_capacity(&mut self) {
        if self.registrations.capacity() > MAX_RETAINED_CAPACITY {
            (self.registrations, self.awaited, self.by_key) = (Slab::new(), Slab::new(), HashTable::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiters() -> Waiters {
        Waiters::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    /// Registers a client for these keys.
    fn register(waiters: &mut Waiters, client: u32, keys: &[&[u8]]) -> Registrations {
        let mut registrations = Registrations::default();
        keys.iter().for_each(|key| waiters.register(ClientId::new(client), &mut registrations, key));
        registrations
    }

    /// Removes all waiters of a key and returns them in order.
    fn take_all(waiters: &mut Waiters, key: &[u8]) -> Vec<usize> {
        std::iter::from_fn(|| waiters.take_oldest(key))
            .map(|(fulfilled, _)| fulfilled.client.index())
            .collect()
    }

    fn is_empty(waiters: &Waiters) -> bool {
        waiters.by_key.is_empty() && waiters.awaited.is_empty() && waiters.registrations.is_empty()
    }

    #[test]
    fn waiters_are_taken_oldest_first() {
        let mut waiters = waiters();
        for client in [3, 1, 2] {
            register(&mut waiters, client, &[b"k"]);
        }
        assert_eq!(take_all(&mut waiters, b"k"), [3, 1, 2]);
        assert!(is_empty(&waiters));
    }

    #[test]
    fn cancel_removes_the_first_a_middle_or_the_last_waiter() {
        for canceled in 0..3 {
            let mut waiters = waiters();
            let mut registrations: Vec<Registrations> =
                (0..3).map(|client| register(&mut waiters, client, &[b"k"])).collect();
            waiters.cancel(&mut registrations[canceled]);
            let remaining: Vec<usize> = (0..3).filter(|client| *client != canceled).collect();
            assert_eq!(take_all(&mut waiters, b"k"), remaining);
            assert!(is_empty(&waiters));
        }
    }

    #[test]
    fn cancel_removes_all_registrations_of_one_client_only() {
        let mut waiters = waiters();
        let mut registrations = register(&mut waiters, 1, &[b"a", b"b", b"a"]);
        register(&mut waiters, 2, &[b"b", b"c"]);
        assert_eq!((waiters.len(), registrations.remaining()), (5, 3));
        waiters.cancel(&mut registrations);
        assert_eq!((waiters.len(), registrations.remaining()), (2, 0));
        assert!(!waiters.is_awaited(b"a"));
        assert!(waiters.is_awaited(b"b") && waiters.is_awaited(b"c"));
    }

    #[test]
    fn cancel_skips_fulfilled_registrations() {
        let mut waiters = waiters();
        let mut registrations = register(&mut waiters, 1, &[b"a", b"b"]);
        let (fulfilled, key) = waiters.take_oldest(b"a").unwrap();
        assert_eq!(*key, b"a"[..]);
        Waiters::mark_fulfilled(&mut registrations, &fulfilled);
        // The index reuses the id of the fulfilled registration for another client.
        register(&mut waiters, 2, &[b"c"]);
        waiters.cancel(&mut registrations);
        assert_eq!(waiters.len(), 1);
        assert!(waiters.is_awaited(b"c"));
    }

    #[test]
    fn missing_lists_the_unfulfilled_keys() {
        let mut waiters = waiters();
        let mut registrations = register(&mut waiters, 1, &[b"a", b"b", b"c"]);
        let (fulfilled, _) = waiters.take_oldest(b"b").unwrap();
        Waiters::mark_fulfilled(&mut registrations, &fulfilled);
        let missing: Vec<&[u8]> = waiters.missing(&registrations).map(|key| &**key).collect();
        assert_eq!(missing, [&b"a"[..], b"c"]);
        assert_eq!(registrations.remaining(), 2);
    }

    #[test]
    fn a_key_without_waiters_yields_none() {
        let mut waiters = waiters();
        register(&mut waiters, 1, &[b"a"]);
        assert_eq!(waiters.take_oldest(b"b"), None);
        assert!(!waiters.is_awaited(b""));
    }

    #[test]
    fn each_of_10000_keys_is_found() {
        let mut waiters = waiters();
        let names: Vec<[u8; 4]> = (0..10_000u32).map(u32::to_le_bytes).collect();
        let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        register(&mut waiters, 1, &keys);
        assert!(keys.iter().all(|key| take_all(&mut waiters, key) == [1]));
        assert!(is_empty(&waiters));
    }

    #[test]
    fn capacity_is_released_after_100000_registrations() {
        let mut waiters = waiters();
        let names: Vec<[u8; 4]> = (0..100_000u32).map(u32::to_le_bytes).collect();
        let keys: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        let mut registrations = register(&mut waiters, 1, &keys);
        waiters.cancel(&mut registrations);
        let capacities =
            (waiters.registrations.capacity(), waiters.awaited.capacity(), waiters.by_key.capacity());
        assert!(capacities.0.max(capacities.1).max(capacities.2) <= MAX_RETAINED_CAPACITY, "{capacities:?}");
        register(&mut waiters, 2, &[b"k"]);
        assert_eq!(take_all(&mut waiters, b"k"), [2]);
    }
}
