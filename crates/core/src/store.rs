//! The store engine: requests in, effects and replies out, in one total order. It never sees frames, sockets or clocks.

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
