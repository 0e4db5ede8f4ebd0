//! A node of ours: the driver's part of the work, which is to carry out the steps of a `Run` one message at a time, and
//! to look after the round it is in.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rallypoint_core::rendezvous::{
    Cell, End, Goal, Member, MonoTime, NodeDesc, Phase, ROLLBACK, Reason, Run, Settings, State, Step, Watch,
    keys,
};

use crate::network::{Name, Reply, Request};
use crate::node::{Life, Mind, Next, Report, Stage, Want};

/// A mind of ours.
#[derive(Debug)]
pub(crate) struct Ours {
    member: Member,
    key: Name,
    run: Option<Run>,
    /// When it must be in a round.
    deadline: MonoTime,
    /// The round it has announced itself for: it does so once.
    asked: Option<u64>,
    pending: Option<Pending>,
}

/// What a reply is to be for.
#[derive(Debug, Clone)]
enum Pending {
    Announcing { round: u64 },
    ReadingState { round: u64 },
    ReadingAnnounced { cell: Cell },
    Retracting { token: Bytes, state: Arc<State> },
    Writing { before: Option<Phase>, after: Option<Phase> },
    Reading,
    Monitoring,
}

impl Ours {
    pub(crate) fn new(me: NodeDesc, settings: Settings) -> Ours {
        let key = keys::state(&settings.run_id).into();
        Ours {
            member: Member::new(me, settings),
            key,
            run: None,
            deadline: MonoTime::default(),
            asked: None,
            pending: None,
        }
    }

    fn start(&mut self, life: &mut Life, goal: Goal, now: Duration) -> Next {
        let (mono, settings) = (life.clocks.mono(now), &self.member.settings);
        let deadline = match goal {
            Goal::Join | Goal::Exit => self.deadline,
            Goal::KeepAlive => mono.after(settings.heartbeat_timeout),
            Goal::Leave | Goal::Close => mono.after(settings.close_timeout),
        };
        let mut run = Run::new(goal, mono, deadline);
        let step = run.start(&mut self.member);
        self.run = Some(run);
        self.take_step(life, step, now)
    }

    fn read(&mut self, pending: Pending) -> Next {
        self.pending = Some(pending);
        (Want::Send(Request::Read { key: self.key.clone() }), None)
    }

    fn is_settled(&self, cell: &Cell) -> bool {
        let run = self.run.as_ref().expect("it asked");
        cell.state.as_ref().is_some_and(|state| run.is_settled(&self.member.me, state))
    }

    fn announced(&self, round: u64) -> Name {
        keys::announced(&self.member.settings.run_id, round).into()
    }

    /// Looks at the state as the agent's monitor does.
    fn look(&mut self, life: &mut Life, state: &State, now: Duration) -> Next {
        let Stage::Working { round } = life.stage else { return idle() };
        if state.closed {
            life.stage = Stage::Gone;
            return (Want::Nothing, None);
        }
        let dropped = !state.participants.contains_key(&self.member.me) || state.round != round;
        match dropped || !state.wait_list.is_empty() {
            true => self.join(life, now),
            false => idle(),
        }
    }

    fn write(&mut self, token: Bytes, state: Arc<State>) -> Next {
        let before = self.run.as_ref().and_then(Run::state);
        let before = before.map_or(Some(Phase { round: 0, complete: false }), Phase::of);
        self.pending = Some(Pending::Writing { before, after: Phase::of(&state) });
        (Want::Send(Request::Write { key: self.key.clone(), token, state }), None)
    }

    fn take_step(&mut self, life: &mut Life, step: Step, now: Duration) -> Next {
        // A heartbeat that others keep from being written doesn't keep it from seeing that somebody waits.
        let seen = self.run.as_ref().and_then(Run::state);
        let waits = seen.is_some_and(|state| !state.closed && !state.wait_list.is_empty());
        if waits && matches!(life.stage, Stage::Working { .. }) {
            return self.join(life, now);
        }
        match step {
            Step::Read => self.read(Pending::Reading),
            Step::Announce { round } if self.asked == Some(round) => {
                self.read(Pending::ReadingState { round })
            }
            Step::Announce { round } => {
                self.pending = Some(Pending::Announcing { round });
                let (key, node) = (self.announced(round), self.member.me.clone());
                (Want::Send(Request::Announce { key, node }), None)
            }
            Step::Write { token, state, retract: None } => self.write(token, Arc::new(state)),
            Step::Write { token, state, retract: Some((round, nodes)) } => {
                self.pending = Some(Pending::Retracting { token, state: Arc::new(state) });
                (Want::Send(Request::Retract { key: self.announced(round), nodes }), None)
            }
            Step::Pause { most, phase } => {
                life.pausing = Some(phase);
                (Want::Sleep(most), None)
            }
            Step::End(end) => self.ended(life, end, now),
        }
    }

    fn ended(&mut self, life: &mut Life, end: End, now: Duration) -> Next {
        self.run = None;
        match (end, life.stage) {
            (End::Reached { .. }, Stage::Exiting) => {
                life.stage = Stage::Joining;
                self.start(life, Goal::Join, now)
            }
            (End::Reached { state, .. }, Stage::Joining) => {
                life.stage = Stage::Working { round: state.round };
                (idle().0, Some(Report::Joined { state }))
            }
            (End::Reached { state, reason }, Stage::Working { .. }) => match reason {
                Reason::Dropped => self.join(life, now),
                _ => self.look(life, &state, now),
            },
            // A heartbeat that took too long is tried again; only joining gives up.
            (End::Timeout(_), Stage::Working { .. }) => idle(),
            (end, stage) => {
                life.stage = Stage::Gone;
                let cleanly = life.clocks.mono(now).since(self.deadline) <= ROLLBACK;
                let report = match (end, stage) {
                    (End::Reached { .. }, Stage::Leaving) => Some(Report::Left),
                    // Who leaves and can't say so in time is gone all the same; the others will notice.
                    (End::Timeout(_), Stage::Joining) => Some(Report::TimedOut { cleanly }),
                    (End::Timeout(_), Stage::Exiting) => Some(Report::TimedOut { cleanly: false }),
                    _ => None,
                };
                (Want::Nothing, report)
            }
        }
    }

    /// R8: a lost compare-and-set changes nothing here but what was seen.
    fn lost(&self, before: Member, cell: &Cell, mono: MonoTime) -> Option<Report> {
        let mut wanted = before;
        wanted.observe(cell.state.as_ref(), mono);
        // What the winner wrote may be the round that it wants to be in.
        wanted.round.clone_from(&self.member.round);
        wanted.joined.clone_from(&self.member.joined);
        wanted.is_ahead = self.member.is_ahead;
        // What it wants next it may announce, and whoever let it in or out has written a heartbeat for it.
        wanted.announcement = self.member.announcement.or(wanted.announcement);
        if cell.state.as_ref().is_some_and(|state| state.has(&wanted.me)) {
            wanted.beat = wanted.beat.max(self.member.beat);
        }
        (wanted != self.member).then(|| Report::Broken {
            rule: "R8",
            what: format!("a lost write left {:?} instead of {wanted:?}", self.member),
        })
    }
}

fn idle() -> Next {
    (Want::Sleep(Duration::from_secs(1)), None)
}

impl Mind for Ours {
    fn join(&mut self, life: &mut Life, now: Duration) -> Next {
        life.stage = Stage::Exiting;
        self.deadline = life.clocks.mono(now).after(self.member.settings.join_timeout);
        self.start(life, Goal::Exit, now)
    }

    fn leave(&mut self, life: &mut Life, now: Duration) -> Option<Next> {
        life.stage = Stage::Leaving;
        Some(self.start(life, Goal::Leave, now))
    }

    fn close(&mut self, life: &mut Life, now: Duration) -> Next {
        life.stage = Stage::Closing;
        self.start(life, Goal::Close, now)
    }

    fn handle_reply(&mut self, life: &mut Life, reply: Reply, random: u64, now: Duration) -> Next {
        let (mono, wall) = (life.clocks.mono(now), life.clocks.wall(now));
        let Some(pending) = self.pending.take() else { return (Want::Nothing, None) };
        let step = match (pending, reply) {
            (Pending::Announcing { round }, Reply::Done) => {
                self.asked = Some(round);
                return self.read(Pending::ReadingState { round });
            }
            (Pending::ReadingState { .. }, Reply::Cell(cell)) if self.is_settled(&cell) => {
                let run = self.run.as_mut().expect("it asked");
                run.handle_announced(&mut self.member, cell, [], mono, wall)
            }
            (Pending::ReadingState { round }, Reply::Cell(cell)) => {
                self.pending = Some(Pending::ReadingAnnounced { cell });
                return (Want::Send(Request::ReadAnnounced { key: self.announced(round) }), None);
            }
            (Pending::ReadingAnnounced { cell }, Reply::Announced(announced)) => self
                .run
                .as_mut()
                .expect("it asked")
                .handle_announced(&mut self.member, cell, announced, mono, wall),
            (Pending::Retracting { token, state }, Reply::Done) => return self.write(token, state),
            (Pending::Writing { before, after }, Reply::Written { won: true, cell }) => {
                if before.is_some() && before != after {
                    life.ended = before;
                }
                self.run.as_mut().expect("it asked").handle_written(
                    &mut self.member,
                    true,
                    cell,
                    random,
                    mono,
                    wall,
                )
            }
            (Pending::Writing { .. }, Reply::Written { won: false, cell }) => {
                let before = self.member.clone();
                let run = self.run.as_mut().expect("it asked");
                let step = run.handle_written(&mut self.member, false, cell.clone(), random, mono, wall);
                let broken = self.lost(before, &cell, mono);
                let (want, report) = self.take_step(life, step, now);
                return (want, broken.or(report));
            }
            (Pending::Reading, Reply::Cell(cell)) => {
                self.run.as_mut().expect("it asked").handle_cell(&mut self.member, cell, mono, wall)
            }
            (Pending::Monitoring, Reply::Cell(cell)) => {
                let state = cell.state.clone().unwrap_or_default();
                self.member.observe(cell.state.as_ref(), mono);
                match self.member.has_duty(mono) {
                    // The real driver has a thread for this, which reads when it is due: once, as here.
                    true => {
                        let limit = self.member.settings.heartbeat_timeout;
                        let run = self.run.insert(Run::new(Goal::KeepAlive, mono, mono.after(limit)));
                        run.handle_cell(&mut self.member, cell, mono, wall)
                    }
                    false => return self.look(life, &state, now),
                }
            }
            (pending, reply) => unreachable!("{pending:?} was answered {reply:?}"),
        };
        self.take_step(life, step, now)
    }

    fn handle_no_reply(&mut self, life: &mut Life, now: Duration) -> Next {
        match (self.pending.take(), &mut self.run) {
            (Some(Pending::Monitoring), _) | (_, None) => idle(),
            (_, Some(run)) => {
                let step = run.handle_failure();
                self.take_step(life, step, now)
            }
        }
    }

    fn handle_store_emptied(&mut self) {
        self.member.watch = Watch::default();
    }

    fn handle_timer(&mut self, life: &mut Life, now: Duration) -> Next {
        life.pausing = None;
        match (&mut self.run, life.stage) {
            (Some(run), _) => {
                let step = run.handle_pause(&self.member, life.clocks.mono(now));
                self.take_step(life, step, now)
            }
            (None, Stage::Working { .. }) => self.read(Pending::Monitoring),
            (None, _) => (Want::Nothing, None),
        }
    }
}
