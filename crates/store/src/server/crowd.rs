//! Large requests that arrive together. From a quarter of what incomplete requests may hold on they come in one after the
//! other, and those in line are not read: nobody who sends on is cut off because many do.
//!
//! It keeps the line. Who is read, who stands still and how much room there is, is the loop's to know.

use std::collections::VecDeque;

use rallypoint_core::store::ClientId;

/// A large request: whose, and which of that client's. A client that sends one after the other gets in line for each.
pub(super) type Upload = (ClientId, u64);

/// Those who wait for room, and the one that may go on.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    first: Option<Upload>,
    waiting: VecDeque<Upload>,
}

impl Crowd {
    /// Whether this one may go on although there is little room. If not it is in line, and
    /// [`Crowd::next`] will name it.
    pub(super) fn admits(&mut self, upload: Upload) -> bool {
        if self.waiting.is_empty() && self.first.is_none_or(|first| first.0 == upload.0) {
            self.first = Some(upload);
        }
        let admitted = self.first == Some(upload);
        if !admitted {
            self.waiting.push_back(upload);
        }
        admitted
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Who may go on now, if the first doesn't keep its place: the next in line that is still there.
    pub(super) fn next(
        &mut self,
        keeps_place: impl Fn(Upload) -> bool,
        is_arriving: impl Fn(Upload) -> bool,
    ) -> Option<ClientId> {
        if self.first.is_some_and(keeps_place) {
            return None;
        }
        self.first = None;
        while let Some(upload) = self.waiting.pop_front() {
            // Who has gone meanwhile is not to hold up the rest.
            if is_arriving(upload) {
                self.first = Some(upload);
                return Some(upload.0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(client: u32, request: u64) -> Upload {
        (ClientId::new(client, 1), request)
    }

    fn client(index: u32) -> ClientId {
        ClientId::new(index, 1)
    }

    const KEEPS: fn(Upload) -> bool = |_| true;
    const IS_DONE: fn(Upload) -> bool = |_| false;
    const ARRIVES: fn(Upload) -> bool = |_| true;

    #[test]
    fn they_go_one_at_a_time_in_the_order_they_came() {
        let mut crowd = Crowd::default();
        assert!(crowd.admits(upload(0, 1)));
        assert!(crowd.admits(upload(0, 1)), "the first goes on");
        assert!(!crowd.admits(upload(1, 1)));
        assert!(!crowd.admits(upload(2, 1)));
        assert_eq!(crowd.next(KEEPS, ARRIVES), None, "the first is not done");
        assert_eq!(crowd.next(IS_DONE, ARRIVES), Some(client(1)));
        assert_eq!(crowd.next(KEEPS, ARRIVES), None, "the second is first now");
        assert_eq!(crowd.next(IS_DONE, ARRIVES), Some(client(2)));
        assert_eq!(crowd.waiting(), 0);
    }

    #[test]
    fn who_has_gone_holds_up_nobody() {
        let mut crowd = Crowd::default();
        assert_eq!((0..4).filter(|n| crowd.admits(upload(*n, 1))).count(), 1);
        assert_eq!(crowd.next(IS_DONE, |(id, _)| id == client(3)), Some(client(3)));
        assert_eq!((crowd.next(IS_DONE, ARRIVES), crowd.waiting()), (None, 0));
    }

    #[test]
    fn the_next_request_of_the_first_stands_behind_those_in_line() {
        let mut crowd = Crowd::default();
        assert!(crowd.admits(upload(0, 1)));
        assert!(crowd.admits(upload(0, 2)), "nobody waits");
        assert!(!crowd.admits(upload(1, 1)));
        assert!(!crowd.admits(upload(0, 3)));
        let is_second = |wanted: Upload| wanted == upload(0, 3) || wanted.0 == client(1);
        assert_eq!(crowd.next(is_second, ARRIVES), Some(client(1)), "its second request is done");
        assert_eq!(crowd.next(IS_DONE, ARRIVES), Some(client(0)));
        assert!(crowd.admits(upload(0, 3)));
    }
}
