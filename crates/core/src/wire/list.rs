//! Lists in requests and replies. A list iterates over the bytes of a frame or over a caller's slice, and allocates
//! nothing.

use std::fmt;

use super::operand::{Cursor, Operand};
use crate::error::printable;

/// The keys of a CHECK, WAIT or MULTI_GET, or of the reply to a LIST_KEYS.
pub type KeyList<'a> = List<'a, &'a [u8]>;

/// The keys and values of a MULTI_SET.
pub type PairList<'a> = List<'a, (&'a [u8], &'a [u8])>;

/// A list of keys, of values, or of keys with values.
#[derive(Clone, Copy)]
pub struct List<'a, T>(pub(super) Repr<'a, T>);

#[derive(Clone, Copy)]
pub(super) enum Repr<'a, T> {
    /// Encoded items, without the count that precedes them in a frame. A decoder has checked them.
    Encoded {
        count: usize,
        bytes: &'a [u8],
    },
    Slice(&'a [T]),
}

#[allow(private_bounds)] // `Operand` is private, because only `wire` defines item types.
impl<'a, T: Operand<'a> + Copy> List<'a, T> {
    /// Creates a list of `items`.
    pub fn new(items: &'a [T]) -> Self {
        List(Repr::Slice(items))
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Encoded { count, .. } => count,
            Repr::Slice(items) => items.len(),
        }
    }

    /// Returns whether the list has no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the items in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (bytes, items) = match self.0 {
            Repr::Encoded { bytes, .. } => (bytes, &[][..]),
            Repr::Slice(items) => (&[][..], items),
        };
        let mut cursor = Cursor::new_checked(bytes, None);
        let next = move || if cursor.rest().is_empty() { None } else { T::decode(&mut cursor, false).ok() };
        std::iter::from_fn(next).chain(items.iter().copied())
    }
}

// An encoded list equals a slice with the same items.
impl<'a, T: Operand<'a> + Copy + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}
impl<'a, T: Operand<'a> + Copy + Eq> Eq for List<'a, T> {}

impl fmt::Debug for KeyList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(printable)).finish()
    }
}

impl fmt::Debug for PairList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(key, value)| (printable(key), value.len()))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: usize, bytes: &[u8]) -> KeyList<'_> {
        List(Repr::Encoded { count, bytes })
    }

    fn pairs(count: usize, bytes: &[u8]) -> PairList<'_> {
        List(Repr::Encoded { count, bytes })
    }

    const ENCODED: &[u8] = b"\x02\0\0\0\0\0\0\0/a\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\xff\x01\0\0\0\0\0\0\0b";

    #[test]
    fn encoded_keys_are_iterated_in_order() {
        let keys = keys(4, ENCODED);
        assert_eq!(keys.iter().collect::<Vec<_>>(), [&b"/a"[..], b"", b"\xff", b"b"]);
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn encoded_pairs_are_iterated_in_order() {
        let pairs = pairs(2, ENCODED);
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(&b"/a"[..], &b""[..]), (b"\xff", b"b")]);
        assert_eq!(pairs.len(), 2);
    }

    #[test]
    fn an_encoded_list_equals_a_slice_with_the_same_items() {
        assert_eq!(keys(4, ENCODED), KeyList::new(&[b"/a", b"", b"\xff", b"b"]));
        assert_ne!(keys(4, ENCODED), KeyList::new(&[b"/a", b"", b"\xff"]));
        assert_eq!(pairs(2, ENCODED), PairList::new(&[(b"/a", b""), (b"\xff", b"b")]));
        assert_ne!(pairs(2, ENCODED), PairList::new(&[(b"/a", b""), (b"\xff", b"c")]));
    }

    #[test]
    fn an_empty_list_yields_no_items() {
        assert!(keys(0, b"").is_empty());
        assert_eq!(keys(0, b"").iter().next(), None);
        assert_eq!(PairList::new(&[]).iter().next(), None);
    }

    #[test]
    fn the_debug_output_of_pairs_omits_the_values() {
        let text = format!("{:?}", PairList::new(&[(b"/key", b"secret")]));
        assert_eq!(text, r#"{"/key": 6}"#);
    }
}
