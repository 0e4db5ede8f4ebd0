//! What one node has seen of the others, by its own clock. Wall clocks of other machines are compared with nothing: a
//! node is alive while its heartbeat *changes*, and a last call is over when it has been seen for as long as it lasts.
//!
//! It keeps the states it saw, as far back as matters, and no table of nodes: a look at a state that is unchanged costs
//! nothing however many nodes are in it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::mono::MonoTime;
use super::node::NodeDesc;
use super::settings::Settings;
use super::state::State;
use super::time::WallTime;

/// Of states seen in quick succession only so many are kept for the time after which a node is dead.
const MOST_SIGHTS: u32 = 32;

/// One node's observations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// For how long it has been looking, in all.
    looked: Duration,
    /// When, by `looked`, which state was first seen; the newest last.
    sights: VecDeque<(Duration, Arc<State>)>,
    /// The round and deadline of the last call that is under way, and when it was first seen.
    last_call: Option<(u64, WallTime, Duration)>,
    observed: Option<MonoTime>,
}

impl Watch {
    /// Takes note of a state that was read at `now`.
    ///
    /// The time since the last look counts for at most one interval of heartbeats: if nobody could look, because this
    /// node was paused or the store was away, then the others could not be seen and are not to blame.
    pub fn observe(&mut self, state: &Arc<State>, now: MonoTime, settings: &Settings) {
        let passed = self.observed.map_or(Duration::ZERO, |before| now.since(before));
        self.looked = self.looked.saturating_add(passed.min(settings.keep_alive_interval));
        self.observed = Some(now);
        if self.sights.back().is_none_or(|(_, last)| last != state) {
            self.keep(state, settings.keep_alive_limit());
        }
        self.last_call = match (state.complete, state.deadline, self.last_call) {
            (false, Some(deadline), Some((round, seen, since)))
                if (round, seen) == (state.round, deadline) =>
            {
                Some((round, seen, since))
            }
            (false, Some(deadline), _) => Some((state.round, deadline, self.looked)),
            _ => None,
        };
    }

    fn keep(&mut self, state: &Arc<State>, limit: Duration) {
        // A sight that is passed over makes what it showed look newer than it is, by little: nobody is taken for dead
        // too soon.
        let close = |(before, _): &(Duration, Arc<State>)| self.looked - *before < limit / (MOST_SIGHTS / 2);
        if self.sights.iter().nth_back(1).is_some_and(close) {
            self.sights.pop_back();
        }
        self.sights.push_back((self.looked, state.clone()));
        while self.sights.get(1).is_some_and(|(since, _)| since.saturating_add(limit) <= self.looked) {
            self.sights.pop_front();
        }
    }

    /// For how long this node's heartbeat has been the same.
    pub fn silence(&self, node: &NodeDesc) -> Duration {
        let Some((_, last)) = self.sights.back() else { return Duration::ZERO };
        let Some(heartbeat) = last.heartbeat(node) else { return Duration::ZERO };
        let same = |(_, state): &&(Duration, Arc<State>)| state.heartbeat(node) == Some(heartbeat);
        let first = self.sights.iter().rev().take_while(same).last();
        first.map_or(Duration::ZERO, |(since, _)| self.looked - *since)
    }

    /// For how long a node that is no longer here has been silent, as far as it was seen.
    pub fn silence_of_gone(&self, node: &NodeDesc) -> Duration {
        let heartbeat = |sight: &(Duration, Arc<State>)| sight.1.heartbeat(node);
        let mut here = self.sights.iter().rev().skip_while(|sight| heartbeat(sight).is_none()).peekable();
        let last = here.peek().and_then(|sight| heartbeat(sight));
        let first = here.take_while(|sight| heartbeat(sight) == last).last();
        first.map_or(Duration::ZERO, |(since, _)| self.looked - *since)
    }

    /// The nodes without a sign of life for at least `limit`, except `me`, who knows better.
    pub fn dead(&self, limit: Duration, me: &NodeDesc) -> Vec<NodeDesc> {
        let old = self.sights.iter().rposition(|(since, _)| since.saturating_add(limit) <= self.looked);
        let (Some(old), Some((_, last))) = (old, self.sights.back()) else { return Vec::new() };
        let is_dead = |node: &&NodeDesc| {
            let heartbeat = last.heartbeat(node);
            *node != me && self.sights.range(old..).all(|(_, state)| state.heartbeat(node) == heartbeat)
        };
        let mute = last.lists().filter(|node| !last.last_heartbeats.contains_key(node));
        last.last_heartbeats.keys().chain(mute).filter(is_dead).cloned().collect()
    }

    /// For how long the last call of the round seen last has been running.
    pub fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, _, since)| self.looked - since)
    }
}

#[cfg(test)]
mod tests;
