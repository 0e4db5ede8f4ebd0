//! A value as the store keeps it: bytes that many may hold at once without copying them.
//!
//! Small ones sit in one allocation of their own; a large one may be a part of the message it came in.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

/// Immutable bytes, cheap to clone.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Own(Arc<[u8]>),
    Shared(Bytes),
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
        Value(Repr::Shared(bytes))
    }

    /// As `Bytes`, without a copy if it is shared already.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Repr::Own(own) => Bytes::from_owner(Arc::clone(own)),
            Repr::Shared(shared) => shared.clone(),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Own(own) => own,
            Repr::Shared(shared) => shared,
        }
    }
}

impl Default for Value {
    fn default() -> Self {
        Value(Repr::Shared(Bytes::new()))
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
