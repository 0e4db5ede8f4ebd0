//! Helpers for the tests of this module: nodes by name, states by their lists, and one node's view of a state.

use std::sync::Arc;
use std::time::Duration;

use super::decide::View;
use super::member::Member;
use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::time::{MonoTime, WallTime};

pub(super) fn node(name: &str) -> NodeDesc {
    NodeDesc::new(name, 1, 0)
}

pub(super) fn nodes<const N: usize>(names: [&str; N]) -> Vec<NodeDesc> {
    names.map(node).to_vec()
}

/// The monotonic time `seconds` after the start.
pub(super) fn at(seconds: u64) -> MonoTime {
    MonoTime::from_start(Duration::from_secs(seconds))
}

/// The wall time `seconds` after a fixed time.
pub(super) fn wall(seconds: i64) -> WallTime {
    WallTime::from_micros(1_800_000_000_000_000 + seconds * 1_000_000).unwrap()
}

/// An open round with these participants, all with a heartbeat at `wall(0)`.
pub(super) fn open(participants: &[&str]) -> State {
    let mut state = State::default();
    for name in participants {
        state.participants.insert(node(name), 0);
        state.last_heartbeats.insert(node(name), wall(0));
    }
    state
}

/// A complete round with these participants, all with a heartbeat at `wall(0)`.
pub(super) fn complete(participants: &[&str]) -> State {
    let mut state = open(participants);
    state.mark_complete(u64::MAX);
    state
}

impl State {
    pub(super) fn waiting(mut self, name: &str) -> State {
        self.wait_list.insert(node(name));
        self.last_heartbeats.insert(node(name), wall(0));
        self
    }

    pub(super) fn spare(mut self, name: &str) -> State {
        self.redundancy_list.insert(node(name));
        self.last_heartbeats.insert(node(name), wall(0));
        self
    }

    pub(super) fn in_last_call(mut self) -> State {
        self.deadline = Some(wall(30));
        self
    }

    pub(super) fn closed(mut self) -> State {
        self.closed = true;
        self
    }
}

/// Node `b` of a job, by default with `--nnodes 2:3`, 60 s after its join started. No heartbeat is due.
#[derive(Debug, Clone)]
pub(super) struct Fixture {
    pub(super) member: Member,
    pub(super) dead: Vec<NodeDesc>,
    pub(super) now: MonoTime,
    pub(super) wall: WallTime,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        Fixture::with(Settings::new("job", 2, 3))
    }

    pub(super) fn with(settings: Settings) -> Fixture {
        let member = Member::new(node("b"), settings);
        Fixture { member, dead: Vec::new(), now: at(60), wall: wall(60) }
    }

    pub(super) fn heartbeat_due(self) -> Fixture {
        self.after_observing(&open(&["b"]), 5)
    }

    /// Moves the time to `seconds` after the join timeout.
    pub(super) fn late_by(self, seconds: u64) -> Fixture {
        Fixture { now: at(600 + seconds), ..self }
    }

    /// Makes the node remember an announcement for round 0.
    pub(super) fn announced(mut self) -> Fixture {
        self.member.announcement = Some(0);
        self
    }

    /// Observes this state once a second, for `seconds` seconds.
    pub(super) fn after_observing(mut self, state: &State, seconds: u64) -> Fixture {
        let state = Arc::new(state.clone());
        for second in 0..=seconds {
            self.member.observe(Some(&state), at(100 + second));
        }
        self.dead = self.member.dead();
        self
    }

    /// Makes the node count these nodes as dead.
    pub(super) fn with_dead<const N: usize>(self, dead: [&str; N]) -> Fixture {
        Fixture { dead: nodes(dead), ..self }
    }

    pub(super) fn view(&self) -> View<'_> {
        let Fixture { member, dead, now, wall } = self;
        View { member, dead, now: *now, wall: *wall, since: at(0), deadline: at(600), was_spare: false }
    }
}
