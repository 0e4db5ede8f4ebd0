//! Large buffers that are used again. Fresh memory costs more than what is copied into it: the system must find it, clear
//! it, and take it back.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// From here on a buffer is worth keeping.
pub(super) const LARGE: usize = 1 << 20;

/// Where large buffers go when nobody holds what is in them any more, and where the next ones come from. Clones share one.
#[derive(Debug, Clone)]
pub struct Recycler(Arc<Mutex<Bin>>);

#[derive(Debug, Default)]
struct Bin {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// The maximum of `bytes`.
    most: usize,
    /// One was taken since somebody last tidied up.
    in_use: bool,
}

impl Recycler {
    /// Creates a recycler that keeps at most `most` bytes: [`Limits::recycled_bytes`](crate::Limits::recycled_bytes).
    pub fn new(most: usize) -> Recycler {
        Recycler(Arc::new(Mutex::new(Bin { most, ..Bin::default() })))
    }

    /// An empty buffer with room for this many bytes, and not for many more: a value keeps the buffer it came in.
    pub(super) fn take(&self, len: usize) -> Option<Vec<u8>> {
        let bin = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= len && buffer.capacity() - len <= len / 8;
        // The last one that came: some of it may still be in a cache.
        let buffer = bin.buffers.remove(bin.buffers.iter().rposition(fits)?);
        bin.bytes -= buffer.capacity();
        bin.in_use = true;
        Some(buffer)
    }

    /// These bytes; once nobody holds them any more, what they lie in is used again.
    pub(super) fn lend(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { buffer, of: self.clone() })
    }

    /// Lets go of what is kept if nobody has wanted any of it since the last time.
    pub fn tidy(&self) {
        let bin = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut bin.in_use) {
            (bin.buffers, bin.bytes) = (Vec::new(), 0);
        }
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).buffers.is_empty()
    }
}

struct Lent {
    buffer: Vec<u8>,
    of: Recycler,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let bin = &mut *self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = std::mem::take(&mut self.buffer);
        if bin.bytes + buffer.capacity() <= bin.most {
            buffer.clear();
            bin.bytes += buffer.capacity();
            bin.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 32 << 20;

    #[test]
    fn what_nobody_holds_any_more_is_used_again_where_it_fits() {
        let recycler = Recycler::new(MOST);
        let mut buffer = Vec::with_capacity(LARGE);
        buffer.push(1);
        let place = buffer.as_ptr();
        let lent = recycler.lend(buffer);
        let part = lent.slice(..1);
        drop(lent);
        assert!(recycler.take(LARGE).is_none(), "somebody holds a part of it");
        drop(part);
        assert!(recycler.take(LARGE / 2).is_none(), "too large for that");
        assert!(recycler.take(LARGE + 1).is_none(), "too small for that");
        let again = recycler.take(LARGE - 100).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        assert!(recycler.is_empty());
    }

    #[test]
    fn no_more_is_kept_than_the_most_and_nothing_that_nobody_wants() {
        let recycler = Recycler::new(MOST);
        for (len, kept) in [(LARGE, MOST / LARGE), (MOST / 10, 10), (MOST + 1, 0)] {
            let lent: Vec<_> = (0..40).map(|_| recycler.lend(Vec::with_capacity(len))).collect();
            drop(lent);
            assert_eq!(std::iter::from_fn(|| recycler.take(len)).count(), kept);
        }
        drop(recycler.lend(Vec::with_capacity(LARGE)));
        recycler.tidy();
        assert!(!recycler.is_empty(), "some were wanted a moment ago");
        recycler.tidy();
        assert!(recycler.is_empty());
    }
}
