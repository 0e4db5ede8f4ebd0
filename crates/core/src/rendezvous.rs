//! The rendezvous: what its nodes share.
//!
//! Nothing here decides who may join or when a round is complete, and nothing reads a clock or a store.

mod node;
mod state;
mod time;

pub use node::NodeDesc;
pub use state::{Extra, State};
pub use time::WallTime;
