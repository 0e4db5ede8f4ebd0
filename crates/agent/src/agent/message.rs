//! Messages of the agent's threads to its loop.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use rallypoint_rendezvous::{NodeDesc, RoundEnd};

use super::snapshot::Snapshot;
use crate::error::Result;
use crate::formation::Formation;
use crate::round_watch::Observation;

/// Something a thread has seen or done. Where there is a number, it is that of the start it belongs to.
pub(super) enum Message {
    /// This node knows its workers' ranks, or the join failed.
    Joined(Result<Arc<Formation>>),
    /// Something was observed of the other nodes.
    Observed(u32, Observation),
    /// All nodes of the round have reported how many workers they have; these nodes have some.
    WorkingNodes(u32, Vec<NodeDesc>),
    /// No node of the round is known to be lost.
    PeersAlive(u32),
    /// This node waits no longer for the other nodes to finish.
    Finished(u32, RoundEnd),
    /// A health check asks for the state of the agent.
    Snapshot(Sender<Snapshot>),
}
