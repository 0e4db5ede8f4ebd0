//! Simulates a node of ours, which runs the real `Pursuit` and the real `Supervisor`.
//!
//! Like the driver in `crates/rendezvous`, the node executes one operation of its pursuit at a time. Like the agent in
//! `crates/agent`, it passes each membership that it observes to its supervisor.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{
    Cell, End, Fault, Goal, Member, Moment, MonoTime, NodeDesc, Operation, Outcome, Pursuit, Reason,
    Settings, Signal, State, WITHDRAW_GRACE, keys,
};
use rallypoint_core::supervise::{Event, Exit, LocalRank, Order, Policy, Reports, Supervisor};

use crate::network::{Key, Reply, Request};
use crate::node::{Behavior, Command, Context, Report, Stage, Step, TORCH_LOCAL_ID};

/// The behavior of a node of ours.
#[derive(Debug)]
pub(crate) struct Ours {
    member: Member,
    key: Key,
    supervisor: Supervisor,
    pursuit: Option<Pursuit>,
    /// The signals to send if the pending compare-and-set succeeds. Only [`Signal::PhaseOver`] is simulated.
    signals: Vec<Signal>,
}

/// The node's only worker. It exits as soon as it gets a signal.
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

    fn start(&mut self, context: &mut Context, goal: Goal, now: Duration) -> Step {
        let (pursuit, operation) = Pursuit::start(goal, &mut self.member, context.clocks.mono(now));
        self.pursuit = Some(pursuit);
        self.execute(context, operation, now)
    }

    fn announcements_key(&self, round: u64) -> Key {
        keys::announcements(&self.member.settings.run_id, round).into()
    }

    /// Passes an outcome to the current pursuit, and executes the operation that the pursuit returns.
    fn handle(&mut self, context: &mut Context, outcome: Outcome, random: u64, now: Duration) -> Step {
        let Some(pursuit) = &mut self.pursuit else { return idle() };
        let moment = Moment { mono: context.clocks.mono(now), wall: context.clocks.wall(now), random };
        let operation = pursuit.handle(&mut self.member, outcome, moment);
        while pursuit.poll_notice().is_some() {}
        // A keep-alive pursuit may have to repeat its compare-and-set several times. Like the agent, the node observes
        // the membership after each outcome, not only when the pursuit ends.
        if matches!(context.stage, Stage::Working { .. })
            && let Some(state) = pursuit.state().cloned()
            && let Some(next) = self.observe_membership(context, &self.member.current(Some(&state)), now)
        {
            return next;
        }
        self.execute(context, operation, now)
    }

    fn execute(&mut self, context: &mut Context, operation: Operation, now: Duration) -> Step {
        context.wake_phase = None;
        match self.pursuit.as_ref().map(Pursuit::goal) {
            Some(Goal::Exit) => context.stage = Stage::Exiting,
            Some(Goal::Join) => context.stage = Stage::Joining,
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
            // The simulator does not model the store's host, so taking over the store does nothing.
            Operation::Host => return self.handle(context, Outcome::Done, 0, now),
            Operation::Pause { timeout, wake } => {
                context.wake_phase = wake;
                return (Command::Sleep(timeout), None);
            }
            Operation::End(end) => return self.handle_end(context, end, now),
        };
        (Command::Send(request), None)
    }

    fn handle_end(&mut self, context: &mut Context, end: End, now: Duration) -> Step {
        let deadline = self.pursuit.take().map_or(MonoTime::default(), |pursuit| pursuit.deadline());
        let report = match (end, context.stage) {
            (End::Reached { state, .. }, Stage::Joining) => {
                // A real agent recognizes our agents by their keys in the store of the round.
                let are_all_ours = state.participants.keys().all(|node| node.local_id != TORCH_LOCAL_ID);
                let nodes: Vec<_> = state.participants.keys().cloned().collect();
                self.supervisor.handle_event(Event::Joined {
                    restarts: 0,
                    world_size: nodes.len() as u64,
                    lost: 0,
                    nodes,
                    are_all_ours,
                });
                context.stage = Stage::Working { round: state.round };
                let _ = self.carry_out_orders(context, now);
                return (idle().0, Some(Report::Joined { state }));
            }
            (End::Reached { state, .. }, Stage::Working { .. }) => {
                return self.observe_membership(context, &state, now).unwrap_or_else(idle);
            }
            // A failed keep-alive pursuit is not reported. The node reads the state again after 1 s, and `monitor`
            // starts another pursuit if one is due.
            (_, Stage::Working { .. }) => return idle(),
            (End::Reached { .. }, Stage::Leaving) => Some(Report::Left),
            // A node that can't write its withdrawal within `WITHDRAW_GRACE` exits without it. The other nodes remove
            // it when they count it as dead.
            (End::Failed(reason), Stage::Joining) if reason.is_join_timeout() => {
                let is_clean = context.clocks.mono(now).since(deadline) <= WITHDRAW_GRACE;
                Some(Report::TimedOut { is_clean })
            }
            (
                End::Error | End::Outage(_) | End::Failed(Reason::OperationTimeout),
                Stage::Joining | Stage::Exiting,
            ) => Some(Report::TimedOut { is_clean: false }),
            _ => None,
        };
        context.stage = Stage::Ended;
        (Command::Nothing, report)
    }

    /// Passes the membership that follows from `state` to the supervisor, as the agent does while its workers run.
    /// Returns the node's next step if an order of the supervisor determines it.
    fn observe_membership(
        &mut self,
        context: &mut Context,
        state: &Arc<State>,
        now: Duration,
    ) -> Option<Step> {
        let seen = self.member.membership(self.member.joined.as_deref(), state);
        self.supervisor.handle_membership(&seen, Some(&Reports::default()), context.clocks.mono(now));
        self.carry_out_orders(context, now)
    }

    /// Carries out the orders of the supervisor. Returns the next step if an order determines it.
    fn carry_out_orders(&mut self, context: &mut Context, now: Duration) -> Option<Step> {
        while let Some(order) = self.supervisor.poll_order(context.clocks.mono(now)) {
            match order {
                Order::Join(_) => return Some(self.start(context, Goal::Join, now)),
                Order::Send(_, signal) => {
                    self.supervisor.handle_event(Event::Exited(WORKER, Exit::Signal(signal)));
                    self.supervisor.handle_event(Event::AllProcessesExited);
                }
                Order::End { .. } => {
                    context.stage = Stage::Ended;
                    return Some((Command::Nothing, None));
                }
                _ => {}
            }
        }
        None
    }

    /// Checks R8: a failed compare-and-set changes only the observations of the node. `before` is the node before it
    /// handled the reply, and `cell` is the cell in the reply.
    fn check_lost_write(&self, before: Member, cell: &Cell, mono: MonoTime) -> Option<Report> {
        let mut expected = before;
        expected.observe(cell.state.as_ref(), mono);
        // The reply may show that another node completed the round with this node in it. Then this node has joined the
        // round.
        expected.round.clone_from(&self.member.round);
        expected.joined.clone_from(&self.member.joined);
        expected.is_state_lost = self.member.is_state_lost;
        expected.outage = self.member.outage.clone();
        // A node that joins a round forgets its announcement. For a node that has not joined, the next operation may be
        // an announcement.
        let has_joined = self.member.joined.is_some();
        expected.announcement = self.member.announcement.or(expected.announcement.filter(|_| !has_joined));
        (expected != self.member).then(|| Report::RuleBroken {
            rule: "R8",
            what: format!("a failed compare-and-set left {:?} instead of {expected:?}", self.member),
        })
    }

    /// Handles the state that a node in a round reads once a second. Starts a keep-alive pursuit if a heartbeat is due,
    /// another node is dead, or the store has lost the round.
    fn monitor(&mut self, context: &mut Context, cell: Cell, random: u64, now: Duration) -> Step {
        let mono = context.clocks.mono(now);
        self.member.observe(cell.state.as_ref(), mono);
        let state = self.member.current(cell.state.as_ref());
        if !self.member.until_keep_alive(mono).is_zero() {
            return self.observe_membership(context, &state, now).unwrap_or_else(idle);
        }
        let (pursuit, _) = Pursuit::start(Goal::KeepAlive, &mut self.member, mono);
        self.pursuit = Some(pursuit);
        self.handle(context, Outcome::Cell(cell), random, now)
    }
}

fn idle() -> Step {
    (Command::Sleep(Duration::from_secs(1)), None)
}

impl Behavior for Ours {
    fn join(&mut self, context: &mut Context, now: Duration) -> Step {
        if self.supervisor.is_running() {
            self.supervisor.handle_event(Event::Exited(WORKER, Exit::Code(1)));
            self.supervisor.handle_event(Event::AllProcessesExited);
        }
        // The supervisor delays the restart in a round with torch nodes. Until then, the node reads the state.
        self.pursuit = None;
        self.carry_out_orders(context, now).unwrap_or_else(idle)
    }

    fn leave(&mut self, context: &mut Context, now: Duration) -> Option<Step> {
        context.stage = Stage::Leaving;
        Some(self.start(context, Goal::Leave, now))
    }

    fn close(&mut self, context: &mut Context, now: Duration) -> Step {
        context.stage = Stage::Closing;
        self.start(context, Goal::Close, now)
    }

    fn handle_reply(&mut self, context: &mut Context, reply: Reply, random: u64, now: Duration) -> Step {
        let outcome = match reply {
            Reply::Cell(cell) if self.pursuit.is_none() => return self.monitor(context, cell, random, now),
            Reply::Cell(cell) => Outcome::Cell(cell),
            Reply::Announced(nodes) => Outcome::Nodes(nodes),
            Reply::Done => Outcome::Done,
            Reply::Written { won: true, cell } => {
                let ended_phase = |signal: &Signal| match signal {
                    Signal::PhaseOver(phase) => Some(*phase),
                    Signal::NextRoundWanted { .. } => None,
                };
                context.ended_phase = self.signals.iter().find_map(ended_phase);
                Outcome::Written { won: true, cell }
            }
            Reply::Written { won: false, cell } => {
                let (before, mono) = (self.member.clone(), context.clocks.mono(now));
                let outcome = Outcome::Written { won: false, cell: cell.clone() };
                let (command, report) = self.handle(context, outcome, random, now);
                let broken = self.check_lost_write(before, &cell, mono);
                return (command, broken.or(report));
            }
        };
        self.handle(context, outcome, random, now)
    }

    fn handle_no_reply(&mut self, context: &mut Context, now: Duration) -> Step {
        self.handle(context, Outcome::Failed(Fault::Outage), 0, now)
    }

    fn handle_store_emptied(&mut self) {
        self.member.handle_store_emptied();
    }

    fn handle_timer(&mut self, context: &mut Context, is_woken: bool, now: Duration) -> Step {
        match (&self.pursuit, context.stage) {
            (Some(_), _) => self.handle(context, Outcome::Paused { is_woken }, 0, now),
            (None, Stage::Working { .. }) => (Command::Send(Request::Read { key: self.key.clone() }), None),
            (None, _) => (Command::Nothing, None),
        }
    }
}
