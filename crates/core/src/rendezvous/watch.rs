//! What one node has seen of the others, by its own clock. Wall clocks of other machines are compared with nothing: a
//! node is alive while its heartbeat *changes*, and a last call is over when it has been seen for as long as it lasts.
//!
//! Of all the states it saw it keeps the newest, and a table of who was seen with which heartbeat since when. A look at a
//! state that is unchanged costs nothing however many nodes are in it, and states that come in quick succession are not all
//! written into the table.

use std::sync::Arc;
use std::time::Duration;

use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::time::{MonoTime, WallTime};

/// In the time after which a node is dead, states are written into the table at most so often.
const MOST_SIGHTS: u32 = 64;

/// One node's observations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watch {
    /// For how long it has been looking, in all.
    looked: Duration,
    /// The state seen last, and when, by `looked`, it was first seen.
    newest: Option<(Duration, Arc<State>)>,
    /// Who was there before that, in order.
    table: Vec<Sight>,
    /// When the state was first seen that was last written into the table.
    written: Option<Duration>,
    /// No heartbeat in the table is older.
    oldest: Duration,
    /// The round and deadline of the last call that is under way, and when it was first seen.
    last_call: Option<(u64, WallTime, Duration)>,
    observed: Option<MonoTime>,
}

/// A node, its heartbeat if it has one, and since when that has been the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sight {
    node: NodeDesc,
    heartbeat: Option<WallTime>,
    since: Duration,
}

impl Watch {
    /// Takes note of a state that was read at `now`.
    ///
    /// The time since the last look counts for at most one interval of heartbeats: if nobody could look, because this
    /// node was paused or the store was away, then the others could not be seen and are not to blame.
    pub(super) fn observe(&mut self, state: &Arc<State>, now: MonoTime, settings: &Settings) {
        self.looked = self.looked.saturating_add(self.unobserved(now).min(settings.keep_alive_interval));
        self.observed = Some(now);
        if self.newest.as_ref().is_none_or(|(_, newest)| newest != state) {
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
        // A state that is passed over makes what it showed look newer than it is, by little: nobody is taken for dead too
        // soon.
        let is_close = self.written.is_some_and(|written| self.looked - written < limit / MOST_SIGHTS);
        if !is_close && let Some((since, before)) = self.newest.take() {
            self.write_down(&before, since);
        }
        self.newest = Some((self.looked, Arc::clone(state)));
    }

    /// Writes a state into the table that was first seen at `now`.
    fn write_down(&mut self, state: &State, now: Duration) {
        let mut before = std::mem::take(&mut self.table).into_iter().peekable();
        let sight = |(node, heartbeat): (&NodeDesc, Option<WallTime>)| {
            while before.next_if(|sight| sight.node < *node).is_some() {}
            match before.next_if(|sight| sight.node == *node) {
                Some(same) if same.heartbeat == heartbeat => same,
                _ => Sight { node: node.clone(), heartbeat, since: now },
            }
        };
        self.table = heartbeats(state).into_iter().map(sight).collect();
        self.oldest = self.table.iter().map(|sight| sight.since).min().unwrap_or(now).min(now);
        self.written = Some(now);
    }

    /// Since when, by `looked`, this node of the newest state has had that heartbeat.
    fn since(&self, node: &NodeDesc, heartbeat: Option<WallTime>) -> Option<Duration> {
        let (newest, _) = self.newest.as_ref()?;
        let before = self.table.binary_search_by(|sight| sight.node.cmp(node)).ok();
        let same = before.map(|place| &self.table[place]).filter(|sight| sight.heartbeat == heartbeat);
        Some(same.map_or(*newest, |sight| sight.since))
    }

    /// For how long this node's heartbeat has been the same.
    pub(super) fn silence(&self, node: &NodeDesc) -> Duration {
        let heartbeat = self.newest.as_ref().and_then(|(_, newest)| newest.heartbeat(node));
        let since = heartbeat.and_then(|heartbeat| self.since(node, heartbeat));
        since.map_or(Duration::ZERO, |since| self.looked - since)
    }

    /// The nodes without a sign of life for at least `limit`, except `me`, who knows better.
    pub(super) fn dead(&self, limit: Duration, me: &NodeDesc) -> Vec<NodeDesc> {
        let is_old = |since: Duration| since.saturating_add(limit) <= self.looked;
        let Some((since, newest)) = &self.newest else { return Vec::new() };
        if !is_old(self.written.map_or(*since, |_| self.oldest)) {
            return Vec::new();
        }
        let is_dead = |(node, heartbeat): &(&NodeDesc, Option<WallTime>)| {
            *node != me && self.since(node, *heartbeat).is_some_and(is_old)
        };
        heartbeats(newest).into_iter().filter(is_dead).map(|(node, _)| node.clone()).collect()
    }

    /// How long until one of the nodes other than `me` will have given no sign of life for `limit`, if none does. `None` if it
    /// is not up to `me` to remove it.
    pub(super) fn until_next_death(&self, limit: Duration, me: &NodeDesc) -> Option<Duration> {
        let (_, newest) = self.newest.as_ref().filter(|(_, state)| state.has(me) && !state.closed)?;
        let others = heartbeats(newest).into_iter().filter(|(node, _)| *node != me);
        let oldest = others.filter_map(|(node, heartbeat)| self.since(node, heartbeat)).min()?;
        Some(oldest.saturating_add(limit).saturating_sub(self.looked))
    }

    /// How long ago the last look was.
    pub(super) fn unobserved(&self, now: MonoTime) -> Duration {
        self.observed.map_or(Duration::ZERO, |observed| now.since(observed))
    }

    /// For how long the last call of the round seen last has been running.
    pub(super) fn last_call(&self) -> Option<Duration> {
        self.last_call.map(|(_, _, since)| self.looked - since)
    }
}

/// Who is in a state, each once and in order, with its heartbeat if it has one.
fn heartbeats(state: &State) -> Vec<(&NodeDesc, Option<WallTime>)> {
    let mut all: Vec<_> = state.last_heartbeats.iter().map(|(node, beat)| (node, Some(*beat))).collect();
    let shown = all.len();
    all.extend(
        state.lists().filter(|node| !state.last_heartbeats.contains_key(node)).map(|node| (node, None)),
    );
    if all.len() > shown {
        all.sort_unstable_by_key(|(node, _)| *node);
        all.dedup_by_key(|(node, _)| *node);
    }
    all
}

#[cfg(test)]
mod tests;
