//! A node of a job.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The random id of one incarnation of a node. It is also the id of the node's Raft replica. An agent that starts again,
/// or that was declared lost, gets a new id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// What a node tells the coordinator about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The id of this incarnation.
    pub id: NodeId,
    /// The host name or address of the node. Exclusions and the roster use it.
    pub host: String,
    /// The process id of the agent.
    pub pid: i64,
    /// The address of the node's own server, as `HOST:PORT`.
    pub address: String,
    /// The number of workers.
    pub workers: u32,
    /// A hash of the command that the workers run.
    pub command: u64,
    /// The group rank that the node asks for.
    pub pin: Option<u32>,
    /// The values of the topology keys.
    pub topology: Vec<String>,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.host, self.pid)
    }
}
