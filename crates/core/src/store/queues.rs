//! First-in-first-out queues. A queue exists while it has items or somebody woken for one.
//!
//! A push wakes at most one waiter, who then holds a *claim* until its next request. While claims cover all items
//! nobody else is woken; when a claim ends unused (its holder died or did something else), the next waiter is.

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

/// What an item costs beyond its bytes, roughly.
const ITEM_OVERHEAD: usize = 48;

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
        self.bytes += item.len() + ITEM_OVERHEAD;
        match self.queues.get_mut(key) {
            Some(queue) => queue.items.push_back(item),
            None => {
                self.bytes += key.len();
                self.queues.insert(key.into(), Queue { items: [item].into(), claims: 0 });
            }
        }
    }

    /// The length before, and the item.
    pub(super) fn pop(&mut self, key: &[u8]) -> (usize, Option<Value>) {
        let Some(queue) = self.queues.get_mut(key) else { return (0, None) };
        let before = queue.items.len();
        let item = queue.items.pop_front();
        if let Some(item) = &item {
            self.items -= 1;
            self.bytes -= item.len() + ITEM_OVERHEAD;
        }
        self.tidy(key);
        (before, item)
    }

    /// Whether there is an item that no woken client is on its way to.
    pub(super) fn has_unclaimed(&self, key: &[u8]) -> bool {
        self.queues.get(key).is_some_and(|queue| queue.claims < queue.items.len())
    }

    /// A waiter was woken for an item.
    pub(super) fn claim(&mut self, key: &[u8]) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.claims += 1;
        }
    }

    /// A woken waiter has had its turn.
    pub(super) fn end_claim(&mut self, key: &[u8]) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.claims -= 1;
        }
        self.tidy(key);
    }

    /// Forgets a queue that is empty and claimed by nobody.
    fn tidy(&mut self, key: &[u8]) {
        if self.queues.get(key).is_some_and(|queue| queue.items.is_empty() && queue.claims == 0) {
            self.queues.remove(key);
            self.bytes -= key.len();
        }
    }
}
