//! Values of the store: bytes that the store, replies and latches share without a copy.
//!
//! A small value has an allocation of its own. A large value may be a slice of the frame that it arrived in.

use std::ops::Deref;

use bytes::Bytes;
use triomphe::Arc;

/// Immutable bytes, cheap to clone.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Owned(Arc<[u8]>),
    /// A slice of a frame, or a value that was appended to. The [`Bytes`] are in an `Arc`, because inline they would
    /// make every value larger.
    Shared(Arc<Bytes>),
}

impl Value {
    /// The length from which sharing the buffer of a frame is cheaper than copying the value.
    pub const MIN_SHARED_BYTES: usize = 16 * 1024;

    /// Creates a value from a copy of `bytes`.
    pub fn copied(bytes: &[u8]) -> Value {
        Value(Repr::Owned(Arc::from(bytes)))
    }

    /// Creates a value that shares `bytes`.
    pub fn shared(bytes: Bytes) -> Value {
        Value(Repr::Shared(Arc::new(bytes)))
    }

    /// Overwrites the value with `bytes` in place if possible, and returns whether it did.
    ///
    /// This is possible if the value has an allocation of its own and no clones, and if `bytes` has the length of the
    /// value, which must be below [`Value::MIN_SHARED_BYTES`].
    #[inline]
    pub(crate) fn try_overwrite(&mut self, bytes: &[u8]) -> bool {
        match &mut self.0 {
            Repr::Owned(owned) if owned.len() == bytes.len() && bytes.len() < Value::MIN_SHARED_BYTES => {
                Arc::get_mut(owned).map(|owned| owned.copy_from_slice(bytes)).is_some()
            }
            _ => false,
        }
    }

    /// Appends `more` to the value. Existing clones keep the old bytes.
    ///
    /// When the buffer is full, its capacity grows by half. Many appends therefore take time linear in the length of
    /// the result.
    pub(crate) fn append(&mut self, more: &[u8]) {
        let mut bytes = match &mut self.0 {
            Repr::Owned(owned) => owned.to_vec(),
            // `make_mut` copies no bytes. `Vec::from` allocates only if a clone or another slice of the frame exists.
            Repr::Shared(shared) => Vec::from(std::mem::take(Arc::make_mut(shared))),
        };
        let len = bytes.len() + more.len();
        if bytes.capacity() < len {
            bytes.reserve_exact(more.len() + len / 2);
        }
        bytes.extend_from_slice(more);
        *self = Value::shared(bytes.into());
    }

    /// Returns the number of clones of this value, including itself. The store, unsent replies and latches each have a
    /// clone.
    pub(crate) fn ref_count(&self) -> usize {
        match &self.0 {
            Repr::Owned(owned) => Arc::count(owned),
            Repr::Shared(shared) => Arc::count(shared),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Owned(owned) => owned,
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
    fn values_with_equal_bytes_are_equal_in_any_representation() {
        let mut appended = Value::copied(b"ab");
        appended.append(b"c");
        let copied = Value::copied(b"abc");
        let shared = Value::shared(Bytes::from_static(b"abc"));
        assert_eq!((&appended, &copied), (&shared, &shared));
        assert_ne!(copied, Value::copied(b"abd"));
    }

    #[test]
    fn a_clone_shares_the_bytes() {
        let mut appended = Value::copied(b"ab");
        appended.append(b"c");
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from_static(b"abc")), appended] {
            assert_eq!(value.clone().as_ptr(), value.as_ptr());
        }
    }

    #[test]
    fn ref_count_counts_every_clone() {
        let mut appended = Value::copied(b"ab");
        appended.append(b"c");
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from(vec![7; 100])), appended] {
            assert_eq!(value.ref_count(), 1);
            let first_clone = value.clone();
            assert_eq!((value.ref_count(), first_clone.ref_count()), (2, 2));
        }
    }

    #[test]
    fn an_unshared_value_of_the_same_length_is_overwritten_in_place() {
        let mut value = Value::copied(b"abc");
        let address = value.as_ptr();
        assert!(value.try_overwrite(b"xyz"));
        assert_eq!((&*value, value.as_ptr()), (&b"xyz"[..], address));
        assert!(!value.try_overwrite(b"longer"));
        let first_clone = value.clone();
        assert!(!value.try_overwrite(b"uvw"));
        assert_eq!((&*value, &*first_clone), (&b"xyz"[..], &b"xyz"[..]));
    }

    #[test]
    fn an_append_does_not_change_existing_clones() {
        let mut value = Value::copied(b"a");
        let first_clone = value.clone();
        value.append(b"b");
        let second_clone = value.clone();
        value.append(b"c");
        assert_eq!((&*first_clone, &*second_clone, &*value), (&b"a"[..], &b"ab"[..], &b"abc"[..]));
    }

    #[test]
    fn one_hundred_thousand_appends_reallocate_fewer_than_40_times() {
        let mut value = Value::copied(b"");
        let (mut moves, mut address) = (0, value.as_ptr());
        for _ in 0..100_000 {
            value.append(b"0123456789");
            if value.as_ptr() != address {
                (moves, address) = (moves + 1, value.as_ptr());
            }
        }
        assert_eq!(value.len(), 1_000_000);
        assert!(moves < 40, "moved {moves} times");
    }

    #[test]
    fn a_value_takes_16_bytes() {
        assert_eq!(size_of::<Value>(), 16);
    }

    #[test]
    fn the_debug_output_of_a_value_is_truncated_and_escaped() {
        assert_eq!(format!("{:?}", Value::copied(b"a\n")), r#""a\\n""#);
        assert!(format!("{:?}", Value::copied(&[b'v'; 1000])).len() < 120);
    }
}
