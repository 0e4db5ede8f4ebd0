//! The operations that a driver executes for a node, and their outcomes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::reason::Reason;
use super::state::{NodeDesc, State};
use super::time::{MonoTime, WallTime};

/// The shared state as it was read, with a token for the next compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The state, or `None` before a node has written one.
    pub state: Option<Arc<State>>,
    /// The value that the next compare-and-set expects in the store.
    pub token: Bytes,
}

/// A phase of the rendezvous: one round while it is open, or one round while it is complete. The node that ends a phase
/// signals that to the other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase {
    /// The round.
    pub round: u64,
    /// Whether the round is complete.
    pub complete: bool,
}

impl Phase {
    /// Returns the phase of a state, or `None` if the rendezvous is closed.
    pub fn of(state: &State) -> Option<Phase> {
        (!state.closed).then_some(Phase { round: state.round, complete: state.complete })
    }
}

/// One operation for a driver to execute. Each operation but [`End`](Operation::End) ends with the [`Outcome`] that is
/// named here, or with [`Outcome::Failed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Reads the state. Ends with [`Outcome::Cell`].
    Read,
    /// Announces that this node wants to be in a round, if the backend supports announcements. Ends with
    /// [`Outcome::Done`].
    Announce {
        /// The round.
        round: u64,
    },
    /// Reads which nodes have announced themselves for a round. Ends with [`Outcome::Nodes`].
    ReadAnnounced {
        /// The round.
        round: u64,
    },
    /// Retracts the announcements of some nodes. Ends with [`Outcome::Done`].
    Retract {
        /// The round.
        round: u64,
        /// The nodes.
        nodes: Vec<NodeDesc>,
    },
    /// Writes the state if no other node has written since it was read. Ends with [`Outcome::Written`].
    Write {
        /// The token of the state that was read.
        token: Bytes,
        /// The new state.
        state: Arc<State>,
        /// The signals to send if the write succeeds.
        signals: Vec<Signal>,
    },
    /// Takes over the store, whose host seems to be lost. If this node may not host the store, nothing happens. Ends
    /// with [`Outcome::Done`].
    Host,
    /// Waits. Ends with [`Outcome::Paused`].
    Pause {
        /// The maximum duration of the pause.
        timeout: Duration,
        /// The phase whose end ends the pause early.
        wake: Option<Phase>,
    },
    /// Ends the pursuit.
    End(End),
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The state was read.
    Cell(Cell),
    /// The announcements were read, in the order in which they were made.
    Nodes(Arc<[NodeDesc]>),
    /// The operation has succeeded.
    Done,
    /// The compare-and-set was carried out.
    Written {
        /// Whether the compare-and-set succeeded. If not, another node has written first.
        won: bool,
        /// The state and the token in the store after the compare-and-set.
        cell: Cell,
    },
    /// The pause is over.
    Paused {
        /// Whether a signal ended the pause.
        is_woken: bool,
    },
    /// The operation has failed.
    Failed(Fault),
}

/// A failure of an operation that a node tolerates for some time. After any other failure, the driver ends the pursuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The store did not answer.
    Outage,
    /// The value in the store is not a state.
    Corrupt,
}

/// How a pursuit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The goal is reached.
    Reached {
        /// The state with which the goal was reached, as it was read or written.
        state: Arc<State>,
        /// Why the goal is reached.
        reason: Reason,
    },
    /// The goal can't be reached.
    Failed(Reason),
    /// The operations have failed for this long, which is longer than the node tolerates.
    Outage(Duration),
    /// The last operation failed, and no time is left for another attempt. The driver has the error.
    Error,
}

/// A signal that wakes other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// A phase is over.
    PhaseOver(Phase),
    /// A node waits for the round after this one, a dead node of this round was removed, or the rendezvous was closed.
    NextRoundWanted {
        /// The current round.
        round: u64,
    },
}

/// An event for the driver to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The operations of this node fail.
    Failing {
        /// Why the operations fail.
        fault: Fault,
        /// How long the operations have failed.
        lasted: Duration,
    },
    /// The store answers again after an outage.
    StoreAnswers {
        /// How long the outage lasted.
        lasted: Duration,
    },
    /// This node has become a spare.
    Spare(Reason),
    /// This node has removed dead nodes.
    Removed {
        /// The removed nodes.
        nodes: Vec<NodeDesc>,
        /// The complete round, if there was one.
        round: Option<u64>,
    },
}

/// The current time by two clocks, and a random number.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The time by this node's monotonic clock.
    pub mono: MonoTime,
    /// The time by this node's wall clock, which goes into the state.
    pub wall: WallTime,
    /// A random number, for jitter.
    pub random: u64,
}
