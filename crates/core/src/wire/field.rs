//! The kinds of operands in a request: how each is read, written, and bounded.

use bytes::Bytes as Buffer;

use super::list::{KeyList, PairList};
use crate::limits::Limits;
use crate::value::Value as StoredValue;

/// A field of a message, as far as finding its end requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// This many bytes.
    Fixed(usize),
    /// A length and that many bytes: a key.
    Key,
    /// A length and that many bytes: a value.
    Value,
    /// A count and that many keys.
    Keys,
    /// A count and that many pairs of key and value.
    Pairs,
    /// This many values, without a count. Only in replies.
    Values(u64),
    /// A signed number and, if it is above zero, a value. Only in replies.
    Popped,
}

/// A kind of operand.
pub(super) trait Operand {
    /// The operand as a request holds it.
    type Of<'a>;
    /// The operand as a scan sees it.
    const FIELD: Field;
    /// Reads it. Returns `None` if a byte is missing or a limit is passed.
    fn take<'a>(walk: &mut Walk<'a>) -> Option<Self::Of<'a>>;
    /// Appends it to `out` as it travels.
    fn put(operand: &Self::Of<'_>, out: &mut Vec<u8>);
    /// Passes the keys in it to `visit`.
    fn for_each_key(_operand: &Self::Of<'_>, _visit: &mut dyn FnMut(&[u8])) {}
}

/// Lists with more strings than this are left to the scan, which resumes where the bytes ran out.
const SHORT_LIST: usize = 16;

/// A position in the bytes of a request.
pub(super) struct Walk<'a> {
    rest: &'a [u8],
    key_len: usize,
    value_len: usize,
    keys: usize,
    /// Whether a scan has checked that the bytes are one whole request.
    checked: bool,
    /// The buffer around the request, if a stored value may share that buffer.
    owner: Option<&'a Buffer>,
}

impl<'a> Walk<'a> {
    /// Starts at the front of bytes that may end anywhere.
    #[inline(always)]
    pub(super) fn over(rest: &'a [u8], limits: &Limits) -> Walk<'a> {
        let keys = SHORT_LIST.min(limits.keys_per_request);
        Walk { rest, key_len: limits.key_len, value_len: limits.value_len, keys, checked: false, owner: None }
    }

    /// Starts at the front of a whole request, without its operation code, that a scan has checked.
    pub(super) fn over_checked(rest: &'a [u8], owner: Option<&'a Buffer>) -> Walk<'a> {
        let most = usize::MAX;
        Walk { rest, key_len: most, value_len: most, keys: most, checked: true, owner }
    }

    /// Returns the bytes that were not read.
    #[inline(always)]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*array)
    }

    #[inline(always)]
    fn string(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = u64::from_le_bytes(self.array()?);
        if len > most as u64 {
            return None;
        }
        let (string, rest) = self.rest.split_at_checked(len as usize)?;
        self.rest = rest;
        Some(string)
    }

    /// Returns the count of a list and its bytes, each item of which `skip` passes.
    #[inline(always)]
    fn list(&mut self, skip: impl Fn(&mut Walk<'a>) -> Option<()>) -> Option<(usize, &'a [u8])> {
        let count = u64::from_le_bytes(self.array()?);
        if count > self.keys as u64 {
            return None;
        }
        let start = self.rest;
        if self.checked {
            // A list is the last operand of a request.
            self.rest = &[];
            return Some((count as usize, start));
        }
        (0..count).try_for_each(|_| skip(self))?;
        Some((count as usize, &start[..start.len() - self.rest.len()]))
    }
}

/// Reads a number at this position.
pub(super) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Appends a length and the bytes.
pub(super) fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Declares a kind of operand.
macro_rules! operand {
    ($(#[$doc:meta])* $name:ident, $of:ty, $field:expr, |$walk:ident| $take:expr, |$operand:ident, $out:ident| $put:expr
        $(, |$named:ident, $visit:ident| $for_each_key:expr)?) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Operand for $name {
            type Of<'a> = $of;
            const FIELD: Field = $field;

            #[inline(always)]
            fn take<'a>($walk: &mut Walk<'a>) -> Option<$of> {
                $take
            }

            fn put($operand: &Self::Of<'_>, $out: &mut Vec<u8>) {
                $put
            }

            $(fn for_each_key($named: &Self::Of<'_>, $visit: &mut dyn FnMut(&[u8])) {
                $for_each_key
            })?
        }
    };
}

operand!(
    /// A key.
    Key, &'a [u8], Field::Key,
    |walk| walk.string(walk.key_len),
    |key, out| put_string(out, key),
    |key, visit| visit(key)
);
operand!(
    /// Bytes that are compared with a value.
    Bytes, &'a [u8], Field::Value,
    |walk| walk.string(walk.value_len),
    |bytes, out| put_string(out, bytes)
);
operand!(
    /// A value to store.
    Value, Payload<'a>, Field::Value,
    |walk| walk.string(walk.value_len).map(|bytes| Payload { bytes, owner: walk.owner }),
    |value, out| {
        // A large value would otherwise be copied while the buffer grows.
        out.reserve(value.bytes.len() + size_of::<u64>());
        put_string(out, value.bytes);
    }
);
operand!(
    /// A number of 32 bits.
    U32, u32, Field::Fixed(4),
    |walk| walk.array().map(u32::from_le_bytes),
    |number, out| out.extend_from_slice(&number.to_le_bytes())
);
operand!(
    /// A signed number of 64 bits.
    I64, i64, Field::Fixed(8),
    |walk| walk.array().map(i64::from_le_bytes),
    |number, out| out.extend_from_slice(&number.to_le_bytes())
);
operand!(
    /// A list of keys.
    Keys, KeyList<'a>, Field::Keys,
    |walk| {
        let (count, bytes) = walk.list(|walk| walk.string(walk.key_len).map(drop))?;
        Some(KeyList::from_wire(count, bytes))
    },
    |keys, out| {
        out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
        keys.iter().for_each(|key| put_string(out, key));
    },
    |keys, visit| keys.iter().for_each(visit)
);
operand!(
    /// A list of keys with values.
    Pairs, PairList<'a>, Field::Pairs,
    |walk| {
        let (count, bytes) = walk.list(|walk| {
            walk.string(walk.key_len)?;
            walk.string(walk.value_len).map(drop)
        })?;
        Some(PairList::from_wire(count, bytes))
    },
    |pairs, out| {
        out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
        for (key, value) in pairs.iter() {
            put_string(out, key);
            put_string(out, value);
        }
    },
    |pairs, visit| pairs.iter().for_each(|(key, _)| visit(key))
);

/// A value inside a request.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// The buffer around it, if a stored value may share that buffer.
    owner: Option<&'a Buffer>,
}

impl<'a> Payload<'a> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes as a value to store. A large value that makes up 8/9 of its message shares the message's buffer; other
    /// values are copied.
    pub fn to_value(&self) -> StoredValue {
        let shares = |owner: &&Buffer| {
            self.bytes.len() >= StoredValue::SHARED_FROM && owner.len() / 9 * 8 <= self.bytes.len()
        };
        match self.owner.filter(shares) {
            Some(owner) => StoredValue::shared(owner.slice_ref(self.bytes)),
            None => StoredValue::copied(self.bytes),
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Payload { bytes, owner: None }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}
impl Eq for Payload<'_> {}

impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", crate::error::printable(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_value_does_not_keep_a_message_alive_that_is_a_quarter_longer() {
        let value = vec![b'v'; StoredValue::SHARED_FROM];
        let message = Buffer::from([&value[..], &value[..value.len() / 4]].concat());
        let payload = Payload { bytes: &message[..value.len()], owner: Some(&message) };
        assert_ne!(payload.to_value().as_ptr(), message.as_ptr());
    }
}
