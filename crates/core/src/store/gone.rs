//! What the store has let go of while replies still hold it: values that were replaced or deleted before they were sent.
//! They take room like the others until the last reply is gone, and are counted for as long.

use crate::value::Value;

/// Values that are no longer in the store, and still held.
#[derive(Debug, Default)]
pub(super) struct Gone {
    values: Vec<Value>,
    bytes: usize,
    /// The next to be looked at.
    at: usize,
}

/// What one costs beyond its bytes, roughly.
const OVERHEAD: usize = 64;

impl Gone {
    /// Bytes held, overheads included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// A value has left the store. Looking at two for each that comes keeps the dead from piling up.
    #[inline]
    pub(super) fn note(&mut self, value: Value) {
        if value.is_shared() {
            self.keep(value);
        }
    }

    #[cold]
    fn keep(&mut self, value: Value) {
        self.look(2);
        self.bytes += value.room() + OVERHEAD;
        self.values.push(value);
    }

    /// Looks at so many of them, in turn, and lets go of those that nobody else holds.
    pub(super) fn look(&mut self, how_many: usize) {
        for _ in 0..how_many.min(self.values.len()) {
            if self.at >= self.values.len() {
                self.at = 0;
            }
            match self.values[self.at].is_shared() {
                true => self.at += 1,
                false => self.bytes -= self.values.swap_remove(self.at).room() + OVERHEAD,
            }
        }
        if self.values.is_empty() {
            self.values = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_until_the_last_who_holds_it_lets_go() {
        let mut gone = Gone::default();
        let value = Value::copied(&[7; 1000]);
        let [first, second] = [value.clone(), value.clone()];
        gone.note(value);
        assert_eq!(gone.bytes(), 1000 + OVERHEAD);
        drop(first);
        gone.look(1);
        assert!(!gone.is_empty());
        drop(second);
        gone.look(1);
        assert_eq!((gone.bytes(), gone.is_empty()), (0, true));
    }

    #[test]
    fn what_nobody_holds_is_not_kept() {
        let mut gone = Gone::default();
        gone.note(Value::copied(b"v"));
        assert_eq!((gone.bytes(), gone.is_empty()), (0, true));
    }

    #[test]
    fn the_dead_do_not_pile_up_among_the_living() {
        let mut gone = Gone::default();
        let held: Vec<Value> = (0..100).map(|_| Value::copied(b"held")).collect();
        held.iter().for_each(|value| gone.note(value.clone()));
        for _ in 0..10_000 {
            let value = Value::copied(b"dead");
            let reply = value.clone();
            gone.note(value);
            drop(reply);
        }
        assert!(gone.values.len() < 3 * held.len(), "{}", gone.values.len());
    }
}
