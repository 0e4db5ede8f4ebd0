//! Admission of uploads. All uploads share one memory budget, first come first served.

use std::collections::VecDeque;

/// The upload of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Upload {
    /// The connection has no upload.
    #[default]
    None,
    /// The upload waits for its share of the budget. The hub does not read the connection.
    Waiting,
    /// The upload has its share of the budget.
    Admitted {
        /// The share in bytes.
        len: usize,
        /// The number of its admission. Uploads that were admitted earlier have lower numbers.
        number: u64,
    },
}

/// The budget, and the queue of uploads that wait for a share of it.
#[derive(Debug)]
pub(super) struct Uploads {
    budget: usize,
    used: usize,
    admitted: u64,
    /// The connections with a waiting upload, oldest first, each with the length of the upload. If the length is not
    /// known yet, it is the maximum length of a request.
    waiting: VecDeque<(usize, usize)>,
}

impl Uploads {
    pub(super) fn new(budget: usize) -> Uploads {
        Uploads { budget, used: 0, admitted: 0, waiting: VecDeque::new() }
    }

    /// Returns the number of waiting uploads.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues the upload of a connection for [`Uploads::admit_next`]. `len` is the length of the upload in bytes.
    pub(super) fn start(&mut self, connection: usize, len: usize) -> Upload {
        self.waiting.push_back((connection, len));
        Upload::Waiting
    }

    /// Ends the upload of a connection, and releases its share of the budget.
    pub(super) fn end(&mut self, connection: usize, upload: Upload) {
        match upload {
            Upload::None => {}
            Upload::Waiting => self.waiting.retain(|(waiting, _)| *waiting != connection),
            Upload::Admitted { len, .. } => self.used -= len,
        }
    }

    /// Admits the oldest waiting upload if the budget suffices, and returns its connection.
    ///
    /// An upload that is larger than the budget is admitted if no other upload has a share.
    pub(super) fn admit_next(&mut self) -> Option<(usize, Upload)> {
        let (connection, len) = *self.waiting.front()?;
        if self.used > 0 && self.used + len > self.budget {
            return None;
        }
        self.waiting.pop_front();
        self.used += len;
        self.admitted += 1;
        Some((connection, Upload::Admitted { len, number: self.admitted }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts an upload, and returns the connections whose uploads are admitted as a result.
    fn start(uploads: &mut Uploads, connection: usize, len: usize) -> Vec<usize> {
        assert_eq!(uploads.start(connection, len), Upload::Waiting);
        admitted(uploads)
    }

    fn admitted(uploads: &mut Uploads) -> Vec<usize> {
        std::iter::from_fn(|| uploads.admit_next()).map(|(connection, _)| connection).collect()
    }

    #[test]
    fn uploads_are_admitted_in_order_while_the_budget_suffices() {
        let mut uploads = Uploads::new(100);
        assert_eq!([0, 1, 2, 3].map(|n| start(&mut uploads, n, 40)), [vec![0], vec![1], vec![], vec![]]);
        uploads.end(1, Upload::Admitted { len: 40, number: 2 });
        assert_eq!((admitted(&mut uploads), uploads.waiting()), (vec![2], 1));
    }

    #[test]
    fn a_small_upload_does_not_overtake_a_waiting_one() {
        let mut uploads = Uploads::new(100);
        assert_eq!(start(&mut uploads, 0, 60), [0]);
        assert_eq!(start(&mut uploads, 1, 60), [0; 0]);
        assert_eq!(start(&mut uploads, 2, 1), [0; 0]);
    }

    #[test]
    fn an_upload_that_ends_while_it_waits_is_removed() {
        let mut uploads = Uploads::new(100);
        start(&mut uploads, 0, 100);
        start(&mut uploads, 1, 40);
        start(&mut uploads, 2, 40);
        uploads.end(1, Upload::Waiting);
        uploads.end(0, Upload::Admitted { len: 100, number: 1 });
        assert_eq!((admitted(&mut uploads), uploads.waiting()), (vec![2], 0));
    }

    #[test]
    fn an_upload_larger_than_the_budget_is_admitted_alone() {
        let mut uploads = Uploads::new(100);
        assert_eq!(start(&mut uploads, 0, 200), [0]);
        assert_eq!(start(&mut uploads, 1, 1), [0; 0]);
    }
}
