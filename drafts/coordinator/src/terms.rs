//! The terms of a job, which the founder of its coordinator sets.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The version of the messages between agents and coordinators. Nodes with different versions can't be in one job.
pub const PROTOCOL_VERSION: u32 = 1;

/// The terms of a job. Every node brings its own, and those of the founder apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The minimum number of nodes of a round.
    pub min_nodes: u32,
    /// The maximum number of nodes of a round.
    pub max_nodes: u32,
    /// The number of nodes of a round is a multiple of this number.
    pub node_unit: u32,
    /// The names of the topology keys, from the widest to the narrowest.
    pub topology: Vec<String>,
    /// How long a node keeps its lease after its last heartbeat.
    pub lease: Duration,
    /// How long the first round waits for further nodes after the minimum is reached.
    pub last_call_timeout: Duration,
    /// How long the members of a round that has ended have to join again before other nodes take their places.
    pub return_grace: Duration,
    /// How long a node that runs no workers may be without a connection.
    pub reconnect_grace: Duration,
    /// When nodes that wait end the current round, so that the next round includes them.
    pub scale_up: ScaleUp,
    /// The maximum number of voters.
    pub max_voters: u32,
    /// The maximum number of restarts of the whole job, or `None` if there is no maximum.
    pub job_max_restarts: Option<u32>,
    /// The number of failures within `failure_window` after which a node is excluded. 0 disables that.
    pub exclude_after: u32,
    /// See `exclude_after`.
    pub failure_window: Duration,
    /// How long a node is excluded after too many failures.
    pub exclude_time: Duration,
}

/// When nodes that wait end the current round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScaleUp {
    /// Never. The nodes wait until the round ends for another reason.
    Never,
    /// This long after the first of them has joined.
    After(Duration),
}

impl Terms {
    /// Creates terms with the default settings.
    pub fn new(min_nodes: u32, max_nodes: u32) -> Terms {
        Terms {
            min_nodes,
            max_nodes,
            node_unit: 1,
            topology: Vec::new(),
            lease: Duration::from_secs(5),
            last_call_timeout: Duration::from_secs(30),
            return_grace: Duration::from_secs(1),
            reconnect_grace: Duration::from_secs(5),
            scale_up: ScaleUp::After(Duration::from_secs(10)),
            max_voters: 5,
            job_max_restarts: None,
            exclude_after: 3,
            failure_window: Duration::from_secs(600),
            exclude_time: Duration::from_secs(3600),
        }
    }

    /// Returns the difference between these terms and those of a node, if the node can't be in the job.
    pub fn difference(&self, other: &Terms) -> Option<TermsDifference> {
        let nnodes = |terms: &Terms| NodeRange { min: terms.min_nodes, max: terms.max_nodes };
        if nnodes(self) != nnodes(other) {
            return Some(TermsDifference::Nodes { job: nnodes(self), node: nnodes(other) });
        }
        if self.node_unit != other.node_unit {
            return Some(TermsDifference::Unit { job: self.node_unit, node: other.node_unit });
        }
        if self.topology != other.topology {
            let (job, node) = (self.topology.join(","), other.topology.join(","));
            return Some(TermsDifference::Topology { job, node });
        }
        None
    }

    /// Returns whether a round has a fixed number of nodes.
    pub fn is_fixed(&self) -> bool {
        self.min_nodes == self.max_nodes
    }
}

/// The value of `--nnodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRange {
    /// The minimum.
    pub min: u32,
    /// The maximum.
    pub max: u32,
}

impl fmt::Display for NodeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "{}", self.min),
            false => write!(f, "{}:{}", self.min, self.max),
        }
    }
}

/// Why the terms of a node exclude it from a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TermsDifference {
    /// Different numbers of nodes.
    #[error("the job has --nnodes {job}, this node has --nnodes {node}")]
    #[allow(missing_docs)]
    Nodes { job: NodeRange, node: NodeRange },
    /// Different units.
    #[error("the job has node_unit={job}, this node has node_unit={node}")]
    #[allow(missing_docs)]
    Unit { job: u32, node: u32 },
    /// Different topology keys.
    #[error("the job has the topology keys {job:?}, this node has {node:?}")]
    #[allow(missing_docs)]
    Topology { job: String, node: String },
}
