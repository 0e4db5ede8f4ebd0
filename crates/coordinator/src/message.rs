//! The messages between agents, coordinators and operators. They are sent as JSON.
//!
//! The process that opens a connection sends [`Open`] first, and then requests. The other process sends replies at any
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::{Cause, Closing};
use crate::node::{Node, NodeId};
use crate::raft_message::RaftMessage;
use crate::roster::{Roster, WaitReason};
use crate::settings::{JobSettings, Mismatch};

/// The version of the messages. Processes with different versions can't be in one job.
pub const PROTOCOL_VERSION: u32 = 1;

/// The random id of a group of replicas. A replica ignores messages of other groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// The first message on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The version of the sender.
    pub version: u32,
    /// The host of the sender, for messages to people.
    pub host: String,
    /// The run id.
    pub run_id: String,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A node wants to be served by the leader. Further requests of the node follow.
    Node(Box<Hello>),
    /// Another replica of this group sends messages of Raft.
    Replica {
        /// The group.
        group: GroupId,
        /// The address of the sender.
        from: String,
    },
    /// The leader wants to know which agent runs at this address.
    Probe,
    /// A leader tells an endpoint that it serves the job.
    Announcement(Announcement),
    /// An operator or an observer sends one command.
    Operator(Command),
}

/// What a node says when it asks to be served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The node.
    pub node: Node,
    /// The node's own settings of the job.
    pub settings: JobSettings,
    /// The group that has served the node before, if any.
    pub group: Option<GroupId>,
    /// What the node does.
    pub activity: Activity,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The last round that the node knows of. The node never starts workers of this round or an earlier one again.
    pub last_round: Option<u64>,
    /// What the node does.
    pub phase: Phase,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The node has no workers and waits for the next round.
    Joining {
        /// Whether the lease of the node was over in its last round, so that it killed its workers or started none.
        is_fenced: bool,
    },
    /// The node runs the workers of its last round, or starts or stops them.
    Working,
    /// All workers of the node have finished its last round.
    Finished,
    /// The node has no workers and does not want to join now, for this reason.
    Outside(String),
}

/// A request of a node on its connection to the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Renews the lease. The reply has the same number.
    Heartbeat {
        /// The number of the heartbeat.
        number: u64,
    },
    /// Reports a change of what the node does.
    Report(Activity),
    /// Asks to end the round because a worker has failed.
    WorkerFailed {
        /// The round.
        round: u64,
        /// The local rank of the worker.
        local_rank: u32,
        /// How the worker exited.
        exit: String,
    },
    /// Asks to drain the node.
    Drain {
        /// The time after which the round ends for that.
        within: Option<Duration>,
    },
    /// The node leaves the job. It has no workers.
    Leave,
    /// Closes the job.
    Close {
        /// The time by the wall clock of the node.
        time: String,
        /// The reason.
        reason: String,
    },
    /// A message of Raft, on a connection for [`Purpose::Replica`].
    Raft(Box<RaftMessage>),
}

/// A message of a leader to an endpoint that is not in its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The group.
    pub group: GroupId,
    /// The address of the leader.
    pub leader: String,
    /// Whether the group has started a round.
    pub has_round: bool,
    /// How often an operator has forced a quorum.
    pub forced: u32,
    /// The time since the group was founded.
    pub age: Duration,
}

/// A command of an operator or an observer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Excludes a host.
    Exclude {
        /// The host.
        host: String,
        /// For how long.
        time: Duration,
        /// Why.
        reason: String,
    },
    /// Ends the exclusion or the drain of a host.
    Include {
        /// The host.
        host: String,
    },
    /// Drains the nodes of a host.
    Drain {
        /// The host.
        host: String,
        /// The time after which the round ends for that.
        within: Option<Duration>,
    },
    /// Makes this replica the only voter of a new group. The operator vouches that the missing voters are stopped.
    ForceQuorum,
    /// Asks for the roster.
    Roster,
}

/// A message of the process that accepted the connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The leader serves the node.
    Welcome {
        /// The group.
        group: GroupId,
        /// The settings of the job.
        settings: Box<JobSettings>,
        /// The addresses of the voters.
        voters: Vec<String>,
    },
    /// The addresses of the replicas have changed. A node that loses the leader tries them.
    Replicas(Vec<String>),
    /// The sender does not lead the job.
    Redirect {
        /// The addresses to try.
        addresses: Vec<String>,
        /// Why the sender does not lead.
        why: NotServed,
    },
    /// The node can't be in the job.
    Refused(Refusal),
    /// Renews the lease for this time, counted from the time at which the node sent the heartbeat.
    Granted {
        /// The number of the heartbeat.
        number: u64,
        /// The time.
        lease: Duration,
    },
    /// What the node waits for.
    Waiting(WaitReason),
    /// A round has started, and the node is a member.
    Started(Assignment),
    /// The round of the node has ended, or goes on without it.
    Ended {
        /// The round.
        round: u64,
        /// Why.
        cause: Cause,
    },
    /// The node is drained. It must leave when its workers have ended.
    Drained,
    /// The job is closed.
    Closed(Closing),
    /// The id of the agent at this address, in reply to [`Purpose::Probe`].
    Identity(Option<NodeId>),
    /// The result of a command.
    Done(String),
    /// Why a command was not carried out.
    Failed(String),
    /// The roster.
    Roster(Box<Roster>),
    /// A warning for the log of the node.
    Warning(String),
}

/// What a member needs to know about its round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The group that started the round. Together with the number it identifies the round.
    pub group: GroupId,
    /// The number of the round.
    pub round: u64,
    /// The group rank of the node.
    pub rank: u32,
    /// The number of nodes.
    pub world_size: u32,
    /// The address of the server of the node with rank 0, which has the store of the round.
    pub master: String,
    /// The number of members of the previous round that were lost.
    pub lost: u32,
    /// The number of restarts of the job, by the name of the kind.
    pub restarts: BTreeMap<crate::job::RestartKind, u32>,
}

/// Why a process does not serve a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotServed {
    /// Another process leads.
    #[error("another node leads the job")]
    NotLeader,
    /// The replica has no quorum.
    #[error("the coordinator has no quorum; its voters are {}", .voters.join(", "))]
    NoQuorum {
        /// The addresses of the voters.
        voters: Vec<String>,
    },
    /// The job has run before, and the process has not heard from its leader for some time.
    #[error(
        "the job has run before, and its coordinator is not known there any more\nhint: use a new --rdzv-id, or, if all \
         nodes of the job are stopped, run `rallypoint force-quorum` for this endpoint"
    )]
    Lost,
    /// The process knows no coordinator of the job.
    #[error("no coordinator of the job is known there yet")]
    Unknown,
    /// No process listens at the address.
    #[error("the connection was refused")]
    Refused,
    /// The connection could not be opened in time, or was closed.
    #[error("no reply")]
    NoReply,
    /// The process is a store server without a coordinator.
    #[error("a store server without a coordinator listens there")]
    NoCoordinator,
}

/// Why a node can't be in a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The node has another version of the messages.
    #[error(
        "{host} has version {version} of the coordinator's protocol, and {other} has version {job}\nhint: run the \
         same version of rallypoint on all nodes"
    )]
    Version {
        /// The host of the node.
        host: String,
        /// The version of the node.
        version: u32,
        /// A host of the job.
        other: String,
        /// The version of the job.
        job: u32,
    },
    /// The node has other settings.
    #[error(
        "{node} can't be in the job that {other} has founded: {mismatch}\nhint: give all nodes the same options"
    )]
    Settings {
        /// The difference.
        mismatch: Mismatch,
        /// The node.
        node: String,
        /// The node that set the settings of the job.
        other: String,
    },
    /// The process serves another job.
    #[error(
        "another job runs there: its run id is {job:?}, and the one of this node is {node:?}\nhint: use the same --rdzv-id on \
         all nodes of a job, and another port for another job"
    )]
    OtherJob {
        /// The run id of the job.
        job: String,
        /// The run id of the node.
        node: String,
    },
    /// Another node has pinned the same rank.
    #[error("{node} and {other} both pin rank {rank}\nhint: give each node a different --node-rank")]
    Pinned {
        /// The rank.
        rank: u32,
        /// The node.
        node: String,
        /// The other node.
        other: String,
    },
    /// The pinned rank is beyond the largest world.
    #[error("rank {rank} is pinned, but a round has at most {max} nodes\nhint: ranks start at 0")]
    PinTooLarge {
        /// The rank.
        rank: u32,
        /// The maximum number of nodes.
        max: u32,
    },
}
