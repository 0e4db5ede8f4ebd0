//! A node as it lives through many rounds: what outlasts each single pursuit of a goal.

use std::sync::Arc;
use std::time::Duration;

use super::membership::JoinedRound;
use super::outage::Outage;
use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::time::MonoTime;
use super::watch::Watch;

/// How long one call to the store may take. Calls that fail are repeated, so this bounds only how late a node notices that it
/// should stop.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_CALL_TIMEOUT: Duration = Duration::from_millis(100);

/// A node as it lives through many rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub me: NodeDesc,
    /// Its settings.
    pub settings: Settings,
    /// What it has seen of all nodes, itself included.
    pub watch: Watch,
    /// How long the last write took that was won. By the time of the answer, the heartbeat in it was as old.
    pub write_time: Duration,
    /// The round it has announced itself for, as long as that may stand.
    pub announcement: Option<u64>,
    /// The outage of the store, if there is one.
    pub outage: Outage,
    /// The last round of which no node needs the keys any more, until they are removed.
    pub stale_round: Option<u64>,
    /// The complete round that this node is in, as it was last seen.
    pub round: Option<Arc<State>>,
    /// The round that this node has joined and not left since, as it was then.
    pub joined: Option<Arc<JoinedRound>>,
    /// Whether the state seen last is older than `round`: the store has lost the round.
    pub is_state_lost: bool,
}

impl Member {
    /// A node that has seen nothing yet.
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

    /// Returns how long one call to the store may take, so that an outage lasts no longer than it may.
    pub fn call_timeout(&self, now: MonoTime) -> Duration {
        let left = self.settings.store_outage_timeout.saturating_sub(self.outage.lasted(now));
        left.clamp(MIN_CALL_TIMEOUT, CALL_TIMEOUT)
    }

    /// Forgets what was seen of other nodes: a store that was restarted has lost heartbeats, so silence proves nothing.
    pub fn handle_store_emptied(&mut self) {
        self.watch = Watch::default();
    }

    /// Records a state that was read at `now`; `None` if the store has none.
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

    /// Returns the state that counts after `state` was observed: if the store has lost the round of this node, that is the
    /// round, which this node restores.
    pub fn current(&self, state: Option<&Arc<State>>) -> Arc<State> {
        let round = self.round.as_ref().filter(|_| self.is_state_lost);
        round.or(state).cloned().unwrap_or_default()
    }

    /// The other nodes that have shown no sign of life for too long.
    pub(super) fn dead(&self) -> Vec<NodeDesc> {
        self.watch.dead(self.settings.keep_alive_limit(), &self.me)
    }

    /// How long until a heartbeat of this node is due, as of the last look: its heartbeat must not stand still. It does not
    /// matter which node has written it; the node that let this one in has, too.
    pub(super) fn until_heartbeat(&self) -> Duration {
        self.settings.keep_alive_interval.saturating_sub(self.watch.heartbeat_age(&self.me) + self.write_time)
    }

    /// How long until a pursuit of [`super::Goal::KeepAlive`] has something to write: a heartbeat is due, another node
    /// counts as dead, or the store has lost the round.
    pub fn until_keep_alive(&self, now: MonoTime) -> Duration {
        if self.is_state_lost {
            return Duration::ZERO;
        }
        let death = self.watch.until_next_death(self.settings.keep_alive_limit(), &self.me);
        let left = death.map_or(self.until_heartbeat(), |death| death.min(self.until_heartbeat()));
        left.saturating_sub(self.watch.gap(now))
    }

    /// Whether others may still let it in because of its announcement, given the state at hand.
    pub(super) fn may_be_admitted(&self, state: &State) -> bool {
        self.announcement.is_some_and(|round| round >= state.next_open_round())
    }
}
