//! First-in-first-out queues. A queue exists while it has an item or a claim.
//!
//! A push wakes at most one waiter. The woken waiter has a *claim* on one item until its next request. If that request
//! does not pop the item, or if the client disconnects, the engine wakes the next waiter.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashMap;

use crate::value::Value;

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Value>,
    claims: usize,
}

/// All queues.
#[derive(Debug)]
pub(super) struct Queues {
    queues: HashMap<Box<[u8]>, Queue, RandomState>,
    items: usize,
    bytes: usize,
}

/// The approximate memory of an item beyond the bytes of its value.
const ITEM_OVERHEAD_BYTES: usize = 48;

impl Queues {
    pub(super) fn new(hasher: RandomState) -> Queues {
        Queues { queues: HashMap::with_hasher(hasher), items: 0, bytes: 0 }
    }

    pub(super) fn items(&self) -> usize {
        self.items
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self, key: &[u8]) -> usize {
        if self.queues.is_empty() {
            return 0;
        }
        self.queues.get(key).map_or(0, |queue| queue.items.len())
    }

    pub(super) fn push(&mut self, key: &[u8], item: Value) {
        self.items += 1;
        self.bytes += item.len() + ITEM_OVERHEAD_BYTES;
        match self.queues.get_mut(key) {
            Some(queue) => queue.items.push_back(item),
            None => {
                self.bytes += key.len();
                self.queues.insert(key.into(), Queue { items: [item].into(), claims: 0 });
            }
        }
    }

    /// Returns the first item of a queue.
    pub(super) fn head(&self, key: &[u8]) -> Option<&Value> {
        self.queues.get(key)?.items.front()
    }

    /// Removes the first item of a queue, and removes the queue if it is unused.
    pub(super) fn pop(&mut self, key: &[u8]) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if let Some(item) = queue.items.pop_front() {
            self.items -= 1;
            self.bytes -= item.len() + ITEM_OVERHEAD_BYTES;
        }
        self.remove_if_unused(key);
    }

    /// Iterates over the items of all queues with the names of their queues. The order of the queues is unspecified.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Value)> {
        self.queues.iter().flat_map(|(key, queue)| queue.items.iter().map(|item| (&**key, item)))
    }

    /// Returns whether a queue has more items than claims.
    pub(super) fn has_unclaimed(&self, key: &[u8]) -> bool {
        self.queues.get(key).is_some_and(|queue| queue.claims < queue.items.len())
    }

    /// Adds a claim to a queue, for a waiter that was woken for an item.
    pub(super) fn claim(&mut self, key: &[u8]) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.claims += 1;
        }
    }

    /// Ends a claim on a queue, and removes the queue if it is unused.
    pub(super) fn end_claim(&mut self, key: &[u8]) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.claims -= 1;
        }
        self.remove_if_unused(key);
    }

    /// Removes a queue that has no item and no claim.
    fn remove_if_unused(&mut self, key: &[u8]) {
        if self.queues.get(key).is_some_and(|queue| queue.items.is_empty() && queue.claims == 0) {
            self.queues.remove(key);
            self.bytes -= key.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues() -> Queues {
        Queues::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    fn item(bytes: &[u8]) -> Value {
        Value::copied(bytes)
    }

    #[test]
    fn items_are_popped_in_push_order() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.push(b"q", item(b"b"));
        for (left, head) in [(2, Some(item(b"a"))), (1, Some(item(b"b"))), (0, None)] {
            assert_eq!((queues.len(b"q"), queues.head(b"q").cloned()), (left, head));
            queues.pop(b"q");
        }
    }

    #[test]
    fn queues_are_independent() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.pop(b"p");
        assert_eq!((queues.len(b"q"), queues.len(b"p"), queues.items()), (1, 0, 1));
    }

    #[test]
    fn an_emptied_queue_is_removed() {
        let mut queues = queues();
        queues.push(b"a name of some length", item(b"item"));
        assert!(queues.bytes() > 25);
        queues.pop(b"a name of some length");
        assert_eq!((queues.queues.len(), queues.bytes(), queues.items()), (0, 0, 0));
    }

    #[test]
    fn an_item_is_unclaimed_until_a_waiter_is_woken_for_it() {
        let mut queues = queues();
        assert!(!queues.has_unclaimed(b"q"));
        queues.push(b"q", item(b"a"));
        assert!(queues.has_unclaimed(b"q"));
        queues.claim(b"q");
        assert!(!queues.has_unclaimed(b"q"));
        queues.end_claim(b"q");
        assert!(queues.has_unclaimed(b"q"));
    }

    #[test]
    fn a_claim_outlives_an_item_that_another_client_popped() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.claim(b"q");
        queues.pop(b"q");
        queues.push(b"q", item(b"b"));
        assert!(!queues.has_unclaimed(b"q"));
    }

    #[test]
    fn ending_the_last_claim_removes_an_empty_queue() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.claim(b"q");
        queues.pop(b"q");
        assert_eq!(queues.queues.len(), 1);
        queues.end_claim(b"q");
        assert_eq!((queues.queues.len(), queues.bytes()), (0, 0));
    }
}
