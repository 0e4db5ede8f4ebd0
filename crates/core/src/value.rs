//! A value as the store keeps it: bytes that several holders share without a copy.
//!
//! A small value has an allocation of its own; a large one may be a part of the message it came in.

use std::ops::Deref;

use bytes::Bytes;
use triomphe::Arc;

/// Immutable bytes, cheap to clone.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Own(Arc<[u8]>),
    /// A part of a message, or a value that was appended to. Boxed, because every entry of the store pays for the largest
    /// variant.
    Shared(Arc<Bytes>),
}

impl Value {
    /// From this length on a value is worth sharing rather than copying.
    pub const SHARED_FROM: usize = 16 * 1024;

    /// Copies these bytes.
    pub fn copied(bytes: &[u8]) -> Value {
        Value(Repr::Own(Arc::from(bytes)))
    }

    /// Shares these bytes.
    pub fn shared(bytes: Bytes) -> Value {
        Value(Repr::Shared(Arc::new(bytes)))
    }

    /// Overwrites the value in place if the bytes are as long and few, and this is the only holder. Returns whether it did.
    #[inline]
    pub(crate) fn overwrite(&mut self, bytes: &[u8]) -> bool {
        match &mut self.0 {
            Repr::Own(own) if own.len() == bytes.len() && bytes.len() < Value::SHARED_FROM => {
                Arc::get_mut(own).map(|own| own.copy_from_slice(bytes)).is_some()
            }
            _ => false,
        }
    }

    /// Appends bytes. Holders of clones of this value don't see them. Capacity grows by half, so that many appends take time
    /// linear in the length of the result.
    pub(crate) fn append(&mut self, more: &[u8]) {
        let mut grown = match &mut self.0 {
            Repr::Own(own) => own.to_vec(),
            // This copies the bytes only if a clone shares them.
            Repr::Shared(shared) => Vec::from(std::mem::take(Arc::make_mut(shared))),
        };
        let len = grown.len() + more.len();
        if grown.capacity() < len {
            grown.reserve_exact(more.len() + len / 2);
        }
        grown.extend_from_slice(more);
        *self = Value::shared(grown.into());
    }

    /// Returns the number of holders of this value: the store, replies, and latches.
    pub(crate) fn holders(&self) -> usize {
        match &self.0 {
            Repr::Own(own) => Arc::count(own),
            Repr::Shared(shared) => Arc::count(shared),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Own(own) => own,
            Repr::Shared(shared) => shared,
        }
    }
}

impl Default for Value {
    fn default() -> Self {
        Value::copied(&[])
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl Eq for Value {}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Value::copied(bytes)
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", crate::error::printable(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_value_is_the_default() {
        assert_eq!(*Value::default(), []);
    }

    #[test]
    fn values_are_equal_by_their_bytes_however_they_are_kept() {
        let mut grown = Value::copied(b"ab");
        grown.append(b"c");
        let copied = Value::copied(b"abc");
        let shared = Value::shared(Bytes::from_static(b"abc"));
        assert_eq!((&grown, &copied), (&shared, &shared));
        assert_ne!(copied, Value::copied(b"abd"));
    }

    #[test]
    fn a_clone_shares_the_bytes() {
        let mut grown = Value::copied(b"ab");
        grown.append(b"c");
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from_static(b"abc")), grown] {
            assert_eq!(value.clone().as_ptr(), value.as_ptr());
        }
    }

    #[test]
    fn every_clone_is_a_holder() {
        let mut grown = Value::copied(b"ab");
        grown.append(b"c");
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from(vec![7; 100])), grown] {
            assert_eq!(value.holders(), 1);
            let held = value.clone();
            assert_eq!((value.holders(), held.holders()), (2, 2));
        }
    }

    #[test]
    fn what_is_as_long_and_held_by_nobody_else_is_overwritten_in_place() {
        let mut value = Value::copied(b"abc");
        let place = value.as_ptr();
        assert!(value.overwrite(b"xyz"));
        assert_eq!((&*value, value.as_ptr()), (&b"xyz"[..], place));
        assert!(!value.overwrite(b"longer"));
        let held = value.clone();
        assert!(!value.overwrite(b"uvw"));
        assert_eq!((&*value, &*held), (&b"xyz"[..], &b"xyz"[..]));
    }

    #[test]
    fn an_append_is_not_seen_by_those_who_hold_the_value_already() {
        let mut value = Value::copied(b"a");
        let held = value.clone();
        value.append(b"b");
        let held_too = value.clone();
        value.append(b"c");
        assert_eq!((&*held, &*held_too, &*value), (&b"a"[..], &b"ab"[..], &b"abc"[..]));
    }

    #[test]
    fn appending_bit_by_bit_moves_the_bytes_a_few_times_only() {
        let mut value = Value::copied(b"");
        let (mut moves, mut place) = (0, value.as_ptr());
        for _ in 0..100_000 {
            value.append(b"0123456789");
            if value.as_ptr() != place {
                (moves, place) = (moves + 1, value.as_ptr());
            }
        }
        assert_eq!(value.len(), 1_000_000);
        assert!(moves < 40, "moved {moves} times");
    }

    #[test]
    fn a_value_takes_a_quarter_of_a_cache_line() {
        assert_eq!(size_of::<Value>(), 16);
    }

    #[test]
    fn a_value_prints_cut_and_escaped() {
        assert_eq!(format!("{:?}", Value::copied(b"a\n")), r#""a\\n""#);
        assert!(format!("{:?}", Value::copied(&[b'v'; 1000])).len() < 120);
    }
}
