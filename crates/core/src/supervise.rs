//! The supervisor: what a node does with its workers. It is told what happens (workers end, other nodes come, go or fail,
//! signals arrive, time passes) and orders what to do: join, start, send signals, tell the other nodes, finish, end.
//!
//! Nothing here starts a process or reads a clock, and nothing is known of files, stores or logs.
//!
//! - [`Event`]: what happened
//! - [`Reports`]: with a membership of the rendezvous, what is known about the other nodes
//! - [`Order`]: what is to be done about it, with its [`Reason`]
//! - [`Supervisor`]: from one to the other

mod event;
mod order;
mod peers;
mod process;
mod supervisor;

pub use event::{Event, Exit, LocalRank, Signal};
pub use order::{OnEnd, Order, Reason, Target, Verdict};
pub use peers::Reports;
pub use supervisor::{Policy, Supervisor};
