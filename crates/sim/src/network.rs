//! The simulated store: states with compare-and-set, and lists of announcements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{Cell, NodeDesc, State, pickle};

/// A key of the store.
pub(crate) type Key = Arc<str>;

/// A request of a node to the store.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Read { key: Key },
    Write { key: Key, token: Bytes, state: Arc<State> },
    Announce { key: Key, node: NodeDesc },
    Retract { key: Key, nodes: Vec<NodeDesc> },
    ReadAnnounced { key: Key },
}

/// A reply of the store.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Cell(Cell),
    Written { won: bool, cell: Cell },
    Done,
    Announced(Arc<[NodeDesc]>),
}

/// A successful compare-and-set: the key, the state before it, and the state after it.
pub(crate) type Change = (Key, Option<Arc<State>>, Arc<State>);

/// The simulated store.
#[derive(Debug, Default)]
pub(crate) struct Store {
    cells: BTreeMap<Key, Cell>,
    announcements: BTreeMap<Key, Arc<[NodeDesc]>>,
    /// The nodes whose announcements were retracted, by key. They can't be announced again under the same key.
    retracted: BTreeMap<Key, BTreeSet<NodeDesc>>,
    /// Whether tokens are encoded states. If not, they are numbers.
    uses_codec: bool,
    /// Whether nodes can read announcements. If not, every node reads an empty list.
    has_announcements: bool,
    /// The number of compare-and-sets, including those that failed.
    pub(crate) writes: u64,
    /// The number of compare-and-sets that failed.
    pub(crate) failed_writes: u64,
}

impl Store {
    pub(crate) fn new(uses_codec: bool, has_announcements: bool) -> Store {
        Store { uses_codec, has_announcements, ..Store::default() }
    }

    /// Deletes everything, as a restart of the server does.
    pub(crate) fn clear(&mut self) {
        self.cells.clear();
        self.announcements.clear();
        self.retracted.clear();
    }

    pub(crate) fn state(&self, key: &Key) -> Option<&Arc<State>> {
        self.cells.get(key).and_then(|cell| cell.state.as_ref())
    }

    fn cell(&self, key: &Key) -> Cell {
        self.cells.get(key).cloned().unwrap_or(Cell { state: None, token: Bytes::new() })
    }

    /// Carries out a request. Returns the reply, and the change if the request was a compare-and-set that succeeded.
    pub(crate) fn handle(&mut self, request: Request) -> (Reply, Option<Change>) {
        match request {
            Request::Read { key } => (Reply::Cell(self.cell(&key)), None),
            Request::Write { key, token, state } => {
                self.writes += 1;
                let before = self.cell(&key);
                if token != before.token {
                    self.failed_writes += 1;
                    return (Reply::Written { won: false, cell: before }, None);
                }
                let cell = self.next_cell(&before, state.clone());
                self.cells.insert(key.clone(), cell.clone());
                (Reply::Written { won: true, cell }, Some((key, before.state, state)))
            }
            Request::Announce { key, node } => {
                let is_retracted = self.retracted.get(&key).is_some_and(|nodes| nodes.contains(&node));
                let list = self.announcements.entry(key).or_default();
                if !is_retracted && !list.contains(&node) {
                    *list = list.iter().cloned().chain([node]).collect();
                }
                (Reply::Done, None)
            }
            Request::Retract { key, nodes } => {
                let list = self.announcements.entry(key.clone()).or_default();
                *list = list.iter().filter(|node| !nodes.contains(node)).cloned().collect();
                self.retracted.entry(key).or_default().extend(nodes);
                (Reply::Done, None)
            }
            Request::ReadAnnounced { key } => {
                let announcements = self.announcements.get(&key).filter(|_| self.has_announcements);
                (Reply::Announced(announcements.cloned().unwrap_or_default()), None)
            }
        }
    }

    /// Returns the cell after `state` has replaced `before`.
    ///
    /// With the codec, the token of a cell is its encoded state, so equal states have equal tokens. Without the codec,
    /// the token is a number that changes whenever the state changes.
    fn next_cell(&self, before: &Cell, state: Arc<State>) -> Cell {
        let token = if self.uses_codec {
            Bytes::from(
                pickle::encode(&state, &Limits::default()).expect("every written state can be encoded"),
            )
        } else if before.state.as_ref() == Some(&state) {
            before.token.clone()
        } else {
            Bytes::copy_from_slice(&self.writes.to_be_bytes())
        };
        Cell { state: Some(state), token }
    }
}
