//! What a file of records comes to: the newest value of each key. It decides what an operation finds and may do; writing
//! the record that follows is the caller's.

use std::collections::BTreeMap;

use super::{Record, USER};
use crate::number::parse_prefix;
use crate::value::Value;

/// The keys and values after some number of records. Keys are as the file has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replay {
    held: BTreeMap<Box<[u8]>, Value>,
}

impl Replay {
    /// One more record.
    pub fn apply(&mut self, record: Record) {
        match record.value {
            Some(value) => self.held.insert(record.key, value),
            None => self.held.remove(&record.key),
        };
    }

    /// What `key` holds.
    pub fn value(&self, key: &[u8]) -> Option<&Value> {
        self.held.get(key)
    }

    /// How many keys there are, those of the stores themselves too, as torch counts.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The user's keys, as the user knows them.
    pub fn user_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.held.keys().filter_map(|key| key.strip_prefix(&[USER]))
    }

    /// What `key` will hold once `delta` is added; if it holds no number or the sum doesn't fit, what it holds now.
    ///
    /// An empty value counts as 0 like an absent one: torch's FileStore does so, although its TCPStore refuses it.
    pub fn sum(&self, key: &[u8], delta: i64) -> Result<i64, Value> {
        let Some(held) = self.held.get(key).filter(|held| !held.is_empty()) else { return Ok(delta) };
        parse_prefix(held).and_then(|number| number.checked_add(delta)).ok_or_else(|| held.clone())
    }

    /// Whether a compare-and-set that expects this goes through: `key` holds it, or is absent and nothing is expected.
    pub fn accepts(&self, key: &[u8], expected: &[u8]) -> bool {
        match self.held.get(key) {
            Some(held) => **held == *expected,
            None => expected.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{REFCOUNT, user_key};
    use super::*;

    fn replay(records: impl IntoIterator<Item = Record>) -> Replay {
        let mut replay = Replay::default();
        records.into_iter().for_each(|record| replay.apply(record));
        replay
    }

    fn set(key: &str, value: &str) -> Record {
        Record::set(user_key(key), Value::copied(value.as_bytes()))
    }

    #[test]
    fn the_newest_record_of_a_key_counts() {
        let mut replay = replay([set("a", "1"), set("b", "2"), set("a", "3")]);
        assert_eq!(replay.value(b"/a").unwrap()[..], *b"3");
        replay.apply(Record::delete(user_key("a")));
        assert_eq!(replay.value(b"/a"), None);
        replay.apply(Record::delete(user_key("never")));
        replay.apply(set("a", "4"));
        assert_eq!(replay.value(b"/a").unwrap()[..], *b"4");
    }

    #[test]
    fn own_keys_count_but_are_not_the_users() {
        let replay = replay([Record::number(REFCOUNT, 1), set("refcount/", "x"), set("", "y")]);
        assert_eq!(replay.len(), 3);
        assert_eq!(replay.user_keys().collect::<Vec<_>>(), [&b""[..], b"refcount/"]);
    }

    #[test]
    fn sums_follow_the_prefix_rule_and_take_an_empty_value_for_zero() {
        for (held, sum) in [("5", 6), ("", 1), ("12abc", 13), (" 7", 8), ("1.5", 2), ("0x10", 1)] {
            assert_eq!(replay([set("n", held)]).sum(b"/n", 1), Ok(sum), "{held:?}");
        }
        assert_eq!(Replay::default().sum(b"/n", -3), Ok(-3));
    }

    #[test]
    fn a_sum_that_cannot_be_gives_back_what_is_held() {
        for held in ["abc", "99999999999999999999", "9223372036854775807"] {
            assert_eq!(replay([set("n", held)]).sum(b"/n", 1), Err(Value::copied(held.as_bytes())));
        }
    }

    #[test]
    fn a_compare_and_set_expects_what_is_held_or_nothing_of_an_absent_key() {
        let replay = replay([set("k", "v"), set("empty", "")]);
        for (key, expected, accepted) in [
            ("/k", "v", true),
            ("/k", "", false),
            ("/k", "w", false),
            ("/empty", "", true),
            ("/empty", "x", false),
            ("/absent", "", true),
            ("/absent", "x", false),
        ] {
            assert_eq!(replay.accepts(key.as_bytes(), expected.as_bytes()), accepted, "{key} {expected:?}");
        }
    }
}
