//! Admission of large requests: one budget, first come first served.

use std::collections::VecDeque;

/// A large request of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Upload {
    /// The connection sends none.
    #[default]
    None,
    /// It waits for its share of the budget, and the connection is not read.
    Waiting {
        /// Its length, or the most it may be.
        len: usize,
    },
    /// It has its share.
    Admitted {
        /// The share in bytes.
        len: usize,
    },
}

/// The budget, and the connections whose uploads wait for a share of it.
#[derive(Debug)]
pub(super) struct Uploads {
    budget: usize,
    used: usize,
    waiting: VecDeque<usize>,
}

impl Uploads {
    pub(super) fn new(budget: usize) -> Uploads {
        Uploads { budget, used: 0, waiting: VecDeque::new() }
    }

    /// Returns how many uploads wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Starts an upload of this length. It is admitted if no other waits and the budget suffices.
    pub(super) fn start(&mut self, connection: usize, len: usize) -> Upload {
        if self.waiting.is_empty() && self.fits(len) {
            self.used += len;
            return Upload::Admitted { len };
        }
        self.waiting.push_back(connection);
        Upload::Waiting { len }
    }

    /// Ends an upload.
    pub(super) fn end(&mut self, connection: usize, upload: Upload) {
        match upload {
            Upload::None => {}
            Upload::Waiting { .. } => self.waiting.retain(|waiting| *waiting != connection),
            Upload::Admitted { len } => self.used -= len,
        }
    }

    /// Returns the connection that has waited for longest.
    pub(super) fn next(&self) -> Option<usize> {
        self.waiting.front().copied()
    }

    /// Admits the upload that has waited for longest, which has this length, if the budget suffices.
    pub(super) fn admit_next(&mut self, len: usize) -> Option<Upload> {
        if !self.fits(len) {
            return None;
        }
        self.waiting.pop_front()?;
        self.used += len;
        Some(Upload::Admitted { len })
    }

    /// An upload that is larger than the budget is admitted alone.
    fn fits(&self, len: usize) -> bool {
        self.used == 0 || self.used + len <= self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMITTED: Upload = Upload::Admitted { len: 40 };
    const WAITING: Upload = Upload::Waiting { len: 40 };

    #[test]
    fn uploads_are_admitted_while_the_budget_lasts_and_then_in_their_order() {
        let mut uploads = Uploads::new(100);
        assert_eq!([0, 1, 2, 3].map(|n| uploads.start(n, 40)), [ADMITTED, ADMITTED, WAITING, WAITING]);
        assert_eq!(uploads.admit_next(40), None);
        uploads.end(1, ADMITTED);
        assert_eq!((uploads.next(), uploads.admit_next(40)), (Some(2), Some(ADMITTED)));
        assert_eq!((uploads.next(), uploads.admit_next(40), uploads.waiting()), (Some(3), None, 1));
    }

    #[test]
    fn a_small_upload_does_not_overtake_one_that_waits() {
        let mut uploads = Uploads::new(100);
        uploads.start(0, 60);
        assert_eq!(uploads.start(1, 60), Upload::Waiting { len: 60 });
        assert_eq!(uploads.start(2, 1), Upload::Waiting { len: 1 });
    }

    #[test]
    fn an_upload_that_ends_while_it_waits_is_forgotten() {
        let mut uploads = Uploads::new(100);
        uploads.start(0, 100);
        uploads.start(1, 40);
        uploads.start(2, 40);
        uploads.end(1, WAITING);
        assert_eq!((uploads.next(), uploads.waiting()), (Some(2), 1));
    }

    #[test]
    fn an_upload_larger_than_the_budget_is_admitted_alone() {
        let mut uploads = Uploads::new(100);
        assert_eq!(uploads.start(0, 200), Upload::Admitted { len: 200 });
        assert_eq!(uploads.start(1, 1), Upload::Waiting { len: 1 });
    }
}
