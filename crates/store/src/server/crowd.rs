//! Large requests that arrive together. While they take up half of what incomplete requests may hold, they come in one
//! at a time and the others are not read: nobody who sends on is cut off because many do.
//!
//! It keeps the line. Who is read and who has stalled is the loop's to know.

use std::collections::VecDeque;

use rallypoint_core::store::ClientId;

/// Those who wait for room, and the one that may go on.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    first: Option<ClientId>,
    waiting: VecDeque<ClientId>,
}

impl Crowd {
    /// Whether this one may go on although there is little room. If not it is in line, and
    /// [`Crowd::next`] will name it.
    pub(super) fn admits(&mut self, client: ClientId) -> bool {
        let first = *self.first.get_or_insert(client);
        if first != client {
            self.waiting.push_back(client);
        }
        first == client
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Who may go on now: each in turn if there is room, else the next once the first is done. Until `None`.
    pub(super) fn next(&mut self, room: bool, is_arriving: impl Fn(ClientId) -> bool) -> Option<ClientId> {
        if room {
            self.first = None;
            return self.waiting.pop_front();
        }
        if self.first.is_some_and(&is_arriving) {
            return None;
        }
        self.first = None;
        while let Some(client) = self.waiting.pop_front() {
            // Who has gone meanwhile is not to hold up the rest.
            if is_arriving(client) {
                self.first = Some(client);
                return Some(client);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(index: u32) -> ClientId {
        ClientId::new(index, 1)
    }

    #[test]
    fn without_room_they_go_one_at_a_time_in_the_order_they_came() {
        let mut crowd = Crowd::default();
        assert!(crowd.admits(client(0)));
        assert!(crowd.admits(client(0)), "the first goes on");
        assert!(!crowd.admits(client(1)));
        assert!(!crowd.admits(client(2)));
        assert_eq!(crowd.next(false, |_| true), None, "the first is not done");
        assert_eq!(crowd.next(false, |id| id != client(0)), Some(client(1)));
        assert_eq!(crowd.next(false, |id| id != client(0)), None, "the second is first now");
        assert_eq!(crowd.next(false, |id| id == client(2)), Some(client(2)));
        assert_eq!(crowd.waiting(), 0);
    }

    #[test]
    fn who_has_gone_holds_up_nobody() {
        let mut crowd = Crowd::default();
        assert_eq!((0..4).filter(|n| crowd.admits(client(*n))).count(), 1);
        assert_eq!(crowd.next(false, |id| id == client(3)), Some(client(3)));
    }

    #[test]
    fn with_room_all_go_on() {
        let mut crowd = Crowd::default();
        assert_eq!((0..4).filter(|n| crowd.admits(client(*n))).count(), 1);
        let all: Vec<_> = std::iter::from_fn(|| crowd.next(true, |_| true)).collect();
        assert_eq!(all, [client(1), client(2), client(3)]);
        assert!(crowd.admits(client(9)), "nobody is first any more");
    }
}
