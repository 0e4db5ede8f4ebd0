//! Effects: the only way in which stored state changes.

use crate::value::Value;
use crate::wire::PairList;

/// A change of stored keys or queue items. The engine decides effects first and applies them second.
///
/// An effect says what happens, not under which condition: applying the same effects to the same state gives the same state.
/// A list of effects is what a journal stores and what a replica receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<'a> {
    /// Stores a value under a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: Content<'a>,
    },
    /// Stores several values at one moment. A later pair with the same key wins.
    PutAll {
        /// Keys and values.
        pairs: PairList<'a>,
    },
    /// Lengthens the value of a key. The key exists.
    Append {
        /// The key.
        key: &'a [u8],
        /// The bytes to append.
        bytes: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Puts an item at the end of a queue.
    Push {
        /// The name of the queue.
        key: &'a [u8],
        /// The item.
        item: Value,
    },
    /// Removes the item at the head of a queue.
    Pop {
        /// The name of the queue.
        key: &'a [u8],
    },
}

/// The value of a [`Effect::Put`].
#[derive(Debug, Clone)]
pub enum Content<'a> {
    /// Bytes to copy, over the old value where that needs no allocation.
    Bytes(&'a [u8]),
    /// A value to share.
    Shared(Value),
}

impl Content<'_> {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Content::Bytes(bytes) => bytes,
            Content::Shared(value) => value,
        }
    }
}

impl PartialEq for Content<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}
impl Eq for Content<'_> {}

/// Receives every effect that the engine decides, before it is applied.
pub trait EffectLog {
    /// Records one effect.
    fn record(&mut self, effect: &Effect<'_>);
}

/// Records nothing, at no cost.
impl EffectLog for () {
    #[inline(always)]
    fn record(&mut self, _: &Effect<'_>) {}
}
