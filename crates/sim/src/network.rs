//! The store: values under names, with compare-and-set, and lists of announcements. It knows what lies where and nothing
//! of what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{Cell, NodeDesc, State, pickle};

/// A key of the store.
pub(crate) type Name = Arc<str>;

/// What a node asks of the store.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Read { key: Name },
    Write { key: Name, token: Bytes, state: Arc<State> },
    Announce { key: Name, node: NodeDesc },
    Retract { key: Name, nodes: Vec<NodeDesc> },
    ReadAnnounced { key: Name },
}

/// What the store answers.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Cell(Cell),
    Written { won: bool, cell: Cell },
    Done,
    Announced(Arc<[NodeDesc]>),
}

/// A write that was won: under which key, what was there and what is now.
pub(crate) type Changed = (Name, Option<Arc<State>>, Arc<State>);

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Store {
    registers: BTreeMap<Name, Cell>,
    announced: BTreeMap<Name, Arc<[NodeDesc]>>,
    /// Who was taken back: nobody comes again to the same list.
    retracted: BTreeMap<Name, BTreeSet<NodeDesc>>,
    codec: bool,
    helped: bool,
    /// Compare-and-sets so far, and those that lost.
    pub(crate) writes: u64,
    pub(crate) losses: u64,
}

impl Store {
    pub(crate) fn new(codec: bool, helped: bool) -> Store {
        Store { codec, helped, ..Store::default() }
    }

    /// Loses everything, as a server does that is restarted.
    pub(crate) fn lose_everything(&mut self) {
        self.registers.clear();
        self.announced.clear();
        self.retracted.clear();
    }

    pub(crate) fn state(&self, key: &Name) -> Option<&Arc<State>> {
        self.registers.get(key).and_then(|cell| cell.state.as_ref())
    }

    fn cell(&self, key: &Name) -> Cell {
        self.registers.get(key).cloned().unwrap_or(Cell { state: None, token: Bytes::new() })
    }

    /// Carries out a request, and says what it has changed.
    pub(crate) fn handle(&mut self, request: Request) -> (Reply, Option<Changed>) {
        match request {
            Request::Read { key } => (Reply::Cell(self.cell(&key)), None),
            Request::Write { key, token, state } => {
                self.writes += 1;
                let before = self.cell(&key);
                if token != before.token {
                    self.losses += 1;
                    return (Reply::Written { won: false, cell: before }, None);
                }
                let cell = self.next(&before, state.clone());
                self.registers.insert(key.clone(), cell.clone());
                (Reply::Written { won: true, cell }, Some((key, before.state, state)))
            }
            Request::Announce { key, node } => {
                let is_gone = self.retracted.get(&key).is_some_and(|gone| gone.contains(&node));
                let list = self.announced.entry(key).or_default();
                if !is_gone && !list.contains(&node) {
                    *list = list.iter().cloned().chain([node]).collect();
                }
                (Reply::Done, None)
            }
            Request::Retract { key, nodes } => {
                let list = self.announced.entry(key.clone()).or_default();
                *list = list.iter().filter(|node| !nodes.contains(node)).cloned().collect();
                self.retracted.entry(key).or_default().extend(nodes);
                (Reply::Done, None)
            }
            Request::ReadAnnounced { key } => {
                let announced = self.announced.get(&key).filter(|_| self.helped);
                (Reply::Announced(announced.cloned().unwrap_or_default()), None)
            }
        }
    }

    /// The real token is what was written, so the same state has the same token; and what can't be read back must never
    /// have been written. Without the codec, a number stands for the bytes.
    fn next(&self, before: &Cell, state: Arc<State>) -> Cell {
        let token = if self.codec {
            Bytes::from(pickle::encode(&state, &Limits::default()).expect("what we write reads the same"))
        } else if before.state.as_ref() == Some(&state) {
            before.token.clone()
        } else {
            Bytes::copy_from_slice(&self.writes.to_be_bytes())
        };
        Cell { state: Some(state), token }
    }
}
