//! A key as the store keeps it. A short one, as nearly all are, lies in the record that names it: looking at it follows
//! no pointer, and letting go of it frees nothing.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// An immutable name of a value, cheap to clone.
#[derive(Clone)]
pub struct Key(Repr);

/// So that a key takes 48 bytes, and with a value 64: a line of the processor's cache.
const SHORT: usize = 46;

#[derive(Clone)]
enum Repr {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Arc<[u8]>),
}

impl From<&[u8]> for Key {
    #[inline]
    fn from(key: &[u8]) -> Key {
        Key(match key.len() {
            len @ ..=SHORT => {
                let mut bytes = [0; SHORT];
                bytes[..len].copy_from_slice(key);
                Repr::Short { len: len as u8, bytes }
            }
            _ => Repr::Long(Arc::from(key)),
        })
    }
}

impl Key {
    /// Whether this is that key. Short ones are compared here, a few words at a time: to call the function that compares
    /// any bytes costs more than to compare them.
    #[inline]
    pub(crate) fn is(&self, key: &[u8]) -> bool {
        let held = &**self;
        if held.len() != key.len() {
            return false;
        }
        // The last words overlap those before them.
        let ends = |held: &[u8], key: &[u8]| {
            held.first_chunk::<16>() == key.first_chunk() && held.last_chunk::<16>() == key.last_chunk()
        };
        match held.len() {
            16..=32 => ends(held, key),
            33..=SHORT => ends(&held[..32], &key[..32]) && held.last_chunk::<16>() == key.last_chunk(),
            _ => held == key,
        }
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Short { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Long(key) => key,
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
    fn a_key_of_any_length_reads_as_it_was_given() {
        for len in [0, 1, SHORT - 1, SHORT, SHORT + 1, 8192] {
            let name: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let key = Key::from(&name[..]);
            assert_eq!((&*key, &*key.clone()), (&name[..], &name[..]), "{len}");
        }
    }

    #[test]
    fn keys_are_told_apart_by_their_bytes_and_their_length() {
        assert_eq!(Key::from(&b"/k"[..]), Key::from(&b"/k"[..]));
        assert_ne!(Key::from(&b"/k"[..]), Key::from(&b"/k\0"[..]));
        let long = [b'k'; SHORT + 1];
        assert_ne!(Key::from(&long[..SHORT]), Key::from(&long[..]));
        assert!(Key::from(&long[..SHORT]) < Key::from(&long[..]));
    }

    #[test]
    fn a_key_is_itself_and_no_other_that_differs_in_one_byte() {
        for len in 0..2 * SHORT {
            let name: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let key = Key::from(&name[..]);
            assert!(key.is(&name), "{len}");
            for at in 0..len {
                let mut other = name.clone();
                other[at] ^= 0x80;
                assert!(!key.is(&other), "{len}, {at}");
            }
            assert!(!key.is(&[&name[..], b"k"].concat()), "{len}");
        }
    }

    #[test]
    fn a_key_is_as_large_as_three_quarters_of_a_cache_line() {
        assert_eq!(size_of::<Key>(), 48);
    }

    #[test]
    fn a_clone_of_a_long_key_shares_its_bytes() {
        let key = Key::from(&[b'k'; 100][..]);
        assert_eq!(key.clone().as_ptr(), key.as_ptr());
    }
}
