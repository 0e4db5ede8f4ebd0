//! Why a decision was taken. The log, the error message, the live line and the tests all read this one value.

use std::time::Duration;

use super::state::NodeDesc;
use super::terms::Terms;
use crate::{counted, first_few};

/// Why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// This node is not in the round yet.
    #[error("not in round {round} yet")]
    NotJoined {
        /// The round.
        round: u64,
    },
    /// Too few nodes to start a round.
    #[error("{have} of at least {need} nodes are here, {} missing", need.saturating_sub(*have))]
    BelowMinNodes {
        /// How many are here.
        have: u64,
        /// How many must be.
        need: u64,
    },
    /// Enough nodes are here; more may come until the last call is over.
    #[error("{have} of at most {max_nodes} nodes are here, last call for {:.0} s more", left.as_secs_f64().ceil())]
    LastCall {
        /// How many are here.
        have: u64,
        /// How many may be.
        max_nodes: u64,
        /// How long it has to go.
        left: Duration,
        /// The setting that says how long it lasts.
        setting: &'static str,
    },
    /// The last call is over.
    #[error("the last call is over with {}", counted(*have, "node"))]
    LastCallOver {
        /// How many are here.
        have: u64,
    },
    /// As many nodes as may be are here.
    #[error("{}", if *have == 1 { "the only node is here".into() } else { format!("all {have} nodes are here") })]
    Full {
        /// How many.
        have: u64,
    },
    /// This node is in a round that is complete.
    #[error("in round {round} with {}", counted(*world_size, "node"))]
    InRound {
        /// The round.
        round: u64,
        /// Its nodes.
        world_size: u64,
    },
    /// A round is under way without this node; it waits for the next.
    #[error("round {round} is under way with {}; waiting for the next", counted(*have, "node"))]
    RoundUnderWay {
        /// The round.
        round: u64,
        /// Its nodes.
        have: u64,
    },
    /// A full round is under way; this node is a spare.
    #[error("the round is full with {}; standing by as a spare", counted(*have, "node"))]
    Spare {
        /// Its nodes.
        have: u64,
    },
    /// A node left a round before this node had returned from it, so the round is void.
    #[error(
        "round {round} was completed with {} but {} left before this one started",
        counted(*world_size, "node"),
        world_size - have
    )]
    RoundBroken {
        /// The round.
        round: u64,
        /// How many it was completed with.
        world_size: u64,
        /// How many are left.
        have: u64,
    },
    /// This node's own heartbeat is due.
    #[error("the heartbeat is due")]
    HeartbeatDue,
    /// Others have shown no sign of life.
    #[error("no sign of life from {}", names(nodes))]
    Dead {
        /// Who.
        nodes: Vec<NodeDesc>,
    },
    /// This node was dropped by the others: they saw no sign of life from it.
    #[error("the other nodes dropped this one: they saw no heartbeat from it")]
    Dropped,
    /// This node was started with other numbers of nodes than the job's.
    #[error(
        "node {} was started with --nnodes {}, but the job of node {} with --nnodes {}",
        mine.node, mine.nnodes(), theirs.node, theirs.nnodes()
    )]
    TermsConflict {
        /// Those of this node.
        mine: Box<Terms>,
        /// Those of the job.
        theirs: Box<Terms>,
    },
    /// Nodes that need fewer nodes than this one have completed a round with it.
    #[error(
        "round {round} was completed with {} by a node that needs no more, but this node needs {need}",
        counted(*have, "node")
    )]
    TooFewNodes {
        /// The round.
        round: u64,
        /// How many nodes it has.
        have: u64,
        /// How many this node needs.
        need: u64,
    },
    /// The store has lost the round that this node is in.
    #[error("the store has lost the round that this node is in")]
    StateLost,
    /// The rendezvous is closed.
    #[error("the rendezvous {}", by.as_ref().map_or("is closed".into(), |by| format!("was closed by {by}")))]
    Closed {
        /// By whom and when, where that is known.
        by: Option<String>,
    },
    /// The rendezvous is closed, and this node was a spare that was not needed.
    #[error("the rendezvous is closed, and this node was a spare that was not needed")]
    SpareNotNeeded,
    /// The time to join is up.
    #[error(
        "{} of at least {} joined within {} s (join_timeout){}{}",
        participants.len(),
        counted(*need, "node"),
        waited.as_secs(),
        if participants.is_empty() { "" } else { ": " },
        names(participants)
    )]
    JoinTimeout {
        /// Who is here.
        participants: Vec<NodeDesc>,
        /// How many must be.
        need: u64,
        /// How long was waited.
        waited: Duration,
    },
    /// The time to join is up, and the round that was under way when it began still is.
    #[error(
        "round {round} is under way with {}, and no node started over within {} s (join_timeout): {}",
        counted(participants.len(), "node"),
        waited.as_secs(),
        names(participants)
    )]
    NoNextRound {
        /// Who is in it.
        participants: Vec<NodeDesc>,
        /// Which one it is.
        round: u64,
        /// How long was waited.
        waited: Duration,
    },
    /// The time for another operation is up.
    #[error("it took too long")]
    OperationTimeout,
    /// This node leaves.
    #[error("this node leaves")]
    Leaving,
    /// Nothing is to be done.
    #[error("nothing to do")]
    Nothing,
}

impl Reason {
    /// Whether a node that withdraws because of this gives up joining.
    pub(super) fn ends_join(&self) -> bool {
        self.is_join_timeout() || matches!(self, Reason::TermsConflict { .. } | Reason::TooFewNodes { .. })
    }

    /// Whether the time to join is up.
    pub fn is_join_timeout(&self) -> bool {
        matches!(self, Reason::JoinTimeout { .. } | Reason::NoNextRound { .. })
    }
}

/// The first few nodes, and how many more.
pub(super) fn names(nodes: &[NodeDesc]) -> String {
    first_few(nodes.iter().map(|node| format!("{} (pid {})", node.addr, node.pid)))
}
