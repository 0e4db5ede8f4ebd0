//! The native rendezvous of Rallypoint, without IO.

pub mod client;
pub mod coordinator;
pub mod job;
pub mod leader;
pub mod message;
pub mod node;
pub mod plan;
mod process;
pub mod raft_message;
pub mod replica;
pub mod roster;
pub mod service;
pub mod settings;

pub use settings::JobSettings;
