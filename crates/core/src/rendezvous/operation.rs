//! What a driver does for a node and what it reports back. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::mono::MonoTime;
use super::node::NodeDesc;
use super::reason::Reason;
use super::state::State;
use super::step::{Cell, End, Phase};
use super::time::WallTime;

/// One operation for a driver to execute. Each ends with one [`Outcome`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Read the state: [`Outcome::Cell`].
    Read,
    /// Announce that this node wants to be in a round: [`Outcome::Announced`].
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
        most: Duration,
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
    /// The announcement was made, or the store has no place for announcements.
    Announced {
        /// Whether it was made.
        is_supported: bool,
    },
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
    /// The state can't be read, or can't be written.
    Corrupt,
}

/// Something to wake other nodes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Signal {
    /// A phase is over.
    Over(Phase),
    /// A node wants to be in the round after this one, or a node of this one is lost.
    Wanted {
        /// The round under way.
        round: u64,
    },
}

/// Something to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The store has not answered for this long.
    StoreSilent {
        /// How long.
        lasted: Duration,
    },
    /// The store answers again.
    StoreAnswers {
        /// How long the outage lasted.
        lasted: Duration,
    },
    /// The state can't be read. It is read again for [`Pursuit::CORRUPT_TIMEOUT`](super::Pursuit::CORRUPT_TIMEOUT).
    StateUnreadable,
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
