//! The settings of a job. Every node has its own, and those of the node that founds the job apply.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The settings of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSettings {
    /// The minimum number of nodes of a round.
    pub min_nodes: u32,
    /// The maximum number of nodes of a round.
    pub max_nodes: u32,
    /// The number of nodes of a round is a multiple of this number. Each multiple consists of nodes of one topology
    /// group.
    pub node_unit: u32,
    /// The topology keys, from the widest to the narrowest group.
    pub topology: Vec<String>,
    /// How long a node keeps its place in the round after its last heartbeat.
    pub lease: Duration,
    /// How long the first round waits for further nodes once the minimum is reached.
    pub last_call_timeout: Duration,
    /// How long the members of a round that has ended may take to join again before other nodes take their places.
    pub return_grace: Duration,
    /// How long a node without workers may be disconnected before it is dropped.
    pub reconnect_grace: Duration,
    /// When nodes that wait end the current round, so that the next round includes them.
    pub scale_up: ScaleUp,
    /// The maximum number of voters.
    pub max_voters: u32,
    /// The maximum number of restarts of the whole job after failed workers and lost nodes.
    pub job_max_restarts: Option<u32>,
    /// The number of failures of a host within `exclude_window` that excludes the host. Zero disables this.
    pub exclude_after: u32,
    /// See `exclude_after`.
    pub exclude_window: Duration,
    /// How long a host is excluded after too many failures.
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

impl JobSettings {
    /// The shortest lease. A node fences itself 1 % and 250 ms before the end of its lease.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);
    /// The longest time of any setting: about 100 years.
    pub const MAX_TIME: Duration = Duration::from_secs(100 * 366 * 86_400);

    /// Creates settings with default values for all other fields.
    pub fn new(min_nodes: u32, max_nodes: u32) -> JobSettings {
        JobSettings {
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
            exclude_window: Duration::from_secs(600),
            exclude_time: Duration::from_secs(3600),
        }
    }

    /// Fails with a description if a setting that comes from a peer is out of range.
    ///
    /// # Errors
    ///
    /// See above.
    pub fn check(&self) -> Result<(), String> {
        let times = [
            self.lease,
            self.last_call_timeout,
            self.return_grace,
            self.reconnect_grace,
            self.exclude_window,
            self.exclude_time,
        ];
        let is_valid = times.iter().all(|time| *time <= JobSettings::MAX_TIME)
            && self.lease >= JobSettings::MIN_LEASE
            && (1..=self.max_nodes).contains(&self.min_nodes)
            && (1..=self.max_nodes).contains(&self.node_unit)
            && match self.scale_up {
                ScaleUp::Never => true,
                ScaleUp::After(delay) => delay <= JobSettings::MAX_TIME,
            };
        is_valid.then_some(()).ok_or_else(|| "the settings of the job are out of range".to_owned())
    }

    /// Returns whether every round has the same number of nodes.
    pub fn is_fixed_size(&self) -> bool {
        self.min_nodes == self.max_nodes
    }

    /// Returns the interval at which nodes renew their leases.
    pub fn heartbeat_interval(&self) -> Duration {
        self.lease / 5
    }

    /// Returns the difference for which a node with the settings `other` can't be in a job with these settings.
    pub fn mismatch(&self, other: &JobSettings) -> Option<Mismatch> {
        let range = |settings: &JobSettings| NodeRange { min: settings.min_nodes, max: settings.max_nodes };
        let keys = |settings: &JobSettings| settings.topology.join(",");
        if range(self) != range(other) {
            Some(Mismatch::Nodes { job: range(self), node: range(other) })
        } else if self.node_unit != other.node_unit {
            Some(Mismatch::Unit { job: self.node_unit, node: other.node_unit })
        } else if self.topology != other.topology {
            Some(Mismatch::Topology { job: keys(self), node: keys(other) })
        } else {
            None
        }
    }
}

/// The value of `--nnodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRange {
    /// The minimum number of nodes.
    pub min: u32,
    /// The maximum number of nodes.
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

/// A difference between the settings of a job and those of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs)] // Each variant has the value of the job and the value of the node.
pub enum Mismatch {
    /// Different numbers of nodes.
    #[error("the job has --nnodes {job}, this node has --nnodes {node}")]
    Nodes { job: NodeRange, node: NodeRange },
    /// Different units.
    #[error("the job has node_unit={job}, this node has node_unit={node}")]
    Unit { job: u32, node: u32 },
    /// Different topology keys.
    #[error("the job has the topology keys {job:?}, this node has {node:?}")]
    Topology { job: String, node: String },
}
