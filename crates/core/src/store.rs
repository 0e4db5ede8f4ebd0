//! The store engine: requests → effects and replies, in one total order.
//!
//! [`Engine`] has no frames, sockets or clocks. The [hub](crate::hub) decodes frames for it, and a driver of the hub
//! owns the sockets and the clock.

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
