//! The map of keys to values. It consists of 64 hash tables, so that growing one table delays requests by at most a few
//! milliseconds.

use ahash::RandomState;
use hashbrown::HashTable;

use crate::key::Key;
use crate::value::Value;
use crate::wire::Payload;

/// The number of hash tables. With 4,000,000 keys, growing one table moves about 62,500 keys.
const SHARDS: usize = 64;

/// The approximate memory of an entry beyond the bytes of its key and value: its slot in a table that is two thirds
/// full, and the overhead of its allocations.
const ENTRY_OVERHEAD_BYTES: usize = 128;

#[derive(Debug)]
struct Entry {
    key: Key,
    value: Value,
}

/// A map of keys to values that counts its memory.
#[derive(Debug)]
pub(super) struct Map {
    shards: Box<[HashTable<Entry>]>,
    hasher: RandomState,
    len: usize,
    bytes: usize,
    key_bytes: usize,
}

/// Returns the memory of an entry with a key and a value of these lengths.
pub(super) fn entry_cost(key: usize, value: usize) -> usize {
    key + value + ENTRY_OVERHEAD_BYTES
}

impl Map {
    pub(super) fn new(hasher: RandomState) -> Map {
        let shards = (0..SHARDS).map(|_| HashTable::new()).collect();
        Map { shards, hasher, len: 0, bytes: 0, key_bytes: 0 }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        // A hash table uses the low bits of the hash for the slot and the top 7 bits for the tag, so bits in the middle
        // select the shard.
        ((hash >> 32) as usize % SHARDS, hash)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory of all entries, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the sum of the lengths of all keys.
    pub(super) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<&Value> {
        self.entry(key).map(|(_, value)| value)
    }

    /// Returns the map's own key, which is cheap to clone, and the value of the key.
    #[inline]
    pub(super) fn entry(&self, key: &[u8]) -> Option<(&Key, &Value)> {
        let (shard, hash) = self.hash(key);
        self.shards[shard].find(hash, |entry| entry.key.equals(key)).map(|entry| (&entry.key, &entry.value))
    }

    /// Iterates over all keys and values, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.shards.iter().flatten().map(|entry| (&entry.key, &entry.value))
    }

    #[inline]
    fn get_mut(&mut self, key: &[u8]) -> Option<&mut Value> {
        let (shard, hash) = self.hash(key);
        self.shards[shard].find_mut(hash, |entry| entry.key.equals(key)).map(|entry| &mut entry.value)
    }

    /// Stores a value. If possible, overwrites the old value in place, without an allocation.
    #[inline(always)]
    pub(super) fn put(&mut self, key: &[u8], value: Payload<'_>) {
        let Some(stored) = self.get_mut(key) else { return self.insert(key, value.to_value()) };
        let before = stored.len();
        if !stored.try_overwrite(value.bytes()) {
            *stored = value.to_value();
        }
        self.bytes = self.bytes + value.bytes().len() - before;
    }

    /// Appends bytes to the value of a key. An absent key counts as an empty value.
    pub(super) fn append(&mut self, key: &[u8], more: &[u8]) {
        let Some(stored) = self.get_mut(key) else { return self.insert(key, Value::copied(more)) };
        stored.append(more);
        self.bytes += more.len();
    }

    /// Inserts a key that is absent.
    fn insert(&mut self, key: &[u8], value: Value) {
        self.len += 1;
        self.key_bytes += key.len();
        self.bytes += entry_cost(key.len(), value.len());
        let (shard, hash) = self.hash(key);
        let (entry, hasher) = (Entry { key: Key::from(key), value }, &self.hasher);
        self.shards[shard].insert_unique(hash, entry, |entry| hasher.hash_one(&*entry.key));
    }

    /// Removes a key, if it is present.
    pub(super) fn remove(&mut self, key: &[u8]) {
        let (shard, hash) = self.hash(key);
        let Ok(slot) = self.shards[shard].find_entry(hash, |entry| entry.key.equals(key)) else { return };
        let (entry, _) = slot.remove();
        self.bytes -= entry_cost(entry.key.len(), entry.value.len());
        self.key_bytes -= entry.key.len();
        self.len -= 1;
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
    fn each_of_10000_keys_is_found() {
        let mut map = map();
        for number in 0..10_000u32 {
            map.put(&number.to_le_bytes(), number.to_be_bytes()[..].into());
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
            map.put(&number.to_le_bytes(), b""[..].into());
        }
        let fullest = map.shards.iter().map(HashTable::len).max().unwrap();
        assert!(fullest < 3 * 10_000 / SHARDS, "one shard of {SHARDS} has {fullest} of 10,000 keys");
    }

    #[test]
    fn every_change_updates_the_byte_count() {
        let mut map = map();
        map.put(b"key", b"1234"[..].into());
        assert_eq!(map.bytes(), entry_cost(3, 4));
        map.put(b"key", b"1"[..].into());
        assert_eq!(map.bytes(), entry_cost(3, 1));
        map.append(b"key", b"234567");
        assert_eq!(map.bytes(), entry_cost(3, 7));
        map.remove(b"key");
        assert_eq!(map.bytes(), 0);
    }

    #[test]
    fn a_key_keeps_its_allocation_when_its_value_is_replaced() {
        let mut map = map();
        let long = [b'k'; 1000];
        map.put(&long, b"1"[..].into());
        let key = map.entry(&long).unwrap().0.clone();
        map.put(&long, b"2"[..].into());
        assert_eq!(key.as_ptr(), map.entry(&long).unwrap().0.as_ptr());
    }

    #[test]
    fn an_append_to_an_absent_key_stores_it() {
        let mut map = map();
        map.append(b"key", b"more");
        assert_eq!((map.get(b"key"), map.len(), map.bytes()), (Some(&value(b"more")), 1, entry_cost(3, 4)));
    }

    #[test]
    fn removing_an_absent_key_changes_nothing() {
        let mut map = map();
        map.put(b"key", b"v"[..].into());
        map.remove(b"key");
        map.remove(b"key");
        assert_eq!((map.len(), map.iter().count()), (0, 0));
    }
}
