//! A node of a job, as the coordinator knows it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The random id of one process. It is also the id of the process's Raft replica, so a process that starts again has
/// a new id and never votes under its old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// What a node tells the coordinator about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The id of the agent's process.
    pub id: NodeId,
    /// The host name. Exclusions, drains and messages name a node by it.
    pub host: String,
    /// The process id of the agent.
    pub pid: i64,
    /// The address of the agent's own server, as `HOST:PORT`.
    pub address: String,
    /// The number of workers. `None` if the launcher has not said it.
    pub workers: Option<u32>,
    /// A hash of the command that the workers run. `None` if the launcher has not said it.
    pub command: Option<u64>,
    /// The group rank that the node asks for.
    pub pin: Option<u32>,
    /// The group rank that the node takes if no other node has it, such as its rank in Slurm.
    pub preferred_rank: Option<u32>,
    /// The topology group of the node: one value for each key of
    /// [`JobSettings::topology`](crate::JobSettings::topology).
    pub topology: Vec<String>,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The host name comes from a peer, so it is escaped.
        write!(f, "{} (pid {})", self.host.escape_debug(), self.pid)
    }
}
