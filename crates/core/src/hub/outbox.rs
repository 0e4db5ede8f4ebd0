//! The outbox: replies that are queued for a connection and not sent yet.
//!
//! A large value shares its bytes with the store. A long list of values is encoded in chunks while it is sent.

use std::collections::VecDeque;

use crate::value::Value;
use crate::wire::{Reply, Request};

/// A part of the outbox.
#[derive(Debug)]
enum Segment {
    /// Encoded bytes.
    Bytes(Vec<u8>),
    /// The bytes of a large value.
    Value(Value),
    /// Values that are not encoded yet.
    Values(std::vec::IntoIter<Value>),
}

impl Segment {
    /// Returns the bytes of the segment, or `None` if it is not encoded yet.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Segment::Bytes(bytes) => Some(bytes),
            Segment::Value(value) => Some(value),
            Segment::Values(_) => None,
        }
    }
}

/// The outbox of one connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    segments: VecDeque<Segment>,
    /// Encoded bytes that follow the segments. Most replies are encoded here.
    tail: Vec<u8>,
    /// The number of bytes sent of the first segment, or of the tail if there is no segment.
    sent: usize,
    unsent: usize,
}

/// The length above which a list of values is encoded in chunks while it is sent, and the approximate length of a
/// chunk.
const ENCODE_CHUNK_BYTES: usize = 64 * 1024;

/// The initial capacity of the tail, in bytes. A reply with 32 values of 64 bytes fits into it.
const INITIAL_TAIL_BYTES: usize = 4096;

/// The maximum number of slices in one send.
pub const MAX_SLICES: usize = 16;

impl Outbox {
    /// Returns the number of unsent bytes.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Returns the memory of the unsent replies, in bytes.
    ///
    /// The length of a value is divided by the number of its clones. The store, for example, may have one of them. The
    /// method visits all values.
    pub(super) fn memory_bytes(&self) -> usize {
        let share = |value: &Value| size_of::<Value>() + value.len() / value.ref_count();
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Bytes(bytes) => bytes.capacity(),
            Segment::Value(value) => share(value),
            Segment::Values(values) => values.as_slice().iter().map(share).sum(),
        });
        segments.sum::<usize>() + self.tail.capacity()
    }

    /// Appends a reply.
    pub(super) fn push(&mut self, reply: Reply) {
        match reply {
            Reply::Value(value) if value.len() >= Value::MIN_SHARED_BYTES => self.push_shared(value, &[]),
            Reply::Popped { before, item: Some(item) } if item.len() >= Value::MIN_SHARED_BYTES => {
                self.push_shared(item, &before.to_le_bytes());
            }
            Reply::Values(values) => {
                let len: usize = values.iter().map(|value| 8 + value.len()).sum();
                match len <= ENCODE_CHUNK_BYTES {
                    true => self.encode(&Reply::Values(values)),
                    false => self.push_segment(Segment::Values(values.into_iter()), len),
                }
            }
            other => self.encode(&other),
        }
    }

    /// Appends a request, on a connection to another server.
    pub(super) fn push_request(&mut self, request: &Request<'_>) {
        let before = self.tail.len();
        request.encode(&mut self.tail);
        self.unsent += self.tail.len() - before;
    }

    #[inline]
    fn encode(&mut self, reply: &Reply) {
        // The reply to a WAIT gets no buffer of 4 KiB: it is 1 byte, and one write may wake thousands of connections.
        if self.tail.capacity() == 0 && *reply != Reply::Stop {
            self.tail.reserve_exact(INITIAL_TAIL_BYTES);
        }
        let before = self.tail.len();
        reply.encode(&mut self.tail);
        self.unsent += self.tail.len() - before;
    }

    /// Appends `prefix` and the length of a large value, and then the value itself without a copy.
    fn push_shared(&mut self, value: Value, prefix: &[u8]) {
        self.tail.extend_from_slice(prefix);
        self.tail.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.unsent += prefix.len() + size_of::<u64>();
        let len = value.len();
        self.push_segment(Segment::Value(value), len);
    }

    fn push_segment(&mut self, segment: Segment, len: usize) {
        if !self.tail.is_empty() {
            self.segments.push_back(Segment::Bytes(std::mem::take(&mut self.tail)));
        }
        self.segments.push_back(segment);
        self.unsent += len;
    }

    /// Returns the next slices to send in order, and their number.
    pub(super) fn slices(&mut self) -> ([&[u8]; MAX_SLICES], usize) {
        let mut slices = [&[][..]; MAX_SLICES];
        if self.segments.is_empty() {
            slices[0] = &self.tail[self.sent..];
            return (slices, 1);
        }
        self.encode_next_values();
        let encoded = self.segments.iter().map_while(Segment::bytes);
        let all_encoded = encoded.clone().count() == self.segments.len();
        let tail = Some(&self.tail[..]).filter(|_| all_encoded);
        let mut count = 0;
        for (slot, bytes) in slices.iter_mut().zip(encoded.chain(tail)) {
            *slot = if count == 0 { &bytes[self.sent..] } else { bytes };
            count += 1;
        }
        (slices, count)
    }

    /// If the first segment is a list of values, encodes the next chunk of it.
    fn encode_next_values(&mut self) {
        let Some(Segment::Values(values)) = self.segments.front_mut() else { return };
        // The last value may begin before `ENCODE_CHUNK_BYTES` and end after it. The capacity leaves room for that.
        let mut bytes = Vec::with_capacity(ENCODE_CHUNK_BYTES + size_of::<u64>() + Value::MIN_SHARED_BYTES);
        let mut large = None;
        while bytes.len() < ENCODE_CHUNK_BYTES
            && let Some(value) = values.next()
        {
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            if value.len() >= Value::MIN_SHARED_BYTES {
                large = Some(value);
                break;
            }
            bytes.extend_from_slice(&value);
        }
        if values.len() == 0 {
            self.segments.pop_front();
        }
        if let Some(value) = large {
            self.segments.push_front(Segment::Value(value));
        }
        self.segments.push_front(Segment::Bytes(bytes));
    }

    /// Removes the first `sent` bytes, after they were sent.
    pub(super) fn advance(&mut self, mut sent: usize) {
        self.unsent -= sent;
        while let Some(len) = self.segments.front().and_then(Segment::bytes).map(<[u8]>::len) {
            if self.sent + sent < len {
                self.sent += sent;
                return;
            }
            sent -= len - self.sent;
            self.sent = 0;
            self.segments.pop_front();
        }
        self.sent += sent;
        if self.sent == self.tail.len() {
            // Free the buffer, so that idle connections stay small.
            (self.tail, self.sent) = (Vec::new(), 0);
        } else if self.sent >= ENCODE_CHUNK_BYTES && self.sent * 2 >= self.tail.len() {
            // Remove the sent bytes. Otherwise the buffer for a peer that never catches up would grow without limit.
            self.tail.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends up to `max` bytes, and returns them.
    fn send(outbox: &mut Outbox, max: usize) -> Vec<u8> {
        let (slices, count) = outbox.slices();
        let mut bytes = slices[..count].concat();
        bytes.truncate(max);
        outbox.advance(bytes.len());
        bytes
    }

    #[test]
    fn replies_are_sent_in_order_for_every_send_size() {
        let large = Value::copied(&vec![7; 40_000]);
        let small = Value::copied(b"v");
        let replies = [
            Reply::Number(5),
            Reply::Value(large.clone()),
            Reply::Values([vec![small.clone(); 20_000], vec![large.clone(); 3]].concat()),
            Reply::Popped { before: 2, item: Some(large.clone()) },
            Reply::Values(vec![]),
            Reply::Stop,
        ];
        for max in [1_000, 65_536, usize::MAX] {
            let (mut outbox, mut expected, mut sent_bytes) = (Outbox::default(), Vec::new(), Vec::new());
            for reply in &replies {
                reply.encode(&mut expected);
                outbox.push(reply.clone());
            }
            assert_eq!(outbox.unsent(), expected.len());
            while outbox.unsent() > 0 {
                sent_bytes.extend(send(&mut outbox, max));
            }
            assert!(sent_bytes == expected);
            assert_eq!((outbox.segments.len(), outbox.tail.capacity(), outbox.sent), (0, 0, 0));
        }
    }

    #[test]
    fn an_unread_reply_shares_its_values() {
        let value = Value::copied(&vec![0; 8 << 20]);
        let mut outbox = Outbox::default();
        outbox.push(Reply::Values(vec![value.clone(); 64]));
        assert_eq!(outbox.unsent(), 64 * (8 + (8 << 20)));
        // The reply has 64 of the 65 clones of the value.
        assert!(outbox.memory_bytes() <= (8 << 20) + 64 * size_of::<Value>(), "{}", outbox.memory_bytes());
    }

    #[test]
    fn a_shared_value_counts_in_equal_parts() {
        let mut outbox = Outbox::default();
        let value = Value::copied(&vec![0; 100_000]);
        outbox.push(Reply::Value(value.clone()));
        assert!((50_000..51_000).contains(&outbox.memory_bytes()), "{}", outbox.memory_bytes());
        drop(value);
        assert!((100_000..101_000).contains(&outbox.memory_bytes()), "{}", outbox.memory_bytes());
    }

    #[test]
    fn a_constant_backlog_of_unsent_replies_does_not_make_the_buffer_grow() {
        let (mut outbox, mut expected, mut sent_bytes) = (Outbox::default(), Vec::new(), Vec::new());
        for number in 0..100_000i64 {
            let reply = Reply::Number(number);
            reply.encode(&mut expected);
            outbox.push(reply);
            if number % 1_000 == 999 && number > 1_000 {
                sent_bytes.extend(send(&mut outbox, 8_000));
            }
        }
        assert!(outbox.tail.capacity() < 512 * 1024, "{}", outbox.tail.capacity());
        while outbox.unsent() > 0 {
            sent_bytes.extend(send(&mut outbox, 8_000));
        }
        assert!(sent_bytes == expected);
    }
}
