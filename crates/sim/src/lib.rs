//! Many nodes, virtual time, one shared register, and everything that can go wrong between them. One seed is one run.
//!
//! The nodes are the real ones: [`rallypoint_core::rendezvous::Pursuit`] with its decisions and its codec, and
//! [`rallypoint_core::supervise::Supervisor`]. What is simulated is the store, the workers and the world: messages that are late or lost, compare-and-sets lost, nodes that crash, pause,
//! come back or leave, and clocks that are an hour off, jump and drift; in some runs also nodes that do as torch's do, and
//! a second rendezvous on the same store. After each step the invariants are checked; then the faults end, and the nodes
//! must find together again.
//!
//! An operation on the store takes three seconds here at most, or has failed: a heartbeat takes two, and a third if another
//! write comes in between, so slower ones could not be told from a dead node's. Where the workers of a round meet (a part of
//! R1), and the static rendezvous, are not simulated: the tests of `crates/rendezvous` have them.

mod check;
mod config;
mod faults;
mod liveness;
mod network;
mod node;
mod ours;
mod random;
mod torch;
mod transition;
mod world;

pub use check::Violation;
pub use config::{Config, Summary};
pub use world::run;
