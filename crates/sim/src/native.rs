//! Simulates the native rendezvous: agents, guards, hubs, Raft and the coordinator in one thread. Each seed is one run.
//!
//! Each process is a real [`Hub`](rallypoint_core::hub::Hub) with the real
//! [`Service`](rallypoint_coordinator::service::Service), and exchanges bytes with other processes. Each agent has the
//! real [`Supervisor`](rallypoint_core::supervise::Supervisor). Machines, clocks, connections, guards, workers and the
//! stores of rounds are simulated.
//!
//! - `network`: connections, latency, packet loss, and links that are cut
//! - `host`: the event loop of a process, like the one in `crates/store`
//! - `agent`: an agent, like the one in `crates/agent`, with what its rendezvous handler knows
//! - `worker`: the processes of workers, and the guard that kills them at the end of a lease
//! - `operator`: commands of operators
//! - `faults`: random faults, and the end of all faults
//! - `rules`: the rules N1 to N10; `recovery` has the rules about the time after the faults
//! - `scenario`: the scenarios of named tests
//!
//! `docs/internals/simulator.md` lists the rules and the faults.

mod agent;
mod config;
mod faults;
mod host;
mod network;
mod operator;
mod recovery;
mod rules;
mod scale;
mod scenario;
mod worker;
mod world;

pub use config::{NativeConfig, NativeSummary};
pub use scale::{Scale, run_scale};
pub use scenario::{SCENARIOS, Scenario};
pub use world::run_native;
