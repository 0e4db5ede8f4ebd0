//! Effects: the only way in which stored state changes.

use crate::wire::{PairList, Payload};

/// A change of stored keys or queue items. The engine decides effects first and applies them second.
///
/// An effect says what happens, not under which condition: applying the same effects to the same state gives the same state.
/// A list of effects is what a journal stores and what a replica receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// Stores a value under a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: Payload<'a>,
    },
    /// Stores several values at one moment. A later pair with the same key wins.
    PutAll {
        /// Keys and values.
        pairs: PairList<'a>,
    },
    /// Lengthens the value of a key. An absent key counts as empty.
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
        item: Payload<'a>,
    },
    /// Removes the item at the head of a queue.
    Pop {
        /// The name of the queue.
        key: &'a [u8],
    },
}

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
