//! The typed snapshot of a job: each node, what it does, and what it waits for.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::{Cause, Closing, Departure, RestartKind};
use crate::message::{GroupId, Phase};
use crate::node::Node;
use crate::settings::JobSettings;

/// The maximum number of nodes that a [`WaitReason`] names.
pub const MAX_NAMES: usize = 8;

/// A snapshot of a job at its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// The group that serves the job.
    pub group: GroupId,
    /// Raft's term.
    pub term: u64,
    /// The address of the leader.
    pub leader: String,
    /// The addresses of the voters.
    pub voters: Vec<String>,
    /// The settings of the job.
    pub settings: JobSettings,
    /// The round that started last.
    pub round: Option<RosterRound>,
    /// What the next round waits for, if no round runs.
    pub waits_for: Option<WaitReason>,
    /// The nodes: the members of the round ordered by group rank, then the other nodes in the order in which they
    /// joined.
    pub nodes: Vec<RosterNode>,
    /// Who closed the job, when and why.
    pub closed: Option<Closing>,
    /// The number of restarts of each kind.
    pub restarts: BTreeMap<RestartKind, u32>,
    /// The first ranks that no node has pinned, if all nodes of a job of fixed size pin their ranks.
    pub missing_ranks: Vec<u32>,
    /// The excluded hosts: the reason, and how long the exclusion lasts.
    pub exclusions: BTreeMap<String, (String, Duration)>,
}

/// The round that started last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterRound {
    /// The number of the round.
    pub number: u64,
    /// The number of members.
    pub world_size: u32,
    /// Why the round ended, if it has.
    pub end: Option<Cause>,
}

/// A node of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterNode {
    /// The node.
    pub node: Node,
    /// The group rank in the round, if the node is a member.
    pub rank: Option<u32>,
    /// What the node does, or `None` if it has not told this leader.
    pub phase: Option<Phase>,
    /// How the node departed from the round, if it has.
    pub departure: Option<Departure>,
    /// How long the node has been connected, or not connected, or since when it has departed.
    pub since: Duration,
    /// Whether the node is connected.
    pub is_connected: bool,
    /// The time since the last heartbeat, if one has arrived.
    pub heartbeat_age: Option<Duration>,
    /// The time until the lease of the node ends.
    pub lease_left: Duration,
    /// What the node waits for.
    pub waits_for: Option<WaitReason>,
}

/// What a node waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// More nodes have to join.
    MoreNodes {
        /// The number of nodes that have joined.
        joined: u32,
        /// The number of those that can be in a round, because they are in a whole unit.
        usable: u32,
        /// The minimum number of nodes.
        min: u32,
        /// The maximum number of nodes.
        max: u32,
        /// The expected nodes that have not joined, and why not.
        missing: Names,
    },
    /// Enough nodes have joined, and the first round waits for more.
    LastCall {
        /// The number of nodes that have joined.
        joined: u32,
        /// The maximum number of nodes.
        max: u32,
        /// How long the round waits.
        left: Duration,
    },
    /// Members of the last round have not stopped their workers yet.
    Stopping(Names),
    /// Members of the last round have stopped their workers and may join again.
    Returning {
        /// The members.
        members: Names,
        /// How long the round waits for them.
        left: Duration,
    },
    /// A round runs without the node, and is full. The node takes the place of the next node that is lost.
    Spare {
        /// The maximum number of nodes.
        max: u32,
    },
    /// A round runs without the node. It ends after this time, so that the next one includes the node. `None` means
    /// that it ends only for another reason.
    NextRound(Option<Duration>),
    /// The host of the node is excluded.
    Excluded {
        /// Why.
        reason: String,
        /// For how long.
        left: Duration,
    },
    /// The host of the node is drained.
    Drained,
    /// An earlier process of the node still holds the pinned rank.
    EarlierProcess(String),
    /// The node does not want to join now.
    Outside(String),
}

/// The names of some nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// The names of up to [`MAX_NAMES`] nodes. A name may be followed by what keeps the node from joining.
    pub names: Vec<String>,
    /// The number of nodes.
    pub total: u32,
}

impl Names {
    /// Names nodes.
    pub fn new<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Names {
        nodes.into_iter().map(Node::to_string).collect()
    }
}

impl FromIterator<String> for Names {
    fn from_iter<I: IntoIterator<Item = String>>(nodes: I) -> Names {
        let mut names = Names::default();
        for name in nodes {
            names.total += 1;
            if names.names.len() < MAX_NAMES {
                names.names.push(name);
            }
        }
        names
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match (self.total as usize).saturating_sub(self.names.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl WaitReason {
    /// Returns the time after which this wait ends by itself, if it does.
    pub fn left(&self) -> Option<Duration> {
        match self {
            WaitReason::LastCall { left, .. }
            | WaitReason::Returning { left, .. }
            | WaitReason::Excluded { left, .. } => Some(*left),
            WaitReason::NextRound(left) => *left,
            _ => None,
        }
    }
}

/// The text has no times, so it changes only when the reason does.
impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::MoreNodes { joined, usable, min, max, missing } => {
                let range = if min == max { format!("{min}") } else { format!("{min} to {max}") };
                write!(f, "{joined} of {range} nodes have joined")?;
                if usable != joined {
                    write!(f, ", of which {usable} are in whole units")?;
                }
                match missing.total {
                    0 => Ok(()),
                    _ => write!(f, ": {missing}"),
                }
            }
            WaitReason::LastCall { joined, max, .. } => {
                write!(f, "{joined} of at most {max} nodes have joined, last call for more")
            }
            WaitReason::Stopping(members) => {
                write!(f, "waiting until the workers of {members} have ended")
            }
            WaitReason::Returning { members, .. } => write!(f, "waiting until {members} join again"),
            WaitReason::Spare { max } => {
                write!(f, "this node is a spare: {max} nodes run, which is the maximum")
            }
            WaitReason::NextRound(_) => f.write_str("a round runs; this node is in the next one"),
            WaitReason::Excluded { reason, .. } => write!(f, "this node is excluded: {reason}"),
            WaitReason::Drained => f.write_str("this node is drained"),
            WaitReason::EarlierProcess(node) => write!(f, "{node} still holds the rank of this node"),
            WaitReason::Outside(reason) => f.write_str(reason),
        }
    }
}
