//! The messages between agents and coordinators, as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::{Cause, Closing};
use crate::node::{Node, NodeId};
use crate::terms::{Terms, TermsDifference};

/// The random id of a group of replicas. Only replicas that know it accept messages of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// A message to a coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message of a node on a connection.
    Hello(Box<Hello>),
    /// Renews the lease of the node. The reply has the same number.
    Heartbeat {
        /// The number of the heartbeat.
        number: u64,
    },
    /// Reports what the node does.
    Report(Activity),
    /// Asks to end the current round, because a worker has failed.
    WorkerFailed {
        /// The round.
        round: u64,
        /// The local rank of the worker.
        local_rank: u32,
        /// How the worker exited.
        exit: String,
    },
    /// Leaves the job. The node has no workers.
    Leave,
    /// States that the agent and the workers of a node are dead. Sent by another process of the same host.
    Died {
        /// The run id.
        run_id: String,
        /// The node.
        node: NodeId,
    },
    /// Closes the job.
    Close {
        /// The time by the author's clock.
        time: String,
        /// The reason.
        reason: String,
    },
    /// Asks whether the process at this address is this node.
    Identify,
    /// A message of Raft.
    Raft {
        /// The run id.
        run_id: String,
        /// The group.
        group: GroupId,
        /// The address of the sender.
        from: String,
        /// The terms of the job, with which a new replica starts.
        bytes: Vec<u8>,
    },
    /// Tells an endpoint where the leader of a group is.
    Announce {
        /// The run id.
        run_id: String,
        /// The group.
        group: GroupId,
        /// The term.
        term: u64,
        /// The address of the leader.
        leader: String,
        /// Whether a round has started.
        has_round: bool,
    },
}

/// The first message of a node on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the protocol.
    pub version: u32,
    /// The run id.
    pub run_id: String,
    /// The node.
    pub node: Node,
    /// The terms of the node.
    pub terms: Terms,
    /// The group and the term that the node has been served by, if any.
    pub group: Option<(GroupId, u64)>,
    /// What the node does.
    pub activity: Activity,
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The last round that the node knows of. The node never starts workers of this round or an earlier one again.
    pub last_round: Option<u64>,
    /// What the node does.
    pub phase: Phase,
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The node has no workers and waits for the next round.
    Joining,
    /// The node runs workers of its last round, or starts or stops them.
    Working,
    /// The node has no workers and does not want to join yet.
    Idle,
    /// The node has killed the workers of its last round because its lease was over.
    Fenced,
}

/// A message of a coordinator to a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The leader accepts the node.
    Welcome {
        /// The group.
        group: GroupId,
        /// The term.
        term: u64,
        /// The terms of the job.
        terms: Terms,
        /// The addresses of the voters.
        voters: Vec<String>,
    },
    /// The leader is elsewhere, or is not known here.
    Redirect {
        /// The addresses to try.
        addresses: Vec<String>,
        /// Why this coordinator does not serve the node.
        why: NotServed,
    },
    /// The node can't be in the job.
    Refused(Refusal),
    /// The node was declared lost. It must join with a new id.
    Lost,
    /// The lease is renewed for this long, from the time at which the node sent the heartbeat.
    Granted {
        /// The number of the heartbeat.
        number: u64,
        /// The duration.
        lease: Duration,
    },
    /// A round has started, and the node is a member.
    Started(Assignment),
    /// The round of the node has ended.
    Ended {
        /// The round.
        round: u64,
        /// Why.
        cause: Cause,
    },
    /// The number of nodes that wait for the next round has changed.
    Waiting {
        /// The number of nodes.
        nodes: u32,
    },
    /// The job is closed.
    Closed(Closing),
    /// The id of the node at this address.
    Identity(Option<NodeId>),
}

/// What a member needs to know about its round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The number of the round.
    pub round: u64,
    /// The group rank of the node.
    pub rank: u32,
    /// The number of nodes.
    pub world_size: u32,
    /// The address of the server of rank 0.
    pub master: String,
}

/// Why a coordinator does not serve a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotServed {
    /// Another replica is the leader.
    #[error("another node is the leader")]
    NotLeader,
    /// The coordinator has no quorum.
    #[error("the coordinator has no quorum")]
    NoQuorum,
    /// There is no coordinator for the job here.
    #[error("there is no coordinator for the job yet")]
    Unknown,
}

/// Why a node can't be in a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The node has another version of the protocol.
    #[error("the job has protocol version {job}, this node has {node}")]
    #[allow(missing_docs)]
    Version { job: u32, node: u32 },
    /// The node has other terms.
    #[error("{0}")]
    Terms(TermsDifference),
    /// Another node has the same pin.
    #[error("rank {rank} is taken by {other}")]
    Pinned {
        /// The rank.
        rank: u32,
        /// The other node.
        other: String,
    },
}
