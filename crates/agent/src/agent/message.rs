//! Messages from the agent's threads to its loop.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use rallypoint_rendezvous::{NodeDesc, RoundEnd};

use super::snapshot::Snapshot;
use crate::error::Result;
use crate::formation::Formation;
use crate::round_watch::Observation;

/// A message to the loop. The `u32` in a message is the value of `Agent::starts` when the sending thread was started.
/// The loop discards messages of earlier starts.
pub(super) enum Message {
    /// This node knows the ranks of its workers, or joining has failed.
    Joined(Result<Arc<Formation>>),
    /// A change on the other nodes.
    Observed(u32, Observation),
    /// All nodes of the round have reported how many workers they have. Contains the nodes that have at least one.
    WorkingNodes(u32, Vec<NodeDesc>),
    /// All nodes of the round have reported that they are alive, or this node no longer waits for these reports.
    PeersAlive(u32),
    /// This node has stopped waiting for the other nodes to finish.
    Finished(u32, RoundEnd),
    /// A health check requests the state of the agent.
    Snapshot(Sender<Snapshot>),
}
