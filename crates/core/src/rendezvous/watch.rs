//! The heartbeats that one node has observed, by its own monotonic clock.
//!
//! Wall clocks of other machines are never compared. A node is alive while its heartbeat *changes*, and a last call is
//! over when it has been observed for its whole duration.
//!
//! Observing an unchanged state copies nothing. If the state changes many times a second, only some of the states are
//! recorded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::time::{MonoTime, WallTime};

/// The maximum number of states that are recorded within `keep_alive_limit`.
const MAX_RECORDED_STATES: u32 = 64;

/// The observations of one node.
///
/// All durations are observed time since the first observation. The time between two observations counts as at most one
/// `keep_alive_interval`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// The total observed time.
    elapsed: Duration,
    /// The value of `elapsed` at the first observation of the newest state, and that state.
    newest: Option<(Duration, Arc<State>)>,
    /// The nodes of the last recorded state, which is older than `newest`.
    recorded: BTreeMap<NodeDesc, Sighting>,
    recorded_at: Duration,
    /// The round and deadline of the current last call, and the value of `elapsed` at its first observation.
    last_call: Option<((u64, WallTime), Duration)>,
    last_observed: Option<MonoTime>,
}

/// The heartbeat of a node, if it has one, and the value of `Watch::elapsed` at the first observation that showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sighting {
    heartbeat: Option<WallTime>,
    since: Duration,
}

impl Watch {
    /// Observes a state that was read at `now`.
    ///
    /// The time since the last observation counts as at most one `keep_alive_interval`, because other nodes may have
    /// renewed heartbeats that this node did not read while it was paused or the store had an outage.
    pub(super) fn observe(&mut self, state: &Arc<State>, now: MonoTime, settings: &Settings) {
        self.elapsed = self.elapsed.saturating_add(self.gap(now).min(settings.keep_alive_interval));
        self.last_observed = Some(now);
        if self.newest.as_ref().is_none_or(|(_, newest)| newest != state) {
            // A heartbeat that first appeared in a state that was not recorded seems newer than it is. So a node may
            // count as dead up to 1/64 of the limit too late, but never too early.
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

    /// Iterates over the nodes of the last observed state. A node without a heartbeat is returned once for each list
    /// that contains it.
    fn sightings(&self) -> impl Iterator<Item = (&NodeDesc, Sighting)> {
        self.newest.iter().flat_map(|(since, state)| {
            let with = state.last_heartbeats.iter().map(|(node, heartbeat)| (node, Some(*heartbeat)));
            let without = state.lists().filter(|node| !state.last_heartbeats.contains_key(node));
            let all = with.chain(without.map(|node| (node, None)));
            all.map(|(node, heartbeat)| (node, self.sighting(node, heartbeat, *since)))
        })
    }

    /// Returns the sighting of a node in a state that was first observed at `since`.
    fn sighting(&self, node: &NodeDesc, heartbeat: Option<WallTime>, since: Duration) -> Sighting {
        let same = self.recorded.get(node).filter(|before| before.heartbeat == heartbeat);
        same.copied().unwrap_or(Sighting { heartbeat, since })
    }

    /// Returns how long the heartbeat of `node` has not changed, or zero if the node is in no list.
    pub(super) fn heartbeat_age(&self, node: &NodeDesc) -> Duration {
        let Some((since, state)) = self.newest.as_ref().filter(|(_, state)| state.has(node)) else {
            return Duration::ZERO;
        };
        let heartbeat = state.last_heartbeats.get(node).copied();
        self.elapsed - self.sighting(node, heartbeat, *since).since
    }

    /// Returns the nodes whose heartbeat has not changed for at least `limit`. `me` is never among them.
    pub(super) fn dead(&self, limit: Duration, me: &NodeDesc) -> Vec<NodeDesc> {
        if self.elapsed < limit {
            return Vec::new();
        }
        let is_dead = |(node, sighting): &(&NodeDesc, Sighting)| {
            *node != me && sighting.since.saturating_add(limit) <= self.elapsed
        };
        self.sightings().filter(is_dead).map(|(node, _)| node.clone()).collect()
    }

    /// Returns the time until a node is dead if no heartbeat changes, or `None` if `me` is in no list or the rendezvous
    /// is closed. Nodes without a heartbeat do not count.
    pub(super) fn until_next_death(&self, limit: Duration, me: &NodeDesc) -> Option<Duration> {
        let (since, state) = self.newest.as_ref().filter(|(_, state)| state.has(me) && !state.closed)?;
        let heartbeats = state.last_heartbeats.iter();
        let sightings = heartbeats.map(|(node, heartbeat)| self.sighting(node, Some(*heartbeat), *since));
        let oldest = sightings.map(|sighting| sighting.since).min()?;
        Some(oldest.saturating_add(limit).saturating_sub(self.elapsed))
    }

    /// Returns the time since the last observation, or zero before the first one.
    pub(super) fn gap(&self, now: MonoTime) -> Duration {
        self.last_observed.map_or(Duration::ZERO, |observed| now.since(observed))
    }

    /// Returns how long the last call has been observed, if there is one.
    pub(super) fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, since)| self.elapsed - since)
    }
}

#[cfg(test)]
mod tests;
