//! Effects, which are the only way to change stored data.

use crate::wire::{PairList, Payload};

/// A change of stored keys or queue items.
///
/// The engine first decides which effect a request has, and then applies the effect. An effect has no conditions:
/// applying the same effects to the same state gives the same state. A journal or a replica therefore needs only the
/// effects, not the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<'a> {
    /// Stores a value under a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: Payload<'a>,
    },
    /// Stores several values atomically. If a key occurs more than once, the last of its values is stored.
    PutAll {
        /// Keys and values.
        pairs: PairList<'a>,
    },
    /// Appends bytes to the value of a key. An absent key counts as an empty value.
    Append {
        /// The key.
        key: &'a [u8],
        /// The bytes to append.
        bytes: &'a [u8],
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Appends an item to a queue.
    Push {
        /// The name of the queue.
        key: &'a [u8],
        /// The item.
        item: Payload<'a>,
    },
    /// Removes the first item of a queue.
    Pop {
        /// The name of the queue.
        key: &'a [u8],
    },
}

/// A receiver of effects. The engine records each effect before it applies it.
pub trait EffectLog {
    /// Records one effect.
    fn record(&mut self, effect: &Effect<'_>);
}

/// Discards all effects.
impl EffectLog for () {
    #[inline(always)]
    fn record(&mut self, _: &Effect<'_>) {}
}
