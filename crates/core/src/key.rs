//! Keys of the store. A key of up to 46 bytes is stored inline, without an allocation. Nearly all keys are that short.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// An immutable key, cheap to clone.
#[derive(Clone)]
pub struct Key(Repr);

/// The length of the longest inline key, in bytes. With this length a [`Key`] takes 48 bytes, so that a key and its
/// [`Value`](crate::Value) of 16 bytes fit into one cache line of 64 bytes.
const INLINE_LEN: usize = 46;

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_LEN] },
    Shared(Arc<[u8]>),
}

impl From<&[u8]> for Key {
    #[inline]
    fn from(key: &[u8]) -> Key {
        Key(match key.len() {
            len @ ..=INLINE_LEN => {
                let mut bytes = [0; INLINE_LEN];
                bytes[..len].copy_from_slice(key);
                Repr::Inline { len: len as u8, bytes }
            }
            _ => Repr::Shared(Arc::from(key)),
        })
    }
}

impl Key {
    /// Returns whether the bytes of this key are `key`.
    ///
    /// Keys of 16 to 46 bytes are compared in chunks of 16 bytes. For such short keys, calling the generic slice
    /// comparison costs more than comparing the bytes.
    #[inline]
    pub(crate) fn equals(&self, key: &[u8]) -> bool {
        let own = &**self;
        if own.len() != key.len() {
            return false;
        }
        // The last chunk may overlap the one before it.
        let ends_eq = |own: &[u8], key: &[u8]| {
            own.first_chunk::<16>() == key.first_chunk() && own.last_chunk::<16>() == key.last_chunk()
        };
        match own.len() {
            16..=32 => ends_eq(own, key),
            33..=INLINE_LEN => ends_eq(&own[..32], &key[..32]) && own.last_chunk::<16>() == key.last_chunk(),
            _ => own == key,
        }
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared(key) => key,
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", crate::error::printable(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_any_length_keeps_its_bytes() {
        for len in [0, 1, INLINE_LEN - 1, INLINE_LEN, INLINE_LEN + 1, 8192] {
            let name: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let key = Key::from(&name[..]);
            assert_eq!((&*key, &*key.clone()), (&name[..], &name[..]), "{len}");
        }
    }

    #[test]
    fn keys_differ_if_their_bytes_or_lengths_differ() {
        assert_eq!(Key::from(&b"/k"[..]), Key::from(&b"/k"[..]));
        assert_ne!(Key::from(&b"/k"[..]), Key::from(&b"/k\0"[..]));
        let long = [b'k'; INLINE_LEN + 1];
        assert_ne!(Key::from(&long[..INLINE_LEN]), Key::from(&long[..]));
        assert!(Key::from(&long[..INLINE_LEN]) < Key::from(&long[..]));
    }

    #[test]
    fn equals_detects_a_difference_in_any_byte() {
        for len in 0..2 * INLINE_LEN {
            let name: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let key = Key::from(&name[..]);
            assert!(key.equals(&name), "{len}");
            for at in 0..len {
                let mut other = name.clone();
                other[at] ^= 0x80;
                assert!(!key.equals(&other), "{len}, {at}");
            }
            assert!(!key.equals(&[&name[..], b"k"].concat()), "{len}");
        }
    }

    #[test]
    fn a_key_takes_48_bytes() {
        assert_eq!(size_of::<Key>(), 48);
    }

    #[test]
    fn a_clone_of_a_long_key_shares_its_bytes() {
        let key = Key::from(&[b'k'; 100][..]);
        assert_eq!(key.clone().as_ptr(), key.as_ptr());
    }
}
