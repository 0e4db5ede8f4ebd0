//! What is still to be sent to one connection. Large values are not copied into it but held, and long lists are
//! printed only as the peer takes them, so a peer that reads nothing costs next to nothing.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use rallypoint_core::Value;
use rallypoint_core::store::{Engine, Listing};
use rallypoint_core::wire::Reply;

/// A stretch of output.
#[derive(Debug)]
enum Segment {
    /// Bytes printed already.
    Bytes(Vec<u8>),
    /// A value of the store.
    Value(Value),
    /// Values to be printed one after the other, and let go of as they are.
    Values(std::vec::IntoIter<Value>),
    /// Keys that the store prints.
    Keys(Listing),
}

/// The output queue of one connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    segments: VecDeque<Segment>,
    /// What follows them, printed already: where most replies go.
    tail: Vec<u8>,
    /// Bytes that are sent of the first segment, or of the tail if it is first.
    sent: usize,
    unsent: usize,
}

/// Buffers that are empty now and will be wanted again, by any connection.
#[derive(Debug)]
pub(super) struct Buffers {
    empty: Vec<Vec<u8>>,
    bytes: usize,
    /// The maximum of `bytes`.
    most: usize,
}

/// A list longer than this is printed as it is sent.
const PRINT_AT_ONCE: usize = 64 * 1024;
/// Buffers kept, and how large they may be to be kept.
const KEPT: usize = 64;
const KEPT_LEN: usize = 64 * 1024;
/// Slices handed to the system in one call.
const SLICES: usize = 16;
/// Bytes sent to one connection before the next has its turn, however much it takes.
const SENT_AT_ONCE: usize = 256 * 1024;

/// What came of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// There is more, and the socket would have taken more.
    pub(super) is_cut_short: bool,
}

impl Buffers {
    /// Creates a pool that keeps at most `most` bytes.
    pub(super) fn new(most: usize) -> Buffers {
        Buffers { empty: Vec::new(), bytes: 0, most }
    }

    fn take(&mut self) -> Vec<u8> {
        let buffer = self.empty.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    fn put_back(&mut self, mut buffer: Vec<u8>) {
        let bytes = self.bytes + buffer.capacity();
        if self.empty.len() < KEPT && buffer.capacity() <= KEPT_LEN && bytes <= self.most {
            buffer.clear();
            self.bytes = bytes;
            self.empty.push(buffer);
        }
    }
}

impl Outbox {
    /// Bytes not sent yet.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Bytes held for this connection alone. A value that somebody else holds is counted by the store, whether it is still
    /// there or not.
    pub(super) fn own_bytes(&self) -> usize {
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::Value(value) if value.is_shared() => 0,
            Segment::Value(value) => value.len(),
            Segment::Values(values) => values.len() * size_of::<Value>(),
            Segment::Keys(listing) => listing.held(),
        });
        segments.sum::<usize>() + self.tail.len()
    }

    /// Adds a list of keys.
    pub(super) fn push_keys(&mut self, listing: Listing, buffers: &mut Buffers) {
        self.print(buffers, |out| out.extend_from_slice(&(listing.count() as i64).to_le_bytes()));
        let len = listing.printed_len();
        if len > 0 {
            self.push_segment(Segment::Keys(listing), len);
        }
    }

    /// Adds a reply, and may leave an empty one behind.
    pub(super) fn push(&mut self, reply: &mut Reply, buffers: &mut Buffers) {
        match reply {
            Reply::Value(value) if value.len() >= Value::SHARED_FROM => {
                self.print(buffers, |out| out.extend_from_slice(&(value.len() as u64).to_le_bytes()));
                self.hold(value.clone());
            }
            Reply::Popped { before, item: Some(item) } if item.len() >= Value::SHARED_FROM => {
                self.print(buffers, |out| {
                    out.extend_from_slice(&before.to_le_bytes());
                    out.extend_from_slice(&(item.len() as u64).to_le_bytes());
                });
                self.hold(item.clone());
            }
            Reply::Values(values) => {
                let len: usize = values.iter().map(|value| 8 + value.len()).sum();
                if len <= PRINT_AT_ONCE {
                    self.print(buffers, |out| reply.encode(out));
                } else {
                    self.push_segment(Segment::Values(std::mem::take(values).into_iter()), len);
                }
            }
            other => self.print(buffers, |out| other.encode(out)),
        }
    }

    fn print(&mut self, buffers: &mut Buffers, write: impl FnOnce(&mut Vec<u8>)) {
        if self.tail.capacity() == 0 {
            self.tail = buffers.take();
        }
        let before = self.tail.len();
        write(&mut self.tail);
        self.unsent += self.tail.len() - before;
    }

    fn hold(&mut self, value: Value) {
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

    /// Sends until the socket takes no more, nothing is left, or it is others' turn.
    pub(super) fn send(
        &mut self,
        socket: &mut impl Write,
        buffers: &mut Buffers,
        engine: &mut Engine,
    ) -> io::Result<Sent> {
        let mut bytes = 0;
        while self.unsent > 0 {
            if bytes >= SENT_AT_ONCE {
                return Ok(Sent { bytes, is_cut_short: true });
            }
            self.print_ahead(buffers, engine);
            let written = match self.send_once(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            bytes += written;
            self.advance(written, buffers);
        }
        Ok(Sent { bytes, is_cut_short: false })
    }

    fn send_once(&self, socket: &mut impl Write) -> io::Result<usize> {
        if self.segments.is_empty() {
            return socket.write(&self.tail[self.sent..]);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for segment in self.segments.iter().take(SLICES) {
            let whole: &[u8] = match segment {
                Segment::Bytes(bytes) => bytes,
                Segment::Value(value) => value,
                Segment::Values(..) | Segment::Keys(_) => break,
            };
            slices[count] = IoSlice::new(if count == 0 { &whole[self.sent..] } else { whole });
            count += 1;
        }
        if count == self.segments.len() && count < SLICES {
            slices[count] = IoSlice::new(&self.tail);
            count += 1;
        }
        socket.write_vectored(&slices[..count])
    }

    /// If a list comes next, prints the next stretch of it.
    fn print_ahead(&mut self, buffers: &mut Buffers, engine: &mut Engine) {
        let values = match self.segments.front_mut() {
            Some(Segment::Values(values)) => values,
            Some(Segment::Keys(listing)) => match engine.print_keys(listing) {
                Some(keys) => return self.segments.push_front(Segment::Value(keys)),
                None => {
                    self.segments.pop_front();
                    return self.print_ahead(buffers, engine);
                }
            },
            _ => return,
        };
        let mut bytes = buffers.take();
        let mut large = None;
        while bytes.len() < PRINT_AT_ONCE
            && let Some(value) = values.next()
        {
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
            if value.len() >= Value::SHARED_FROM {
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

    fn advance(&mut self, mut written: usize, buffers: &mut Buffers) {
        self.unsent -= written;
        while let Some(segment) = self.segments.front() {
            let len = match segment {
                Segment::Bytes(bytes) => bytes.len(),
                Segment::Value(value) => value.len(),
                Segment::Values(..) | Segment::Keys(_) => return,
            };
            if self.sent + written < len {
                self.sent += written;
                return;
            }
            written -= len - self.sent;
            self.sent = 0;
            if let Some(Segment::Bytes(bytes)) = self.segments.pop_front() {
                buffers.put_back(bytes);
            }
        }
        self.sent += written;
        if self.sent == self.tail.len() {
            buffers.put_back(std::mem::take(&mut self.tail));
            self.sent = 0;
        } else if self.sent >= PRINT_AT_ONCE && self.sent * 2 >= self.tail.len() {
            // A peer that always lags a little must not make it grow for ever.
            self.tail.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use rallypoint_core::store::{ClientId, Next};
    use rallypoint_core::wire::{Request, Strings};
    use rallypoint_core::{Key, Limits};

    use super::*;

    /// A socket that takes so many bytes a call, and would block after so many calls.
    struct Narrow {
        taken: Vec<u8>,
        a_call: usize,
        calls: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.calls == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.calls -= 1;
            let len = bytes.len().min(self.a_call);
            self.taken.extend_from_slice(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn engine() -> Engine {
        Engine::new(Limits::default(), 1, None)
    }

    #[test]
    fn replies_arrive_whole_and_in_order_however_little_the_socket_takes() {
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
        for a_call in [1_000, 65_536, usize::MAX] {
            let (mut outbox, mut buffers, mut expected) =
                (Outbox::default(), Buffers::new(1 << 20), Vec::new());
            for reply in &replies {
                reply.encode(&mut expected);
                outbox.push(&mut reply.clone(), &mut buffers);
            }
            assert_eq!(outbox.unsent(), expected.len());
            let (mut socket, mut engine) = (Narrow { taken: Vec::new(), a_call, calls: 0 }, engine());
            while outbox.unsent() > 0 {
                socket.calls = 3;
                outbox.send(&mut socket, &mut buffers, &mut engine).unwrap();
            }
            assert!(socket.taken == expected);
            assert_eq!((outbox.segments.len(), outbox.tail.len(), outbox.sent), (0, 0, 0));
        }
    }

    #[test]
    fn what_follows_a_list_of_no_keys_arrives_too() {
        let (mut outbox, mut buffers, mut engine) = (Outbox::default(), Buffers::new(1 << 20), engine());
        let mut socket = Narrow { taken: Vec::new(), a_call: usize::MAX, calls: usize::MAX };
        let mut expected = Vec::new();
        for keys in [0, 1, 0] {
            let client = ClientId::new(0, 1);
            for _ in 0..keys {
                engine.handle_request(client, Request::Set { key: b"k", value: b""[..].into() });
            }
            engine.handle_request(client, Request::ListKeys);
            let Some(Next::Keys { listing, .. }) = engine.next_output() else { panic!("no list") };
            outbox.push_keys(std::mem::take(listing), &mut buffers);
            engine.poll_output();
            outbox.send(&mut socket, &mut buffers, &mut engine).unwrap();
            outbox.push(&mut Reply::Number(7), &mut buffers);
            outbox.send(&mut socket, &mut buffers, &mut engine).unwrap();
            Reply::Keys((0..keys).map(|_| Key::from(&b"k"[..])).collect()).encode(&mut expected);
            Reply::Number(7).encode(&mut expected);
            engine.handle_request(client, Request::DeleteKey { key: b"k" });
            engine.poll_output();
        }
        assert_eq!((socket.taken, outbox.unsent()), (expected, 0));
    }

    #[test]
    fn a_reply_nobody_reads_costs_no_copy_of_its_values() {
        let value = Value::copied(&vec![0; 8 << 20]);
        let (mut outbox, mut buffers) = (Outbox::default(), Buffers::new(1 << 20));
        outbox.push(&mut Reply::Values(vec![value; 64]), &mut buffers);
        assert_eq!(outbox.unsent(), 64 * (8 + (8 << 20)));
        assert!(outbox.own_bytes() < 64 * 1024, "{}", outbox.own_bytes());
    }

    #[test]
    fn a_value_that_nobody_else_holds_is_counted() {
        let (mut outbox, mut buffers) = (Outbox::default(), Buffers::new(1 << 20));
        let value = Value::copied(&vec![0; 100_000]);
        outbox.push(&mut Reply::Value(value.clone()), &mut buffers);
        assert!(outbox.own_bytes() < 1000, "{}", outbox.own_bytes());
        drop(value);
        assert!(outbox.own_bytes() >= 100_000, "{}", outbox.own_bytes());
    }

    #[test]
    fn one_that_takes_all_it_gets_leaves_others_their_turn() {
        let (mut outbox, mut buffers, mut engine) = (Outbox::default(), Buffers::new(1 << 20), engine());
        outbox.push(&mut Reply::Values(vec![Value::copied(&vec![7; 100_000]); 50]), &mut buffers);
        let mut socket = Narrow { taken: Vec::new(), a_call: usize::MAX, calls: usize::MAX };
        let mut turns = 0;
        while outbox.unsent() > 0 {
            let sent = outbox.send(&mut socket, &mut buffers, &mut engine).unwrap();
            assert!(sent.bytes < 2 * SENT_AT_ONCE && sent.is_cut_short == (outbox.unsent() > 0), "{sent:?}");
            turns += 1;
        }
        assert_eq!(socket.taken.len(), 50 * 100_008);
        assert!(turns > socket.taken.len() / (2 * SENT_AT_ONCE), "{turns}");
    }

    #[test]
    fn a_list_of_keys_is_printed_as_it_is_sent_and_is_of_the_moment_it_was_asked_for() {
        let (mut outbox, mut buffers, mut engine) = (Outbox::default(), Buffers::new(1 << 20), engine());
        let client = ClientId::new(0, 1);
        let set = |engine: &mut Engine, name: String| {
            engine.handle_request(client, Request::Set { key: name.as_bytes(), value: b"v"[..].into() });
        };
        (0..20_000).for_each(|n| set(&mut engine, format!("/{n:05}")));
        engine.handle_request(client, Request::ListKeys);
        let Some(Next::Keys { listing, .. }) = engine.next_output() else { panic!("no list") };
        outbox.push_keys(std::mem::take(listing), &mut buffers);
        engine.poll_output();
        assert_eq!(outbox.unsent(), 8 + 20_000 * (8 + 6));
        assert!(outbox.own_bytes() < 8192, "{}", outbox.own_bytes());
        let mut socket = Narrow { taken: Vec::new(), a_call: 1_000, calls: 0 };
        let mut later = 20_000;
        while outbox.unsent() > 0 {
            set(&mut engine, format!("/{later:05}"));
            later += 1;
            socket.calls = 3;
            outbox.send(&mut socket, &mut buffers, &mut engine).unwrap();
        }
        assert_eq!(socket.taken[..8], 20_000i64.to_le_bytes());
        let mut names: Vec<_> = Strings::of(&socket.taken[8..]).collect();
        names.sort();
        assert!(
            names.iter().map(|name| name.to_vec()).eq((0..20_000).map(|n| format!("/{n:05}").into_bytes()))
        );
    }

    #[test]
    fn a_peer_that_always_lags_a_little_does_not_make_it_grow() {
        let (mut outbox, mut buffers) = (Outbox::default(), Buffers::new(1 << 20));
        let (mut socket, mut engine) = (Narrow { taken: Vec::new(), a_call: 8_000, calls: 0 }, engine());
        let mut expected = Vec::new();
        for number in 0..100_000i64 {
            let mut reply = Reply::Number(number);
            reply.encode(&mut expected);
            outbox.push(&mut reply, &mut buffers);
            if number % 1_000 == 999 && number > 1_000 {
                socket.calls = 1;
                outbox.send(&mut socket, &mut buffers, &mut engine).unwrap();
            }
        }
        assert!(outbox.unsent() > 0);
        assert!(outbox.own_bytes() < 2 * PRINT_AT_ONCE + 16_000, "{}", outbox.own_bytes());
        assert!(expected.starts_with(&socket.taken) && socket.taken.len() > 700_000);
    }
}
