//! The decision: what one node does next, given the shared state and what it has seen. It changes nothing and knows no
//! store; [`apply`](super::apply) carries a decision out.

use std::time::Duration;

use super::member::Member;
use super::reason::Reason;
use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::terms::Terms;
use super::time::{MonoTime, WallTime};

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

/// What to do. The reason that comes with it says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The goal is reached.
    Finish,
    /// The goal can't be reached.
    Fail,
    /// Look again later.
    Wait,
    /// Change the shared state.
    Write(Change),
}

/// A change of the shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Heartbeat only (with it, the dead are dropped).
    KeepAlive,
    /// Into the round.
    AddToParticipants,
    /// Onto the list for the next round.
    AddToWaitList,
    /// Among the spares.
    AddToRedundancyList,
    /// Out of the complete round and onto the list for the next.
    MoveToWaitList,
    /// Out of every list.
    Withdraw,
    /// No more nodes: give out ranks.
    MarkComplete,
    /// Over for everybody.
    MarkClosed,
    /// Back to the complete round that this node is in, after the store lost it.
    Restore,
}

/// The node that decides, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// The node, and what it has seen, the state at hand included.
    pub(super) member: &'a Member,
    /// The other nodes that have shown no sign of life for too long.
    pub(super) dead: &'a [NodeDesc],
    /// The time by its own clock.
    pub(super) now: MonoTime,
    /// The time by the clock that other nodes see.
    pub(super) wall: WallTime,
    /// When it began.
    pub(super) since: MonoTime,
    /// When its goal must be reached.
    pub(super) deadline: MonoTime,
    /// Whether it has stood by as a spare since it began.
    pub(super) was_spare: bool,
}

impl View<'_> {
    fn is_late(&self) -> bool {
        self.now > self.deadline
    }
}

/// How long a node may take to withdraw after its time to join is up.
pub const WITHDRAW_GRACE: Duration = Duration::from_secs(5);

/// What to do next. `state` is the shared state without the dead (see [`State::without`]).
pub(super) fn decide(goal: Goal, state: &State, view: &View<'_>) -> (Decision, Reason) {
    let decided = match goal {
        Goal::Join => return join(state, view),
        Goal::Exit => exit(state, view),
        Goal::Leave => leave(state, view),
        Goal::KeepAlive => keep_alive(state, view),
        Goal::Close => close(state),
    };
    match decided {
        (Decision::Write(_), _) if view.is_late() => (Decision::Fail, Reason::OperationTimeout),
        decided => decided,
    }
}

fn join(state: &State, view: &View<'_>) -> (Decision, Reason) {
    let Member { me, settings, .. } = view.member;
    let have = state.participants.len() as u64;
    let in_round = state.participants.contains_key(me);
    let spare = state.redundancy_list.contains(me);
    if state.closed {
        let by = state.closed_by();
        // Also a spare that was called, if the rendezvous was closed before it was in a round.
        let reason = if spare || view.was_spare { Reason::SpareNotNeeded } else { Reason::Closed { by } };
        return (Decision::Fail, reason);
    }
    if let Some(reason) = terms_conflict(state, view) {
        let listed = state.has(me) || view.member.may_be_admitted(state);
        return (if listed { Decision::Write(Change::Withdraw) } else { Decision::Fail }, reason);
    }
    // No timeout applies to a spare: it waits for as long as it is not needed.
    if spare && have >= settings.max_nodes {
        return stay(view, Reason::Spare { have });
    }
    if state.complete && in_round {
        // A round whose size is not written down had at least `min_nodes` nodes.
        let min_world = match state.recorded_world() {
            Some(_) => 0,
            // Who waits may have been in it, with the highest rank. It starts over in any case: somebody waits.
            None => settings.min_nodes.max(state.max_world_size(settings.max_nodes)),
        };
        let (round, world_size) = (state.round, state.world_size().max(min_world));
        return match world_size == have {
            true => (Decision::Finish, Reason::InRound { round, world_size }),
            // Others have returned from this round with a larger world. It can't be entered any more.
            false => (Decision::Write(Change::Withdraw), Reason::RoundBroken { round, world_size, have }),
        };
    }
    if view.is_late() && !spare {
        let participants = state.participants.keys().cloned().collect();
        let waited = view.now.since(view.since);
        let reason = match state.complete {
            true => Reason::NoNextRound { participants, round: state.round, waited },
            false => Reason::JoinTimeout { participants, need: settings.min_nodes, waited },
        };
        let listed = state.has(me) || view.member.may_be_admitted(state);
        let withdraw = listed && view.now.since(view.deadline) <= WITHDRAW_GRACE;
        return (if withdraw { Decision::Write(Change::Withdraw) } else { Decision::Fail }, reason);
    }
    if state.complete {
        let waiting = state.wait_list.contains(me);
        let reason = Reason::RoundUnderWay { round: state.round, have };
        return match (waiting, have < settings.max_nodes) {
            (true, true) => stay(view, reason),
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
        return stay(view, Reason::BelowMinNodes { have, need: settings.min_nodes });
    }
    let elapsed = view.member.watch.last_call().unwrap_or_default();
    let (limit, setting) = settings.last_call(state);
    match limit.checked_sub(elapsed) {
        None | Some(Duration::ZERO) => (Decision::Write(Change::MarkComplete), Reason::LastCallOver { have }),
        Some(left) => stay(view, Reason::LastCall { have, max_nodes: settings.max_nodes, left, setting }),
    }
}

/// Returns why this node can't be in the job, if its `--nnodes` is not that of the other nodes.
fn terms_conflict(state: &State, view: &View<'_>) -> Option<Reason> {
    let Member { me, settings, .. } = view.member;
    let mine = Terms::new(me, settings);
    match state.terms() {
        Some(theirs) if state.has_other_nodes(me) && !mine.agrees_with(&theirs) => {
            Some(Reason::TermsConflict { mine: mine.into(), theirs: theirs.into() })
        }
        // A torch node, which publishes no terms, completed the round with fewer nodes than this node needs.
        _ if state.complete && state.participants.contains_key(me) => {
            let have = state.recorded_world().filter(|have| *have < mine.min_nodes)?;
            Some(Reason::TooFewNodes { round: state.round, have, need: mine.min_nodes })
        }
        _ => None,
    }
}

/// Waits where it is, keeping itself alive and dropping the dead.
fn stay(view: &View<'_>, reason: Reason) -> (Decision, Reason) {
    match (view.dead.is_empty(), view.member.until_heartbeat().is_zero()) {
        (false, _) => (Decision::Write(Change::KeepAlive), Reason::Dead { nodes: view.dead.to_vec() }),
        (true, true) => (Decision::Write(Change::KeepAlive), reason),
        (true, false) => (Decision::Wait, reason),
    }
}

fn exit(state: &State, view: &View<'_>) -> (Decision, Reason) {
    // Others may have let it out and into the next round before it has seen the first.
    let is_in_next = view.member.announcement == Some(state.round);
    if is_in_next || !state.participants.contains_key(&view.member.me) {
        return (Decision::Finish, Reason::Nothing);
    }
    let change = if state.complete && !state.closed { Change::MoveToWaitList } else { Change::Withdraw };
    (Decision::Write(change), Reason::Leaving)
}

fn leave(state: &State, view: &View<'_>) -> (Decision, Reason) {
    match state.has(&view.member.me) || view.member.may_be_admitted(state) {
        true => (Decision::Write(Change::Withdraw), Reason::Leaving),
        false => (Decision::Finish, Reason::Nothing),
    }
}

fn keep_alive(state: &State, view: &View<'_>) -> (Decision, Reason) {
    if state.closed {
        return (Decision::Finish, Reason::Closed { by: state.closed_by() });
    }
    if view.member.round.as_ref().is_some_and(|round| state.is_behind(round)) {
        return (Decision::Write(Change::Restore), Reason::StateLost);
    }
    if !state.has(&view.member.me) {
        return (Decision::Finish, Reason::Dropped);
    }
    match stay(view, Reason::HeartbeatDue) {
        (Decision::Wait, _) => (Decision::Finish, Reason::Nothing),
        write => write,
    }
}

fn close(state: &State) -> (Decision, Reason) {
    match state.closed {
        true => (Decision::Finish, Reason::Closed { by: state.closed_by() }),
        false => (Decision::Write(Change::MarkClosed), Reason::Leaving),
    }
}

#[cfg(test)]
mod tests;
