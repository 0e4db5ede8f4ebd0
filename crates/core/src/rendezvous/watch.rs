//! What one node has seen of the others, by its own clock. Wall clocks of other machines are compared with nothing: a
//! node is alive while its heartbeat *changes*, and a last call is over when it has been seen for as long as it lasts.
//!
//! A look at a state that is unchanged copies nothing, however many nodes are in it, and of states that come in quick
//! succession not all are recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::time::{MonoTime, WallTime};

/// How many states are recorded at most in the time after which a node counts as dead.
const MOST_RECORDED: u32 = 64;

/// One node's observations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// For how long it has been looking, in all.
    looked: Duration,
    /// The state seen last, and when, by `looked`, it was first seen.
    newest: Option<(Duration, Arc<State>)>,
    /// The nodes of the last state before that which was recorded, and when that was.
    before: BTreeMap<NodeDesc, Sight>,
    recorded: Duration,
    /// The round and deadline of the last call that is under way, and when it was first seen.
    last_call: Option<((u64, WallTime), Duration)>,
    observed: Option<MonoTime>,
}

/// The heartbeat of a node, if it has one, and since when that has been the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sight {
    heartbeat: Option<WallTime>,
    since: Duration,
}

impl Watch {
    /// Takes note of a state that was read at `now`.
    ///
    /// The time since the last look counts for at most one interval of heartbeats: if this node could not look, because it
    /// was paused or the store was away, then the others could not be seen and are not to blame.
    pub(super) fn observe(&mut self, state: &Arc<State>, now: MonoTime, settings: &Settings) {
        self.looked = self.looked.saturating_add(self.unobserved(now).min(settings.keep_alive_interval));
        self.observed = Some(now);
        if self.newest.as_ref().is_none_or(|(_, newest)| newest != state) {
            // A state that is not recorded makes what it showed look newer than it is, so no node is taken for dead too soon.
            if self.looked - self.recorded >= settings.keep_alive_limit() / MOST_RECORDED {
                self.before = self.sights().map(|(node, sight)| (node.clone(), sight)).collect();
                self.recorded = self.looked;
            }
            self.newest = Some((self.looked, Arc::clone(state)));
        }
        let call = state.deadline.filter(|_| !state.complete).map(|deadline| (state.round, deadline));
        self.last_call = call.map(|call| match self.last_call {
            Some((seen, since)) if seen == call => (seen, since),
            _ => (call, self.looked),
        });
    }

    /// The nodes of the state seen last. A node that is in more than one list without a heartbeat comes more than once.
    fn sights(&self) -> impl Iterator<Item = (&NodeDesc, Sight)> {
        self.newest.iter().flat_map(|(since, state)| {
            let shown = state.last_heartbeats.iter().map(|(node, heartbeat)| (node, Some(*heartbeat)));
            let silent = state.lists().filter(|node| !state.last_heartbeats.contains_key(node));
            let all = shown.chain(silent.map(|node| (node, None)));
            all.map(|(node, heartbeat)| (node, self.sight(node, heartbeat, *since)))
        })
    }

    /// A node of the state that was first seen at `since`.
    fn sight(&self, node: &NodeDesc, heartbeat: Option<WallTime>, since: Duration) -> Sight {
        let same = self.before.get(node).filter(|before| before.heartbeat == heartbeat);
        same.copied().unwrap_or(Sight { heartbeat, since })
    }

    /// For how long this node's heartbeat has been the same.
    pub(super) fn silence(&self, node: &NodeDesc) -> Duration {
        let Some((since, state)) = self.newest.as_ref().filter(|(_, state)| state.has(node)) else {
            return Duration::ZERO;
        };
        let heartbeat = state.last_heartbeats.get(node).copied();
        self.looked - self.sight(node, heartbeat, *since).since
    }

    /// The nodes without a sign of life for at least `limit`, except `me`, who knows better.
    pub(super) fn dead(&self, limit: Duration, me: &NodeDesc) -> Vec<NodeDesc> {
        if self.looked < limit {
            return Vec::new();
        }
        let is_dead = |(node, sight): &(&NodeDesc, Sight)| {
            *node != me && sight.since.saturating_add(limit) <= self.looked
        };
        self.sights().filter(is_dead).map(|(node, _)| node.clone()).collect()
    }

    /// How long until one of the nodes other than `me` will have given no sign of life for `limit`, if none does. `None` if it
    /// is not up to `me` to remove it.
    pub(super) fn until_next_death(&self, limit: Duration, me: &NodeDesc) -> Option<Duration> {
        self.newest.as_ref().filter(|(_, state)| state.has(me) && !state.closed)?;
        let others = self.sights().filter(|(node, _)| *node != me);
        let oldest = others.map(|(_, sight)| sight.since).min()?;
        Some(oldest.saturating_add(limit).saturating_sub(self.looked))
    }

    /// How long ago the last look was.
    pub(super) fn unobserved(&self, now: MonoTime) -> Duration {
        self.observed.map_or(Duration::ZERO, |observed| now.since(observed))
    }

    /// For how long the last call of the round seen last has been running.
    pub(super) fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, since)| self.looked - since)
    }
}

#[cfg(test)]
mod tests;
