//! The store and the way to it: a register with compare-and-set, announcements, phase marks, and messages that take
//! their time. It knows nodes by number only.

use std::collections::BTreeMap;
use std::sync::Arc;

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{Cell, NodeDesc, State, pickle};

/// What a node asks of the store.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Read,
    Write { token: Vec<u8>, state: Box<State> },
    Announce { round: u64, node: NodeDesc },
    Retract { round: u64, nodes: Vec<NodeDesc> },
    ReadAnnounced { round: u64 },
}

/// What the store answers.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Cell(Cell),
    Written { won: bool, cell: Cell },
    Done,
    Announced(Vec<NodeDesc>),
}

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) state: Option<Arc<State>>,
    token: Vec<u8>,
    announced: BTreeMap<u64, Vec<NodeDesc>>,
    /// Compare-and-sets so far, and those that lost.
    pub(crate) writes: u64,
    pub(crate) losses: u64,
}

impl Store {
    pub(crate) fn cell(&self) -> Cell {
        Cell { state: self.state.clone(), token: self.token.clone() }
    }

    /// Carries out a request. `Some(before)` with it if the register has changed.
    pub(crate) fn handle(&mut self, request: Request) -> (Reply, Option<Option<Arc<State>>>) {
        match request {
            Request::Read => (Reply::Cell(self.cell()), None),
            Request::Write { token, state } => {
                self.writes += 1;
                if token != self.token {
                    self.losses += 1;
                    return (Reply::Written { won: false, cell: self.cell() }, None);
                }
                // The real token is what was written, so the same state has the same token; and what can't be read
                // back must never have been written.
                let bytes = pickle::encode(&state);
                let read = pickle::decode(&bytes, &Limits::default()).expect("what we write can be read");
                assert_eq!(read, *state, "what we write reads the same");
                self.token = bytes;
                let before = self.state.replace(Arc::new(*state));
                (Reply::Written { won: true, cell: self.cell() }, Some(before))
            }
            Request::Announce { round, node } => {
                let list = self.announced.entry(round).or_default();
                list.retain(|other| *other != node);
                list.push(node);
                (Reply::Done, None)
            }
            Request::Retract { round, nodes } => {
                self.announced.entry(round).or_default().retain(|node| !nodes.contains(node));
                (Reply::Done, None)
            }
            Request::ReadAnnounced { round } => {
                (Reply::Announced(self.announced.get(&round).cloned().unwrap_or_default()), None)
            }
        }
    }
}
