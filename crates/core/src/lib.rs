//! The decision logic of Rallypoint, without IO.
//!
//! This crate uses no sockets, files, clocks, randomness, environment variables or threads. Callers pass in bytes, the
//! time and seeds, and carry out the actions that the crate returns. Every decision can therefore be tested in memory
//! and in virtual time.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | The codec of the c10d TCPStore protocol: bytes ⇄ requests and replies. |
//! | [`store`] | The store engine: requests → effects and replies, in one total order. |
//! | [`hub`] | A complete store server: connections, turns, limits and deadlines around the engine. |
//! | [`client`] | A store client: retries, deadlines, cancellation and the identity of the server. |
//! | [`rendezvous`] | The dynamic rendezvous: the shared state and its codec, and what one node does next. |
//! | [`supervise`] | The supervisor: worker exits and cluster membership → orders for the agent. |
//! | [`record`] | The records of a FileStore's file. |
//! | [`number`] | The parser of decimal numbers in stored values. |
//!
//! The modules share [`Key`], [`Value`], [`Limits`], [`WireError`] and [`Refusal`].
//!
//! # Examples
//!
//! One client waits for a key, and a second client sets it:
//!
//! ```
//! use rallypoint_core::store::{ClientId, Engine, EngineOptions, Outcome};
//! use rallypoint_core::wire::{KeyList, Request};
//!
//! let mut engine = Engine::new(EngineOptions::default(), ());
//! let (waiter, writer) = (ClientId::new(0), ClientId::new(1));
//!
//! let wait = Request::Wait { keys: KeyList::new(&[b"/ready"]) };
//! assert_eq!(engine.handle_request(waiter, wait), Ok(Outcome::Blocked));
//!
//! let set = Request::Set { key: b"/ready", value: b"1".into() };
//! assert_eq!(engine.handle_request(writer, set), Ok(Outcome::NoReply));
//! assert_eq!(engine.poll_woken(), Some(waiter));
//! ```
//!
//! [`hub`] has an example with the bytes of a connection.

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
