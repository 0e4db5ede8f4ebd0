//! The replicated state of a job. It changes only when an entry of the Raft log is applied.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::{Node, NodeId};
use crate::terms::Terms;

/// An entry of the Raft log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Starts the next round with these members, ordered by group rank.
    Start {
        /// The members.
        members: Vec<Node>,
    },
    /// Ends the current round.
    End {
        /// The number of the round.
        round: u64,
        /// Why the round ends.
        cause: Cause,
    },
    /// Declares that an incarnation of a node has no workers and never takes part in a round again.
    Depart {
        /// The node.
        node: NodeId,
        /// How the node departed.
        how: Departure,
    },
    /// Closes the job.
    Close(Closing),
    /// Excludes a host.
    Exclude {
        /// The host.
        host: String,
        /// For how long.
        time: Duration,
        /// Why.
        reason: String,
    },
    /// Ends the exclusion of a host.
    Include {
        /// The host.
        host: String,
    },
    /// Asks a node to leave at the end of the current round.
    Drain {
        /// The node.
        node: NodeId,
        /// The time after which the round ends, or `None` to wait for its end.
        within: Option<Duration>,
    },
}

/// Why a round ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Cause {
    /// A worker failed.
    #[error("worker {local_rank} of {node} failed ({exit})")]
    WorkerFailed {
        /// The node of the worker.
        node: Node,
        /// The local rank of the worker.
        local_rank: u32,
        /// How the worker exited.
        exit: String,
    },
    /// A node departed.
    #[error("{node} {how}")]
    NodeLost {
        /// The node.
        node: Node,
        /// How the node departed.
        how: Departure,
    },
    /// A node stopped its workers because its lease was over, and came back.
    #[error("{node} lost its lease and stopped its workers")]
    Fenced {
        /// The node.
        node: Node,
    },
    /// Nodes wait to join.
    #[error("{waiting} more nodes join")]
    Growth {
        /// The number of nodes.
        waiting: u32,
    },
    /// A node is drained.
    #[error("{node} is drained")]
    Drained {
        /// The node.
        node: Node,
    },
}

impl Cause {
    /// Returns the kind of restart that follows.
    pub fn kind(&self) -> RestartKind {
        match self {
            Cause::WorkerFailed { .. } => RestartKind::WorkerFailure,
            Cause::NodeLost { .. } | Cause::Fenced { .. } | Cause::Drained { .. } => RestartKind::NodeLoss,
            Cause::Growth { .. } => RestartKind::Growth,
        }
    }
}

/// The kinds of restarts that a job counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RestartKind {
    /// A worker failed.
    WorkerFailure,
    /// A node was lost.
    NodeLoss,
    /// Nodes joined.
    Growth,
}

/// How an incarnation of a node departed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Departure {
    /// The node left.
    #[error("left")]
    Left,
    /// A surviving process of the node stated that the agent and the workers are dead.
    #[error("was killed")]
    Killed,
    /// The connection was closed, and the port of the agent is closed or belongs to another process.
    #[error("has ended")]
    Ended,
    /// The lease of the node is over.
    #[error("sent no heartbeat for {:.1} s", .0.as_secs_f64())]
    Expired(Duration),
    /// The node took no part in the round and had no connection for this long.
    #[error("had no connection for {:.1} s", .0.as_secs_f64())]
    Disconnected(Duration),
}

/// Who closed a job, when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// The node.
    pub author: String,
    /// The time by the author's wall clock, for people to read.
    pub time: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} closed the job at {}: {}", self.author, self.time, self.reason)
    }
}

/// A round that has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The number of the round. Rounds are counted from 0, and no number is used twice.
    pub number: u64,
    /// The members, ordered by group rank.
    pub members: Vec<Node>,
    /// Why the round ended, if it has.
    pub end: Option<Cause>,
    /// The members that have departed.
    pub departed: BTreeMap<NodeId, Departure>,
}

impl Round {
    /// Returns the group rank of a node, if it is a member.
    pub fn rank(&self, node: NodeId) -> Option<u32> {
        self.members.iter().position(|member| member.id == node).map(|rank| rank as u32)
    }
}

/// The exclusion of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// When it ends, by the clock of this replica.
    pub until: Duration,
    /// Why the host is excluded.
    pub reason: String,
}

/// The replicated state of a job.
///
/// Times are by the clock of the replica, which counts from the application of the entry. An image for another replica
/// has remaining times instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The terms of the job.
    pub terms: Terms,
    /// The round that started last.
    pub round: Option<Round>,
    /// Whether the job is closed.
    pub closed: Option<Closing>,
    /// The number of restarts of each kind.
    pub restarts: BTreeMap<RestartKind, u32>,
    /// The excluded hosts.
    pub exclusions: BTreeMap<String, Exclusion>,
    /// When workers of a host have failed.
    pub failures: BTreeMap<String, Vec<Duration>>,
    /// The nodes to drain, with the time at which the round ends for that.
    pub drains: BTreeMap<NodeId, Option<Duration>>,
    /// The voters and their addresses.
    pub voters: BTreeMap<NodeId, String>,
}

impl Job {
    /// Creates the state of a job without a round.
    pub fn new(terms: Terms) -> Job {
        Job {
            terms,
            round: None,
            closed: None,
            restarts: BTreeMap::new(),
            exclusions: BTreeMap::new(),
            failures: BTreeMap::new(),
            drains: BTreeMap::new(),
            voters: BTreeMap::new(),
        }
    }

    /// Applies an entry.
    pub fn apply(&mut self, entry: Entry, now: Duration) {
        match entry {
            _ if self.closed.is_some() => {}
            Entry::Start { members } => {
                let number = self.round.as_ref().map_or(0, |round| round.number + 1);
                self.round = Some(Round { number, members, end: None, departed: BTreeMap::new() });
            }
            Entry::End { round, cause } => self.end_round(round, cause, now),
            Entry::Depart { node, how } => {
                self.drains.remove(&node);
                let Some(round) = &mut self.round else { return };
                if round.rank(node).is_some() {
                    round.departed.entry(node).or_insert(how);
                }
            }
            Entry::Close(closing) => self.closed = Some(closing),
            Entry::Exclude { host, time, reason } => {
                self.exclusions.insert(host, Exclusion { until: now + time, reason });
            }
            Entry::Include { host } => {
                self.exclusions.remove(&host);
                self.failures.remove(&host);
            }
            Entry::Drain { node, within } => {
                self.drains.insert(node, within.map(|within| now + within));
            }
        }
    }

    fn end_round(&mut self, number: u64, cause: Cause, now: Duration) {
        let Some(round) = self.round.as_mut().filter(|round| round.number == number && round.end.is_none()) else {
            return;
        };
        *self.restarts.entry(cause.kind()).or_default() += 1;
        if let Cause::WorkerFailed { node, .. } = &cause {
            let window = self.terms.failure_window;
            let failures = self.failures.entry(node.host.clone()).or_default();
            failures.retain(|time| now.saturating_sub(*time) < window);
            failures.push(now);
            if self.terms.exclude_after > 0 && failures.len() >= self.terms.exclude_after as usize {
                let reason = format!("{} failures within {} s", failures.len(), window.as_secs());
                let until = now + self.terms.exclude_time;
                self.exclusions.insert(node.host.clone(), Exclusion { until, reason });
            }
        }
        round.end = Some(cause);
    }

    /// Returns why a host is excluded, or `None` if it is not.
    pub fn exclusion(&self, host: &str, now: Duration) -> Option<&Exclusion> {
        self.exclusions.get(host).filter(|exclusion| exclusion.until > now)
    }

    /// Returns the number of restarts of all kinds.
    pub fn total_restarts(&self) -> u32 {
        self.restarts.values().sum()
    }

    /// Returns whether a node is a member of the current round and has not departed.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.round.as_ref().is_some_and(|round| round.rank(node).is_some() && !round.departed.contains_key(&node))
    }
}
