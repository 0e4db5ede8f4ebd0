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
const MAX_RECORDED_STATES: u32 = 64;

/// One node's observations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// For how long it has been looking, in all.
    elapsed: Duration,
    /// The state seen last, and when, by `looked`, it was first seen.
    newest: Option<(Duration, Arc<State>)>,
    /// The nodes of the last state before that which was recorded, and when that was.
    recorded: BTreeMap<NodeDesc, Sighting>,
    recorded_at: Duration,
    /// The round and deadline of the last call that is under way, and when it was first seen.
    last_call: Option<((u64, WallTime), Duration)>,
    last_observed: Option<MonoTime>,
}

/// The heartbeat of a node, if it has one, and since when that has been the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    heartbeat: Option<WallTime>,
    since: Duration,
}

impl Watch {
    /// Takes note of a state that was read at `now`.
    ///
    /// The time since the last look counts for at most one interval of heartbeats: if this node could not look, because it
    /// was paused or the store was away, then the others could not be seen and are not to blame.
    pub(super) fn observe(&mut self, state: &Arc<State>, now: MonoTime, settings: &Settings) {
        self.elapsed = self.elapsed.saturating_add(self.gap(now).min(settings.keep_alive_interval));
        self.last_observed = Some(now);
        if self.newest.as_ref().is_none_or(|(_, newest)| newest != state) {
            // A state that is not recorded makes what it showed look newer than it is, so no node is taken for dead too soon.
            if self.elapsed - self.recorded_at >= settings.keep_alive_limit() / MAX_RECORDED_STATES {
                self.recorded = self.sightings().map(|(node, sighting)| (node.clone(), sighting)).collect();
                self.recorded_at = self.elapsed;
            }
            self.newest = Some((self.elapsed, Arc::clone(state)));
        }
        let last_call = state.deadline.filter(|_| !state.complete).map(|deadline| (state.round, deadline));
        self.last_call = last_call.map(|call| match self.last_call {
            Some((seen, since)) if seen == call => (seen, since),
            _ => (call, self.elapsed),
        });
    }

    /// The nodes of the state seen last. A node that is in more than one list without a heartbeat comes more than once.
    fn sightings(&self) -> impl Iterator<Item = (&NodeDesc, Sighting)> {
        self.newest.iter().flat_map(|(since, state)| {
            let with = state.last_heartbeats.iter().map(|(node, heartbeat)| (node, Some(*heartbeat)));
            let without = state.lists().filter(|node| !state.last_heartbeats.contains_key(node));
            let all = with.chain(without.map(|node| (node, None)));
            all.map(|(node, heartbeat)| (node, self.sighting(node, heartbeat, *since)))
        })
    }

    /// A node of the state that was first seen at `since`.
    fn sighting(&self, node: &NodeDesc, heartbeat: Option<WallTime>, since: Duration) -> Sighting {
        let same = self.recorded.get(node).filter(|before| before.heartbeat == heartbeat);
        same.copied().unwrap_or(Sighting { heartbeat, since })
    }

    /// For how long this node's heartbeat has been the same.
    pub(super) fn heartbeat_age(&self, node: &NodeDesc) -> Duration {
        let Some((since, state)) = self.newest.as_ref().filter(|(_, state)| state.has(node)) else {
            return Duration::ZERO;
        };
        let heartbeat = state.last_heartbeats.get(node).copied();
        self.elapsed - self.sighting(node, heartbeat, *since).since
    }

    /// The nodes without a sign of life for at least `limit`, except `me`, who knows better.
    pub(super) fn dead(&self, limit: Duration, me: &NodeDesc) -> Vec<NodeDesc> {
        if self.elapsed < limit {
            return Vec::new();
        }
        let is_dead = |(node, sighting): &(&NodeDesc, Sighting)| {
            *node != me && sighting.since.saturating_add(limit) <= self.elapsed
        };
        self.sightings().filter(is_dead).map(|(node, _)| node.clone()).collect()
    }

    /// How long until one of the nodes other than `me` will have given no sign of life for `limit`, if none does. `None` if it
    /// is not up to `me` to remove it.
    pub(super) fn until_next_death(&self, limit: Duration, me: &NodeDesc) -> Option<Duration> {
        self.newest.as_ref().filter(|(_, state)| state.has(me) && !state.closed)?;
        let others = self.sightings().filter(|(node, _)| *node != me);
        let oldest = others.map(|(_, sighting)| sighting.since).min()?;
        Some(oldest.saturating_add(limit).saturating_sub(self.elapsed))
    }

    /// How long ago the last look was.
    pub(super) fn gap(&self, now: MonoTime) -> Duration {
        self.last_observed.map_or(Duration::ZERO, |observed| now.since(observed))
    }

    /// For how long the last call of the round seen last has been running.
    pub(super) fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, since)| self.elapsed - since)
    }
}

#[cfg(test)]
mod tests;
