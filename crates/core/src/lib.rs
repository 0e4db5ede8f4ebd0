//! The pure heart of Rallypoint: it decides, and touches nothing.
//!
//! No sockets, files, clocks, randomness, environment or threads are used here; time and seeds come in as arguments.
//! Everything that is hard to get right lives here, because here it can be tested by the million.
//!
//! - [`wire`]: bytes ⇄ requests and replies of the c10d TCPStore protocol
//! - [`store`]: requests → effects, in one total order
//! - [`rendezvous`]: the state that the nodes of a rendezvous share, and its bytes
//! - [`supervise`]: what happens to workers → what is done about it
//! - [`Session`]: one connection's handshake and order
//! - [`Key`], [`Value`], [`Limits`], [`WireError`], [`Refusal`]: what the others speak of

pub mod client;
mod counted;
mod error;
mod key;
mod limits;
pub mod number;
mod quantity;
pub mod record;
pub mod rendezvous;
mod session;
pub mod store;
pub mod supervise;
mod value;
pub mod wire;

pub use counted::counted;
pub use error::{RecordError, Refusal, WireError, printable};
pub use key::Key;
pub use limits::Limits;
pub use quantity::Quantity;
pub use session::{Hold, Session};
pub use value::Value;
