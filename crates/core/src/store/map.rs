//! Keys and values. Once there are many, they lie in many hash tables rather than one, so that growing never stops the
//! store for long.

use ahash::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table;

use crate::key::Key;
use crate::value::Value;

/// With four million keys the largest single growth moves sixteen thousand.
const SHARDS: usize = 256;
/// Up to so many keys are in one table: to find one among few, a look at which table it is in is a look too many.
const UNDIVIDED: usize = 8 * 1024;

#[derive(Debug)]
struct Entry {
    key: Key,
    value: Value,
}

/// A map from keys to values that also knows how many bytes it holds.
#[derive(Debug)]
pub(super) struct Map {
    /// One of them, or [`SHARDS`].
    shards: Box<[HashTable<Entry>]>,
    hasher: RandomState,
    len: usize,
    bytes: usize,
}

/// What an entry costs beyond its key and its value, roughly: its slot in a table that is two thirds full, the value's
/// allocation, and that of a long key.
pub(super) const ENTRY_OVERHEAD: usize = 128;

/// What a key with a value of these lengths is counted as.
pub(super) fn cost(key: usize, value: usize) -> usize {
    key + value + ENTRY_OVERHEAD
}

impl Map {
    pub(super) fn new(hasher: RandomState) -> Map {
        Map { shards: [HashTable::new()].into(), hasher, len: 0, bytes: 0 }
    }

    fn hash(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        // The table uses the low bits for the place and the top seven for the tag. Their number is a power of two.
        ((hash >> 32) as usize & (self.shards.len() - 1), hash)
    }

    /// Deals the keys of the one table out to many.
    fn divide(&mut self) {
        let undivided = std::mem::replace(&mut self.shards, (0..SHARDS).map(|_| HashTable::new()).collect());
        for entry in undivided.into_iter().flatten() {
            let (shard, hash) = self.hash(&entry.key);
            self.shards[shard].insert_unique(hash, entry, |entry| self.hasher.hash_one(&*entry.key));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes held, overheads included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Value> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The key as kept, with its value.
    pub(super) fn entry(&self, key: &[u8]) -> Option<(&Key, &Value)> {
        let (shard, hash) = self.hash(key);
        self.shards[shard].find(hash, |entry| entry.key.is(key)).map(|entry| (&entry.key, &entry.value))
    }

    /// The value of a key, to be [overwritten](Value::overwrite) by one that is as long.
    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Value> {
        let (shard, hash) = self.hash(key);
        self.shards[shard].find_mut(hash, |entry| entry.key.is(key)).map(|entry| &mut entry.value)
    }

    /// Puts a value in the place of what was there.
    pub(super) fn set(&mut self, key: &[u8], value: Value) {
        self.replace(key, value.len(), value, |held, value| *held = value);
    }

    /// Puts a copy of these bytes in the place of what was there, or over it.
    pub(super) fn set_copy(&mut self, key: &[u8], bytes: &[u8]) {
        self.replace(key, bytes.len(), bytes, |held, bytes| {
            if !held.overwrite(bytes) {
                *held = Value::copied(bytes);
            }
        });
    }

    fn replace<T: Into<Value>>(&mut self, key: &[u8], len: usize, new: T, over: impl FnOnce(&mut Value, T)) {
        if self.len == UNDIVIDED && self.shards.len() == 1 {
            self.divide();
        }
        let (shard, hash) = self.hash(key);
        let hasher = &self.hasher;
        match self.shards[shard].entry(hash, |entry| entry.key.is(key), |entry| hasher.hash_one(&*entry.key))
        {
            hash_table::Entry::Occupied(mut slot) => {
                let held = &mut slot.get_mut().value;
                self.bytes = self.bytes + len - held.len();
                over(held, new);
            }
            hash_table::Entry::Vacant(slot) => {
                slot.insert(Entry { key: Key::from(key), value: new.into() });
                self.bytes += cost(key.len(), len);
                self.len += 1;
            }
        }
    }

    /// Lengthens a value that is there.
    pub(super) fn append(&mut self, key: &[u8], more: &[u8]) {
        let (shard, hash) = self.hash(key);
        if let Some(entry) = self.shards[shard].find_mut(hash, |entry| entry.key.is(key)) {
            entry.value.append(more);
            self.bytes += more.len();
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Value> {
        let (shard, hash) = self.hash(key);
        let slot = self.shards[shard].find_entry(hash, |entry| entry.key.is(key)).ok()?;
        let (entry, _) = slot.remove();
        self.bytes -= cost(entry.key.len(), entry.value.len());
        self.len -= 1;
        Some(entry.value)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.shards.iter().flat_map(|shard| shard.iter().map(|entry| &entry.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map {
        Map::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    fn value(bytes: &[u8]) -> Value {
        Value::copied(bytes)
    }

    #[test]
    fn many_keys_are_each_found_again() {
        let mut map = map();
        for number in 0..10_000u32 {
            map.set(&number.to_le_bytes(), value(&number.to_be_bytes()));
        }
        assert_eq!(map.len(), 10_000);
        for number in 0..10_000u32 {
            assert_eq!(map.get(&number.to_le_bytes()), Some(&value(&number.to_be_bytes())));
        }
        assert_eq!(map.get(&10_000u32.to_le_bytes()), None);
    }

    #[test]
    fn keys_spread_over_the_shards() {
        let mut map = map();
        for number in 0..10_000u32 {
            map.set(&number.to_le_bytes(), Value::default());
        }
        let fullest = map.shards.iter().map(HashTable::len).max().unwrap();
        assert!(fullest < 3 * 10_000 / SHARDS, "one shard of {SHARDS} holds {fullest} of 10,000");
    }

    #[test]
    fn bytes_follow_every_change() {
        let mut map = map();
        map.set(b"key", value(b"1234"));
        assert_eq!(map.bytes(), cost(3, 4));
        map.set(b"key", value(b"1"));
        assert_eq!(map.bytes(), cost(3, 1));
        map.append(b"key", b"234567");
        assert_eq!(map.bytes(), cost(3, 7));
        map.remove(b"key");
        assert_eq!(map.bytes(), 0);
    }

    #[test]
    fn a_key_keeps_its_allocation_when_its_value_is_replaced() {
        let mut map = map();
        let long = [b'k'; 1000];
        map.set(&long, value(b"1"));
        let kept = map.entry(&long).unwrap().0.clone();
        map.set(&long, value(b"2"));
        assert_eq!(kept.as_ptr(), map.entry(&long).unwrap().0.as_ptr());
    }

    #[test]
    fn an_append_to_a_missing_key_does_nothing() {
        let mut map = map();
        map.append(b"key", b"more");
        assert_eq!((map.get(b"key"), map.len(), map.bytes()), (None, 0, 0));
    }

    #[test]
    fn remove_gives_the_value_once() {
        let mut map = map();
        map.set(b"key", value(b"v"));
        assert_eq!(map.remove(b"key"), Some(value(b"v")));
        assert_eq!(map.remove(b"key"), None);
        assert_eq!(map.keys().count(), 0);
    }
}
