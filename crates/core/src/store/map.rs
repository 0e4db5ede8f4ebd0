//! Keys and values. Once there are many, they lie in many hash tables rather than one, so that growing never stops the
//! store for long.

use std::collections::TryReserveError;

use ahash::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table;

use triomphe::Arc;

use super::gone::Gone;
use super::listing::{Listing, Sheet};
use crate::key::Key;
use crate::value::Value;

/// With four million keys the largest single growth moves sixteen thousand.
const SHARDS: usize = 256;
/// Up to so many keys are in one table: to find one among few, a look at which table it is in is a look too many.
const UNDIVIDED: usize = 8 * 1024;
/// The one table is also divided at this many bytes of keys, because LIST_KEYS prints the keys of a table in one piece.
const UNDIVIDED_BYTES: usize = 1024 * 1024;

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
    /// Bytes of the keys alone.
    key_bytes: usize,
    /// Values that are here no more, and that replies still hold.
    gone: Gone,
    /// One for each table whose keys somebody is to be sent, as they are now. None at all while nobody is.
    sheets: Vec<Option<Arc<Sheet>>>,
    /// Bytes printed on them.
    printed: usize,
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
        Map {
            shards: [HashTable::new()].into(),
            hasher,
            len: 0,
            bytes: 0,
            key_bytes: 0,
            gone: Gone::default(),
            sheets: Vec::new(),
            printed: 0,
        }
    }

    fn hash(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        // The table uses the low bits for the place and the top seven for the tag. Their number is a power of two.
        ((hash >> 32) as usize & (self.shards.len() - 1), hash)
    }

    /// Deals the keys of the one table out to many.
    fn divide(&mut self) {
        self.keep_listed(0);
        self.sheets.clear();
        let undivided = std::mem::replace(&mut self.shards, (0..SHARDS).map(|_| HashTable::new()).collect());
        for entry in undivided.into_iter().flatten() {
            let (shard, hash) = self.hash(&entry.key);
            self.shards[shard].insert_unique(hash, entry, |entry| self.hasher.hash_one(&*entry.key));
        }
    }

    /// Deals the keys out to many tables although they are few, because many are to come or to be looked for. How many
    /// tables there are from now on.
    pub(super) fn divide_early(&mut self) -> usize {
        if self.shards.len() == 1 {
            self.divide();
        }
        self.shards.len()
    }

    /// The table a key is in, or would be.
    pub(super) fn table(&self, key: &[u8]) -> usize {
        self.hash(key).0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes held, overheads included, and what only replies hold by now.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.gone.bytes() + self.printed
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
        self.replace(key, value.len(), value, |held, value| Some(std::mem::replace(held, value)));
    }

    /// Puts a copy of these bytes in the place of what was there, or over it.
    pub(super) fn set_copy(&mut self, key: &[u8], bytes: &[u8]) {
        self.replace(key, bytes.len(), bytes, |held, bytes| {
            (!held.overwrite(bytes)).then(|| std::mem::replace(held, Value::copied(bytes)))
        });
    }

    /// `over` gives what it has put another value in the place of.
    fn replace<T: Into<Value>>(
        &mut self,
        key: &[u8],
        len: usize,
        new: T,
        over: impl FnOnce(&mut Value, T) -> Option<Value>,
    ) {
        if self.shards.len() == 1 && (self.len == UNDIVIDED || self.key_bytes >= UNDIVIDED_BYTES) {
            self.divide();
        }
        let (shard, hash) = self.hash(key);
        let hasher = &self.hasher;
        match self.shards[shard].entry(hash, |entry| entry.key.is(key), |entry| hasher.hash_one(&*entry.key))
        {
            hash_table::Entry::Occupied(mut slot) => {
                let held = &mut slot.get_mut().value;
                self.bytes = self.bytes + len - held.room();
                if let Some(replaced) = over(held, new) {
                    self.gone.note(replaced);
                }
            }
            hash_table::Entry::Vacant(slot) => {
                if !self.sheets.is_empty() {
                    // What is listed is what was there before.
                    let table = slot.into_table();
                    keep_listed(table, shard, &mut self.sheets, &mut self.printed, &mut self.gone);
                    let entry = Entry { key: Key::from(key), value: new.into() };
                    table.insert_unique(hash, entry, |entry| hasher.hash_one(&*entry.key));
                } else {
                    slot.insert(Entry { key: Key::from(key), value: new.into() });
                }
                self.key_bytes += key.len();
                self.bytes += cost(key.len(), len);
                self.len += 1;
            }
        }
    }

    /// Appends to the value of a key, if the key exists: [`Value::append`].
    pub(super) fn append(&mut self, key: &[u8], more: &[u8], room: usize) -> Result<(), TryReserveError> {
        let (shard, hash) = self.hash(key);
        if let Some(entry) = self.shards[shard].find_mut(hash, |entry| entry.key.is(key)) {
            let (before, shared) = (entry.value.room(), entry.value.is_shared().then(|| entry.value.clone()));
            entry.value.append(more, room)?;
            self.bytes = self.bytes + entry.value.room() - before;
            shared.into_iter().for_each(|value| self.gone.note(value));
        }
        Ok(())
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let (shard, hash) = self.hash(key);
        if !self.sheets.is_empty() && self.get(key).is_some() {
            self.keep_listed(shard);
        }
        let Ok(slot) = self.shards[shard].find_entry(hash, |entry| entry.key.is(key)) else { return false };
        let (entry, _) = slot.remove();
        self.bytes -= cost(entry.key.len(), entry.value.room());
        self.key_bytes -= entry.key.len();
        self.len -= 1;
        self.gone.note(entry.value);
        true
    }

    /// Removes all keys for which `is_chosen` returns true.
    pub(super) fn remove_all(&mut self, is_chosen: &mut impl FnMut(&[u8]) -> bool) {
        let all = self.shards.iter().flatten().map(|entry| &entry.key);
        let chosen: Vec<Key> = all.filter(|key| is_chosen(key)).cloned().collect();
        chosen.iter().for_each(|key| {
            self.remove(key);
        });
    }

    // ---- what others still hold ----

    /// Whether there is anything for [`Map::tidy`] to look at.
    pub(super) fn is_tidy(&self) -> bool {
        self.gone.is_empty() && self.sheets.is_empty()
    }

    /// Lets go of what nobody else holds any more, as far as it sees that by looking at so many values.
    pub(super) fn tidy(&mut self, how_many: usize) {
        self.gone.look(how_many);
        for place in &mut self.sheets {
            if place.as_ref().is_some_and(Arc::is_unique)
                && let Some(printed) = place.take().and_then(|sheet| sheet.printed.get().cloned())
            {
                self.printed -= printed.len();
                self.gone.note(printed);
            }
        }
        if self.sheets.iter().all(Option::is_none) {
            self.sheets = Vec::new();
        }
    }

    // ---- the list of all keys ----

    /// All keys as they are now, to be printed when they are wanted.
    pub(super) fn list(&mut self) -> Listing {
        self.sheets.resize(self.shards.len(), None);
        let filled = self.sheets.iter_mut().zip(&self.shards).enumerate();
        let sheets = filled
            .filter(|(_, (_, table))| !table.is_empty())
            .map(|(number, (place, _))| Arc::clone(place.get_or_insert_with(|| Sheet::of(number))))
            .collect();
        Listing { count: self.len, len: 8 * self.len + self.key_bytes, sheets }
    }

    /// The next keys of a list as they travel: one or more, until there are none.
    pub(super) fn print(&mut self, listing: &mut Listing) -> Option<Value> {
        let sheet = listing.sheets.pop_front()?;
        if let Some(printed) = sheet.printed.get() {
            return Some(printed.clone());
        }
        let printed = print(&self.shards[sheet.table]);
        match &self.sheets[sheet.table] {
            // Somebody else is to be sent the same.
            Some(_) if Arc::count(&sheet) > 2 => {
                self.printed += printed.len();
                sheet.printed.get_or_init(|| printed.clone());
            }
            _ => self.sheets[sheet.table] = None,
        }
        Some(printed)
    }

    /// The keys of a table are about to change.
    fn keep_listed(&mut self, table: usize) {
        keep_listed(&self.shards[table], table, &mut self.sheets, &mut self.printed, &mut self.gone);
    }
}

/// The keys of this table are about to change: if it is on somebody's list, it is printed as it is.
fn keep_listed(
    table: &HashTable<Entry>,
    number: usize,
    sheets: &mut [Option<Arc<Sheet>>],
    printed: &mut usize,
    gone: &mut Gone,
) {
    let Some(sheet) = sheets.get_mut(number).and_then(Option::take) else { return };
    if let Some(already) = sheet.printed.get() {
        *printed -= already.len();
    } else if !sheet.is_unique() {
        sheet.printed.get_or_init(|| print(table));
    }
    let kept = sheet.printed.get().cloned();
    drop(sheet);
    kept.into_iter().for_each(|printed| gone.note(printed));
}

/// The keys of a table as they travel.
fn print(table: &HashTable<Entry>) -> Value {
    let len = table.iter().map(|entry| 8 + entry.key.len()).sum();
    let mut bytes = Vec::with_capacity(len);
    for entry in table {
        bytes.extend_from_slice(&(entry.key.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&entry.key);
    }
    Value::shared(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Strings;

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
        map.append(b"key", b"234567", 10).unwrap();
        // The spare capacity of a value that was appended to counts.
        assert_eq!(map.bytes(), cost(3, 10));
        map.append(b"key", b"890", 15).unwrap();
        assert_eq!(map.bytes(), cost(3, 10));
        map.set(b"key", value(b"123"));
        assert_eq!(map.bytes(), cost(3, 3));
        map.append(b"key", b"4", 8).unwrap();
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
    fn what_is_replaced_or_removed_counts_while_somebody_holds_it() {
        let mut map = map();
        let held: Vec<Value> = (0..3u8)
            .map(|number| {
                map.set(&[number], value(&[7; 1000]));
                map.get(&[number]).unwrap().clone()
            })
            .collect();
        let before = map.bytes();
        map.set(&[0], value(b""));
        map.append(&[1], b"more", 1004).unwrap();
        map.remove(&[2]);
        assert!(map.bytes() > before + 800, "{} after {before}", map.bytes());
        drop(held);
        map.tidy(usize::MAX);
        assert_eq!(map.bytes(), cost(1, 0) + cost(1, 1004));
    }

    #[test]
    fn an_append_to_a_missing_key_does_nothing() {
        let mut map = map();
        map.append(b"key", b"more", 0).unwrap();
        assert_eq!((map.get(b"key"), map.len(), map.bytes()), (None, 0, 0));
    }

    #[test]
    fn what_is_removed_was_there_once() {
        let mut map = map();
        map.set(b"key", value(b"v"));
        assert!(map.remove(b"key"));
        assert!(!map.remove(b"key"));
        assert_eq!((map.len(), listed(&mut map)), (0, vec![]));
    }

    /// All keys as a list gives them, in order.
    fn listed(map: &mut Map) -> Vec<Vec<u8>> {
        let listing = map.list();
        printed(map, listing)
    }

    fn printed(map: &mut Map, mut listing: Listing) -> Vec<Vec<u8>> {
        let (count, len) = (listing.count(), listing.printed_len());
        let mut bytes = Vec::new();
        while let Some(more) = map.print(&mut listing) {
            bytes.extend_from_slice(&more);
        }
        let mut keys: Vec<_> = Strings::of(&bytes).map(<[u8]>::to_vec).collect();
        assert_eq!((count, len), (keys.len(), bytes.len()));
        keys.sort();
        keys
    }

    #[test]
    fn a_list_is_of_the_moment_it_was_asked_for_whatever_comes_and_goes() {
        for keys in [100, UNDIVIDED, 20_000] {
            let mut map = map();
            let name = |number: usize| format!("{number:07}").into_bytes();
            (0..keys).for_each(|number| map.set(&name(number), value(b"v")));
            let before: Vec<_> = (0..keys).map(name).collect();
            let [first, second] = [map.list(), map.list()];
            // From one table to many, too.
            for number in 0..keys / 2 {
                map.remove(&name(2 * number));
                map.set(&name(keys + number), value(b"v"));
                map.set(&name(2 * number + 1), value(b"w"));
            }
            assert_eq!(listed(&mut map).len(), map.len());
            let third = map.list();
            assert!(printed(&mut map, first) == before, "{keys}");
            map.set(b"new", value(b""));
            assert!(printed(&mut map, second) == before, "{keys}");
            assert_eq!(printed(&mut map, third).len(), map.len() - 1);
            map.tidy(usize::MAX);
            assert!(map.is_tidy());
            assert_eq!(map.bytes(), map.bytes, "nothing is kept for those who have had it");
        }
    }

    #[test]
    fn a_sheet_that_only_replies_hold_counts_until_they_let_go() {
        let mut map = map();
        map.set(&[b'k'; 5000], value(b""));
        let before = map.bytes();
        let (mut lists, printed) = (vec![map.list(), map.list()], 8 + 5000);
        let taken: Vec<_> = lists.iter_mut().map(|list| map.print(list)).collect();
        drop(lists);
        map.tidy(usize::MAX);
        assert!(map.bytes() >= before + printed, "{} after {before}", map.bytes());
        // The same where the keys change before anybody tidies up.
        let (mut lists, size) = (vec![map.list(), map.list()], map.bytes());
        let taken_too: Vec<_> = lists.iter_mut().map(|list| map.print(list)).collect();
        map.set(b"new", value(b""));
        assert!(map.bytes() >= size + printed, "{} after {size}", map.bytes());
        drop((lists, taken, taken_too));
        (0..3).for_each(|_| map.tidy(usize::MAX));
        assert_eq!(map.bytes(), before + cost(3, 0));
        assert!(map.is_tidy());
    }

    #[test]
    fn many_who_ask_for_a_list_and_take_nothing_share_what_it_costs() {
        let mut map = map();
        (0..20_000u32).for_each(|number| map.set(&number.to_le_bytes(), value(b"v")));
        let before = map.bytes();
        let mut lists: Vec<Listing> = (0..100).map(|_| map.list()).collect();
        assert_eq!(map.bytes(), before);
        lists.iter_mut().for_each(|list| assert!(map.print(list).is_some()));
        map.set(b"new", value(b""));
        let all = 20_000 * (8 + 4);
        assert!(map.bytes() - before < all, "{} of {all} bytes", map.bytes() - before);
        (0..20_000u32).for_each(|number| assert!(map.remove(&number.to_le_bytes())));
        assert!(map.bytes() < all + 256 * 64 + cost(3, 0), "{} of {all} bytes, once for all", map.bytes());
        drop(lists);
        map.tidy(usize::MAX);
        assert_eq!(map.bytes(), cost(3, 0));
    }
}
