//! One node pursuing one goal against a store, one operation at a time. A driver executes the operations and reports their
//! outcomes; it decides nothing. [`Run`](super::run::Run) decides what the node wants; this module decides in which order the
//! store is asked for it, and what happens when the store fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::decide::{Goal, ROLLBACK};
use super::member::Member;
use super::mono::MonoTime;
use super::node::NodeDesc;
use super::operation::{Fault, Moment, Notice, Operation, Outcome, Signal};
use super::outage::Tolerance;
use super::reason::Reason;
use super::run::Run;
use super::state::State;
use super::step::{Cell, End, Phase, Step};

/// A node on its way to a goal.
#[derive(Debug)]
pub struct Pursuit {
    run: Run,
    pending: Pending,
    /// When the pending operation began.
    began: MonoTime,
    /// A phase that a signal said was over although it was not. The signal is stale.
    woken: Option<Phase>,
    /// Since when the state can't be read, or what is to be written can't be.
    corrupt_since: Option<MonoTime>,
    was_spare: bool,
    notices: VecDeque<Notice>,
}

/// What the outcome of an operation is for.
#[derive(Debug)]
enum Pending {
    Read,
    Announce {
        round: u64,
    },
    /// The state is read after the announcement, and the announcements of others after the state.
    ReadAfterAnnouncement {
        round: u64,
        is_supported: bool,
    },
    ReadAnnounced {
        cell: Cell,
    },
    Retract {
        token: Bytes,
        state: Arc<State>,
    },
    Write {
        /// The round that the write completes.
        completes: Option<u64>,
        removed: Option<Notice>,
    },
    Pause(Phase),
    /// Hosting the store.
    Host,
    /// A pause after a failure.
    Recovery,
}

/// Shorter pauses are not worth waiting for a signal.
const MIN_SIGNAL_WAIT: Duration = Duration::from_millis(20);
/// The pause between two calls to a store that does not answer.
const OUTAGE_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The pause before a state that can't be read is read again.
const CORRUPT_RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Pursuit {
    /// How long a state that can't be read is read again before that is an error. Another node may put it right.
    pub const CORRUPT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Starts towards `goal`. Returns the first operation, too. A node that wants to join leaves its last round first.
    pub fn start(goal: Goal, member: &mut Member, now: MonoTime) -> (Pursuit, Operation) {
        let first = if goal == Goal::Join { Goal::Exit } else { goal };
        let mut run = Run::new(first, now, now.after(goal.timeout(&member.settings)));
        run.start(member);
        let pursuit = Pursuit {
            run,
            pending: Pending::Read,
            began: now,
            woken: None,
            corrupt_since: None,
            was_spare: false,
            notices: VecDeque::new(),
        };
        (pursuit, Operation::Read)
    }

    /// The goal that the node is about: `Exit` or `Join` if it was started towards `Join`.
    pub fn goal(&self) -> Goal {
        self.run.goal()
    }

    /// Why the node does what it does now.
    pub fn reason(&self) -> &Reason {
        self.run.reason()
    }

    /// The state that was read last.
    pub fn state(&self) -> Option<Arc<State>> {
        self.run.shared_state()
    }

    /// When the goal must be reached. A spare that is needed after all has its whole time again.
    pub fn deadline(&self) -> MonoTime {
        self.run.deadline()
    }

    /// Returns how long the next operation may take. A spare has no deadline, but has to notice when the store is away.
    ///
    /// Each operation of a heartbeat, of leaving and of closing has the whole time of its goal. With only what the
    /// operations before it have left, a write over a slow link would be given up just before its answer arrives, and
    /// its connection with it.
    pub fn call_timeout(&self, member: &Member, now: MonoTime) -> Duration {
        match self.goal().waits() {
            true if self.run.is_spare(&member.me) => member.call_timeout(now),
            true => (self.deadline().since(now) + ROLLBACK).min(member.call_timeout(now)),
            false => self.goal().timeout(&member.settings),
        }
    }

    /// Takes what is to be logged, one notice at a time.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Handles the outcome of the operation that was returned last. Returns the next operation.
    pub fn handle(&mut self, member: &mut Member, outcome: Outcome, now: Moment) -> Operation {
        let began = std::mem::replace(&mut self.began, now.mono);
        let pending = std::mem::replace(&mut self.pending, Pending::Read);
        let step = match (pending, outcome) {
            (_, Outcome::Failed(fault)) => return self.recover(member, fault, began, now.mono),
            (Pending::Host, _) => return self.retry(OUTAGE_RETRY_INTERVAL),
            (Pending::Recovery, _) => Step::Read,
            (Pending::Pause(phase), outcome) => {
                if matches!(outcome, Outcome::Paused { is_woken: true }) {
                    self.woken = Some(phase);
                }
                self.corrupt_since = None;
                self.run.handle_pause(member, now.mono)
            }
            (pending, outcome) => {
                if let Some(lasted) = member.outage.handle_answer(now.mono) {
                    self.notices.push_back(Notice::StoreAnswers { lasted });
                }
                match self.answered(member, pending, outcome, now) {
                    Ok(step) => step,
                    Err(operation) => return operation,
                }
            }
        };
        self.execute(member, step, now)
    }

    /// Handles an answer of the store: the next step, or the next operation of the same step.
    fn answered(
        &mut self,
        member: &mut Member,
        pending: Pending,
        outcome: Outcome,
        Moment { mono, wall, random }: Moment,
    ) -> Result<Step, Operation> {
        Ok(match (pending, outcome) {
            (Pending::Read, Outcome::Cell(cell)) => self.run.handle_cell(member, cell, mono, wall),
            (Pending::Announce { round }, Outcome::Announced { is_supported }) => {
                member.announced = is_supported.then_some(round);
                self.pending = Pending::ReadAfterAnnouncement { round, is_supported };
                return Err(Operation::Read);
            }
            (Pending::ReadAfterAnnouncement { round, is_supported }, Outcome::Cell(cell)) => {
                let is_settled =
                    cell.state.as_ref().is_some_and(|state| self.run.is_settled(&member.me, state));
                if is_supported && !is_settled {
                    self.pending = Pending::ReadAnnounced { cell };
                    return Err(Operation::ReadAnnounced { round });
                }
                self.run.handle_announced(member, cell, [], mono, wall)
            }
            (Pending::ReadAnnounced { cell }, Outcome::Nodes(nodes)) => {
                self.run.handle_announced(member, cell, nodes, mono, wall)
            }
            (Pending::Retract { token, state }, Outcome::Done) => {
                return Err(self.write(member, token, state));
            }
            (Pending::Write { completes, removed }, Outcome::Written { won, cell }) => {
                self.corrupt_since = None;
                if won {
                    member.stale = completes.and_then(|round| round.checked_sub(2)).or(member.stale);
                    self.notices.extend(removed);
                }
                self.run.handle_written(member, won, cell, random, mono, wall)
            }
            (pending, outcome) => unreachable!("{pending:?} ended with {outcome:?}"),
        })
    }

    /// Begins with a step.
    fn execute(&mut self, member: &mut Member, step: Step, now: Moment) -> Operation {
        if self.run.is_spare(&member.me) && !std::mem::replace(&mut self.was_spare, true) {
            self.notices.push_back(Notice::Spare(self.reason().clone()));
        }
        match step {
            Step::Read => Operation::Read,
            // Once is enough: a node that was taken back is not let in by others again, however often it asks.
            Step::Announce { round } if member.announced == Some(round) => {
                self.pending = Pending::ReadAfterAnnouncement { round, is_supported: true };
                Operation::Read
            }
            Step::Announce { round } => {
                self.pending = Pending::Announce { round };
                Operation::Announce { round }
            }
            Step::Write { token, state, retract: None } => self.write(member, token, Arc::new(state)),
            Step::Write { token, state, retract: Some((round, nodes)) } => {
                self.pending = Pending::Retract { token, state: Arc::new(state) };
                Operation::Retract { round, nodes }
            }
            Step::Pause { most, phase } => {
                self.pending = Pending::Pause(phase);
                // An operation that waits for no other node has only collided with theirs.
                let is_waiting = self.goal().waits() && most >= MIN_SIGNAL_WAIT;
                let wake = (is_waiting && self.woken != Some(phase)).then_some(phase);
                Operation::Pause { most, wake }
            }
            Step::End(End::Reached { .. }) if self.goal() == Goal::Exit => {
                self.run = Run::new(Goal::Join, now.mono, self.deadline());
                let step = self.run.start(member);
                self.execute(member, step, now)
            }
            Step::End(end) => Operation::End(end),
        }
    }

    fn write(&mut self, member: &Member, token: Bytes, state: Arc<State>) -> Operation {
        let before = self.run.shared_state().unwrap_or_default();
        let completes = (state.complete && !before.complete).then_some(state.round);
        let signals = signals(&member.me, &before, &state);
        self.pending = Pending::Write { completes, removed: removed(&member.me, &before, &state) };
        Operation::Write { token, state, signals }
    }

    /// What to do after a failed operation. What it was for may or may not have happened; the next read shows it.
    fn recover(&mut self, member: &mut Member, fault: Fault, began: MonoTime, now: MonoTime) -> Operation {
        self.run.handle_failure();
        match fault {
            Fault::Outage => {
                let grace = if self.goal().waits() { ROLLBACK } else { Duration::ZERO };
                if now >= self.deadline().after(grace) {
                    return Operation::End(End::Error);
                }
                match member.outage.handle_failure(began, now, member.settings.store_outage_timeout) {
                    Tolerance::Quiet => {}
                    Tolerance::Warn(lasted) => self.notices.push_back(Notice::StoreSilent { lasted }),
                    Tolerance::GiveUp(lasted) => return Operation::End(End::Outage(lasted)),
                }
                if member.outage.is_host_gone(now) {
                    self.pending = Pending::Host;
                    return Operation::Host;
                }
                self.retry(OUTAGE_RETRY_INTERVAL)
            }
            Fault::Corrupt => {
                if self.corrupt_since.is_none() {
                    self.notices.push_back(Notice::StateUnreadable);
                }
                let since = *self.corrupt_since.get_or_insert(now);
                if now.since(since) >= Pursuit::CORRUPT_TIMEOUT || now > self.deadline() {
                    return Operation::End(End::Error);
                }
                self.pending = Pending::Recovery;
                Operation::Pause { most: CORRUPT_RETRY_INTERVAL, wake: None }
            }
        }
    }

    /// Reads again, after a pause if the goal is worth waiting for.
    fn retry(&mut self, most: Duration) -> Operation {
        if !self.goal().waits() {
            return Operation::Read;
        }
        self.pending = Pending::Recovery;
        Operation::Pause { most, wake: None }
    }
}

/// The signals to send after a write by `me`, to wake the nodes that wait for what it changed.
fn signals(me: &NodeDesc, before: &State, after: &State) -> Vec<Signal> {
    let (was, is) = (Phase::of(before), Phase::of(after));
    let mut signals = Vec::new();
    if let Some(phase) = was.filter(|_| was != is) {
        signals.push(Signal::Over(phase));
        if is.is_none() {
            signals.push(Signal::Wanted { round: phase.round });
        }
    }
    let waits = after.wait_list.contains(me) && !before.wait_list.contains(me);
    // The nodes that are left start over.
    let has_lost = || was == is && before.participants.keys().any(|node| node != me && !after.has(node));
    if after.complete && (waits || has_lost()) {
        signals.push(Signal::Wanted { round: after.round });
    }
    signals
}

/// The nodes that a write by `me` removes because they are dead.
fn removed(me: &NodeDesc, before: &State, after: &State) -> Option<Notice> {
    let is_removed = |node: &&NodeDesc| *node != me && !after.has(node);
    let nodes: Vec<_> = before.last_heartbeats.keys().filter(is_removed).cloned().collect();
    let round = before.complete.then_some(before.round);
    (!nodes.is_empty()).then_some(Notice::Removed { nodes, round })
}

#[cfg(test)]
mod tests;
