//! Simulates rendezvous with many nodes, virtual time, one store and faults. Each seed is one deterministic run.
//!
//! The nodes run the real [`Pursuit`](rallypoint_core::rendezvous::Pursuit) and the real
//! [`Supervisor`](rallypoint_core::supervise::Supervisor). The store, the network, the clocks and the workers are
//! simulated. One run of four encodes the states with the real codec.
//!
//! Messages are late or lost, nodes crash, pause, restart or leave, the store has outages, and clocks are wrong, jump
//! and drift. Some runs have nodes that behave like torch's, or a second rendezvous on the same store. Every write is
//! checked against numbered rules. After the faults end, the nodes must form a stable round again.
//!
//! `docs/internals/simulator.md` lists the rules and the faults, and explains the trace.
//!
//! A request to the store fails if its reply takes longer than 3 s. A heartbeat takes two requests, and a third one
//! after a failed compare-and-set. So a heartbeat that is due after 5 s is written within 14 s, before its node counts
//! as dead after 15 s. With slower requests, live nodes could not be distinguished from dead ones.
//!
//! The simulator does not cover the exchange of `MASTER_ADDR` in a round, nor the static rendezvous. The tests of
//! `crates/rendezvous` cover both.

mod check;
mod config;
mod faults;
mod liveness;
mod native;
mod network;
mod node;
mod ours;
mod queue;
mod random;
mod seeds;
mod torch;
mod transition;
mod world;

pub use check::Violation;
pub use config::{Config, Summary};
pub use native::{NativeConfig, NativeSummary, SCENARIOS, Scale, Scenario, run_native, run_scale};
pub use seeds::{first_failure, run_seeds};
pub use world::run;
