//! One simulated node: its clocks, what it is doing, and the driver's part of the work, which is to carry out the steps
//! of a `Run` one message at a time.

use std::time::Duration;

use rallypoint_core::rendezvous::{
    Cell, End, Goal, Member, MonoTime, NodeDesc, Phase, Reason, Run, Settings, State, Step, WallTime,
};

use crate::network::{Reply, Request};

/// What a node is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// On its way into a round: out of the old one first, then into the next.
    Exiting,
    Joining,
    /// In a round, working.
    Working {
        round: u64,
    },
    /// On its way out for good.
    Leaving,
    Closing,
    /// Gone: crashed, left, timed out or finished.
    Gone,
}

/// A node's clocks. The real time of the world is not for its eyes.
#[derive(Debug, Clone)]
pub(crate) struct Clocks {
    /// How far its wall clock is off, in microseconds.
    pub(crate) offset: i64,
    /// How fast its own clock runs, in parts of a million off.
    pub(crate) drift: i64,
}

impl Clocks {
    pub(crate) fn mono(&self, now: Duration) -> MonoTime {
        let micros = now.as_micros() as i64;
        MonoTime::from_start(
            Duration::from_micros((micros + micros / 1000 * self.drift / 1000).max(0) as u64),
        )
    }

    pub(crate) fn wall(&self, now: Duration) -> WallTime {
        const START: i64 = 1_800_000_000_000_000;
        WallTime::from_micros(START + now.as_micros() as i64 + self.offset)
            .expect("within the years that count")
    }
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) member: Member,
    pub(crate) clocks: Clocks,
    pub(crate) stage: Stage,
    pub(crate) run: Option<Run>,
    pub(crate) deadline: Option<MonoTime>,
    /// The number of the message it waits for an answer to, or of the timer; older ones mean nothing.
    pub(crate) waiting_for: u64,
    pub(crate) paused_until: Option<Duration>,
    /// When it was last cut off, paused or delayed beyond what it may bear.
    pub(crate) trouble: Duration,
    pub(crate) died: Option<Duration>,
    /// Steps still to be taken before the run is told of an answer.
    pending: Option<Pending>,
    /// In which phase it pauses, for a wake-up.
    pub(crate) pausing: Option<Phase>,
    /// A phase it has ended and must tell of.
    pub(crate) to_end: Option<Phase>,
}

#[derive(Debug, Clone)]
enum Pending {
    Announcing { round: u64 },
    ReadingState { round: u64 },
    ReadingAnnounced { cell: Cell },
    Retracting { token: Vec<u8>, state: Box<State> },
    Writing { before: Option<Phase>, after: Option<Phase> },
    Reading,
    Monitoring,
}

/// What a node wants of the world next.
#[derive(Debug)]
pub(crate) enum Want {
    Send(Request),
    Sleep(Duration),
    Nothing,
}

/// What a node reports to the checks.
#[derive(Debug)]
pub(crate) enum Report {
    Joined { state: std::sync::Arc<State> },
    TimedOut,
    Closed,
    Graceful,
    Dropped,
}

impl Node {
    pub(crate) fn new(me: NodeDesc, settings: Settings, clocks: Clocks) -> Node {
        Node {
            member: Member::new(me, settings),
            clocks,
            stage: Stage::Gone,
            run: None,
            deadline: None,
            waiting_for: 0,
            paused_until: None,
            trouble: Duration::ZERO,
            died: None,
            pending: None,
            pausing: None,
            to_end: None,
        }
    }

    pub(crate) fn me(&self) -> &NodeDesc {
        &self.member.me
    }

    pub(crate) fn is_up(&self) -> bool {
        self.stage != Stage::Gone
    }

    /// Starts towards the next round.
    pub(crate) fn start_join(&mut self, now: Duration) -> Want {
        self.stage = Stage::Exiting;
        let mono = self.clocks.mono(now);
        self.deadline = Some(mono.after(self.member.settings.join_timeout));
        self.start(Goal::Exit, now)
    }

    pub(crate) fn start(&mut self, goal: Goal, now: Duration) -> Want {
        let mono = self.clocks.mono(now);
        let deadline = match goal {
            Goal::Join | Goal::Exit => self.deadline.unwrap_or(mono),
            Goal::KeepAlive => mono.after(self.member.settings.heartbeat_timeout),
            Goal::Leave | Goal::Close => mono.after(self.member.settings.close_timeout),
        };
        let mut run = Run::new(goal, mono, deadline);
        let step = run.start();
        self.run = Some(run);
        self.take_step(step, now).0
    }

    /// Looks at the state as the agent's monitor does.
    pub(crate) fn monitor(&mut self) -> Want {
        self.pending = Some(Pending::Monitoring);
        Want::Send(Request::Read)
    }

    /// An answer came.
    pub(crate) fn handle_reply(
        &mut self,
        reply: Reply,
        random: u64,
        now: Duration,
    ) -> (Want, Option<Report>) {
        let (mono, wall) = (self.clocks.mono(now), self.clocks.wall(now));
        let Some(pending) = self.pending.take() else { return (Want::Nothing, None) };
        let step = match (pending, reply) {
            (Pending::Announcing { round }, Reply::Done) => {
                self.pending = Some(Pending::ReadingState { round });
                return (Want::Send(Request::Read), None);
            }
            (Pending::ReadingState { round }, Reply::Cell(cell)) => {
                self.pending = Some(Pending::ReadingAnnounced { cell });
                return (Want::Send(Request::ReadAnnounced { round }), None);
            }
            (Pending::ReadingAnnounced { cell }, Reply::Announced(announced)) => {
                let run = self.run.as_mut().expect("it asked");
                run.handle_announced(&mut self.member, cell, announced, mono, wall)
            }
            (Pending::Retracting { token, state }, Reply::Done) => return (self.write(token, state), None),
            (Pending::Writing { before, after }, Reply::Written { won, cell }) => {
                if won && before.is_some() && before != after {
                    self.to_end = before;
                }
                let run = self.run.as_mut().expect("it asked");
                run.handle_written(&mut self.member, won, cell, random, mono, wall)
            }
            (Pending::Reading, Reply::Cell(cell)) => {
                let run = self.run.as_mut().expect("it asked");
                run.handle_cell(&mut self.member, cell, mono, wall)
            }
            (Pending::Monitoring, Reply::Cell(cell)) => return self.monitored(cell, now),
            (pending, reply) => unreachable!("{pending:?} was answered {reply:?}"),
        };
        self.take_step(step, now)
    }

    /// No answer came in time.
    pub(crate) fn handle_no_reply(&mut self, now: Duration) -> (Want, Option<Report>) {
        match self.pending.take() {
            Some(Pending::Monitoring) => (self.idle(), None),
            _ => match &mut self.run {
                Some(run) => {
                    let step = run.handle_failure();
                    self.take_step(step, now)
                }
                None => (self.idle(), None),
            },
        }
    }

    /// A pause is over.
    pub(crate) fn handle_timer(&mut self, now: Duration) -> (Want, Option<Report>) {
        self.pausing = None;
        match (&mut self.run, &self.stage) {
            (Some(run), _) => {
                let step = run.handle_pause();
                self.take_step(step, now)
            }
            (None, Stage::Working { .. }) => {
                let due = self.member.beat.is_none_or(|beat| {
                    self.clocks.mono(now).since(beat) >= self.member.settings.keep_alive_interval
                });
                (if due { self.start(Goal::KeepAlive, now) } else { self.monitor() }, None)
            }
            (None, _) => (Want::Nothing, None),
        }
    }

    fn monitored(&mut self, cell: Cell, now: Duration) -> (Want, Option<Report>) {
        let Some(state) = &cell.state else { return (self.idle(), None) };
        let mono = self.clocks.mono(now);
        self.member.watch.observe(state, mono, self.member.settings.keep_alive_interval);
        let Stage::Working { round } = self.stage else { return (self.idle(), None) };
        if state.closed {
            self.stage = Stage::Gone;
            return (Want::Nothing, Some(Report::Closed));
        }
        let dropped = !state.participants.contains_key(self.me()) || state.round != round;
        if dropped {
            return (self.start_join(now), Some(Report::Dropped));
        }
        if !state.wait_list.is_empty() {
            return (self.start_join(now), None);
        }
        (self.idle(), None)
    }

    fn idle(&mut self) -> Want {
        Want::Sleep(Duration::from_secs(1))
    }

    fn write(&mut self, token: Vec<u8>, state: Box<State>) -> Want {
        let before = self
            .run
            .as_ref()
            .and_then(Run::state)
            .map_or(Some(Phase { round: 0, complete: false }), Phase::of);
        self.pending = Some(Pending::Writing { before, after: Phase::of(&state) });
        Want::Send(Request::Write { token, state })
    }

    fn take_step(&mut self, step: Step, now: Duration) -> (Want, Option<Report>) {
        match step {
            Step::Read => {
                self.pending = Some(Pending::Reading);
                (Want::Send(Request::Read), None)
            }
            Step::Announce { round } => {
                self.pending = Some(Pending::Announcing { round });
                (Want::Send(Request::Announce { round, node: self.me().clone() }), None)
            }
            Step::Write { token, state, retract: None } => (self.write(token, Box::new(state)), None),
            Step::Write { token, state, retract: Some((round, nodes)) } => {
                self.pending = Some(Pending::Retracting { token, state: Box::new(state) });
                (Want::Send(Request::Retract { round, nodes }), None)
            }
            Step::Pause { most, phase } => {
                self.pausing = Some(phase);
                (Want::Sleep(most), None)
            }
            Step::End(end) => self.ended(end, now),
        }
    }

    fn ended(&mut self, end: End, now: Duration) -> (Want, Option<Report>) {
        self.run = None;
        match (end, self.stage.clone()) {
            (End::Reached { .. }, Stage::Exiting) => {
                self.stage = Stage::Joining;
                (self.start(Goal::Join, now), None)
            }
            (End::Reached { state, .. }, Stage::Joining) => {
                self.stage = Stage::Working { round: state.round };
                (self.idle(), Some(Report::Joined { state }))
            }
            (End::Reached { reason, .. }, Stage::Working { .. }) => match reason {
                Reason::Dropped => (self.start_join(now), Some(Report::Dropped)),
                Reason::Closed { .. } => {
                    self.stage = Stage::Gone;
                    (Want::Nothing, Some(Report::Closed))
                }
                _ => (self.idle(), None),
            },
            (End::Reached { .. }, Stage::Leaving | Stage::Closing | Stage::Gone) => {
                self.stage = Stage::Gone;
                (Want::Nothing, None)
            }
            (End::Closed(_), _) => {
                self.stage = Stage::Gone;
                (Want::Nothing, Some(Report::Closed))
            }
            (End::Graceful(_), _) => {
                self.stage = Stage::Gone;
                (Want::Nothing, Some(Report::Graceful))
            }
            // A heartbeat that took too long is tried again; only joining gives up.
            (End::Timeout(_), Stage::Working { .. }) => (self.idle(), None),
            // Who leaves and can't say so in time is gone all the same; the others will notice.
            (End::Timeout(_), Stage::Leaving | Stage::Closing) => {
                self.stage = Stage::Gone;
                (Want::Nothing, None)
            }
            (End::Timeout(_), _) => {
                self.stage = Stage::Gone;
                (Want::Nothing, Some(Report::TimedOut))
            }
        }
    }
}
