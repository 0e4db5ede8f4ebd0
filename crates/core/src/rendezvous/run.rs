//! One node pursuing one goal: read, decide, write, look again. It says what to do and is told what came of it; sockets,
//! sleeping and random numbers are the driver's. Losing a compare-and-set is an observation, not an error.

use std::sync::Arc;
use std::time::Duration;

use super::apply::apply;
use super::decide::{Change, Decision, Goal, View, decide};
use super::mono::MonoTime;
use super::node::NodeDesc;
use super::reason::Reason;
use super::settings::Settings;
use super::state::State;
use super::time::WallTime;
use super::watch::Watch;

/// A node as it lives through many rounds.
#[derive(Debug, Clone)]
pub struct Member {
    /// Who it is.
    pub me: NodeDesc,
    /// What it was told.
    pub settings: Settings,
    /// What it has seen.
    pub watch: Watch,
    /// When its heartbeat was last written.
    pub beat: Option<MonoTime>,
}

impl Member {
    /// A node that has seen nothing yet.
    pub fn new(me: NodeDesc, settings: Settings) -> Member {
        Member { me, settings, watch: Watch::default(), beat: None }
    }
}

/// The shared state as it was read, and what a write must find unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// What was there; `None` before anybody has written.
    pub state: Option<Arc<State>>,
    /// What to compare with.
    pub token: Vec<u8>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read the state: [`Run::handle_cell`].
    Read,
    /// Let the others know that this node wants to be in that round, then read the state and who else wants to:
    /// [`Run::handle_announced`].
    Announce {
        /// The round.
        round: u64,
    },
    /// Write the state if nobody else has: [`Run::handle_written`].
    Write {
        /// What must be there.
        token: Vec<u8>,
        /// What is to be there.
        state: State,
        /// Announcements of that round to be taken back *before* the write: whoever read them before has also read a
        /// state that this write replaces, and can't act on them any more.
        retract: Option<(u64, Vec<NodeDesc>)>,
    },
    /// Do nothing for so long at most, or until the phase is over; then [`Run::handle_pause`].
    Pause {
        /// How long.
        most: Duration,
        /// What is being waited for to end.
        phase: Phase,
    },
    /// It is over.
    End(End),
}

/// A stretch of the rendezvous' life: a round that is open, or one that is complete. Whoever ends it tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase {
    /// The round.
    pub round: u64,
    /// Whether it is complete.
    pub complete: bool,
}

impl Phase {
    /// The phase of a state; `None` once it is closed.
    pub fn of(state: &State) -> Option<Phase> {
        (!state.closed).then_some(Phase { round: state.round, complete: state.complete })
    }
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The goal is reached: the state as it was read or written then.
    Reached {
        /// The state.
        state: Arc<State>,
        /// Why it is reached.
        reason: Reason,
    },
    /// The rendezvous is closed.
    Closed(Reason),
    /// The rendezvous is closed and this node was a spare.
    Graceful(Reason),
    /// The time is up.
    Timeout(Reason),
}

/// A node on its way to a goal.
#[derive(Debug)]
pub struct Run {
    goal: Goal,
    since: MonoTime,
    deadline: MonoTime,
    cell: Option<Cell>,
    announced: Vec<NodeDesc>,
    /// The round it has announced itself for.
    announcement: Option<u64>,
    losses: u32,
    reason: Reason,
    /// Who was here when the time was up: this node among them, although it withdraws before it ends.
    late: Option<Reason>,
    /// When the write under way was decided.
    writing: Option<MonoTime>,
}

/// How often to look while waiting: as often as torch's nodes.
pub const POLL: Duration = Duration::from_secs(1);
/// The pause after the first lost compare-and-set; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(1024);

impl Run {
    /// A run towards `goal` that must be over at `deadline`.
    pub fn new(goal: Goal, now: MonoTime, deadline: MonoTime) -> Run {
        Run {
            goal,
            since: now,
            deadline,
            cell: None,
            announced: Vec::new(),
            announcement: None,
            losses: 0,
            reason: Reason::Nothing,
            late: None,
            writing: None,
        }
    }

    /// Why it does what it does now.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// The state it saw last.
    pub fn state(&self) -> Option<&State> {
        self.cell.as_ref().and_then(|cell| cell.state.as_deref())
    }

    /// The first step.
    pub fn start(&mut self) -> Step {
        Step::Read
    }

    /// The state was read.
    pub fn handle_cell(&mut self, member: &mut Member, cell: Cell, now: MonoTime, wall: WallTime) -> Step {
        self.announced.clear();
        self.take(member, cell, now);
        self.next(member, now, wall)
    }

    /// The announcement was made; the state and the announcements of that round were read after it, in that order.
    pub fn handle_announced(
        &mut self,
        member: &mut Member,
        cell: Cell,
        announced: Vec<NodeDesc>,
        now: MonoTime,
        wall: WallTime,
    ) -> Step {
        self.announced = announced;
        self.take(member, cell, now);
        self.next(member, now, wall)
    }

    /// Something failed on the way to the store; what was asked for may or may not have happened.
    pub fn handle_failure(&mut self) -> Step {
        self.writing = None;
        self.announced.clear();
        Step::Read
    }

    /// A write came to an end: `won`, or lost to what `cell` shows. `random` is any number.
    pub fn handle_written(
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
        self.announced.clear();
        if won {
            self.losses = 0;
            member.beat = written.or(member.beat);
            return self.next(member, now, wall);
        }
        self.losses += 1;
        let pause = FIRST_PAUSE.saturating_mul(1 << self.losses.min(8)).min(LONGEST_PAUSE);
        let most = pause / 4 + pause.mul_f64((random % 4096) as f64 / 4096.0 * 0.75);
        // What the winner wrote may be all that was wanted.
        match self.next(member, now, wall) {
            Step::Write { .. } | Step::Announce { .. } => Step::Pause { most, phase: self.phase() },
            other => other,
        }
    }

    /// The pause is over.
    pub fn handle_pause(&mut self) -> Step {
        match self.announcement {
            Some(round) if self.state().is_some_and(|state| state.round == round && !state.complete) => {
                Step::Announce { round }
            }
            _ => Step::Read,
        }
    }

    /// Whether an announcement for this round stands.
    pub fn has_announced(&self, round: u64) -> bool {
        self.announcement == Some(round)
    }

    fn phase(&self) -> Phase {
        let fresh = State::default();
        let state = self.state().unwrap_or(&fresh);
        Phase { round: state.round, complete: state.complete }
    }

    fn take(&mut self, member: &mut Member, cell: Cell, now: MonoTime) {
        if let Some(state) = &cell.state {
            member.watch.observe(state, now, member.settings.keep_alive_interval);
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
            announced: self.announcement.is_some(),
        };
        let dead = member.watch.dead(member.settings.keep_alive_limit(), &member.me);
        let state = raw.without(&dead, member.settings.min_nodes);
        // Ranks come from the bytes that were read, never from this node's opinion of who is dead.
        let seen = if raw.complete && raw.participants.contains_key(&member.me) { raw } else { &state };
        let (decision, reason) = decide(self.goal, seen, &view);
        self.reason = reason.clone();
        match decision {
            Decision::Finish => {
                Step::End(End::Reached { state: cell.state.clone().unwrap_or_default(), reason })
            }
            Decision::FailClosed => Step::End(End::Closed(reason)),
            Decision::EndGracefully => Step::End(End::Graceful(reason)),
            Decision::FailTimeout => Step::End(End::Timeout(self.late.take().unwrap_or(reason))),
            Decision::Wait => Step::Pause { most: POLL, phase: self.phase() },
            Decision::Write(Change::AddToParticipants) if self.announcement != Some(state.round) => {
                self.announcement = Some(state.round);
                Step::Announce { round: state.round }
            }
            Decision::Write(change) => {
                let next = apply(change, raw, &view, &dead, &self.announced);
                if matches!(reason, Reason::JoinTimeout { .. }) {
                    self.late.get_or_insert(reason);
                }
                let mut retract = dead;
                if change == Change::Withdraw {
                    retract.push(member.me.clone());
                    self.announcement = None;
                }
                let retract = (!retract.is_empty()).then_some((raw.round, retract));
                // A spare that is needed after all has its whole time to join again.
                if raw.redundancy_list.contains(&member.me) && !next.redundancy_list.contains(&member.me) {
                    self.deadline = now.after(member.settings.join_timeout);
                }
                self.writing = Some(now);
                Step::Write { token: cell.token.clone(), state: next, retract }
            }
        }
    }
}
