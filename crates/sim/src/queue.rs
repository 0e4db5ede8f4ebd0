//! A queue of events, ordered by virtual time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A queue of events. Events of the same time are returned in the order in which they were scheduled.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    events: BinaryHeap<Scheduled<E>>,
    last_number: u64,
}

/// An event and its time. The order is reversed, because a `BinaryHeap` returns its greatest element first and the
/// earliest event is needed.
#[derive(Debug)]
struct Scheduled<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { events: BinaryHeap::new(), last_number: 0 }
    }

    pub(crate) fn schedule(&mut self, at: Duration, event: E) {
        self.last_number += 1;
        self.events.push(Scheduled { at, number: self.last_number, event });
    }

    /// Removes and returns the earliest event, if it is not after `until`.
    pub(crate) fn pop_until(&mut self, until: Duration) -> Option<(Duration, E)> {
        self.events.peek().filter(|next| next.at <= until)?;
        self.events.pop().map(|next| (next.at, next.event))
    }
}
