//! The rendezvous: nodes find each other through one shared state, and each decides for itself what to do next.
//!
//! Nothing here reads a clock or a store; time and what was read come in as arguments.
//!
//! - [`State`], [`NodeDesc`], [`WallTime`]: the shared state and what it is made of
//! - [`pickle`]: state ⇄ the bytes torch writes; a closed codec that never executes anything
//! - [`cell`]: those bytes ⇄ the value of the store's key
//! - [`keys`]: under which names it lies there
//! - `decide`, `apply`: `(state, node, now) → decision + reason`, and the state after it
//! - [`Terms`]: what the nodes of a job must agree on
//! - [`Outage`]: how long a store may be silent
//! - [`Watch`]: what a node has seen of the others, by its own clock ([`MonoTime`])
//! - [`Membership`]: the nodes around a node, as one value
//! - [`Pursuit`]: one node on its way to one [`Goal`], one [`Operation`] at a time, for a driver that only reads, writes and sleeps

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
pub use membership::{JoinedRound, LossCause, Lost, Membership};
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
