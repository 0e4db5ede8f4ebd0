//! A node of ours: executes the operations of a `Pursuit` one message at a time, as the shipped driver does, and hands what it
//! sees of the other nodes to the `Supervisor`, as the shipped agent does.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{
    Cell, End, Fault, Goal, Member, Moment, MonoTime, NodeDesc, Operation, Outcome, Pursuit, Reason,
    Settings, Signal, State, WITHDRAW_GRACE, keys,
};
use rallypoint_core::supervise::{Event, Exit, LocalRank, Order, Policy, Reports, Supervisor};

use crate::network::{Name, Reply, Request};
use crate::node::{Behavior, Life, Next, Report, Stage, Want};

/// A behavior of ours.
#[derive(Debug)]
pub(crate) struct Ours {
    member: Member,
    key: Name,
    supervisor: Supervisor,
    pursuit: Option<Pursuit>,
    /// The signals to send if the write under way wins.
    signals: Vec<Signal>,
}

/// Its only worker, which ends as soon as it is told to.
const WORKER: LocalRank = LocalRank(0);

impl Ours {
    pub(crate) fn new(me: NodeDesc, settings: Settings) -> Ours {
        let policy = Policy {
            workers: 1,
            max_restarts: u32::MAX,
            shutdown_grace: Duration::ZERO,
            max_restart_backoff: Duration::ZERO,
            is_elastic: true,
            runs_once: false,
        };
        let key = keys::state(&settings.run_id).into();
        let (member, supervisor) = (Member::new(me, settings), Supervisor::new(policy));
        Ours { member, key, supervisor, pursuit: None, signals: Vec::new() }
    }

    fn start(&mut self, life: &mut Life, goal: Goal, now: Duration) -> Next {
        let (pursuit, operation) = Pursuit::start(goal, &mut self.member, life.clocks.mono(now));
        self.pursuit = Some(pursuit);
        self.execute(life, operation, now)
    }

    fn announcements_key(&self, round: u64) -> Name {
        keys::announcements(&self.member.settings.run_id, round).into()
    }

    /// Hands an outcome to the pursuit under way, and executes what comes next.
    fn handle(&mut self, life: &mut Life, outcome: Outcome, random: u64, now: Duration) -> Next {
        let Some(pursuit) = &mut self.pursuit else { return idle() };
        let moment = Moment { mono: life.clocks.mono(now), wall: life.clocks.wall(now), random };
        let operation = pursuit.handle(&mut self.member, outcome, moment);
        while pursuit.poll_notice().is_some() {}
        // A heartbeat that collides with other writes does not keep the agent from looking at the membership.
        if matches!(life.stage, Stage::Working { .. })
            && let Some(state) = pursuit.state().cloned()
            && let Some(next) = self.look(life, &self.member.current(Some(&state)), now)
        {
            return next;
        }
        self.execute(life, operation, now)
    }

    fn execute(&mut self, life: &mut Life, operation: Operation, now: Duration) -> Next {
        life.pausing = None;
        match self.pursuit.as_ref().map(Pursuit::goal) {
            Some(Goal::Exit) => life.stage = Stage::Exiting,
            Some(Goal::Join) => life.stage = Stage::Joining,
            _ => {}
        }
        let request = match operation {
            Operation::Read => Request::Read { key: self.key.clone() },
            Operation::Announce { round } => {
                Request::Announce { key: self.announcements_key(round), node: self.member.me.clone() }
            }
            Operation::ReadAnnounced { round } => {
                Request::ReadAnnounced { key: self.announcements_key(round) }
            }
            Operation::Retract { round, nodes } => {
                Request::Retract { key: self.announcements_key(round), nodes }
            }
            Operation::Write { token, state, signals } => {
                self.signals = signals;
                Request::Write { key: self.key.clone(), token, state }
            }
            // The simulated store comes back where it was.
            Operation::Host => return self.handle(life, Outcome::Done, 0, now),
            Operation::Pause { timeout, wake } => {
                life.pausing = wake;
                return (Want::Sleep(timeout), None);
            }
            Operation::End(end) => return self.ended(life, end, now),
        };
        (Want::Send(request), None)
    }

    fn ended(&mut self, life: &mut Life, end: End, now: Duration) -> Next {
        let deadline = self.pursuit.take().map_or(MonoTime::default(), |pursuit| pursuit.deadline());
        let report = match (end, life.stage) {
            (End::Reached { state, .. }, Stage::Joining) => {
                let nodes = state.participants.keys().cloned().collect();
                self.supervisor.handle_event(Event::Joined { restarts: 0, nodes, are_all_ours: true });
                life.stage = Stage::Working { round: state.round };
                let _ = self.obey(life, now);
                return (idle().0, Some(Report::Joined { state }));
            }
            (End::Reached { state, .. }, Stage::Working { .. }) => {
                return self.look(life, &state, now).unwrap_or_else(idle);
            }
            // A heartbeat that failed is tried again.
            (_, Stage::Working { .. }) => return idle(),
            (End::Reached { .. }, Stage::Leaving) => Some(Report::Left),
            // A node that leaves and can't say so in time is gone all the same; the others will notice.
            (End::Failed(reason), Stage::Joining) if reason.is_join_timeout() => {
                let cleanly = life.clocks.mono(now).since(deadline) <= WITHDRAW_GRACE;
                Some(Report::TimedOut { cleanly })
            }
            (
                End::Error | End::Outage(_) | End::Failed(Reason::OperationTimeout),
                Stage::Joining | Stage::Exiting,
            ) => Some(Report::TimedOut { cleanly: false }),
            _ => None,
        };
        life.stage = Stage::Gone;
        (Want::Nothing, report)
    }

    /// Looks at the membership as the agent does while its worker runs; what it does about it, if anything.
    fn look(&mut self, life: &mut Life, state: &Arc<State>, now: Duration) -> Option<Next> {
        let seen = self.member.membership(self.member.joined.as_deref(), state);
        self.supervisor.handle_membership(&seen, Some(&Reports::default()), life.clocks.mono(now));
        self.obey(life, now)
    }

    /// Does what the supervisor orders; what it wants of the world then, if anything.
    fn obey(&mut self, life: &mut Life, now: Duration) -> Option<Next> {
        while let Some(order) = self.supervisor.poll_order(life.clocks.mono(now)) {
            match order {
                Order::Join(_) => return Some(self.start(life, Goal::Join, now)),
                Order::Send(_, signal) => {
                    self.supervisor.handle_event(Event::Exited(WORKER, Exit::Signal(signal)));
                    self.supervisor.handle_event(Event::AllProcessesExited);
                }
                Order::End { .. } => {
                    life.stage = Stage::Gone;
                    return Some((Want::Nothing, None));
                }
                _ => {}
            }
        }
        None
    }

    /// R8: a lost compare-and-set changes nothing here but what was seen.
    fn lost(&self, before: Member, cell: &Cell, mono: MonoTime) -> Option<Report> {
        let mut wanted = before;
        wanted.observe(cell.state.as_ref(), mono);
        // What the winner wrote may be the round that it wants to be in.
        wanted.round.clone_from(&self.member.round);
        wanted.joined.clone_from(&self.member.joined);
        wanted.is_state_lost = self.member.is_state_lost;
        wanted.outage = self.member.outage.clone();
        // In that round it has no announcement any more. What it wants next it may announce.
        let has_joined = self.member.joined.is_some();
        wanted.announcement = self.member.announcement.or(wanted.announcement.filter(|_| !has_joined));
        (wanted != self.member).then(|| Report::Broken {
            rule: "R8",
            what: format!("a lost write left {:?} instead of {wanted:?}", self.member),
        })
    }

    /// The state that the agent has asked for, once a second. If there is something to write, the keep-alive thread does it.
    fn monitor(&mut self, life: &mut Life, cell: Cell, random: u64, now: Duration) -> Next {
        let mono = life.clocks.mono(now);
        self.member.observe(cell.state.as_ref(), mono);
        let state = self.member.current(cell.state.as_ref());
        if !self.member.until_keep_alive(mono).is_zero() {
            return self.look(life, &state, now).unwrap_or_else(idle);
        }
        let (pursuit, _) = Pursuit::start(Goal::KeepAlive, &mut self.member, mono);
        self.pursuit = Some(pursuit);
        self.handle(life, Outcome::Cell(cell), random, now)
    }
}

fn idle() -> Next {
    (Want::Sleep(Duration::from_secs(1)), None)
}

impl Behavior for Ours {
    fn join(&mut self, life: &mut Life, now: Duration) -> Next {
        if self.supervisor.is_running() {
            self.supervisor.handle_event(Event::Exited(WORKER, Exit::Code(1)));
            self.supervisor.handle_event(Event::AllProcessesExited);
        }
        self.obey(life, now).expect("it joins")
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
        let outcome = match reply {
            Reply::Cell(cell) if self.pursuit.is_none() => return self.monitor(life, cell, random, now),
            Reply::Cell(cell) => Outcome::Cell(cell),
            Reply::Announced(nodes) => Outcome::Nodes(nodes),
            Reply::Done => Outcome::Done,
            Reply::Written { won: true, cell } => {
                let over = |signal: &Signal| match signal {
                    Signal::PhaseOver(phase) => Some(*phase),
                    Signal::NextRoundWanted { .. } => None,
                };
                life.ended = self.signals.iter().find_map(over);
                Outcome::Written { won: true, cell }
            }
            Reply::Written { won: false, cell } => {
                let (before, mono) = (self.member.clone(), life.clocks.mono(now));
                let outcome = Outcome::Written { won: false, cell: cell.clone() };
                let (want, report) = self.handle(life, outcome, random, now);
                let broken = self.lost(before, &cell, mono);
                return (want, broken.or(report));
            }
        };
        self.handle(life, outcome, random, now)
    }

    fn handle_no_reply(&mut self, life: &mut Life, now: Duration) -> Next {
        self.handle(life, Outcome::Failed(Fault::Outage), 0, now)
    }

    fn handle_store_emptied(&mut self) {
        self.member.handle_store_emptied();
    }

    fn handle_timer(&mut self, life: &mut Life, is_woken: bool, now: Duration) -> Next {
        match (&self.pursuit, life.stage) {
            (Some(_), _) => self.handle(life, Outcome::Paused { is_woken }, 0, now),
            (None, Stage::Working { .. }) => (Want::Send(Request::Read { key: self.key.clone() }), None),
            (None, _) => (Want::Nothing, None),
        }
    }
}
