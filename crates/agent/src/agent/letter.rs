//! What the agent's threads tell its loop.

use std::sync::mpsc::Sender;

use rallypoint_rendezvous::{NodeDesc, RoundEnd};

use super::snapshot::Snapshot;
use crate::error::Result;
use crate::joining::Formation;
use crate::watching::Sight;

/// Something a thread has seen or done. Where there is a number, it is that of the start it belongs to.
pub(super) enum Letter {
    /// This node is in a round, and waits for its workers' ranks.
    InRound,
    /// It has them, or will not get them.
    Joined(Result<Box<Formation>>),
    /// Something has happened around this node.
    Saw(u32, Sight),
    /// All nodes of the round have reported how many workers they have; these nodes have some.
    WorkingNodes(u32, Vec<NodeDesc>),
    /// No node of the round is known to be lost.
    PeersAlive(u32),
    /// It waits no longer for the others to finish.
    Finished(u32, RoundEnd),
    /// A health check asks for the state of the agent.
    Snapshot(Sender<Snapshot>),
}
