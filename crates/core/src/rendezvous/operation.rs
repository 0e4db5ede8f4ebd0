//! What a driver does for a node and what it reports back. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::reason::Reason;
use super::state::{NodeDesc, State};
use super::time::{MonoTime, WallTime};

/// The shared state as it was read, and what a write must find unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The state; `None` before a node has written one.
    pub state: Option<Arc<State>>,
    /// What to compare with.
    pub token: Bytes,
}

/// A stretch of the rendezvous' life: a round that is open, or one that is complete. The node that ends it tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase {
    /// The round.
    pub round: u64,
    /// Whether it is complete.
    pub complete: bool,
}

impl Phase {
    /// The phase of a state; `None` once it is closed.
    pub fn of(state: &State) -> Option<Phase> {
        (!state.closed).then_some(Phase { round: state.round, complete: state.complete })
    }
}

/// One operation for a driver to execute. Each ends with one [`Outcome`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Read the state: [`Outcome::Cell`].
    Read,
    /// Announce that this node wants to be in a round, if the store has a place for that: [`Outcome::Done`].
    Announce {
        /// The round.
        round: u64,
    },
    /// Read which nodes have announced themselves for a round: [`Outcome::Nodes`].
    ReadAnnounced {
        /// The round.
        round: u64,
    },
    /// Take back the announcements of these nodes: [`Outcome::Done`].
    Retract {
        /// The round.
        round: u64,
        /// The nodes.
        nodes: Vec<NodeDesc>,
    },
    /// Write the state if no other node has written since: [`Outcome::Written`].
    Write {
        /// What must be there.
        token: Bytes,
        /// The new state.
        state: Arc<State>,
        /// The signals to send if the write wins.
        signals: Vec<Signal>,
    },
    /// Host the store if this node may, because its host seems to be gone: [`Outcome::Done`].
    Host,
    /// Wait: [`Outcome::Paused`].
    Pause {
        /// For how long at most.
        timeout: Duration,
        /// The phase whose end ends the pause.
        wake: Option<Phase>,
    },
    /// Nothing more is to be done.
    End(End),
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The state was read.
    Cell(Cell),
    /// The announcements were read, in the order in which they were made.
    Nodes(Arc<[NodeDesc]>),
    /// The operation has succeeded.
    Done,
    /// The write has won, or lost to another one.
    Written {
        /// Whether it has won.
        won: bool,
        /// What is there now.
        cell: Cell,
    },
    /// The pause is over.
    Paused {
        /// Whether a signal ended it.
        is_woken: bool,
    },
    /// The operation has failed.
    Failed(Fault),
}

/// Why an operation failed. An error of any other kind ends the pursuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The store did not answer.
    Outage,
    /// What is in the store can't be read as a state.
    Corrupt,
}

/// How a pursuit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The goal is reached.
    Reached {
        /// The state as it was read or written then.
        state: Arc<State>,
        /// Why the goal is reached.
        reason: Reason,
    },
    /// The goal can't be reached.
    Failed(Reason),
    /// The fault of the last operation has lasted for this long, which is longer than the node tolerates.
    Outage(Duration),
    /// The error of the last operation is final.
    Error,
}

/// Something to wake other nodes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// A phase is over.
    PhaseOver(Phase),
    /// A node wants to be in the round after this one, or a node of this one is lost.
    NextRoundWanted {
        /// The round under way.
        round: u64,
    },
}

/// Something to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The operations of this node fail.
    Failing {
        /// Why.
        fault: Fault,
        /// For how long they have failed.
        lasted: Duration,
    },
    /// The store answers again.
    StoreAnswers {
        /// How long the outage lasted.
        lasted: Duration,
    },
    /// This node has become a spare.
    Spare(Reason),
    /// This node has removed nodes that sent no heartbeat.
    Removed {
        /// The nodes.
        nodes: Vec<NodeDesc>,
        /// The complete round that was under way.
        round: Option<u64>,
    },
}

/// The time at which an outcome is handled, and a random number.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// By this node's own clock.
    pub mono: MonoTime,
    /// By the clock that other nodes see.
    pub wall: WallTime,
    /// Any number, for jitter.
    pub random: u64,
}
