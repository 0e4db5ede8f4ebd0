//! The supervisor decides what a node does with its workers.
//!
//! Its inputs are events (such as the exit of a worker or the arrival of a signal), the membership of the rendezvous,
//! and the time. Its outputs are orders to the agent, such as: join, start workers, send signals, wait at the exit
//! barrier, end the run. This module starts no process and reads no clock, file or store.
//!
//! - [`Event`]: something that happened
//! - [`Reports`]: what the nodes of the round have reported. Together with a membership, the reports show whether a
//!   lost node had finished
//! - [`Order`]: an instruction to the agent, with its [`Reason`]
//! - [`Supervisor`]: turns events into orders

mod event;
mod order;
mod peers;
mod process;
mod supervisor;

pub use event::{Event, Exit, LocalRank, Signal};
pub use order::{OnEnd, Order, Reason, Target, Verdict};
pub use peers::Reports;
pub use supervisor::{Policy, Supervisor};
