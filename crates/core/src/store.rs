//! The store engine: requests in, effects out, in one total order. It never sees bytes of the wire, sockets or clocks.

mod barriers;
mod engine;
mod map;
mod queues;
mod snapshot;
mod waiters;

pub use engine::{ClientId, Engine, Output, RESERVED_PREFIX, SERVER_KEY, STORED_KEY};
pub use snapshot::{Snapshot, Waiting};
