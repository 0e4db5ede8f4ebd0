//! One node pursuing one goal: read, decide, write, look again. It says what to do and is told what came of it; sockets,
//! sleeping and random numbers are the driver's. Losing a compare-and-set is an observation, not an error.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::apply::apply;
use super::decide::{Change, Decision, Goal, View, decide};
use super::member::Member;
use super::membership::Joined;
use super::mono::MonoTime;
use super::node::NodeDesc;
use super::reason::Reason;
use super::state::State;
use super::step::{Cell, End, Phase, Step};
use super::time::WallTime;

/// A node on its way to a goal.
#[derive(Debug)]
pub(super) struct Run {
    goal: Goal,
    since: MonoTime,
    deadline: MonoTime,
    cell: Option<Cell>,
    /// Who has announced itself for the next round to be open; only where that was read after the state.
    announced: Option<Arc<[NodeDesc]>>,
    /// The round it has last announced itself for, since it began.
    asked: Option<u64>,
    losses: u32,
    reason: Reason,
    /// Who was here when the time was up: this node among them, although it withdraws before it ends.
    late: Option<Reason>,
    /// Why this node may not be in the job; it withdraws before it ends.
    refused: Option<Reason>,
    /// The write under way, and when it was decided.
    writing: Option<(Change, MonoTime)>,
    /// When it began to announce itself, for the last time, and for the first time in this round.
    announcing: MonoTime,
    first_announced: Option<MonoTime>,
    /// The round in which it has let others go first, and how often.
    deferred: (u64, u32),
    /// Whether it has stood by as a spare, also if it was called since.
    stood_by: bool,
}

/// How often to look while waiting: as often as torch's nodes.
pub const POLL: Duration = Duration::from_secs(1);
/// The pause after the first lost compare-and-set; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(1024);
/// So often a node lets others go first in one round.
const MOST_DEFERRALS: u32 = 4;
/// Between two that wait for the same one ahead of them.
const STAGGER: Duration = Duration::from_millis(1);
const MOST_STAGGERED: usize = 256;
/// Whose way to the store and back takes so long can't write more than twenty times a second anyway.
const FAR: Duration = Duration::from_millis(60);
/// No pause is shorter, however soon something is due.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

impl Run {
    /// A run towards `goal` that must be over at `deadline`.
    pub(super) fn new(goal: Goal, now: MonoTime, deadline: MonoTime) -> Run {
        Run {
            goal,
            since: now,
            deadline,
            cell: None,
            announced: None,
            asked: None,
            losses: 0,
            reason: Reason::Nothing,
            late: None,
            refused: None,
            writing: None,
            announcing: now,
            first_announced: None,
            deferred: (0, 0),
            stood_by: false,
        }
    }

    /// What it is about.
    pub(super) fn goal(&self) -> Goal {
        self.goal
    }

    /// Why it does what it does now.
    pub(super) fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The state it saw last.
    pub(super) fn state(&self) -> Option<&State> {
        self.cell.as_ref().and_then(|cell| cell.state.as_deref())
    }

    /// When it must be over. A spare that is needed after all has its time again.
    pub(super) fn deadline(&self) -> MonoTime {
        self.deadline
    }

    /// Whether this node stood by as a spare when it last looked: then nothing must be over.
    pub(super) fn is_spare(&self, me: &NodeDesc) -> bool {
        self.state().is_some_and(|state| state.redundancy_list.contains(me))
    }

    /// The state it saw last, to keep.
    pub(super) fn shared_state(&self) -> Option<Arc<State>> {
        self.cell.as_ref().and_then(|cell| cell.state.clone())
    }

    /// The first step.
    pub(super) fn start(&mut self, member: &mut Member) -> Step {
        if matches!(self.goal, Goal::Join | Goal::Exit | Goal::Leave) {
            member.joined = None;
        }
        Step::Read
    }

    /// The state was read.
    pub(super) fn handle_cell(
        &mut self,
        member: &mut Member,
        cell: Cell,
        now: MonoTime,
        wall: WallTime,
    ) -> Step {
        self.take(member, cell, now);
        self.next(member, now, wall)
    }

    /// Whether somebody has let this node in, or out, already: then it is of no use to know who else wants to be.
    pub(super) fn is_settled(&self, me: &NodeDesc, state: &State) -> bool {
        match self.goal {
            Goal::Join => state.participants.contains_key(me),
            Goal::Exit => !state.participants.contains_key(me),
            _ => false,
        }
    }

    /// The announcement was made; the state and the announcements of that round were read after it, in that order.
    pub(super) fn handle_announced(
        &mut self,
        member: &mut Member,
        cell: Cell,
        announced: impl Into<Arc<[NodeDesc]>>,
        now: MonoTime,
        wall: WallTime,
    ) -> Step {
        self.announced = Some(announced.into());
        self.take(member, cell, now);
        let step = self.next(member, now, wall);
        // It goes with this state and no other; and it may be long.
        self.announced = None;
        step
    }

    /// Something failed on the way to the store; what was asked for may or may not have happened.
    pub(super) fn handle_failure(&mut self) -> Step {
        self.writing = None;
        Step::Read
    }

    /// A write came to an end: `won`, or lost to what `cell` shows. `random` is any number.
    pub(super) fn handle_written(
        &mut self,
        member: &mut Member,
        won: bool,
        cell: Cell,
        random: u64,
        now: MonoTime,
        wall: WallTime,
    ) -> Step {
        let written = self.writing.take();
        self.take(member, cell, now);
        if won {
            self.losses = 0;
            if let Some((change, at)) = written {
                member.beat = Some(at);
                if change == Change::Withdraw {
                    // Not before: whoever read the announcement may write until this write was won.
                    member.announcement = None;
                }
            }
            return self.next(member, now, wall);
        }
        self.losses += 1;
        let pause = FIRST_PAUSE.saturating_mul(1 << self.losses.min(8)).min(LONGEST_PAUSE);
        let most = pause / 4 + pause.mul_f64((random % 4096) as f64 / 4096.0 * 0.75);
        // What the winner wrote may be all that was wanted.
        let step = self.next(member, now, wall);
        // A heartbeat is tried again at once: what it is to replace is at hand and will not be any newer after a pause and
        // another read. Far from the store it would else be overtaken again and again, and be missed; near it, every other
        // time is enough.
        let is_heartbeat = matches!(self.writing, Some((Change::KeepAlive, _)));
        let is_far = written.is_some_and(|(_, at)| now.since(at) >= FAR);
        match step {
            Step::Write { .. } if is_heartbeat && (is_far || self.losses % 2 == 1) => step,
            Step::Write { .. } | Step::Announce { .. } => Step::Pause { most, phase: self.phase() },
            other => other,
        }
    }

    /// The pause is over.
    pub(super) fn handle_pause(&mut self, member: &Member, now: MonoTime) -> Step {
        let fresh = State::default();
        let state = self.state().unwrap_or(&fresh);
        let is_in = state.participants.contains_key(&member.me);
        let wants = match self.goal {
            Goal::Join => !state.complete && !is_in,
            Goal::Exit => state.complete && is_in,
            _ => false,
        };
        match member.announcement.filter(|round| wants && *round == to_open(state)) {
            Some(round) => {
                (self.asked, self.announcing) = (Some(round), now);
                Step::Announce { round }
            }
            None => Step::Read,
        }
    }

    fn phase(&self) -> Phase {
        let fresh = State::default();
        let state = self.state().unwrap_or(&fresh);
        Phase { round: state.round, complete: state.complete }
    }

    fn take(&mut self, member: &mut Member, cell: Cell, now: MonoTime) {
        if self.goal != Goal::KeepAlive {
            (member.round, member.is_ahead) = (None, false);
        }
        member.observe(cell.state.as_ref(), now);
        if let Some(state) = &cell.state {
            self.stood_by |= self.goal == Goal::Join && state.redundancy_list.contains(&member.me);
            // Whoever let it in, or out of the round before, has written a heartbeat for it, some time after it asked.
            let let_in =
                member.announcement == Some(state.round) && state.participants.contains_key(&member.me);
            let let_out = self.goal == Goal::Exit && state.wait_list.contains(&member.me);
            if let_in || let_out {
                member.beat = member.beat.max(self.first_announced);
            }
        }
        self.cell = Some(cell);
    }

    fn next(&mut self, member: &mut Member, now: MonoTime, wall: WallTime) -> Step {
        let cell = self.cell.as_ref().expect("a state was read before anything is decided");
        let fresh = State::default();
        let raw = cell.state.as_deref().unwrap_or(&fresh);
        let view = View {
            me: &member.me,
            settings: &member.settings,
            watch: &member.watch,
            now,
            deadline: self.deadline,
            beat: member.beat,
            wall,
            since: self.since,
            announced: member.may_be_let_in(raw),
            asked: self.asked,
            round: member.round.as_deref(),
        };
        if let Some(reason) = self.refused.take_if(|_| !raw.has(&member.me) && !view.announced) {
            return Step::End(End::Refused(reason));
        }
        let dead = member.watch.dead(member.settings.keep_alive_limit(), &member.me);
        let state = match dead.is_empty() {
            true => Cow::Borrowed(raw),
            false => Cow::Owned(raw.without(&dead, member.settings.min_nodes)),
        };
        // Ranks come from the bytes that were read, never from this node's opinion of who is dead.
        let seen = if raw.complete && raw.participants.contains_key(&member.me) { raw } else { &*state };
        let (decision, reason) = decide(self.goal, seen, &view);
        // Others may have gone on to another round since it announced itself.
        self.announced.take_if(|_| self.asked != Some(to_open(&state)));
        self.reason = reason.clone();
        match decision {
            Decision::Finish => {
                let state = cell.state.clone().unwrap_or_default();
                if self.goal == Goal::Join {
                    member.round = Some(Arc::clone(&state));
                    member.joined = Some(Arc::new(Joined::of(&state)));
                }
                Step::End(End::Reached { state, reason })
            }
            Decision::Refuse => Step::End(End::Refused(reason)),
            // A spare that was called, but the job was over before anybody began with it.
            Decision::FailClosed if self.stood_by => Step::End(End::Graceful(reason)),
            Decision::FailClosed => Step::End(End::Closed(reason)),
            Decision::EndGracefully => Step::End(End::Graceful(reason)),
            Decision::FailTimeout => Step::End(End::Timeout(self.late.take().unwrap_or(reason))),
            Decision::Wait => Step::Pause { most: self.wait(member, now), phase: self.phase() },
            // Together with whoever else wants the same.
            Decision::Write(Change::AddToParticipants | Change::StartOver) if self.announced.is_none() => {
                let round = to_open(&state);
                if member.announcement != Some(round) {
                    (member.announcement, self.first_announced) = (Some(round), Some(now));
                }
                (self.asked, self.announcing) = (Some(round), now);
                Step::Announce { round }
            }
            Decision::Write(Change::AddToParticipants | Change::StartOver)
                if dead.is_empty() && !view.is_overdue(&state) && self.goes_later(&state, &member.me) =>
            {
                let ahead = self.ahead(&state, &member.me).take(MOST_STAGGERED).count() as u32;
                self.deferred = match self.deferred {
                    (round, times) if round == state.round => (round, times + 1),
                    _ => (state.round, 1),
                };
                // As long as those ahead need, who are as far from the store; then one after the other.
                let took = now.since(self.announcing).clamp(FIRST_PAUSE, LONGEST_PAUSE / 4);
                Step::Pause { most: took + STAGGER * ahead, phase: self.phase() }
            }
            Decision::Write(change) => {
                let announced = self.announced.as_deref().unwrap_or_default();
                let next = apply(change, raw, &view, &dead, announced);
                if reason.is_join_timeout() {
                    self.late.get_or_insert(reason);
                } else if reason.is_refusal() {
                    self.refused = Some(reason);
                }
                let retract = self.retraction(change, member, raw, &state, dead);
                // A spare that is needed after all has its whole time to join again.
                if raw.redundancy_list.contains(&member.me) && !next.redundancy_list.contains(&member.me) {
                    self.deadline = now.after(member.settings.join_timeout);
                }
                self.writing = Some((change, now));
                Step::Write { token: cell.token.clone(), state: next, retract }
            }
        }
    }

    /// Who has announced itself before this node and is not in the round yet, or not out of the one before; the last one
    /// first, because those who came early mostly are.
    fn ahead<'a>(&'a self, state: &'a State, me: &NodeDesc) -> impl Iterator<Item = &'a NodeDesc> {
        let announced = self.announced.as_deref().unwrap_or_default();
        let place = announced.iter().position(|node| node == me).unwrap_or_default();
        announced[..place].iter().rev().filter(|node| state.participants.contains_key(node) == state.complete)
    }

    /// Whether to let others go first, but not for ever, and not while somebody dead is to be put out: whoever is first in line lets the others in, or out, along with
    /// itself, so that of many who come or go at once few have to write.
    fn goes_later(&self, state: &State, me: &NodeDesc) -> bool {
        let times = if self.deferred.0 == state.round { self.deferred.1 } else { 0 };
        times < MOST_DEFERRALS && self.ahead(state, me).next().is_some()
    }

    /// Whose announcements must be taken back before this change is written, and for which round: of those who would
    /// else be let in again. Nobody is let into a round that is complete, so only the next to be open counts.
    fn retraction(
        &self,
        change: Change,
        member: &Member,
        raw: &State,
        state: &State,
        dead: Vec<NodeDesc>,
    ) -> Option<(u64, Vec<NodeDesc>)> {
        let round = to_open(state).max(member.announcement.unwrap_or_default());
        let mut nodes = dead;
        if change == Change::Withdraw && member.may_be_let_in(raw) {
            nodes.push(member.me.clone());
        }
        (!nodes.is_empty()).then_some((round, nodes))
    }

    /// How long to wait: until the next look or heartbeat is due, a last call is over or the time to join is up, whichever
    /// is first.
    fn wait(&self, member: &Member, now: MonoTime) -> Duration {
        let call = match self.reason {
            Reason::LastCall { left, .. } => left,
            _ => POLL,
        };
        // A spare waits beyond it. It is up only *after* the deadline.
        let time = match now > self.deadline {
            true => POLL,
            false => self.deadline.since(now) + Duration::from_millis(1),
        };
        let beat = member
            .beat
            .map_or(POLL, |beat| member.settings.keep_alive_interval.saturating_sub(now.since(beat)));
        POLL.min(call).min(time).min(beat).max(SHORTEST_WAIT)
    }
}

/// The round that nodes may announce themselves for.
fn to_open(state: &State) -> u64 {
    if state.complete { state.round.saturating_add(1) } else { state.round }
}

#[cfg(test)]
mod tests;
