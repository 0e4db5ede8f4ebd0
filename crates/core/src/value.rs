//! A value as the store keeps it: bytes that many may hold at once without copying them.
//!
//! Small ones sit in one allocation of their own; a large one may be a part of the message it came in.

use std::collections::TryReserveError;
use std::ops::Deref;

use bytes::Bytes;
use triomphe::Arc;

/// Immutable bytes, cheap to clone.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Own(Arc<[u8]>),
    /// Apart: most values are small, and every entry of the store pays for the larger variant.
    Shared(Arc<Bytes>),
    /// Has been appended to, and may be again.
    Grown(Arc<Vec<u8>>),
}

impl Value {
    /// From this length on a value is worth sharing rather than copying.
    pub const SHARED_FROM: usize = 16 * 1024;

    /// A copy of these bytes.
    pub fn copied(bytes: &[u8]) -> Value {
        Value(Repr::Own(Arc::from(bytes)))
    }

    /// These bytes themselves.
    pub fn shared(bytes: Bytes) -> Value {
        Value(Repr::Shared(Arc::new(bytes)))
    }

    /// Copies these bytes. Fails if allocating [`Value::SHARED_FROM`] bytes or more fails; smaller copies abort instead.
    pub(crate) fn try_copied(bytes: &[u8]) -> Result<Value, TryReserveError> {
        if bytes.len() < Value::SHARED_FROM {
            return Ok(Value::copied(bytes));
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len())?;
        copy.extend_from_slice(bytes);
        Ok(Value::shared(copy.into()))
    }

    /// Returns the allocated bytes: more than the length if the value was appended to.
    pub(crate) fn room(&self) -> usize {
        match &self.0 {
            Repr::Grown(grown) => grown.capacity(),
            Repr::Own(_) | Repr::Shared(_) => self.len(),
        }
    }

    /// Puts these bytes in the place of those held, if they are as long and few, and nobody else holds them.
    pub(crate) fn overwrite(&mut self, bytes: &[u8]) -> bool {
        match &mut self.0 {
            Repr::Own(own) if own.len() == bytes.len() && bytes.len() < Value::SHARED_FROM => {
                Arc::get_mut(own).map(|own| own.copy_from_slice(bytes)).is_some()
            }
            _ => false,
        }
    }

    /// Appends bytes. If the value has to be reallocated, the new capacity is `room`, so that many appends take time linear in
    /// the length of the result. Changes nothing if the allocation fails.
    pub(crate) fn append(&mut self, more: &[u8], room: usize) -> Result<(), TryReserveError> {
        let len = self.len() + more.len();
        if let Repr::Grown(grown) = &mut self.0
            && let Some(own) = Arc::get_mut(grown)
        {
            if own.capacity() < len {
                own.try_reserve_exact(room.max(len) - own.len())?;
            }
            own.extend_from_slice(more);
            return Ok(());
        }
        let mut grown = Vec::new();
        grown.try_reserve_exact(room.max(len))?;
        grown.extend_from_slice(self);
        grown.extend_from_slice(more);
        self.0 = Repr::Grown(Arc::new(grown));
        Ok(())
    }

    /// Whether somebody else holds this value, too. Not whether others hold the message it is a part of, or its
    /// [bytes](Value::to_bytes).
    #[inline]
    pub fn is_shared(&self) -> bool {
        match &self.0 {
            Repr::Own(own) => !own.is_unique(),
            Repr::Shared(shared) => !shared.is_unique(),
            Repr::Grown(grown) => !grown.is_unique(),
        }
    }

    /// As `Bytes`, without a copy if it is shared already.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Repr::Shared(shared) => Bytes::clone(shared),
            Repr::Own(_) | Repr::Grown(_) => Bytes::from_owner(self.clone()),
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
            Repr::Grown(grown) => grown,
        }
    }
}

/// What `Bytes` needs to keep a value alive.
impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
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
        grown.append(b"c", 0).unwrap();
        let copied = Value::copied(b"abc");
        let shared = Value::shared(Bytes::from_static(b"abc"));
        assert_eq!((&grown, &copied), (&shared, &shared));
        assert_ne!(copied, Value::copied(b"abd"));
    }

    #[test]
    fn a_clone_shares_the_bytes() {
        let mut grown = Value::copied(b"ab");
        grown.append(b"c", 0).unwrap();
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from_static(b"abc")), grown] {
            assert_eq!(value.clone().as_ptr(), value.as_ptr());
        }
    }

    #[test]
    fn a_value_is_shared_while_somebody_else_holds_it() {
        let mut grown = Value::copied(b"ab");
        grown.append(b"c", 0).unwrap();
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from(vec![7; 100])), grown] {
            assert!(!value.is_shared());
            let held = value.clone();
            assert!(value.is_shared() && held.is_shared());
            drop(held);
            assert!(!value.is_shared());
        }
    }

    #[test]
    fn bytes_of_a_value_are_the_value_itself() {
        let mut grown = Value::copied(b"ab");
        grown.append(b"c", 0).unwrap();
        for value in [Value::copied(b"abc"), Value::shared(Bytes::from_static(b"abc")), grown] {
            assert_eq!(value.to_bytes().as_ptr(), value.as_ptr());
            assert_eq!(value.to_bytes(), &b"abc"[..]);
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
        value.append(b"b", 0).unwrap();
        let held_too = value.clone();
        let bytes = value.to_bytes();
        value.append(b"c", 0).unwrap();
        assert_eq!((&*held, &*held_too, &*bytes, &*value), (&b"a"[..], &b"ab"[..], &b"ab"[..], &b"abc"[..]));
    }

    #[test]
    fn appending_bit_by_bit_moves_the_bytes_a_few_times_only() {
        let mut value = Value::copied(b"");
        let (mut moves, mut place) = (0, value.as_ptr());
        for _ in 0..100_000 {
            value.append(b"0123456789", value.len() * 3 / 2).unwrap();
            if value.as_ptr() != place {
                (moves, place) = (moves + 1, value.as_ptr());
            }
        }
        assert_eq!(value.len(), 1_000_000);
        assert!(moves < 40, "moved {moves} times");
    }

    #[test]
    fn a_value_prints_cut_and_escaped() {
        assert_eq!(format!("{:?}", Value::copied(b"a\n")), r#""a\\n""#);
        assert!(format!("{:?}", Value::copied(&[b'v'; 1000])).len() < 120);
    }
}
