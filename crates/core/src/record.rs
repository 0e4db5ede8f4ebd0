//! The codec of FileStore's file, which is a sequence of records.
//!
//! A record consists of the length of the key, the key, the length of the value, and the value. Both lengths are
//! little-endian `u32` numbers. The last record of a key determines its value. A key of the user has the prefix `/`. A
//! key with the prefix `-/` records the deletion of a user's key. A key that starts with a letter and ends with `/` is
//! an internal key of the stores ([`REFCOUNT`], [`CLEANUP`], [`RUN_ID`]).

use std::collections::BTreeMap;

use crate::error::printable;
use crate::limits::Limits;

/// The internal key whose value is the number of store instances that opened the file. Torch defines it.
pub const REFCOUNT: &str = "refcount/";

/// The internal key whose value is the number of store instances that closed the file. Torch defines it.
pub const CLEANUP: &str = "cleanup/";

/// The internal key whose value is the run id of the file. Rallypoint writes it if a run id was given. Torch ignores
/// it.
pub const RUN_ID: &str = "run_id/";

/// The first byte of a user's key in the file.
const USER_PREFIX: u8 = b'/';

/// The first byte of a key in the record of a deletion. [`USER_PREFIX`] follows it.
const DELETED_PREFIX: u8 = b'-';

/// The maximum length of an internal key. The known internal keys have at most 9 bytes, so a key of more than 64 bytes
/// is damage.
const MAX_INTERNAL_KEY_BYTES: usize = 64;

/// The keys and values that result from applying a sequence of records. The keys include their prefixes.
pub type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// One record of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key with its prefix, but without the prefix of a deletion.
    pub key: Vec<u8>,
    /// The new value, or `None` if the key is deleted.
    pub value: Option<Vec<u8>>,
}

/// The result of parsing the bytes at one position of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A complete record, and its length in bytes.
    Whole(Record, usize),
    /// An incomplete record, or no bytes at all. The complete record has at least this length in bytes.
    Torn(usize),
}

impl Record {
    /// Creates a record that stores `value` under `key`, which includes its prefix.
    pub fn set(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Record {
        Record { key: key.into(), value: Some(value.into()) }
    }

    /// Creates a record that deletes `key`, which includes its prefix.
    pub fn delete(key: impl Into<Vec<u8>>) -> Record {
        Record { key: key.into(), value: None }
    }

    /// Parses the record at the start of `bytes`.
    ///
    /// A length above its limit is damage, even if the bytes that it announces are missing. The format has no marker at
    /// which a reader could resume, so records after damage cannot be read.
    ///
    /// # Errors
    ///
    /// Fails with a description of the damage if no record can start with these bytes.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Parsed, String> {
        let (key_limit, value_limit) = (limits.record_key_len, limits.record_value_len);
        let Some(key_len) = read_len(bytes, 0) else { return Ok(Parsed::Torn(4)) };
        if key_len > key_limit {
            return Err(format!("key of {key_len} bytes, limit {key_limit}"));
        }
        let Some(key) = bytes.get(4..4 + key_len) else { return Ok(Parsed::Torn(8 + key_len)) };
        if !is_plausible(key) {
            return Err(format!("key {:?}, which no store writes", printable(key)));
        }
        let Some(value_len) = read_len(bytes, 4 + key_len) else { return Ok(Parsed::Torn(8 + key_len)) };
        if value_len > value_limit {
            return Err(format!("value of {value_len} bytes, limit {value_limit}"));
        }
        let len = 8 + key_len + value_len;
        let Some(value) = bytes.get(8 + key_len..len) else { return Ok(Parsed::Torn(len)) };
        let record = match key {
            [DELETED_PREFIX, key @ ..] => Record::delete(key),
            key => Record::set(key, value),
        };
        Ok(Parsed::Whole(record, len))
    }

    /// Appends the encoded record to `out`.
    ///
    /// # Panics
    ///
    /// Panics if the length of the key or the value does not fit into 32 bits. Callers check the limits on keys and
    /// values, which are far lower.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let len = |len: usize| u32::try_from(len).expect("shorter than 4 GiB").to_le_bytes();
        let deleted: &[u8] = if self.value.is_none() { &[DELETED_PREFIX] } else { &[] };
        let value = self.value.as_deref().unwrap_or_default();
        for part in [&len(deleted.len() + self.key.len()), deleted, &self.key, &len(value.len()), value] {
            out.extend_from_slice(part);
        }
    }

    /// Stores or deletes the record's key in `table`.
    pub fn apply_to(self, table: &mut Table) {
        match self.value {
            Some(value) => table.insert(self.key, value),
            None => table.remove(&self.key),
        };
    }
}

/// Returns a user's key with its prefix.
pub fn user_key(key: &str) -> Vec<u8> {
    [&[USER_PREFIX], key.as_bytes()].concat()
}

/// Iterates over the user's keys in `table`, without their prefixes.
pub fn user_keys(table: &Table) -> impl Iterator<Item = &[u8]> {
    table.keys().filter_map(|key| key.strip_prefix(&[USER_PREFIX]))
}

/// Returns whether torch or Rallypoint could have written this key.
///
/// The format has no checksums. This check detects most files that are damaged or were not written by a FileStore.
fn is_plausible(key: &[u8]) -> bool {
    match key {
        [USER_PREFIX, ..] | [DELETED_PREFIX, USER_PREFIX, ..] => true,
        [name @ .., USER_PREFIX] => {
            key.len() <= MAX_INTERNAL_KEY_BYTES
                && name.first().is_some_and(u8::is_ascii_alphabetic)
                && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        }
        _ => false,
    }
}

fn read_len(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(record: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode_into(&mut out);
        out
    }

    fn parse(bytes: &[u8]) -> Result<Parsed, String> {
        Record::parse(bytes, &Limits::default())
    }

    #[test]
    fn records_are_byte_for_byte_what_torch_writes() {
        let set = Record::set(user_key("k"), "v");
        assert_eq!(encoded(&set), b"\x02\0\0\0/k\x01\0\0\0v");
        assert_eq!(encoded(&Record::delete(user_key("c2"))), b"\x04\0\0\0-/c2\0\0\0\0");
        assert_eq!(encoded(&Record::set(REFCOUNT, "1")), b"\x09\0\0\0refcount/\x01\0\0\x001");
        assert_eq!(encoded(&Record::set(user_key("n"), "-2")), b"\x02\0\0\0/n\x02\0\0\0-2");
    }

    #[test]
    fn only_keys_that_a_store_could_have_written_are_plausible() {
        for key in ["/", "/k", "/-/k", "-/", "-/k", "refcount/", "cleanup/", "run_id/", "later_2/"] {
            assert!(is_plausible(key.as_bytes()), "{key}");
        }
        for key in ["", "k", "-", "-k", "-refcount/", "2/", "a b/", "refcount", " /"] {
            assert!(!is_plausible(key.as_bytes()), "{key}");
        }
        assert!(!is_plausible(&[&[b'a'; MAX_INTERNAL_KEY_BYTES][..], b"/"].concat()));
    }

    #[test]
    fn a_record_is_torn_until_its_last_byte_arrives() {
        for record in [
            Record::set(REFCOUNT, "1"),
            Record::set(user_key("k"), "value"),
            Record::set(user_key("empty"), ""),
            Record::delete(user_key("k")),
        ] {
            let bytes = encoded(&record);
            for cut in 0..bytes.len() {
                let torn = parse(&bytes[..cut]);
                assert!(
                    matches!(torn, Ok(Parsed::Torn(need)) if need > cut && need <= bytes.len()),
                    "{torn:?}"
                );
            }
            assert_eq!(parse(&[&bytes[..], b"more"].concat()), Ok(Parsed::Whole(record, bytes.len())));
        }
    }

    #[test]
    fn a_length_above_its_limit_is_rejected_before_its_bytes_arrive() {
        let Limits { record_key_len, record_value_len, .. } = Limits::default();
        let over = (record_key_len as u32 + 1).to_le_bytes();
        let error = format!("key of {} bytes, limit {record_key_len}", record_key_len + 1);
        assert_eq!(parse(&over), Err(error));
        let bytes = [&b"\x02\0\0\0/k"[..], &(1u32 << 30).to_le_bytes()].concat();
        assert_eq!(parse(&bytes), Err(format!("value of {} bytes, limit {record_value_len}", 1 << 30)));
    }

    #[test]
    fn zeros_are_rejected_as_damage() {
        assert_eq!(parse(&[0; 64]), Err("key \"\", which no store writes".into()));
    }

    #[test]
    fn the_newest_record_of_a_key_counts() {
        let mut table = Table::new();
        let records = [
            Record::set(user_key("a"), "1"),
            Record::set(user_key("b"), "2"),
            Record::set(user_key("a"), "3"),
            Record::delete(user_key("b")),
            Record::delete(user_key("never")),
        ];
        records.into_iter().for_each(|record| record.apply_to(&mut table));
        assert_eq!(table, Table::from([(b"/a".to_vec(), b"3".to_vec())]));
    }

    #[test]
    fn user_keys_excludes_internal_keys() {
        let table = [REFCOUNT, "/refcount/", "/"].map(|key| (key.into(), vec![]));
        let table = Table::from(table);
        assert_eq!(user_keys(&table).collect::<Vec<_>>(), [&b""[..], b"refcount/"]);
    }
}
