//! The hub in memory with a fixed number of clients, and a replica that receives its effects.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rallypoint_core::Limits;
use rallypoint_core::hub::{ConnectionId, HubOptions};
use rallypoint_core::store::{Effect, EffectLog, Engine, EngineOptions, Snapshot};
use rallypoint_core::wire::{MAGIC, Request};

use crate::loopback::Loopback;

/// An engine that applies every effect of another engine.
#[derive(Clone)]
struct Replica(Rc<RefCell<Engine>>);

impl Replica {
    /// Creates an engine with the contents of a snapshot, or an empty engine if `snapshot` is `None`.
    fn from_snapshot(snapshot: Option<Snapshot<'_>>) -> Engine {
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

/// All stored data: keys with values, and queues with items.
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

/// A hub with one connection per slot, and its replica.
pub(crate) struct Server {
    net: Loopback<Replica>,
    replica: Replica,
    slots: Vec<Option<ConnectionId>>,
    /// The number of checks so far. Every 7th check restores the replica from a snapshot.
    checks: usize,
}

/// The first request of every connection.
pub(crate) fn validate() -> Vec<u8> {
    let mut bytes = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut bytes);
    bytes
}

impl Server {
    pub(crate) fn new(mut limits: Limits, slots: usize, seed: u64) -> Server {
        // All clients have the same address, which must not be refused for its violations.
        limits.violations_per_second = u32::MAX;
        let identity = crate::model::IDENTITY.to_vec();
        let options = HubOptions { limits, seed, identity, expire_idle_jobs: None };
        let replica = Replica(Rc::new(RefCell::new(Replica::from_snapshot(None))));
        let net = Loopback::new(options, replica.clone());
        Server { net, replica, slots: vec![None; slots], checks: 0 }
    }

    /// Opens a connection in a slot.
    pub(crate) fn connect(&mut self, slot: usize) {
        assert!(!self.is_open(slot));
        self.slots[slot] = self.net.open();
    }

    /// Sends bytes over the connection of a slot.
    pub(crate) fn deliver(&mut self, slot: usize, bytes: &[u8]) {
        if let Some(id) = self.slots[slot] {
            self.net.send(id, bytes);
        }
        self.check();
    }

    /// Makes the connection of a slot fail.
    pub(crate) fn disconnect(&mut self, slot: usize) {
        if let Some(id) = self.slots[slot] {
            self.net.fail(id);
        }
        self.check();
    }

    /// Checks that the last snapshot plus the effects since then equals the stored data, and checks the hub's
    /// invariants.
    fn check(&mut self) {
        self.net.hub.check_invariants();
        let contents_of_hub = contents(self.net.hub.snapshot());
        assert_eq!(contents(self.replica.0.borrow().snapshot()), contents_of_hub, "the replica differs");
        self.checks += 1;
        if self.checks.is_multiple_of(7) {
            *self.replica.0.borrow_mut() = Replica::from_snapshot(Some(self.net.hub.snapshot()));
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

    /// Removes and returns the bytes received over the newest connection of a slot.
    pub(crate) fn take_replies(&mut self, slot: usize) -> Vec<u8> {
        self.slots[slot].map(|id| self.net.take_received(id)).unwrap_or_default()
    }
}
