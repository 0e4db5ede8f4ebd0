//! The decision: what one node does next, given the shared state and what it has seen. It changes nothing and knows no
//! store; [`apply`](super::apply) carries a decision out.

use std::time::Duration;

use super::mono::MonoTime;
use super::node::NodeDesc;
use super::reason::Reason;
use super::settings::Settings;
use super::state::State;
use super::terms::Terms;
use super::time::WallTime;
use super::watch::Watch;

/// What a node is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Be in the next round.
    Join,
    /// Be out of the round it was in, so as to be in the next.
    Exit,
    /// Be in no list at all, because it goes.
    Leave,
    /// Show that it is alive.
    KeepAlive,
    /// Close the rendezvous for everybody.
    Close,
}

impl Goal {
    /// How long leaving may take.
    pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

    /// Whether the goal is worth waiting for other nodes, or for a store that does not answer.
    pub fn waits(self) -> bool {
        matches!(self, Goal::Join | Goal::Exit)
    }

    /// How long reaching the goal may take.
    pub fn timeout(self, settings: &Settings) -> Duration {
        match self {
            Goal::Join | Goal::Exit => settings.join_timeout,
            Goal::Leave => Goal::LEAVE_TIMEOUT,
            Goal::KeepAlive => settings.heartbeat_timeout,
            Goal::Close => settings.close_timeout,
        }
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The goal is reached.
    Finish,
    /// The rendezvous is closed; the goal can't be reached.
    FailClosed,
    /// The rendezvous is closed, and this node was a spare nobody needed.
    EndGracefully,
    /// The time is up.
    FailTimeout,
    /// The settings of this node don't fit the job's; the goal can't be reached.
    Refuse,
    /// Look again later.
    Wait,
    /// Change the shared state.
    Write(Change),
}

/// A change of the shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Heartbeat only (with it, the dead are dropped).
    KeepAlive,
    /// Into the round.
    AddToParticipants,
    /// Onto the list for the next round.
    AddToWaitList,
    /// Among the spares.
    AddToRedundancyList,
    /// Out of the complete round and onto the list for the next.
    StartOver,
    /// Out of every list.
    Withdraw,
    /// No more nodes: give out ranks.
    MarkComplete,
    /// Over for everybody.
    MarkClosed,
    /// Back to the complete round that this node is in, after the store lost it.
    Restore,
}

/// Who decides, when, with what in mind.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// This node.
    pub me: &'a NodeDesc,
    /// Its settings.
    pub settings: &'a Settings,
    /// What it has seen of the others, the state at hand included.
    pub watch: &'a Watch,
    /// Its own clock.
    pub now: MonoTime,
    /// When its goal must be reached.
    pub deadline: MonoTime,
    /// When its heartbeat was last written, by its own clock; `None` if never.
    pub beat: Option<MonoTime>,
    /// The clock others see.
    pub wall: WallTime,
    /// When it began.
    pub since: MonoTime,
    /// Whether it has asked the others to let it in.
    pub announced: bool,
    /// The round for which it has done so since it began.
    pub asked: Option<u64>,
    /// The complete round that it is in, as it was last seen.
    pub round: Option<&'a State>,
}

impl View<'_> {
    fn is_late(&self) -> bool {
        self.now > self.deadline
    }

    /// Whether the others wait for a sign of life from it.
    pub(super) fn is_overdue(&self, state: &State) -> bool {
        state.has(self.me) && self.heartbeat_due()
    }

    fn heartbeat_due(&self) -> bool {
        self.beat.is_none_or(|beat| self.now.since(beat) >= self.settings.keep_alive_interval)
    }
}

/// How long a node may take to withdraw after its time to join is up.
pub const ROLLBACK: Duration = Duration::from_secs(5);

/// What to do next. `state` is the shared state without the dead (see [`State::without`]).
pub fn decide(goal: Goal, state: &State, view: &View<'_>) -> (Decision, Reason) {
    match goal {
        Goal::Join => join(state, view),
        Goal::Exit => exit(state, view),
        Goal::Leave => leave(state, view),
        Goal::KeepAlive => keep_alive(state, view),
        Goal::Close => close(state, view),
    }
}

fn join(state: &State, view: &View<'_>) -> (Decision, Reason) {
    let View { me, settings, .. } = *view;
    let have = state.participants.len() as u64;
    let in_round = state.participants.contains_key(me);
    let spare = state.redundancy_list.contains(me);
    if state.closed {
        let by = Reason::Closed { by: state.closed_by() };
        return (if spare { Decision::EndGracefully } else { Decision::FailClosed }, by);
    }
    if let Some(reason) = conflict(state, view) {
        let listed = state.has(me) || view.announced;
        return (if listed { Decision::Write(Change::Withdraw) } else { Decision::Refuse }, reason);
    }
    // No time-out applies to a spare: it waits for as long as it is not needed.
    if spare && have >= settings.max_nodes {
        return stay(state, view, Reason::Spare { have });
    }
    if state.complete && in_round {
        // A round whose size is not written down had at least `min_nodes` nodes.
        let least = match state.written_world() {
            Some(_) => 0,
            // Who waits may have been in it, with the highest rank. It starts over in any case: somebody waits.
            None => settings.min_nodes.max(state.largest_world(settings.max_nodes)),
        };
        let (round, of) = (state.round, state.world_size().max(least));
        return match of == have {
            true => (Decision::Finish, Reason::InRound { round, world_size: have }),
            // Others have returned from this round with a larger world. It can't be entered any more.
            false => (Decision::Write(Change::Withdraw), Reason::RoundBroken { round, of, have }),
        };
    }
    if view.is_late() && !spare {
        let here = state.participants.keys().cloned().collect();
        let waited = view.now.since(view.since);
        let reason = match state.complete {
            true => Reason::NoNextRound { here, round: state.round, waited },
            false => Reason::JoinTimeout { here, need: settings.min_nodes, waited },
        };
        let withdraw = (state.has(me) || view.announced) && view.now.since(view.deadline) <= ROLLBACK;
        return (if withdraw { Decision::Write(Change::Withdraw) } else { Decision::FailTimeout }, reason);
    }
    if state.complete {
        let waiting = state.wait_list.contains(me);
        let reason = Reason::RoundUnderWay { round: state.round, have };
        return match (waiting, have < settings.max_nodes) {
            (true, true) => stay(state, view, reason),
            (false, true) => (Decision::Write(Change::AddToWaitList), reason),
            // Also for those on the wait list: staying on it would make a full round start over, again and again.
            (_, false) => (Decision::Write(Change::AddToRedundancyList), Reason::Spare { have }),
        };
    }
    if !in_round {
        // Only with settings that differ between nodes can an open round be full.
        return match have < settings.max_nodes {
            true => (Decision::Write(Change::AddToParticipants), Reason::NotJoined { round: state.round }),
            false => (Decision::Write(Change::AddToRedundancyList), Reason::Spare { have }),
        };
    }
    if have >= settings.max_nodes {
        return (Decision::Write(Change::MarkComplete), Reason::Full { have });
    }
    if have < settings.min_nodes {
        return stay(state, view, Reason::BelowMinNodes { have, need: settings.min_nodes });
    }
    let called = view.watch.last_call().unwrap_or_default();
    let (limit, setting) = settings.last_call(state);
    match limit.checked_sub(called) {
        None | Some(Duration::ZERO) => (Decision::Write(Change::MarkComplete), Reason::LastCallOver { have }),
        Some(left) => stay(state, view, Reason::LastCall { have, most: settings.max_nodes, left, setting }),
    }
}

/// Returns why this node can't be in the job, if its `--nnodes` is not that of the other nodes.
fn conflict(state: &State, view: &View<'_>) -> Option<Reason> {
    let mine = Terms::new(view.me, view.settings);
    match state.terms() {
        Some(theirs) if state.has_others(view.me) && !mine.agrees_with(&theirs) => {
            Some(Reason::OtherTerms { mine: mine.into(), theirs: theirs.into() })
        }
        // A torch node, which publishes no terms, completed the round with fewer nodes than this node needs.
        _ if state.complete && state.participants.contains_key(view.me) => {
            let have = state.written_world().filter(|have| *have < mine.min_nodes)?;
            Some(Reason::TooFewNodes { round: state.round, have, need: mine.min_nodes })
        }
        _ => None,
    }
}

/// Waits where it is, keeping itself alive and dropping the dead.
fn stay(state: &State, view: &View<'_>, reason: Reason) -> (Decision, Reason) {
    let dead = view.watch.dead(view.settings.keep_alive_limit(), view.me);
    if !dead.is_empty() && state.has(view.me) {
        return (Decision::Write(Change::KeepAlive), Reason::Dead { nodes: dead });
    }
    match view.heartbeat_due() {
        true => (Decision::Write(Change::KeepAlive), reason),
        false => (Decision::Wait, reason),
    }
}

fn exit(state: &State, view: &View<'_>) -> (Decision, Reason) {
    // Others may have let it out and into the next round before it has seen the first.
    let is_in_next = view.asked == Some(state.round);
    if is_in_next || !state.participants.contains_key(view.me) {
        return (Decision::Finish, Reason::Nothing);
    }
    match (view.is_late(), state.complete && !state.closed) {
        (true, _) => (Decision::FailTimeout, Reason::TooLong),
        (false, true) => (Decision::Write(Change::StartOver), Reason::Leaving),
        (false, false) => (Decision::Write(Change::Withdraw), Reason::Leaving),
    }
}

fn leave(state: &State, view: &View<'_>) -> (Decision, Reason) {
    if !state.has(view.me) && !view.announced {
        return (Decision::Finish, Reason::Nothing);
    }
    match view.is_late() {
        true => (Decision::FailTimeout, Reason::TooLong),
        false => (Decision::Write(Change::Withdraw), Reason::Leaving),
    }
}

fn keep_alive(state: &State, view: &View<'_>) -> (Decision, Reason) {
    if state.closed {
        return (Decision::Finish, Reason::Closed { by: state.closed_by() });
    }
    if view.round.is_some_and(|round| state.is_behind(round)) && !view.is_late() {
        return (Decision::Write(Change::Restore), Reason::StateLost);
    }
    if !state.has(view.me) {
        return (Decision::Finish, Reason::Dropped);
    }
    let dead = view.watch.dead(view.settings.keep_alive_limit(), view.me);
    let reason = match (dead.is_empty(), view.heartbeat_due()) {
        (true, false) => return (Decision::Finish, Reason::Nothing),
        (true, true) => Reason::HeartbeatDue,
        (false, _) => Reason::Dead { nodes: dead },
    };
    match view.is_late() {
        true => (Decision::FailTimeout, Reason::TooLong),
        false => (Decision::Write(Change::KeepAlive), reason),
    }
}

fn close(state: &State, view: &View<'_>) -> (Decision, Reason) {
    match (state.closed, view.is_late()) {
        (true, _) => (Decision::Finish, Reason::Closed { by: state.closed_by() }),
        (false, true) => (Decision::FailTimeout, Reason::TooLong),
        (false, false) => (Decision::Write(Change::MarkClosed), Reason::Leaving),
    }
}

#[cfg(test)]
mod tests;
