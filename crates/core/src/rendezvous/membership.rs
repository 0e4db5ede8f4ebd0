//! The membership of a rendezvous: what one node knows about the members of its round, as one value.

use std::fmt;
use std::time::Duration;

use super::member::Member;
use super::reason::names;
use super::state::{NodeDesc, State};

/// The round that a node has joined, as it was when the node joined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedRound {
    /// The number of the round.
    pub round: u64,
    /// The nodes of the round, ordered by group rank.
    pub nodes: Vec<NodeDesc>,
    /// The value of [`State::leavers`] when this node joined.
    leavers: i64,
}

impl JoinedRound {
    /// Returns the round of `state`.
    pub(super) fn of(state: &State) -> JoinedRound {
        let nodes = state.participants.keys().cloned().collect();
        JoinedRound { round: state.round, nodes, leavers: state.leavers() }
    }
}

/// The membership of a rendezvous at one moment, from the point of view of one node.
///
/// `members`, `rejoining` and `lost` together are the nodes that the round of this node was completed with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// The round that this node has joined, or `None` while it joins one.
    pub round: Option<u64>,
    /// The nodes that are still in that round, ordered by group rank.
    pub members: Vec<NodeDesc>,
    /// The nodes that have left that round to join the next one.
    pub rejoining: Vec<NodeDesc>,
    /// The nodes of that round that are lost, if any.
    pub lost: Option<Lost>,
    /// All nodes on the wait list.
    pub waiting: Vec<NodeDesc>,
    /// The spares.
    pub spares: Vec<NodeDesc>,
    /// Whether the round of this node is over: a later round has opened, or nodes of the round wait for the next one.
    /// Always `false` if the rendezvous is closed.
    pub is_round_over: bool,
    /// Whether the other nodes have removed this one from the round, or have started a later round without it. Always
    /// `false` if the rendezvous is closed.
    pub is_dropped: bool,
    /// Why a coordinator has ended the round of this node. Only the native rendezvous has a coordinator.
    pub end: Option<EndCause>,
    /// Whether a coordinator has closed the rendezvous because all nodes have finished.
    pub has_finished: bool,
    /// Whether a coordinator has closed the rendezvous before all nodes had finished.
    pub has_failed: bool,
    /// Whether the rendezvous is closed.
    pub is_closed: bool,
    /// The node that closed the rendezvous and the time, for people to read. Torch nodes don't record it.
    pub closed_by: Option<String>,
}

/// Why a coordinator has ended a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// A worker has failed.
    WorkerFailed,
    /// A node was lost or has left.
    NodeLost,
    /// This node could not renew its lease, so its workers are killed.
    Fenced,
    /// Nodes wait to join.
    Growth,
    /// A node is drained.
    Drained,
    /// A node is excluded.
    Excluded,
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndCause::WorkerFailed => "a worker failed",
            EndCause::NodeLost => "a node was lost",
            EndCause::Fenced => "this node could not renew its lease",
            EndCause::Growth => "nodes wait to join",
            EndCause::Drained => "a node is drained",
            EndCause::Excluded => "a node is excluded",
        })
    }
}

/// Nodes of a round that have left the rendezvous or died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The lost nodes.
    pub nodes: Vec<NodeDesc>,
    /// Why the nodes are lost.
    pub cause: LossCause,
}

/// Why nodes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// Since this node joined the round, a node of ours has recorded that it left the rendezvous. So the lost nodes are
    /// not expected to rejoin. Torch nodes don't record that they leave.
    Left,
    /// A node had no heartbeat for this long (`keep_alive_interval × keep_alive_max_attempt`), or is a torch node that
    /// left and may be about to rejoin.
    NoHeartbeat(Duration),
}

impl Member {
    /// Returns the membership that follows from `state`. `joined` is the round that this node had joined before `state`
    /// was read.
    pub fn membership(&self, joined: Option<&JoinedRound>, state: &State) -> Membership {
        let nodes = joined.map_or(&[][..], |joined| &joined.nodes);
        let is_current = joined.is_some_and(|joined| joined.round == state.round);
        let is_in = |node: &&NodeDesc| is_current && state.participants.contains_key(*node);
        let members: Vec<_> = nodes.iter().filter(is_in).cloned().collect();
        let left = || nodes.iter().filter(|node| !is_in(node));
        let rejoining: Vec<_> = left().filter(|node| state.has(node)).cloned().collect();
        let lost: Vec<_> = left().filter(|node| !state.has(node)).cloned().collect();
        let is_over = joined.is_some() && !state.closed && !is_current;
        let is_next_round_wanted = nodes.iter().any(|node| state.wait_list.contains(node));
        Membership {
            round: joined.map(|joined| joined.round),
            is_round_over: is_over || is_next_round_wanted && !state.closed,
            is_dropped: is_over || joined.is_some() && !state.closed && !members.contains(&self.me),
            lost: joined.filter(|_| !lost.is_empty()).map(|joined| Lost {
                nodes: lost,
                cause: match state.leavers() == joined.leavers {
                    true => LossCause::NoHeartbeat(self.settings.keep_alive_limit()),
                    false => LossCause::Left,
                },
            }),
            members,
            rejoining,
            waiting: state.wait_list.iter().cloned().collect(),
            spares: state.redundancy_list.iter().cloned().collect(),
            end: None,
            has_finished: false,
            has_failed: false,
            is_closed: state.closed,
            closed_by: state.closed_by(),
        }
    }
}

impl Membership {
    /// Returns the number of nodes that the round was completed with.
    pub fn world_size(&self) -> u64 {
        let lost = self.lost.as_ref().map_or(0, |lost| lost.nodes.len());
        (self.members.len() + self.rejoining.len() + lost) as u64
    }

    /// Returns the number of nodes that wait for the next round, as torch's handler counts them. Returns at least 1 if
    /// this node was dropped or a coordinator has ended the round, because this node has to rejoin.
    pub fn num_nodes_waiting(&self) -> u64 {
        (self.waiting.len() as u64).max(u64::from(self.is_dropped || self.end.is_some()))
    }

    /// Returns whether no node of the round is lost and no node waits for the next one. In a closed rendezvous, lost
    /// nodes don't count.
    pub fn is_intact(&self) -> bool {
        self.num_nodes_waiting() == 0 && (self.is_closed || self.lost.is_none())
    }

    /// Returns whether `node`, a node of the round, has left the round: it is lost or rejoins.
    pub fn has_left_round(&self, node: &NodeDesc) -> bool {
        let is_lost = self.lost.as_ref().is_some_and(|lost| lost.nodes.contains(node));
        is_lost || self.rejoining.contains(node)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", names(&self.nodes))?;
        match self.cause {
            LossCause::Left => f.write_str("left"),
            LossCause::NoHeartbeat(limit) => write!(
                f,
                "no heartbeat for {} s (keep_alive_interval × keep_alive_max_attempt)",
                limit.as_secs_f64()
            ),
        }
    }
}

#[cfg(test)]
mod tests;
