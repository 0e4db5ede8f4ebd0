//! The decisions of Rallypoint, without IO.
//!
//! This crate uses no sockets, files, clocks, randomness, environment or threads; time and seeds are arguments. Everything that
//! is hard to get right lives here, because here it can be tested by the million.
//!
//! - [`wire`]: bytes ⇄ requests and replies of the c10d TCPStore protocol
//! - [`store`]: requests → effects and replies, in one total order
//! - [`hub`]: a whole store server without IO: sessions, fair turns, limits and deadlines around the store
//! - [`client`]: one call on its way: what to send, retry, failover, server identity
//! - [`rendezvous`]: the state that the nodes of a rendezvous share, and its bytes
//! - [`supervise`]: what happens to workers → what is done about it
//! - [`Key`], [`Value`], [`Limits`], [`WireError`], [`Refusal`]: what the others share

pub mod client;
mod counted;
mod error;
pub mod hub;
mod key;
mod limits;
pub mod number;
mod quantity;
pub mod record;
pub mod rendezvous;
pub mod store;
pub mod supervise;
mod value;
pub mod wire;

pub use counted::{counted, first_few};
pub use error::{Refusal, WireError, printable};
pub use key::Key;
pub use limits::Limits;
pub use quantity::Quantity;

pub use value::Value;
