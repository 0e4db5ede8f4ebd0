//! Lists inside a request: iterated where they lie, on the wire or in a caller's slice. Nothing is collected.

use std::fmt;

use super::field::read_u64;
use crate::error::printable;

/// The keys of a CHECK, WAIT or MULTI_GET.
#[derive(Clone, Copy)]
pub struct KeyList<'a>(Repr<'a, &'a [u8]>);

/// The keys and values of a MULTI_SET.
#[derive(Clone, Copy)]
pub struct PairList<'a>(Repr<'a, (&'a [u8], &'a [u8])>);

#[derive(Clone, Copy)]
enum Repr<'a, T> {
    /// Strings as they travel, without the count in front. A decoder has checked them.
    Wire {
        count: usize,
        bytes: &'a [u8],
    },
    Slice(&'a [T]),
}

/// Iterates over strings as they travel: lengths, each with its bytes. Ends where the bytes are anything else.
#[derive(Debug, Clone)]
pub(super) struct Strings<'a>(pub(super) &'a [u8]);

impl<'a> Strings<'a> {
    /// Returns whether all bytes were read.
    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(read_u64(self.0, 0)?).ok()?;
        let (string, rest) = self.0[8..].split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }
}

impl<'a> KeyList<'a> {
    /// Creates a list over a caller's keys.
    pub fn new(keys: &'a [&'a [u8]]) -> Self {
        KeyList(Repr::Slice(keys))
    }

    pub(super) fn from_wire(count: usize, bytes: &'a [u8]) -> Self {
        KeyList(Repr::Wire { count, bytes })
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Wire { count, .. } => count,
            Repr::Slice(keys) => keys.len(),
        }
    }

    /// Returns whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the keys in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, keys) = match self.0 {
            Repr::Wire { bytes, .. } => (bytes, &[][..]),
            Repr::Slice(keys) => (&[][..], keys),
        };
        Strings(bytes).chain(keys.iter().copied())
    }
}

impl<'a> PairList<'a> {
    /// Creates a list over a caller's pairs.
    pub fn new(pairs: &'a [(&'a [u8], &'a [u8])]) -> Self {
        PairList(Repr::Slice(pairs))
    }

    pub(super) fn from_wire(count: usize, bytes: &'a [u8]) -> Self {
        PairList(Repr::Wire { count, bytes })
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Wire { count, .. } => count,
            Repr::Slice(pairs) => pairs.len(),
        }
    }

    /// Returns whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the pairs in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (bytes, pairs) = match self.0 {
            Repr::Wire { bytes, .. } => (bytes, &[][..]),
            Repr::Slice(pairs) => (&[][..], pairs),
        };
        let mut strings = Strings(bytes);
        std::iter::from_fn(move || strings.next().zip(strings.next())).chain(pairs.iter().copied())
    }
}

// Two lists are equal if they name the same, on the wire or in a slice.
impl PartialEq for KeyList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}
impl Eq for KeyList<'_> {}

impl PartialEq for PairList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}
impl Eq for PairList<'_> {}

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

    const WIRE: &[u8] = b"\x02\0\0\0\0\0\0\0/a\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\xff\x01\0\0\0\0\0\0\0b";

    #[test]
    fn keys_on_the_wire_are_walked_in_order() {
        let keys = KeyList::from_wire(4, WIRE);
        assert_eq!(keys.iter().collect::<Vec<_>>(), [&b"/a"[..], b"", b"\xff", b"b"]);
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn pairs_on_the_wire_are_walked_in_order() {
        let pairs = PairList::from_wire(2, WIRE);
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [(&b"/a"[..], &b""[..]), (b"\xff", b"b")]);
        assert_eq!(pairs.len(), 2);
    }

    #[test]
    fn a_list_on_the_wire_equals_one_in_a_slice_that_names_the_same() {
        assert_eq!(KeyList::from_wire(4, WIRE), KeyList::new(&[b"/a", b"", b"\xff", b"b"]));
        assert_ne!(KeyList::from_wire(4, WIRE), KeyList::new(&[b"/a", b"", b"\xff"]));
        assert_eq!(PairList::from_wire(2, WIRE), PairList::new(&[(b"/a", b""), (b"\xff", b"b")]));
        assert_ne!(PairList::from_wire(2, WIRE), PairList::new(&[(b"/a", b""), (b"\xff", b"c")]));
    }

    #[test]
    fn a_list_of_nothing_has_nothing_to_walk() {
        assert!(KeyList::from_wire(0, b"").is_empty());
        assert_eq!(KeyList::from_wire(0, b"").iter().next(), None);
        assert_eq!(PairList::new(&[]).iter().next(), None);
    }

    #[test]
    fn values_of_pairs_are_not_printed() {
        let text = format!("{:?}", PairList::new(&[(b"/key", b"secret")]));
        assert_eq!(text, r#"{"/key": 6}"#);
    }
}
