//! Decides what one node does next, from the shared state and the node's observations. This module changes no state:
//! [`apply`](super::apply) computes the state that follows from a decision.

use std::time::Duration;

use super::member::Member;
use super::reason::Reason;
use super::settings::Settings;
use super::state::{NodeDesc, State};
use super::terms::Terms;
use super::time::{MonoTime, WallTime};

/// A goal that a node pursues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Membership in the next round.
    Join,
    /// Absence from the current round, before the node joins the next.
    Exit,
    /// Absence from all lists, because the node leaves the rendezvous.
    Leave,
    /// A recent heartbeat.
    KeepAlive,
    /// A closed rendezvous.
    Close,
}

impl Goal {
    /// The timeout of [`Goal::Leave`].
    pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

    /// Returns whether a node that pursues the goal waits for other nodes, and keeps retrying while the store does not
    /// answer.
    pub fn waits(self) -> bool {
        matches!(self, Goal::Join | Goal::Exit)
    }

    /// Returns how long a node may take to reach the goal.
    pub fn timeout(self, settings: &Settings) -> Duration {
        match self {
            Goal::Join | Goal::Exit => settings.join_timeout,
            Goal::Leave => Goal::LEAVE_TIMEOUT,
            Goal::KeepAlive => settings.heartbeat_timeout,
            Goal::Close => settings.close_timeout,
        }
    }
}

/// What a node does next. [`decide`] returns it together with a [`Reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// The goal is reached.
    Finish,
    /// The goal can't be reached.
    Fail,
    /// Read the state again later.
    Wait,
    /// Change the shared state.
    Write(Change),
}

/// A change of the shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Renew this node's heartbeat. Like every write, this also removes the dead nodes.
    KeepAlive,
    /// Add this node to the open round.
    AddToParticipants,
    /// Add this node to the wait list.
    AddToWaitList,
    /// Make this node a spare.
    AddToRedundancyList,
    /// Move this node from the complete round to the wait list.
    MoveToWaitList,
    /// Remove this node from every list.
    Withdraw,
    /// Complete the round and assign group ranks.
    MarkComplete,
    /// Close the rendezvous.
    MarkClosed,
    /// Write the complete round of this node again, because the store has lost it.
    Restore,
}

/// What a decision depends on in addition to the state: the node and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// The node and what it remembers. It has already observed the state (see [`Member::observe`]).
    pub(super) member: &'a Member,
    /// The other nodes that are dead.
    pub(super) dead: &'a [NodeDesc],
    /// The time by the node's monotonic clock.
    pub(super) now: MonoTime,
    /// The time by the node's wall clock, which goes into the state.
    pub(super) wall: WallTime,
    /// When the pursuit of the goal started.
    pub(super) since: MonoTime,
    /// When the goal must be reached.
    pub(super) deadline: MonoTime,
    /// Whether the node was a spare at any time during the pursuit.
    pub(super) was_spare: bool,
}

impl View<'_> {
    fn is_late(&self) -> bool {
        self.now > self.deadline
    }
}

/// How long after its join timeout a node may still withdraw.
pub const WITHDRAW_GRACE: Duration = Duration::from_secs(5);

/// Returns what the node of `view` does next to reach `goal`, and why. `state` is the shared state: exactly as it was
/// read if this node is in a complete round, otherwise without the dead nodes (see [`State::without`]).
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
        // A node that stopped being a spare may find the rendezvous closed before it has joined a round. This is not a
        // failure of the node, so the reason is the same as for a spare.
        let reason = if spare || view.was_spare { Reason::SpareNotNeeded } else { Reason::Closed { by } };
        return (Decision::Fail, reason);
    }
    if let Some(reason) = terms_conflict(state, view) {
        let listed = state.has(me) || view.member.may_be_admitted(state);
        return (if listed { Decision::Write(Change::Withdraw) } else { Decision::Fail }, reason);
    }
    // A spare has no timeout. It waits until it is needed.
    if spare && have >= settings.max_nodes {
        return stay(view, Reason::Spare { have });
    }
    if state.complete && in_round {
        // If no node has recorded how many nodes the round was completed with, assume the largest possible number, but
        // at least `min_nodes`.
        let min_world = match state.recorded_world() {
            Some(_) => 0,
            // The group ranks in the state do not show that the node with the highest one has left. Each node on the
            // wait list may be such a node. If none is, this node withdraws for no reason, which does no harm: the
            // round re-forms anyway, because a node waits.
            None => settings.min_nodes.max(state.max_world_size(settings.max_nodes)),
        };
        let (round, world_size) = (state.round, state.world_size().max(min_world));
        return match world_size == have {
            true => (Decision::Finish, Reason::InRound { round, world_size }),
            // Other nodes may have started workers in this round with a larger number of nodes, so this node can't
            // enter it any more.
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
            // A node on the wait list becomes a spare, too. If it stayed on the wait list, it would make the full round
            // re-form again and again.
            (_, false) => (Decision::Write(Change::AddToRedundancyList), Reason::Spare { have }),
        };
    }
    if !in_round {
        // An open round can be full only if nodes have different values of `max_nodes`.
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

/// Returns why this node can't be in the job, or `None` if its `--nnodes` is compatible with that of the other nodes.
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

/// Decides for a node that stays in its list. The node writes if its heartbeat is due or another node is dead.
/// Otherwise it waits.
fn stay(view: &View<'_>, reason: Reason) -> (Decision, Reason) {
    match (view.dead.is_empty(), view.member.until_heartbeat().is_zero()) {
        (false, _) => (Decision::Write(Change::KeepAlive), Reason::Dead { nodes: view.dead.to_vec() }),
        (true, true) => (Decision::Write(Change::KeepAlive), reason),
        (true, false) => (Decision::Wait, reason),
    }
}

fn exit(state: &State, view: &View<'_>) -> (Decision, Reason) {
    // After this node announced itself for the next round, other nodes may have moved it there.
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
