//! The replicated state of a job. It changes only when an entry of the Raft log is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::{Node, NodeId};
use crate::settings::JobSettings;

/// An entry of the Raft log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The job's time at which the leader decided this. See [`Job::time`].
    pub time: Duration,
    /// The decision.
    pub decision: Decision,
}

/// A decision of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Starts a round.
    Start {
        /// The number of the round.
        round: u64,
        /// The members, ordered by group rank.
        members: Vec<Node>,
    },
    /// Ends the current round.
    End {
        /// The number of the round.
        round: u64,
        /// Why the round ends.
        cause: Cause,
    },
    /// Declares that these members of a round have no workers of the round any more.
    Depart {
        /// The number of the round.
        round: u64,
        /// The members, and how each of them departed.
        members: Vec<(NodeId, Departure)>,
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
    /// Asks the nodes of a host to leave when the current round ends.
    Drain {
        /// The host.
        host: String,
        /// The time after which the round ends for this, or `None` if the round ends only for another reason.
        within: Option<Duration>,
    },
    /// Publishes the addresses of the replicas. Raft's configuration, which says which of them vote, is changed by
    /// entries of its own.
    Replicas(BTreeMap<NodeId, String>),
}

/// Why a round ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Cause {
    /// A worker failed.
    #[error("worker {local_rank} of {node} {exit}")]
    WorkerFailed {
        /// The node of the worker.
        node: Node,
        /// The local rank of the worker.
        local_rank: u32,
        /// How the worker exited, as a clause: `exited with code 1`.
        exit: String,
    },
    /// A member joined again without saying why. Torch's launcher does that after a worker has failed.
    #[error("{node} restarts its workers")]
    Rejoined {
        /// The member.
        node: Node,
    },
    /// A member departed.
    #[error("{node} {how}")]
    NodeLost {
        /// The member.
        node: Node,
        /// How the member departed.
        how: Departure,
    },
    /// A member killed its workers because it could not renew its lease, and has come back.
    #[error("{node} killed its workers, because it could not renew its lease in time")]
    Fenced {
        /// The member.
        node: Node,
    },
    /// Nodes wait to join.
    #[error("{} to join", if *.waiting == 1 { "1 node waits".into() } else { format!("{} nodes wait", .waiting) })]
    Growth {
        /// The number of nodes.
        waiting: u32,
    },
    /// A member is drained.
    #[error("{node} is drained")]
    Drained {
        /// The member.
        node: Node,
    },
    /// A member is excluded.
    #[error("{node} is excluded: {reason}")]
    Excluded {
        /// The member.
        node: Node,
        /// Why it is excluded.
        reason: String,
    },
}

impl Cause {
    /// Returns the kind of the restart that follows.
    pub fn kind(&self) -> RestartKind {
        match self {
            Cause::WorkerFailed { .. } | Cause::Rejoined { .. } => RestartKind::WorkerFailure,
            Cause::NodeLost { .. } | Cause::Fenced { .. } => RestartKind::NodeLoss,
            Cause::Drained { .. } | Cause::Excluded { .. } => RestartKind::Operator,
            Cause::Growth { .. } => RestartKind::Growth,
        }
    }
}

/// The kinds of restarts that a job counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RestartKind {
    /// After a worker failed.
    WorkerFailure,
    /// After a node was lost.
    NodeLoss,
    /// Because nodes joined.
    Growth,
    /// Because a node was drained or excluded.
    Operator,
}

/// How a member of a round departed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Departure {
    /// The node left.
    #[error("left")]
    Left,
    /// The connection was closed, and the port of the agent is closed or belongs to another process. So the agent has
    /// ended, and the kernel has killed its workers.
    #[error("was killed")]
    Killed,
    /// The node left, or was lost, after its workers had finished.
    #[error("has finished")]
    Finished,
    /// The lease of the node is over, so the node has killed its workers.
    #[error("sent no heartbeat for {} s", .0.as_secs_f64())]
    Expired(Duration),
}

impl Departure {
    /// Returns whether the node was lost, rather than left or finished.
    pub fn is_loss(self) -> bool {
        matches!(self, Departure::Killed | Departure::Expired(_))
    }
}

/// Who closed a job, when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// The node, or another author.
    pub author: String,
    /// The time by the author's wall clock, for people to read.
    pub time: String,
    /// The reason.
    pub reason: String,
    /// Whether the workers of all nodes have finished.
    pub has_finished: bool,
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} closed the job", self.author)?;
        if !self.time.is_empty() {
            write!(f, " at {}", self.time)?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// The round that started last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The number of the round. Rounds are counted from 0, and no number is used twice.
    pub number: u64,
    /// The members.
    pub members: BTreeMap<NodeId, RoundMember>,
    /// The address of the server of the node with group rank 0, which has the store of the round.
    pub master: String,
    /// The number of members of the previous round that were lost.
    pub lost: u32,
    /// Why the round ended, if it has.
    pub end: Option<Cause>,
    /// The members that have departed.
    pub departed: BTreeMap<NodeId, Departed>,
}

/// The end of a membership in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// How the member departed.
    pub how: Departure,
    /// When that was decided, in the job's time.
    pub time: Duration,
}

/// A member of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundMember {
    /// The group rank.
    pub rank: u32,
    /// The node.
    pub node: Node,
}

impl Round {
    /// Returns the members that have not departed.
    pub fn present(&self) -> impl Iterator<Item = &RoundMember> {
        self.members.values().filter(|member| !self.departed.contains_key(&member.node.id))
    }

    /// Returns a member, unless it has departed.
    pub fn present_member(&self, id: NodeId) -> Option<&RoundMember> {
        self.members.get(&id).filter(|_| !self.departed.contains_key(&id))
    }
}

/// The exclusion of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// When the exclusion ends, in the job's time.
    pub until: Duration,
    /// Why the host is excluded.
    pub reason: String,
}

/// The replicated state of a job. It follows from the entries alone, so it is the same on all replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The settings of the job.
    pub settings: JobSettings,
    /// The node whose settings these are.
    pub founder: String,
    /// How often an operator has forced a quorum. Each time, a new group continues the job.
    pub forced: u32,
    /// The job's time at the last entry: the time since the founding, as the leaders have measured it.
    pub time: Duration,
    /// The round that started last.
    pub round: Option<Round>,
    /// Whether the job is closed.
    pub closed: Option<Closing>,
    /// The number of restarts of each kind.
    pub restarts: BTreeMap<RestartKind, u32>,
    /// The hosts that have been in a round. A node that comes back to one of them is let in without a delay.
    pub hosts: BTreeSet<String>,
    /// The excluded hosts. An exclusion that is over is kept until its host is excluded again or included.
    pub exclusions: BTreeMap<String, Exclusion>,
    /// When workers of a host failed, and when agents of the host were killed.
    pub failures: BTreeMap<String, Vec<Duration>>,
    /// The hosts to drain, with the job's time at which the round ends for that.
    pub drains: BTreeMap<String, Option<Duration>>,
    /// The replicas and their addresses.
    pub replicas: BTreeMap<NodeId, String>,
}

impl Job {
    /// Creates the state of a job without a round.
    pub fn new(settings: JobSettings, founder: String) -> Job {
        Job {
            settings,
            founder,
            forced: 0,
            time: Duration::ZERO,
            round: None,
            closed: None,
            restarts: BTreeMap::new(),
            hosts: BTreeSet::new(),
            exclusions: BTreeMap::new(),
            failures: BTreeMap::new(),
            drains: BTreeMap::new(),
            replicas: BTreeMap::new(),
        }
    }

    /// Applies an entry.
    pub fn apply(&mut self, entry: Entry) {
        self.time = self.time.max(entry.time);
        let now = self.time;
        match entry.decision {
            // Closing is final.
            Decision::Replicas(replicas) => self.replicas = replicas,
            _ if self.closed.is_some() => {}
            Decision::Start { round: number, members } => {
                if self.next_round() != Some(number) {
                    return;
                }
                self.hosts.extend(members.iter().map(|node| node.host.clone()));
                let master = members.first().map(|node| node.address.clone()).unwrap_or_default();
                let members =
                    (0..).zip(members).map(|(rank, node)| (node.id, RoundMember { rank, node })).collect();
                let is_lost = |departed: &&Departed| departed.how != Departure::Finished;
                let lost =
                    self.round.iter().flat_map(|round| round.departed.values()).filter(is_lost).count();
                let (lost, departed) = (lost as u32, BTreeMap::new());
                self.round = Some(Round { number, members, master, lost, end: None, departed });
            }
            Decision::End { round, cause } => self.end_round(round, cause),
            Decision::Depart { round, members } => {
                members.into_iter().for_each(|(id, how)| self.depart(round, id, how));
            }
            Decision::Close(closing) => self.closed = Some(closing),
            Decision::Exclude { host, time, reason } => {
                self.failures.remove(&host);
                self.exclusions.insert(host, Exclusion { until: now.saturating_add(time), reason });
            }
            Decision::Include { host } => {
                self.failures.remove(&host);
                self.exclusions.remove(&host);
                self.drains.remove(&host);
            }
            Decision::Drain { host, within } => {
                self.drains.insert(host, within.map(|within| now.saturating_add(within)));
            }
        }
    }

    fn end_round(&mut self, number: u64, cause: Cause) {
        let Some(round) = self.round.as_mut().filter(|round| round.number == number && round.end.is_none())
        else {
            return;
        };
        let failed = match &cause {
            Cause::WorkerFailed { node, .. } => Some(node.host.clone()),
            _ => None,
        };
        let kind = cause.kind();
        round.end = Some(cause);
        self.count_restart(kind, 1);
        failed.into_iter().for_each(|host| self.count_failure(host));
    }

    /// Records the departure of a member.
    ///
    /// Workers often fail because another node was lost. So if the round ended after the failure of a worker, and a
    /// member turns out to be lost, the loss counts instead of the failure.
    fn depart(&mut self, number: u64, id: NodeId, how: Departure) {
        let time = self.time;
        let Some(round) = self.round.as_mut().filter(|round| round.number == number) else { return };
        let Some(node) = round.present_member(id).map(|member| member.node.clone()) else { return };
        round.departed.insert(id, Departed { how, time });
        let is_failure = round.end.as_ref().is_some_and(|end| end.kind() == RestartKind::WorkerFailure);
        if how.is_loss() && is_failure {
            let failure = round.end.replace(Cause::NodeLost { node: node.clone(), how });
            self.count_restart(RestartKind::WorkerFailure, -1);
            self.count_restart(RestartKind::NodeLoss, 1);
            if let Some(Cause::WorkerFailed { node, .. }) = failure
                && let Some(failures) = self.failures.get_mut(&node.host)
            {
                failures.pop();
            }
        }
        if how == Departure::Killed {
            self.count_failure(node.host);
        }
    }

    fn count_restart(&mut self, kind: RestartKind, change: i32) {
        let count = self.restarts.entry(kind).or_default();
        *count = count.saturating_add_signed(change);
    }

    fn count_failure(&mut self, host: String) {
        let (now, window) = (self.time, self.settings.exclude_window);
        let failures = self.failures.entry(host).or_default();
        failures.retain(|time| now.saturating_sub(*time) < window);
        failures.push(now);
    }

    /// Returns the exclusion of a host at this time, in the job's time.
    pub fn exclusion(&self, host: &str, time: Duration) -> Option<&Exclusion> {
        self.exclusions.get(host).filter(|exclusion| exclusion.until > time)
    }

    /// Returns whether no restart of this kind is left.
    pub fn is_budget_used(&self, kind: RestartKind) -> bool {
        let counts = |kind| self.restarts.get(&kind).copied().unwrap_or(0);
        let used = counts(RestartKind::WorkerFailure).saturating_add(counts(RestartKind::NodeLoss));
        let counts_toward_budget = matches!(kind, RestartKind::WorkerFailure | RestartKind::NodeLoss);
        counts_toward_budget && self.settings.job_max_restarts.is_some_and(|max| used >= max)
    }

    /// Returns the number of the next round, or `None` while a round runs.
    pub fn next_round(&self) -> Option<u64> {
        match &self.round {
            None => Some(0),
            Some(round) => round.end.as_ref().map(|_| round.number.saturating_add(1)),
        }
    }
}
