//! What one node remembers from one pursuit to the next.

use std::sync::Arc;
use std::time::Duration;

use super::membership::JoinedRound;
use super::outage::Outage;
use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::time::MonoTime;
use super::watch::Watch;

/// The maximum timeout of one call to the store. Failed calls are repeated, so the timeout only bounds how long a node
/// takes to notice that it has to stop.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(100);

/// One node of a rendezvous, with everything that it remembers across rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// This node.
    pub me: NodeDesc,
    /// The settings of this node.
    pub settings: Settings,
    /// The observed heartbeats of all nodes, including this one.
    pub watch: Watch,
    /// How long the last successful write took, up to half of `keep_alive_interval`. The heartbeat in that write was
    /// this old when the reply arrived.
    pub write_time: Duration,
    /// The round that this node has announced itself for, while the announcement may still be in the store.
    pub announcement: Option<u64>,
    /// The outage of the store, if there is one.
    pub outage: Outage,
    /// The last round whose keys no node needs any more. The driver deletes the keys and clears this field.
    pub stale_round: Option<u64>,
    /// The complete round that this node is in, as this node last read it.
    pub round: Option<Arc<State>>,
    /// The round that this node has joined and not left, as it was when this node joined.
    pub joined: Option<Arc<JoinedRound>>,
    /// Whether the state that was read last is older than `round`, which means that the store has lost the round.
    pub is_state_lost: bool,
}

impl Member {
    /// Creates a node without observations.
    pub fn new(me: NodeDesc, settings: Settings) -> Member {
        Member {
            me,
            settings,
            watch: Watch::default(),
            write_time: Duration::ZERO,
            announcement: None,
            outage: Outage::default(),
            stale_round: None,
            round: None,
            joined: None,
            is_state_lost: false,
        }
    }

    /// Returns the timeout of one call to the store: the time until an outage has lasted `store_outage_timeout`, but at
    /// least 100 ms and at most [`CALL_TIMEOUT`].
    pub fn call_timeout(&self, now: MonoTime) -> Duration {
        let left = self.settings.store_outage_timeout.saturating_sub(self.outage.lasted(now));
        left.clamp(MIN_CALL_TIMEOUT, CALL_TIMEOUT)
    }

    /// Forgets all observed heartbeats, because the store was restarted and has lost recent heartbeats. An unchanged
    /// heartbeat then does not show that its node is dead.
    pub fn handle_store_emptied(&mut self) {
        self.watch = Watch::default();
    }

    /// Records a state that was read at `now`, or `None` if the store contains no state.
    pub fn observe(&mut self, state: Option<&Arc<State>>, now: MonoTime) {
        if let Some(state) = state {
            self.watch.observe(state, now, &self.settings);
        }
        let Some(round) = &self.round else { return };
        let fresh = State::default();
        self.is_state_lost = state.map_or(&fresh, |state| &**state).is_behind(round);
        if let Some(state) = state
            && state.complete
            && state.round == round.round
            && state.participants.contains_key(&self.me)
        {
            self.round = Some(Arc::clone(state));
        }
    }

    /// Returns the state to act on after `state` was observed: `state` itself, or the round of this node if the store
    /// has lost it. This node will restore that round.
    pub fn current(&self, state: Option<&Arc<State>>) -> Arc<State> {
        let round = self.round.as_ref().filter(|_| self.is_state_lost);
        round.or(state).cloned().unwrap_or_default()
    }

    /// Returns the other nodes that are dead.
    pub(super) fn dead(&self) -> Vec<NodeDesc> {
        self.watch.dead(self.settings.keep_alive_limit(), &self.me)
    }

    /// Returns the time until a heartbeat of this node is due, as of the last observation. A heartbeat that another
    /// node wrote for this one, when it admitted this node, counts as well.
    pub(super) fn until_heartbeat(&self) -> Duration {
        self.settings.keep_alive_interval.saturating_sub(self.watch.heartbeat_age(&self.me) + self.write_time)
    }

    /// Returns the time until a pursuit of [`Goal::KeepAlive`](super::Goal::KeepAlive) has something to write: a
    /// heartbeat is due, another node is dead, or the store has lost the round.
    pub fn until_keep_alive(&self, now: MonoTime) -> Duration {
        if self.is_state_lost {
            return Duration::ZERO;
        }
        let death = self.watch.until_next_death(self.settings.keep_alive_limit(), &self.me);
        let left = death.map_or(self.until_heartbeat(), |death| death.min(self.until_heartbeat()));
        left.saturating_sub(self.watch.gap(now))
    }

    /// Returns whether other nodes may still admit this node because of its announcement.
    pub(super) fn may_be_admitted(&self, state: &State) -> bool {
        self.announcement.is_some_and(|round| round >= state.next_open_round())
    }
}
