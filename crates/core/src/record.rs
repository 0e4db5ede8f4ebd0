//! FileStore's records: what the bytes of its one append-only file say, and how to say it.
//!
//! A record is a u32 length and the key, a u32 length and the value, all little-endian. The newest record of a key
//! counts. The first byte of a key tells whose it is: `/` begins a key of the user, `-/` says that the user's key behind
//! it is gone, and what begins with a letter and ends with `/` is a key of the stores themselves ([`REFCOUNT`],
//! [`CLEANUP`]). Nothing here opens, locks or waits: bytes come in as slices, and [`RecordReader`] says of their end
//! whether it is whole, torn, or not FileStore's.

mod reader;
mod replay;
mod roll;

pub use reader::{RecordReader, Tail};
pub use replay::Replay;
pub use roll::{Admission, Leaving};

use crate::value::Value;

/// How many instances have the file open; torch's own key.
pub const REFCOUNT: &[u8] = b"refcount/";

/// How many instances have closed it; torch's own key.
pub const CLEANUP: &[u8] = b"cleanup/";

/// Which run the file belongs to; a key of ours, written only if a run id was given. Torch passes over it.
pub const RUN_ID: &[u8] = b"run_id/";

/// What comes before a user's key in the file.
const USER: u8 = b'/';

/// What comes before that when the key is deleted.
const DELETED: u8 = b'-';

/// Longest name of an own key. Torch's have nine bytes; what is much longer is not a name but damage.
const OWN_LEN: usize = 64;

/// One thing the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key as the file has it, without the mark of deletion.
    pub key: Box<[u8]>,
    /// What it holds from here on; `None` if it is gone.
    pub value: Option<Value>,
}

impl Record {
    /// `key` (as the file has it) holds `value` from here on.
    pub fn set(key: impl Into<Box<[u8]>>, value: Value) -> Record {
        Record { key: key.into(), value: Some(value) }
    }

    /// `key` (as the file has it) holds this number, as decimal text, from here on.
    pub fn number(key: impl Into<Box<[u8]>>, number: i64) -> Record {
        Record::set(key, Value::copied(number.to_string().as_bytes()))
    }

    /// `key` (as the file has it) is gone from here on.
    pub fn delete(key: impl Into<Box<[u8]>>) -> Record {
        Record { key: key.into(), value: None }
    }

    /// How many bytes it takes in the file.
    pub fn encoded_len(&self) -> usize {
        8 + self.key.len() + self.value.as_ref().map_or(1, |value| value.len())
    }

    /// Writes it behind what `out` holds.
    ///
    /// # Panics
    ///
    /// If a length doesn't fit 32 bits; the limits on keys and values, which are far below, are the caller's to check.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let len = |len: usize| {
            u32::try_from(len).expect("keys and values are far shorter than 4 GiB").to_le_bytes()
        };
        match &self.value {
            Some(value) => {
                out.extend_from_slice(&len(self.key.len()));
                out.extend_from_slice(&self.key);
                out.extend_from_slice(&len(value.len()));
                out.extend_from_slice(value);
            }
            None => {
                out.extend_from_slice(&len(self.key.len() + 1));
                out.push(DELETED);
                out.extend_from_slice(&self.key);
                out.extend_from_slice(&len(0));
            }
        }
    }
}

/// A user's key as the file has it.
pub fn user_key(key: &str) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(USER);
    bytes.extend_from_slice(key.as_bytes());
    bytes.into()
}

/// Whether torch or we could have written this key. It is the only redundancy the format has: most of what is out of
/// step with the records, or was never a FileStore's file, is known by it.
fn is_plausible(key: &[u8]) -> bool {
    match key {
        [USER, ..] | [DELETED, USER, ..] => true,
        [name @ .., USER] => {
            key.len() <= OWN_LEN
                && name.first().is_some_and(u8::is_ascii_alphabetic)
                && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(record: &Record) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode_into(&mut out);
        assert_eq!(out.len(), record.encoded_len());
        out
    }

    #[test]
    fn records_are_byte_for_byte_what_torch_writes() {
        let set = Record::set(user_key("k"), Value::copied(b"v"));
        assert_eq!(encoded(&set), b"\x02\0\0\0/k\x01\0\0\0v");
        assert_eq!(encoded(&Record::delete(user_key("c2"))), b"\x04\0\0\0-/c2\0\0\0\0");
        assert_eq!(encoded(&Record::number(REFCOUNT, 1)), b"\x09\0\0\0refcount/\x01\0\0\x001");
        assert_eq!(encoded(&Record::number(user_key("n"), -2)), b"\x02\0\0\0/n\x02\0\0\0-2");
    }

    #[test]
    fn only_keys_that_a_store_could_have_written_are_plausible() {
        for key in ["/", "/k", "/-/k", "-/", "-/k", "refcount/", "cleanup/", "run_id/", "later_2/"] {
            assert!(is_plausible(key.as_bytes()), "{key}");
        }
        for key in ["", "k", "-", "-k", "-refcount/", "2/", "a b/", "refcount", " /"] {
            assert!(!is_plausible(key.as_bytes()), "{key}");
        }
        assert!(!is_plausible(&[&[b'a'; OWN_LEN][..], b"/"].concat()));
    }
}
