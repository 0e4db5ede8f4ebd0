//! The hub in memory, with a fixed number of clients, beside an engine that receives only effects.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rallypoint_core::Limits;
use rallypoint_core::hub::{ConnectionId, HubOptions};
use rallypoint_core::store::{Effect, EffectLog, Engine, EngineOptions, Snapshot};
use rallypoint_core::wire::{MAGIC, Request};

use crate::loopback::Loopback;

/// An engine that gets every effect that another engine decides.
#[derive(Clone)]
struct Replica(Rc<RefCell<Engine>>);

impl Replica {
    fn of(snapshot: Option<Snapshot<'_>>) -> Engine {
        let mut engine = Engine::new(EngineOptions::default(), ());
        snapshot.iter().flat_map(Snapshot::effects).for_each(|effect| engine.apply(effect));
        engine
    }
}

impl EffectLog for Replica {
    fn record(&mut self, effect: &Effect<'_>) {
        self.0.borrow_mut().apply(*effect);
    }
}

/// All that is stored: keys with values, and queues with items.
pub(crate) type Contents = (BTreeMap<Vec<u8>, Vec<u8>>, BTreeMap<Vec<u8>, Vec<Vec<u8>>>);

fn contents(snapshot: Snapshot<'_>) -> Contents {
    let mut contents = Contents::default();
    for effect in snapshot.effects() {
        match effect {
            Effect::Put { key, value } => {
                contents.0.insert(key.to_vec(), value.bytes().to_vec());
            }
            Effect::Push { key, item } => {
                contents.1.entry(key.to_vec()).or_default().push(item.bytes().to_vec())
            }
            other => panic!("{other:?} in a snapshot"),
        }
    }
    contents
}

pub(crate) struct Server {
    net: Loopback<Replica>,
    replica: Replica,
    slots: Vec<Option<ConnectionId>>,
    /// Counts pieces, to restore the replica from a snapshot now and then.
    pieces: usize,
}

/// The first request of every connection.
pub(crate) fn validate() -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut bytes);
    bytes
}

impl Server {
    pub(crate) fn new(mut limits: Limits, slots: usize, seed: u64) -> Server {
        // All clients have the same address.
        limits.offences_per_second = u32::MAX;
        let identity = crate::model::IDENTITY.to_vec();
        let options = HubOptions { limits, seed, identity, expire_idle_jobs: None };
        let replica = Replica(Rc::new(RefCell::new(Replica::of(None))));
        let net = Loopback::new(options, replica.clone());
        Server { net, replica, slots: vec![None; slots], pieces: 0 }
    }

    /// Opens a new connection in this slot.
    pub(crate) fn connect(&mut self, slot: usize) {
        assert!(!self.is_open(slot));
        self.slots[slot] = self.net.open();
    }

    /// Delivers bytes.
    pub(crate) fn deliver(&mut self, slot: usize, bytes: &[u8]) {
        if let Some(id) = self.slots[slot] {
            self.net.send(id, bytes);
        }
        self.check();
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&mut self, slot: usize) {
        if let Some(id) = self.slots[slot] {
            self.net.fail(id);
        }
        self.check();
    }

    /// A snapshot with the effects since then is the state after every step.
    fn check(&mut self) {
        self.net.hub.check_invariants();
        let contents_of_hub = contents(self.net.hub.snapshot());
        assert_eq!(contents(self.replica.0.borrow().snapshot()), contents_of_hub, "the replica");
        self.pieces += 1;
        if self.pieces.is_multiple_of(7) {
            *self.replica.0.borrow_mut() = Replica::of(Some(self.net.hub.snapshot()));
        }
    }

    pub(crate) fn is_open(&self, slot: usize) -> bool {
        self.slots[slot].is_some_and(|id| self.net.is_open(id))
    }

    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        self.net.hub.snapshot()
    }

    pub(crate) fn contents(&self) -> Contents {
        contents(self.net.hub.snapshot())
    }

    /// Takes what was answered over the newest connection of this slot.
    pub(crate) fn take_replies(&mut self, slot: usize) -> Vec<u8> {
        self.slots[slot].map(|id| self.net.take_received(id)).unwrap_or_default()
    }
}
