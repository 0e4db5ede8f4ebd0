//! What one node has seen of the others, by its own clock. Wall clocks of other machines are compared with nothing: a
//! node is alive while its heartbeat *changes*, and a last call is over when it has been seen for as long as it lasts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::mono::MonoTime;
use super::node::NodeDesc;
use super::state::State;
use super::time::WallTime;

/// One node's observations.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    nodes: BTreeMap<NodeDesc, Sight>,
    last_call: Option<(u64, WallTime, Duration)>,
    observed: Option<MonoTime>,
}

/// What was seen of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sight {
    heartbeat: Option<WallTime>,
    /// For how long it has been the same.
    unchanged: Duration,
}

impl Watch {
    /// Takes note of a state that was read at `now`.
    ///
    /// The time since the last look counts for at most `most`: if nobody could look, because this node was paused or
    /// the store was away, then the others could not be seen and are not to blame.
    pub fn observe(&mut self, state: &State, now: MonoTime, most: Duration) {
        let passed = self.observed.map_or(Duration::ZERO, |before| now.since(before)).min(most);
        self.observed = Some(now);
        let mut nodes = BTreeMap::new();
        for node in state.members() {
            let heartbeat = state.last_heartbeats.get(node).copied();
            let unchanged = match self.nodes.get(node) {
                Some(seen) if seen.heartbeat == heartbeat => seen.unchanged + passed,
                _ => Duration::ZERO,
            };
            nodes.insert(node.clone(), Sight { heartbeat, unchanged });
        }
        self.nodes = nodes;
        self.last_call = match (state.complete, state.deadline) {
            (false, Some(deadline)) => match self.last_call {
                Some((round, seen, since)) if (round, seen) == (state.round, deadline) => {
                    Some((round, seen, since + passed))
                }
                _ => Some((state.round, deadline, Duration::ZERO)),
            },
            _ => None,
        };
    }

    /// For how long this node's heartbeat has been the same.
    pub fn silence(&self, node: &NodeDesc) -> Duration {
        self.nodes.get(node).map_or(Duration::ZERO, |seen| seen.unchanged)
    }

    /// The nodes without a sign of life for at least `limit`, except `me`, who knows better.
    pub fn dead(&self, limit: Duration, me: &NodeDesc) -> Vec<NodeDesc> {
        self.nodes
            .iter()
            .filter(|(node, seen)| *node != me && seen.unchanged >= limit)
            .map(|(node, _)| node.clone())
            .collect()
    }

    /// For how long the last call of the round seen last has been running.
    pub fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, _, since)| since)
    }
}
