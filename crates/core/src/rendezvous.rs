//! The dynamic rendezvous: nodes agree on members and group ranks through one shared state. Each node reads the state
//! and decides for itself what to write.
//!
//! This module accesses no clock and no store. The caller passes in the time, and the state that it has read.
//!
//! - [`State`], [`NodeDesc`], [`WallTime`]: the shared state and its parts
//! - [`pickle`]: converts between a state and a pickle that torch can read. The codec executes nothing that it reads
//! - [`cell`]: converts between that pickle and the value in the store, which is its base64
//! - [`keys`]: the keys of a rendezvous in the store
//! - `decide`, `apply`: `(state, node, now) → decision + reason`, and the state that follows from the decision
//! - [`Terms`]: `--nnodes`, which all nodes of a job must agree on, and the launch options
//! - [`Outage`]: how long a node tolerates a store that does not answer
//! - [`Watch`]: the heartbeats that one node has observed, by its own clock ([`MonoTime`])
//! - [`Membership`]: what one node knows about the members of its round
//! - [`Pursuit`]: one node's attempt to reach one [`Goal`]. It returns one [`Operation`] at a time to a driver, which
//!   reads, writes and sleeps

mod apply;
pub mod cell;
mod decide;
pub mod keys;
mod lists;
mod member;
mod membership;
mod operation;
mod outage;
pub mod pickle;
mod pursuit;
mod reason;
mod settings;
mod state;
mod terms;
mod time;
mod watch;

#[cfg(test)]
mod tests;

pub use decide::{Goal, WITHDRAW_GRACE};
pub use member::{CALL_TIMEOUT, Member};
pub use membership::{EndCause, JoinedRound, LossCause, Lost, Membership};
pub use operation::{Cell, End, Fault, Moment, Notice, Operation, Outcome, Phase, Signal};
pub use outage::Outage;
pub use pickle::StateError;
pub use pursuit::{POLL_INTERVAL, Pursuit};
pub use reason::Reason;
pub use settings::Settings;
pub use state::{Extra, NodeDesc, State};
pub use terms::{Launch, Terms};
pub use time::{MonoTime, WallTime};
pub use watch::Watch;
