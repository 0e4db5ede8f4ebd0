//! The reason for a decision, as one value from which log lines, error messages and the live line on a terminal are
//! formatted.

use std::time::Duration;

use super::state::NodeDesc;
use super::terms::Terms;
use crate::{counted, first_few};

/// The reason for a decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// This node is not in the round yet.
    #[error("not in round {round} yet")]
    NotJoined {
        /// The round.
        round: u64,
    },
    /// Fewer than `min_nodes` nodes have joined the round.
    #[error("{have} of at least {need} nodes have joined, {} missing", need.saturating_sub(*have))]
    BelowMinNodes {
        /// The number of participants.
        have: u64,
        /// The minimum number of nodes.
        need: u64,
    },
    /// Enough nodes have joined. More may join until the last call is over.
    #[error("{have} of at most {max_nodes} nodes have joined, last call ends in {:.0} s", left.as_secs_f64().ceil())]
    LastCall {
        /// The number of participants.
        have: u64,
        /// The maximum number of nodes.
        max_nodes: u64,
        /// The time until the last call is over.
        left: Duration,
        /// The setting with the duration of the last call.
        setting: &'static str,
    },
    /// The last call is over.
    #[error("the last call is over with {}", counted(*have, "node"))]
    LastCallOver {
        /// The number of participants.
        have: u64,
    },
    /// The round has `max_nodes` nodes.
    #[error("{}", if *have == 1 { "the only node has joined".into() } else { format!("all {have} nodes have joined") })]
    Full {
        /// The number of participants.
        have: u64,
    },
    /// This node is in a round that is complete.
    #[error("in round {round} with {}", counted(*world_size, "node"))]
    InRound {
        /// The round.
        round: u64,
        /// The number of nodes that the round was completed with.
        world_size: u64,
    },
    /// A round is complete without this node, which waits for the next one.
    #[error("round {round} is under way with {}; waiting for the next round", counted(*have, "node"))]
    RoundUnderWay {
        /// The round.
        round: u64,
        /// The number of its participants.
        have: u64,
    },
    /// The round is full, and this node is a spare.
    #[error("the round is full with {}; standing by as a spare", counted(*have, "node"))]
    Spare {
        /// The number of participants.
        have: u64,
    },
    /// A node left the complete round before this node's join finished, so this node can't use the round.
    #[error(
        "round {round} was completed with {world_size} nodes, but only {have} remained when this node started"
    )]
    RoundBroken {
        /// The round.
        round: u64,
        /// The number of nodes that the round was completed with.
        world_size: u64,
        /// The number of nodes that are still in the round.
        have: u64,
    },
    /// The heartbeat of this node is due.
    #[error("the heartbeat is due")]
    HeartbeatDue,
    /// Other nodes are dead.
    #[error("no heartbeat from {}", names(nodes))]
    Dead {
        /// The dead nodes.
        nodes: Vec<NodeDesc>,
    },
    /// The other nodes dropped this one, because they saw no heartbeat from it.
    #[error("the other nodes dropped this one: they saw no heartbeat from it")]
    Dropped,
    /// The `--nnodes` of this node differs from the one that the job was started with.
    #[error(
        "node {} was started with --nnodes {}, but node {} started the job with --nnodes {}",
        mine.node, mine.nnodes(), theirs.node, theirs.nnodes()
    )]
    TermsConflict {
        /// The terms of this node.
        mine: Box<Terms>,
        /// The terms of the job.
        theirs: Box<Terms>,
    },
    /// A node whose `min_nodes` is smaller than that of this node has completed the round with too few nodes.
    #[error("round {round} was completed with {}, but this node needs at least {need}", counted(*have, "node"))]
    TooFewNodes {
        /// The round.
        round: u64,
        /// The number of its nodes.
        have: u64,
        /// The minimum number of nodes by the settings of this node.
        need: u64,
    },
    /// The store has lost the round that this node is in.
    #[error("the store has lost the round that this node is in")]
    StateLost,
    /// The rendezvous is closed.
    #[error("the rendezvous {}", by.as_ref().map_or("is closed".into(), |by| format!("was closed by {by}")))]
    Closed {
        /// Which node closed the rendezvous, and when, if known.
        by: Option<String>,
    },
    /// The rendezvous is closed, and this node was a spare that was not needed.
    #[error("the rendezvous is closed, and this node was a spare that was not needed")]
    SpareNotNeeded,
    /// The join timeout passed while the round was open.
    #[error(
        "{} of at least {} joined within {} s (join_timeout){}{}",
        participants.len(),
        counted(*need, "node"),
        waited.as_secs(),
        if participants.is_empty() { "" } else { ": " },
        names(participants)
    )]
    JoinTimeout {
        /// The participants of the round.
        participants: Vec<NodeDesc>,
        /// The minimum number of nodes.
        need: u64,
        /// How long this node waited.
        waited: Duration,
    },
    /// The join timeout passed while a complete round was under way.
    #[error(
        "round {round} is under way with {} and did not re-form within {} s (join_timeout): {}",
        counted(participants.len(), "node"),
        waited.as_secs(),
        names(participants)
    )]
    NoNextRound {
        /// The participants of the round.
        participants: Vec<NodeDesc>,
        /// The round.
        round: u64,
        /// How long this node waited.
        waited: Duration,
    },
    /// This node did not reach its goal, which was not to join, within the timeout of that goal.
    #[error("the timeout expired")]
    OperationTimeout,
    /// This node leaves its round or the rendezvous, or closes the rendezvous.
    #[error("this node leaves")]
    Leaving,
    /// There is nothing to do.
    #[error("nothing to do")]
    Nothing,
}

impl Reason {
    /// Returns whether a node that withdraws for this reason gives up its join. For other reasons, it tries to join the
    /// next round.
    pub(super) fn ends_join(&self) -> bool {
        self.is_join_timeout() || matches!(self, Reason::TermsConflict { .. } | Reason::TooFewNodes { .. })
    }

    /// Returns whether the join timeout has passed.
    pub fn is_join_timeout(&self) -> bool {
        matches!(self, Reason::JoinTimeout { .. } | Reason::NoNextRound { .. })
    }
}

/// Returns the addresses and process ids of the first few nodes, and the number of the other nodes.
pub(super) fn names(nodes: &[NodeDesc]) -> String {
    first_few(nodes.iter().map(|node| format!("{} (pid {})", node.addr, node.pid)))
}
