//! A server without sockets: sessions and the engine, put together the way the real one does it, with replies kept
//! as bytes. It has no clock, no buffers that fill up and no order of its own: it does what it is told, when it is.

use std::collections::VecDeque;
use std::iter::once;

use rallypoint_core::store::{ClientId, Engine, Output, Snapshot};
use rallypoint_core::wire::{Frame, MAGIC, Reply, Request};
use rallypoint_core::{Hold, Limits, Session};

use crate::operation::Operation;

/// One connection.
struct Connection {
    id: ClientId,
    session: Session,
    is_open: bool,
    is_congested: bool,
    was_blocked: bool,
    /// Which of all transcripts is its own.
    transcript: usize,
    /// How much of it was looked at.
    looked_at: usize,
}

/// One thing that happened, and what came of it.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) slot: usize,
    /// What was asked; `None` if the client went away.
    pub(crate) asked: Option<Operation>,
    /// Who was answered what.
    pub(crate) answers: Vec<(usize, Reply)>,
}

/// All that was said over one connection.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    /// The requests, in the order they were carried out.
    pub(crate) asked: Vec<Operation>,
    /// The replies, as they travel.
    pub(crate) replies: Vec<u8>,
    /// Whether the last request was refused.
    pub(crate) was_refused: bool,
}

pub(crate) struct Server {
    engine: Engine,
    limits: Limits,
    connections: Vec<Connection>,
    /// Clients that a step has released, whose requests held back go on.
    released: VecDeque<usize>,
    pub(crate) history: Vec<Step>,
    pub(crate) transcripts: Vec<Transcript>,
}

/// The first request of every connection.
pub(crate) fn validate() -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut bytes);
    bytes
}

impl Server {
    pub(crate) fn new(limits: Limits, slots: usize, seed: u64) -> Server {
        let connection = |slot| Connection {
            id: ClientId::new(slot as u32, 0),
            session: Session::default(),
            is_open: false,
            is_congested: false,
            was_blocked: false,
            transcript: slot,
            looked_at: 0,
        };
        Server {
            engine: Engine::new(limits.clone(), seed, Some(crate::simple::IDENTITY)),
            limits,
            connections: (0..slots).map(connection).collect(),
            released: VecDeque::new(),
            history: Vec::new(),
            transcripts: (0..slots).map(|_| Transcript::default()).collect(),
        }
    }

    /// A new connection in this slot.
    pub(crate) fn connect(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        assert!(!connection.is_open);
        connection.id = ClientId::new(slot as u32, connection.id.generation() + 1);
        connection.session = Session::default();
        connection.is_open = true;
        connection.is_congested = false;
        (connection.transcript, connection.looked_at) = (self.transcripts.len(), 0);
        self.transcripts.push(Transcript::default());
    }

    /// Bytes have come.
    pub(crate) fn deliver(&mut self, slot: usize, bytes: &[u8]) {
        let mut input = bytes;
        loop {
            if let Some((key, value)) = self.next_set(slot, &mut input) {
                assert_eq!(self.engine.handle_sets(self.connections[slot].id, once((key, value))), 1);
                self.asked(slot, Request::Set { key, value: value.into() });
            } else if let Some(frame) = self.next(slot, &mut input) {
                self.ask(slot, frame);
            } else {
                break;
            }
            self.go_on();
        }
        self.go_on();
        self.assert_inputs_bounded();
    }

    /// The client takes its replies again, or no longer.
    pub(crate) fn congest(&mut self, slot: usize, is_congested: bool) {
        self.connections[slot].is_congested = is_congested;
        self.deliver(slot, &[]);
    }

    /// The connection ends.
    pub(crate) fn hang_up(&mut self, slot: usize) {
        self.close(slot);
        self.go_on();
        self.assert_inputs_bounded();
    }

    /// No connection holds more than one incomplete request within its limit, and who is held up by nothing no other. That a
    /// request is too long may be known only from the last byte of a length in it.
    fn assert_inputs_bounded(&self) {
        for (slot, connection) in self.connections.iter().enumerate().filter(|(_, one)| one.is_open) {
            let deferred = connection.session.deferred_bytes();
            let incomplete = connection.session.held() - deferred;
            let most = self.limits.frame_len + size_of::<u64>() - 1;
            assert!(incomplete <= most, "client {slot}: {incomplete} bytes of one request");
            assert!(
                deferred == 0 || self.hold(slot) != Hold::No,
                "client {slot}: {deferred} bytes forgotten"
            );
        }
    }

    /// The store is within its limits.
    fn assert_store_bounded(&self) {
        let shot = self.engine.snapshot();
        let limits = &self.limits;
        assert!(shot.bytes <= limits.store_bytes, "{shot:?}");
        assert!(shot.keys <= limits.keys && shot.queue_items <= limits.queue_items, "{shot:?}");
        assert!(shot.awaited <= limits.awaited_total, "{shot:?}");
    }

    /// Lets those go on who were released, with what they had sent meanwhile.
    fn go_on(&mut self) {
        while let Some(slot) = self.released.pop_front() {
            while let Some(frame) = self.next(slot, &mut &[][..]) {
                self.ask(slot, frame);
            }
        }
    }

    fn hold(&self, slot: usize) -> Hold {
        let connection = &self.connections[slot];
        match (connection.is_congested, self.engine.is_blocked(connection.id)) {
            (true, _) => Hold::Congested,
            (false, true) => Hold::Blocked,
            (false, false) => Hold::No,
        }
    }

    /// A SET as a server takes it that has a short cut for them.
    fn next_set<'a>(&mut self, slot: usize, input: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let free = self.connections[slot].is_open && self.hold(slot) == Hold::No;
        free.then(|| self.connections[slot].session.next_set(input, &self.limits)).flatten()
    }

    fn next<'a>(&mut self, slot: usize, input: &mut &'a [u8]) -> Option<Frame<'a>> {
        let hold = self.hold(slot);
        let connection = &mut self.connections[slot];
        if !connection.is_open {
            return None;
        }
        match connection.session.next(input, &self.limits, hold) {
            Ok(frame) => frame,
            Err(_) => {
                self.close(slot);
                None
            }
        }
    }

    fn ask(&mut self, slot: usize, frame: Frame<'_>) {
        let request = frame.request();
        self.engine.handle_request(self.connections[slot].id, request);
        self.asked(slot, request);
    }

    fn asked(&mut self, slot: usize, request: Request<'_>) {
        let asked = Operation::from(request);
        self.transcripts[self.connections[slot].transcript].asked.push(asked.clone());
        self.history.push(Step { slot, asked: Some(asked), answers: Vec::new() });
        self.settle();
    }

    /// Carries out what the engine orders, and notes who is free to go on.
    fn settle(&mut self) {
        let step = self.history.last_mut().expect("something has happened");
        let mut refused = None;
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Reply { client, mut reply } => {
                    // Their order means nothing; sorted, they can be compared.
                    if let Reply::Keys(keys) = &mut reply {
                        keys.sort();
                    }
                    let connection = &mut self.connections[client.index()];
                    assert_eq!(connection.id, client, "a reply to one who is gone");
                    assert!(connection.is_open, "a reply to one who is gone");
                    reply.encode(&mut self.transcripts[connection.transcript].replies);
                    step.answers.push((client.index(), reply));
                }
                Output::Close { client, reason } => {
                    assert_eq!(client.index(), step.slot, "only the one who asked is refused: {reason}");
                    self.transcripts[self.connections[client.index()].transcript].was_refused = true;
                    refused = Some(client.index());
                }
            }
        }
        self.engine.assert_consistent();
        self.assert_store_bounded();
        for (slot, connection) in self.connections.iter_mut().enumerate() {
            let is_blocked = self.engine.is_blocked(connection.id);
            if connection.was_blocked && !is_blocked {
                self.released.push_back(slot);
            }
            connection.was_blocked = is_blocked;
        }
        if let Some(slot) = refused {
            self.close(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        let connection = &mut self.connections[slot];
        connection.is_open = false;
        connection.was_blocked = false;
        self.engine.handle_disconnect(connection.id);
        self.history.push(Step { slot, asked: None, answers: Vec::new() });
        self.settle();
    }

    pub(crate) fn is_open(&self, slot: usize) -> bool {
        self.connections[slot].is_open
    }

    pub(crate) fn is_blocked(&self, slot: usize) -> bool {
        self.engine.is_blocked(self.connections[slot].id)
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Which transcript the newest connection of this slot writes.
    pub(crate) fn transcript(&self, slot: usize) -> usize {
        self.connections[slot].transcript
    }

    /// What was answered over the newest connection of this slot since this was last asked.
    pub(crate) fn take_replies(&mut self, slot: usize) -> Vec<u8> {
        let connection = &mut self.connections[slot];
        let replies = &self.transcripts[connection.transcript].replies;
        replies[std::mem::replace(&mut connection.looked_at, replies.len())..].to_vec()
    }
}
