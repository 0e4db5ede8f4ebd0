//! Lists inside a request: walked where they lie, whether on the wire or in a caller's slice.
//!
//! Nothing is collected. A list from the wire has been checked by the decoder before it gets here.

use bytes::Bytes;

use super::request::Payload;
use super::scan::read_u64;

/// The keys of a CHECK, WAIT or MULTI_GET.
#[derive(Clone, Copy)]
pub struct KeyList<'a>(Repr<'a, &'a [u8]>);

/// The keys and values of a MULTI_SET.
#[derive(Clone, Copy)]
pub struct PairList<'a>(Repr<'a, (&'a [u8], &'a [u8])>);

#[derive(Clone, Copy)]
enum Repr<'a, T> {
    /// Strings as they travel, without the count in front, save the values that lie apart.
    Wire {
        count: usize,
        bytes: &'a [u8],
        apart: &'a [Apart],
    },
    Slice(&'a [T]),
}

/// A value that lies apart from its message.
#[derive(Debug)]
pub(super) struct Apart {
    /// How many bytes of the message are in front of it.
    pub(super) at: usize,
    pub(super) bytes: Bytes,
}

/// What is in front of the list in a message: the operation code and the count.
const FRONT: usize = 9;

/// The string at this place, which moves on past it.
fn take<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let start = *at + 8;
    let len = usize::try_from(read_u64(bytes, *at)?).ok()?;
    let string = bytes.get(start..)?.get(..len)?;
    *at = start + len;
    Some(string)
}

impl<'a> KeyList<'a> {
    /// A list over a caller's keys.
    pub fn new(keys: &'a [&'a [u8]]) -> Self {
        KeyList(Repr::Slice(keys))
    }

    pub(super) fn from_wire(count: usize, bytes: &'a [u8]) -> Self {
        KeyList(Repr::Wire { count, bytes, apart: &[] })
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Wire { count, .. } => count,
            Repr::Slice(keys) => keys.len(),
        }
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (list, mut at) = (*self, 0);
        std::iter::from_fn(move || list.take(&mut at))
    }

    /// The key at this place, which moves on to the next. The first is at 0; where the others are, it tells.
    #[inline]
    pub(crate) fn take(&self, at: &mut usize) -> Option<&'a [u8]> {
        match self.0 {
            Repr::Wire { bytes, .. } => take(bytes, at),
            Repr::Slice(keys) => next(keys, at),
        }
    }
}

impl<'a> PairList<'a> {
    /// A list over a caller's pairs.
    pub fn new(pairs: &'a [(&'a [u8], &'a [u8])]) -> Self {
        PairList(Repr::Slice(pairs))
    }

    pub(super) fn from_wire(count: usize, bytes: &'a [u8], apart: &'a [Apart]) -> Self {
        PairList(Repr::Wire { count, bytes, apart })
    }

    /// How many pairs.
    pub fn len(&self) -> usize {
        match self.0 {
            Repr::Wire { count, .. } => count,
            Repr::Slice(pairs) => pairs.len(),
        }
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Payload<'a>)> + use<'a> {
        let (list, mut at) = (*self, 0);
        std::iter::from_fn(move || list.take(&mut at))
    }

    /// The pair at this place, which moves on to the next. The first is at 0; where the others are, it tells.
    #[inline]
    pub(crate) fn take(&self, at: &mut usize) -> Option<(&'a [u8], Payload<'a>)> {
        match self.0 {
            Repr::Wire { bytes, apart, .. } => {
                let key = take(bytes, at)?;
                let found = match apart {
                    [] => None,
                    apart => apart.binary_search_by_key(&(FRONT + *at + 8), |value| value.at).ok(),
                };
                let Some(found) = found else { return Some((key, take(bytes, at)?.into())) };
                *at += 8;
                Some((key, Payload::within(&apart[found].bytes, Some(&apart[found].bytes))))
            }
            Repr::Slice(pairs) => next(pairs, at).map(|(key, value)| (key, value.into())),
        }
    }
}

fn next<T: Copy>(items: &[T], at: &mut usize) -> Option<T> {
    let item = items.get(*at)?;
    *at += 1;
    Some(*item)
}

// Two lists are equal if they name the same, wherever they lie.
impl PartialEq for KeyList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}
impl Eq for KeyList<'_> {}

impl PartialEq for PairList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}
impl Eq for PairList<'_> {}

impl std::fmt::Debug for KeyList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(crate::error::printable)).finish()
    }
}

impl std::fmt::Debug for PairList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(k, v)| (crate::error::printable(k), v.bytes().len())))
            .finish()
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
        let pairs = PairList::from_wire(2, WIRE, &[]);
        let found: Vec<_> = pairs.iter().map(|(key, value)| (key, value.bytes())).collect();
        assert_eq!(found, [(&b"/a"[..], &b""[..]), (b"\xff", b"b")]);
        assert_eq!(pairs.len(), 2);
    }

    #[test]
    fn a_list_on_the_wire_equals_one_in_a_slice_that_names_the_same() {
        assert_eq!(KeyList::from_wire(4, WIRE), KeyList::new(&[b"/a", b"", b"\xff", b"b"]));
        assert_ne!(KeyList::from_wire(4, WIRE), KeyList::new(&[b"/a", b"", b"\xff"]));
        assert_eq!(PairList::from_wire(2, WIRE, &[]), PairList::new(&[(b"/a", b""), (b"\xff", b"b")]));
        assert_ne!(PairList::from_wire(2, WIRE, &[]), PairList::new(&[(b"/a", b""), (b"\xff", b"c")]));
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
