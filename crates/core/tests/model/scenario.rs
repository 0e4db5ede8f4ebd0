//! Scenarios: sequences of turns of several clients, with requests that are split, pipelined, incomplete or canceled.
//!
//! A scenario runs against the server and optionally compares it with the model.

use proptest::prelude::*;
use rallypoint_core::Limits;

use crate::model::Model;
use crate::operation::{Operation, garbage};
use crate::server::{Contents, Server, validate};

/// The number of concurrent clients.
pub(crate) const SLOTS: usize = 4;

/// The turn of one client.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    pub(crate) slot: usize,
    /// Requests that arrive completely, after the rest of the partial request of the client's previous turn.
    pub(crate) operations: Vec<Operation>,
    /// A request and a number from 0 to 255. That many 256ths of the request arrive in this turn, and the rest in the
    /// client's next turn.
    pub(crate) partial: Option<(Operation, u8)>,
    /// The positions at which the bytes of the turn are split, in 256ths of their length.
    pub(crate) cuts: Vec<u8>,
    /// Whether the client disconnects after this turn.
    pub(crate) disconnects: bool,
}

/// Generates fewer than `max_turns` turns with these operations.
pub(crate) fn turns(
    operation: BoxedStrategy<Operation>,
    max_turns: usize,
) -> impl Strategy<Value = Vec<Turn>> {
    let sent = prop_oneof![60 => operation.clone(), 1 => garbage()];
    let partial = prop::option::weighted(0.2, (operation, any::<u8>()));
    let turn = (
        0..SLOTS,
        prop::collection::vec(sent, 0..4),
        partial,
        prop::collection::vec(any::<u8>(), 0..4),
        prop::bool::weighted(0.06),
    );
    let turn = turn.prop_map(|(slot, operations, partial, cuts, disconnects)| Turn {
        slot,
        operations,
        partial,
        cuts,
        disconnects,
    });
    // A turn without requests that ends with a disconnect. So a woken client may disconnect before its next request.
    let disconnect = (0..SLOTS).prop_map(|slot| Turn {
        slot,
        operations: vec![],
        partial: None,
        cuts: vec![],
        disconnects: true,
    });
    prop::collection::vec(prop_oneof![12 => turn, 1 => disconnect], 1..max_turns)
}

/// The way in which the bytes of a turn arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// In the pieces that [`Turn::cuts`] specifies.
    AsDrawn,
    /// Each turn in one piece. A partial request arrives completely in the next turn of its client.
    Whole,
    /// Byte by byte.
    Bytewise,
}

/// A running scenario.
pub(crate) struct Scenario {
    pub(crate) server: Server,
    model: Option<Model>,
    split: Split,
    /// The partial request of each client, and the number of its bytes that were sent.
    partials: Vec<Option<(Operation, usize)>>,
    /// The bytes of all replies to each slot, over all its connections.
    pub(crate) replies: Vec<Vec<u8>>,
}

impl Scenario {
    pub(crate) fn new(limits: Limits, split: Split) -> Scenario {
        Scenario {
            server: Server::new(limits, SLOTS, 0x5eed),
            model: None,
            split,
            partials: vec![None; SLOTS],
            replies: vec![Vec::new(); SLOTS],
        }
    }

    /// Creates a scenario that compares the server with the model after each turn.
    pub(crate) fn with_model(limits: Limits, split: Split) -> Scenario {
        let model = Some(Model::new(limits.clone(), SLOTS));
        Scenario { model, ..Scenario::new(limits, split) }
    }

    pub(crate) fn turn(&mut self, turn: &Turn) {
        let slot = turn.slot;
        let mut bytes = Vec::new();
        if !self.server.is_open(slot) {
            self.partials[slot] = None;
            self.server.connect(slot);
            self.model.iter_mut().for_each(|model| model.connect(slot));
            bytes.extend(validate());
        }

        let pending = self.partials[slot].take();
        let operations: Vec<&Operation> =
            pending.iter().map(|(pending, _)| pending).chain(&turn.operations).collect();
        let sent = pending.as_ref().map_or(0, |(_, sent)| *sent);
        let whole: Vec<u8> = operations.iter().flat_map(|operation| operation.encode()).collect();
        bytes.extend(&whole[sent..]);
        let mut partial_len = 0;
        if let Some((partial, part)) = &turn.partial {
            let encoded = partial.encode();
            partial_len =
                if self.split == Split::Whole { 0 } else { encoded.len() * usize::from(*part) / 256 };
            bytes.extend(&encoded[..partial_len]);
            self.partials[slot] = Some((partial.clone(), partial_len));
        }
        // After each piece, the model gets all operations that the piece completed, because the server executes them
        // in one step.
        let mut ends = Vec::new();
        let mut end = bytes.len() - (whole.len() - sent) - partial_len;
        for operation in &operations {
            let start = end;
            end += operation.encode().len();
            ends.push(start + operation.decided_len() - sent);
        }
        let (mut delivered, mut arrived) = (0, 0);
        for piece in self.pieces(&bytes, &turn.cuts) {
            self.server.deliver(slot, piece);
            delivered += piece.len();
            let completed = ends.iter().filter(|end| **end <= delivered).count();
            if let Some(model) = &mut self.model {
                model.arrive(slot, &operations[arrived..completed]);
            }
            arrived = completed;
        }
        if turn.disconnects && self.server.is_open(slot) {
            self.server.disconnect(slot);
            self.model.iter_mut().for_each(|model| model.disconnect(slot));
        }
        self.compare();
    }

    /// Returns the stored data, and the numbers of awaited keys and of blocked clients.
    pub(crate) fn state(&mut self) -> (Contents, usize, usize) {
        let snapshot = self.server.snapshot();
        let (awaited, blocked) = (snapshot.awaited, snapshot.blocked);
        (self.server.contents(), awaited, blocked)
    }

    fn pieces<'a>(&self, bytes: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
        match self.split {
            Split::Whole => vec![bytes],
            Split::Bytewise => bytes.chunks(1).collect(),
            Split::AsDrawn => {
                let mut ends: Vec<usize> =
                    cuts.iter().map(|&cut| bytes.len() * usize::from(cut) / 256).collect();
                ends.push(bytes.len());
                ends.sort();
                let mut start = 0;
                ends.into_iter().map(|end| &bytes[std::mem::replace(&mut start, end)..end]).collect()
            }
        }
    }

    fn compare(&mut self) {
        for slot in 0..SLOTS {
            let replies = self.server.take_replies(slot);
            if let Some(model) = &mut self.model {
                assert_eq!(replies, model.take_replies(slot), "replies to client {slot}");
                assert_eq!(
                    self.server.is_open(slot),
                    model.is_open(slot),
                    "whether client {slot} is connected"
                );
            }
            self.replies[slot].extend(replies);
        }
        if let Some(model) = &self.model {
            let snapshot = self.server.snapshot();
            assert_eq!(
                (snapshot.keys, snapshot.queue_items, snapshot.awaited, snapshot.blocked),
                (model.len(), model.queue_items(), model.awaited(), model.blocked()),
                "keys, queue items, awaited keys, blocked clients"
            );
            assert_eq!(self.server.contents(), model.contents());
        }
    }
}
