//! The store engine: requests in, effects out, in one total order. It never sees bytes of the wire, sockets or clocks.

mod barriers;
mod engine;
mod gone;
mod jobs;
mod listing;
mod map;
mod queues;
mod snapshot;
mod waiters;

pub use engine::{ClientId, Engine, ExpiredJob, Next, Output, RESERVED_PREFIX, SERVER_KEY, STORED_KEY};
pub use listing::Listing;
pub use snapshot::{Snapshot, Waiting};
