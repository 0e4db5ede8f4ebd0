//! Snapshots of the engine for status reports, the expiry of idle jobs, and tests.

use super::effect::Effect;
use super::map::Map;
use super::queues::Queues;
use crate::value::Value;

/// The state of an engine at one moment. It borrows from the engine.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Snapshot<'a> {
    /// The number of keys.
    pub keys: usize,
    /// The memory of keys, values and queue items, in bytes.
    pub bytes: usize,
    /// The number of items in all queues.
    pub queue_items: usize,
    /// The number of awaited keys. A key counts once for each time that a blocked WAIT names it.
    pub awaited: usize,
    /// The number of clients that are blocked in a WAIT or BARRIER.
    pub blocked: usize,
    pub(super) map: &'a Map,
    pub(super) queues: &'a Queues,
}

impl<'a> Snapshot<'a> {
    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&'a Value> {
        self.map.get(key)
    }

    /// Iterates over effects that turn an empty store into this one. The order of keys and of queues is unspecified,
    /// but the items of a queue are in order.
    pub fn effects(&self) -> impl Iterator<Item = Effect<'a>> + use<'a> {
        let put = self.map.iter().map(|(key, value)| Effect::Put { key, value: (&**value).into() });
        let push = self.queues.iter().map(|(key, item)| Effect::Push { key, item: (&**item).into() });
        put.chain(push)
    }
}
