//! The rendezvous: what its nodes share, and the bytes in which torch's nodes and ours share it.
//!
//! Nothing here decides who may join or when a round is complete, and nothing reads a clock or a store.
//!
//! - [`State`], [`NodeDesc`], [`WallTime`]: the shared state and what it is made of
//! - [`pickle`]: state ⇄ the bytes torch writes; a closed codec that never executes anything
//! - [`cell`]: those bytes ⇄ the value of the store's key

pub mod cell;
mod error;
mod node;
pub mod pickle;
mod state;
mod time;

pub use error::StateError;
pub use node::NodeDesc;
pub use state::{Extra, State};
pub use time::WallTime;
