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

    /// Removes all queues for which `is_chosen` returns true, except those with a claimed item.
    pub(super) fn remove_all(&mut self, is_chosen: &mut impl FnMut(&[u8]) -> bool) {
        let (items, bytes) = (&mut self.items, &mut self.bytes);
        self.queues.retain(|key, queue| {
            let stays = queue.claims > 0 || !is_chosen(key);
            if !stays {
                *items -= queue.items.len();
                *bytes -=
                    key.len() + queue.items.iter().map(|item| item.len() + ITEM_OVERHEAD).sum::<usize>();
            }
            stays
        });
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
    fn pop_gives_the_length_before_and_the_oldest_item() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.push(b"q", item(b"b"));
        assert_eq!(queues.pop(b"q"), (2, Some(item(b"a"))));
        assert_eq!(queues.pop(b"q"), (1, Some(item(b"b"))));
        assert_eq!(queues.pop(b"q"), (0, None));
    }

    #[test]
    fn queues_do_not_mix() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        assert_eq!(queues.pop(b"p"), (0, None));
        assert_eq!((queues.len(b"q"), queues.len(b"p"), queues.items()), (1, 0, 1));
    }

    #[test]
    fn an_emptied_queue_is_forgotten() {
        let mut queues = queues();
        queues.push(b"a name of some length", item(b"item"));
        assert!(queues.bytes() > 25);
        queues.pop(b"a name of some length");
        assert_eq!((queues.queues.len(), queues.bytes(), queues.items()), (0, 0, 0));
    }

    #[test]
    fn an_item_is_unclaimed_until_somebody_is_woken_for_it() {
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
    fn a_claim_outlives_the_item_that_was_stolen() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.claim(b"q");
        queues.pop(b"q");
        queues.push(b"q", item(b"b"));
        assert!(!queues.has_unclaimed(b"q"));
    }

    #[test]
    fn the_last_claim_on_an_empty_queue_forgets_it() {
        let mut queues = queues();
        queues.push(b"q", item(b"a"));
        queues.claim(b"q");
        queues.pop(b"q");
        assert_eq!(queues.queues.len(), 1);
        queues.end_claim(b"q");
        assert_eq!((queues.queues.len(), queues.bytes()), (0, 0));
    }
}
