//! The membership of a rendezvous: what one node knows about the other nodes, as one value.

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
    /// Its nodes in the order of their ranks.
    pub nodes: Vec<NodeDesc>,
    /// How many nodes had left the rendezvous by then.
    leavers: i64,
}

impl JoinedRound {
    /// The round that `state` shows.
    pub(super) fn of(state: &State) -> JoinedRound {
        let nodes = state.participants.keys().cloned().collect();
        JoinedRound { round: state.round, nodes, leavers: state.leavers() }
    }
}

/// The membership of a rendezvous at one moment, as one node sees it.
///
/// `members`, `rejoining` and `lost` together are the nodes that the round of this node was completed with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// The round that this node has joined; `None` if it is on its way into one.
    pub round: Option<u64>,
    /// The nodes that are still in that round, in the order of their ranks.
    pub members: Vec<NodeDesc>,
    /// The nodes that have left that round and wait for the next one or are in it.
    pub rejoining: Vec<NodeDesc>,
    /// The nodes of that round that have left the rendezvous or died.
    pub lost: Option<Lost>,
    /// All nodes that wait for the next round.
    pub waiting: Vec<NodeDesc>,
    /// The nodes that stand by because the round is full.
    pub spares: Vec<NodeDesc>,
    /// Whether nodes of the round have begun the next one, or wait for it.
    pub is_round_over: bool,
    /// Whether the other nodes have dropped this one from the round, or have gone on to a later one without it.
    pub is_dropped: bool,
    /// Whether the rendezvous has ended for good.
    pub is_closed: bool,
    /// The node that closed it and when, for people to read. Nodes of torch's don't record it.
    pub closed_by: Option<String>,
}

/// Nodes of a round that have left the rendezvous or died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The nodes.
    pub nodes: Vec<NodeDesc>,
    /// Why they are lost.
    pub cause: LossCause,
}

/// Why nodes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// A node recorded that it left, and does not come back. Nodes of torch's record nothing.
    Left,
    /// No heartbeat for this long (`keep_alive_interval × keep_alive_max_attempt`), or a node of torch's that left, and may be
    /// about to come back.
    NoHeartbeat(Duration),
}

impl Member {
    /// The membership that `state` shows to this node. `joined` is the round that it had joined before `state` was read.
    pub fn membership(&self, joined: Option<&JoinedRound>, state: &State) -> Membership {
        let nodes = joined.map_or(&[][..], |joined| &joined.nodes);
        let is_current = joined.is_some_and(|joined| joined.round == state.round);
        let is_in = |node: &&NodeDesc| is_current && state.participants.contains_key(*node);
        let members: Vec<_> = nodes.iter().filter(is_in).cloned().collect();
        let left = || nodes.iter().filter(|node| !is_in(node));
        let rejoining: Vec<_> = left().filter(|node| state.has(node)).cloned().collect();
        let lost: Vec<_> = left().filter(|node| !state.has(node)).cloned().collect();
        let is_over = joined.is_some() && !state.closed && !is_current;
        let is_wanted = nodes.iter().any(|node| state.wait_list.contains(node));
        Membership {
            round: joined.map(|joined| joined.round),
            is_round_over: is_over || is_wanted && !state.closed,
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
            is_closed: state.closed,
            closed_by: state.closed_by(),
        }
    }
}

impl Membership {
    /// How many nodes the round was completed with.
    pub fn world_size(&self) -> u64 {
        let lost = self.lost.as_ref().map_or(0, |lost| lost.nodes.len());
        (self.members.len() + self.rejoining.len() + lost) as u64
    }

    /// How many nodes wait for the next round, as torch's handler counts them. A node that was dropped counts itself, because
    /// it has to start over to be let in again.
    pub fn num_nodes_waiting(&self) -> u64 {
        (self.waiting.len() as u64).max(u64::from(self.is_dropped))
    }

    /// Whether the round goes on as it is: all of its nodes are in it, and no node waits for the next one.
    pub fn is_intact(&self) -> bool {
        self.num_nodes_waiting() == 0 && (self.is_closed || self.lost.is_none())
    }

    /// Whether a node of the round is no longer in it.
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
