//! The supervisor: what a node does with its workers. It is told what happens (workers end, other nodes come, go or fail,
//! signals arrive, time passes) and says what to do: join, start, send signals, tell the others, finish, end.
//!
//! Nothing here starts a process or reads a clock, and nothing is known of files, stores or logs.
//!
//! - [`Event`]: what happened
//! - [`Order`]: what is to be done about it, with its [`Reason`]
//! - [`Reports`]: with a membership of the rendezvous, what is known about the other nodes
//! - [`Supervisor`]: from one to the other
//! - [`Ladder`]: how one worker is ended: a signal, its own grace, SIGKILL

mod event;
mod ladder;
mod order;
mod peers;
mod policy;
mod supervisor;

pub use event::{Event, Exit, LocalRank, Obstacle, Signal};
pub use ladder::Ladder;
pub use order::{News, Order, Parting, Reason, Target, Verdict};
pub use peers::Reports;
pub use policy::Policy;
pub use supervisor::Supervisor;
