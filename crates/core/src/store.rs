//! The store engine: requests → effects and replies, in one total order.
//!
//! [`Engine`] never sees frames, sockets or clocks. The [hub](crate::hub) connects it to those.

mod barriers;
mod effect;
mod engine;
mod map;
mod queues;
mod snapshot;
mod waiters;

pub use effect::{Effect, EffectLog};
pub use engine::{
    CheckWrite, ClientId, Engine, EngineOptions, Outcome, RESERVED_PREFIX, SERVER_KEY, STORED_KEY, WriteGuard,
};
pub use snapshot::Snapshot;
