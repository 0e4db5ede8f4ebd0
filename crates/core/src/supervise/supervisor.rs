//! Turns events into orders. All workers of a node start together and stop together.

mod once;

use std::collections::VecDeque;
use std::time::Duration;

use super::event::{Event, Exit, LocalRank, Signal};
use super::order::{OnEnd, Order, Reason, Target, Verdict};
use super::peers::{Peers, Reports};
use super::process::Process;
use crate::rendezvous::{EndCause, Membership, MonoTime, NodeDesc};

/// The rules that a supervisor follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The number of workers of this node.
    pub workers: u32,
    /// The restart budget: the number of restarts after failures that are allowed.
    pub max_restarts: u32,
    /// The time between the signal that stops a worker and SIGKILL.
    pub shutdown_grace: Duration,
    /// The longest delay of a restart after short runs.
    pub max_restart_backoff: Duration,
    /// Whether the job continues after a node is lost.
    pub is_elastic: bool,
    /// Whether the workers run in one round only, as those of `rallypoint join` do. They are never restarted, and their
    /// exit does not end the job on other nodes.
    pub runs_once: bool,
}

impl Policy {
    /// A process that still exists this long after SIGKILL counts as unkillable.
    pub const KILL_GRACE: Duration = Duration::from_secs(10);

    /// How long a finished node waits for the other nodes after the rendezvous was closed. A failed node publishes its
    /// failure within this time.
    pub const CLOSED_GRACE: Duration = Duration::from_secs(5);

    /// How long after the start of a round a node without workers waits for the other nodes to report how many workers
    /// they have. Nodes with `TORCH_ELASTIC_WORKER_IDENTICAL=1` never report that.
    pub const WORKERS_REPORT_GRACE: Duration = Duration::from_secs(3);

    /// How long torch nodes get to notice that their workers have failed. A failing Python process may take seconds to
    /// exit.
    pub const TORCH_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

    /// The duration below which a run of the workers counts as short. Repeated short runs delay the next restart.
    pub const SHORT_RUN_INTERVAL: Duration = Duration::from_secs(10);

    /// The longest delay of a restart after a change of membership. It is short because the other nodes wait for this
    /// one. It is not zero because a node that can't join must not make the job restart many times a second.
    pub const MAX_REFORM_BACKOFF_INTERVAL: Duration = Duration::from_secs(1);

    /// Returns the delay of a restart after `short_runs` short runs: 0 after the first, 0.1 s after the
    /// second, then doubled with each further one, up to `longest`.
    pub fn restart_backoff(short_runs: u32, longest: Duration) -> Duration {
        match short_runs.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => Duration::from_millis(100 << doublings.min(16)).min(longest),
        }
    }
}

/// The supervisor of the workers of one node.
#[derive(Debug, Clone)]
pub struct Supervisor {
    policy: Policy,
    phase: Phase,
    /// The number of restarts after failures of workers on any node.
    restarts: u32,
    /// The number of these restarts that a lost node caused. Such restarts don't use the restart budget.
    excused: u32,
    /// Whether a restart was counted since the last round was joined.
    has_new_restart: bool,
    round: Round,
    /// Whether the nodes on the wait list have been logged.
    waiting_is_reported: bool,
    /// When the workers were last started.
    started_at: MonoTime,
    /// The number of short runs that ended because a worker of any node failed. A run that is not short resets it to 0.
    short_failures: u32,
    /// The number of short runs that ended because the membership changed. A run that is not short resets it to 0.
    short_rounds: u32,
    /// When all processes of the last run had exited, and how long the next join is delayed from then on.
    pause: Option<(MonoTime, Duration)>,
    workers: Vec<Process>,
    /// All orphans, which are signaled together and so are one `Process` here. `None` until they get a signal.
    orphans: Option<Process>,
    /// Whether all workers and all orphans have exited.
    all_exited: bool,
    orders: VecDeque<Order>,
}

/// What this node knows about the last round that it joined.
#[derive(Debug, Clone, Default)]
struct Round {
    /// The nodes of the round, if they are known.
    nodes: Vec<NodeDesc>,
    /// The number of nodes.
    size: u64,
    /// Whether all nodes of the round are known to be nodes of ours.
    are_all_ours: bool,
    /// Whether nodes have left the round or wait for the next one.
    has_changed: bool,
    peers: Peers,
    /// The nodes that have workers, if they are known. Only a node without workers reads this field.
    working_nodes: Option<Vec<NodeDesc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The node joins a round. The field is the signal that stops the node, if any. The join is then being canceled.
    Joining(Option<Signal>),
    Running,
    /// The workers of this node have finished. Those of other nodes may still run.
    Finishing {
        /// When the rendezvous was first observed as closed.
        closed_since: Option<MonoTime>,
    },
    /// The workers are being stopped, or have exited and the next step is delayed.
    Stopping {
        then: AfterStop,
        /// The number of signals that were sent to stop the node. At the second one, the supervisor kills the workers.
        signals: u32,
    },
    Ended,
}

/// What to do after all workers have exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterStop {
    Join(Reason),
    /// This worker failed and no restart is left. The job continues only if the membership explains the failure: a node
    /// was lost, the round is over, or this node was dropped.
    CheckPeers(LocalRank),
    End(Verdict, OnEnd),
}

impl Supervisor {
    /// Creates a supervisor whose first order is to join.
    pub fn new(policy: Policy) -> Supervisor {
        Supervisor {
            policy,
            phase: Phase::Joining(None),
            restarts: 0,
            excused: 0,
            has_new_restart: false,
            round: Round::default(),
            waiting_is_reported: false,
            started_at: MonoTime::default(),
            short_failures: 0,
            short_rounds: 0,
            pause: None,
            workers: vec![Process::Exited; policy.workers as usize],
            orphans: None,
            all_exited: true,
            orders: [Order::Join(Reason::FirstStart)].into(),
        }
    }

    /// Returns the number of restarts after failures of workers on any node.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns whether this node is in a round and its workers run and are not being stopped. A node without workers
    /// counts as running as long as it is in a round.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Returns whether the run has ended and [`poll_order`](Supervisor::poll_order) has returned the last order.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended && self.orders.is_empty()
    }

    /// Handles an event.
    pub fn handle_event(&mut self, event: Event) {
        match event {
            Event::Exited(LocalRank(rank), _)
            | Event::NotStarted(LocalRank(rank))
            | Event::Fenced(LocalRank(rank)) => {
                if let Some(worker) = self.workers.get_mut(rank as usize) {
                    *worker = Process::Exited;
                }
            }
            Event::AllProcessesExited => (self.all_exited, self.orphans) = (true, None),
            _ => {}
        }
        match self.phase {
            Phase::Joining(stop_signal) => self.handle_while_joining(event, stop_signal),
            Phase::Running if self.policy.runs_once => self.handle_while_running_once(event),
            Phase::Finishing { .. } if self.policy.runs_once => self.handle_while_finishing_once(event),
            Phase::Running | Phase::Finishing { .. } => self.handle_while_in_round(event),
            Phase::Stopping { then, .. } => self.handle_while_stopping(event, then),
            Phase::Ended => {}
        }
    }

    /// Handles the membership of the rendezvous as of `now`, with the reports of the nodes of the round. `reports` is
    /// `None` if the store of the round did not answer, or if the agent did not read them because the round is intact.
    pub fn handle_membership(&mut self, seen: &Membership, reports: Option<&Reports>, now: MonoTime) {
        if matches!(self.phase, Phase::Joining(_) | Phase::Ended) {
            return;
        }
        self.round.has_changed |= !seen.is_intact();
        if let Phase::Finishing { closed_since } = &mut self.phase
            && seen.is_closed
        {
            closed_since.get_or_insert(now);
        }
        if seen.end == Some(EndCause::Fenced) {
            self.kill_all();
        }
        if self.policy.runs_once {
            return self.handle_membership_once(seen, reports, now);
        }
        if seen.has_finished {
            return self.handle_event(Event::Finished { all: true });
        }
        // No reports are needed: a coordinator knows whether all nodes had finished.
        if seen.has_failed {
            return self.handle_event(Event::PeerFailed);
        }
        if let Some(cause) = seen.end.filter(|_| !seen.is_closed) {
            return self.reform(match cause {
                EndCause::WorkerFailed => Reason::PeerRestarts,
                cause => Reason::RoundEnded(cause),
            });
        }
        if seen.is_closed {
            return self.handle_closed(reports);
        }
        let Some(reason) = self.round.peers.reason_to_reform(seen, reports, self.round.are_all_ours, now)
        else {
            return;
        };
        let concerns_lost_nodes = !matches!(reason, Reason::Dropped | Reason::PeerRestarts);
        if concerns_lost_nodes && reports.is_some_and(|reports| reports.unfinished(seen) > 0) {
            self.report_lost(seen);
        }
        self.reform(reason);
    }

    /// Kills all processes of a node whose lease is over. Other nodes may already replace this one, so its processes must
    /// not have a grace.
    fn kill_all(&mut self) {
        let orphans = self.orphans.get_or_insert(Process::Running);
        self.workers.iter_mut().chain([orphans]).for_each(|process| process.request_stop(Signal::KILL));
    }

    /// Handles a closed rendezvous. If no other node had finished, the node that closed the rendezvous has failed, and
    /// so has the job. If another node had finished, it may have closed the rendezvous when it stopped waiting for the
    /// other nodes.
    fn handle_closed(&mut self, reports: Option<&Reports>) {
        let Some(reports) = reports else { return };
        let is_failure = match self.phase {
            Phase::Finishing { .. } => reports.finished <= 1,
            // A worker of this node has failed, and a closed rendezvous can't be rejoined.
            Phase::Stopping { then: AfterStop::CheckPeers(_), .. } => true,
            _ => reports.finished == 0,
        };
        if is_failure {
            self.handle_event(Event::PeerFailed);
        }
    }

    /// Pushes the order to log the lost nodes, if there are more of them than at the last call.
    fn report_lost(&mut self, seen: &Membership) {
        let lost = seen.lost.as_ref().map_or(0, |lost| lost.nodes.len());
        if lost > std::mem::replace(&mut self.round.peers.reported_lost, lost) {
            self.orders.push_back(Order::ReportLost);
        }
    }

    /// Returns the next order to carry out, or `None` until something happens or [`timeout`](Supervisor::timeout) is
    /// reached.
    pub fn poll_order(&mut self, now: MonoTime) -> Option<Order> {
        loop {
            if let Some(order) = self.orders.pop_front() {
                if matches!(order, Order::Start { .. }) {
                    // Until this order is returned, no worker of the new run has been started. An earlier report that
                    // all processes have exited concerned the previous run.
                    self.all_exited = false;
                    self.started_at = now;
                }
                return Some(order);
            }
            if !self.advance(now) {
                return None;
            }
        }
    }

    /// Returns when [`poll_order`](Supervisor::poll_order) has to be called even if nothing happens.
    pub fn timeout(&self) -> Option<MonoTime> {
        let deadlines = self.workers.iter().chain(&self.orphans).filter_map(|process| process.deadline());
        deadlines.chain(self.join_time()).chain(self.finish_deadline()).min()
    }

    /// Returns when a finished node stops waiting for the other nodes, because the rendezvous is closed.
    fn finish_deadline(&self) -> Option<MonoTime> {
        match self.phase {
            Phase::Finishing { closed_since } => closed_since.map(|since| since.after(Policy::CLOSED_GRACE)),
            _ => None,
        }
    }

    fn handle_while_joining(&mut self, event: Event, stop_signal: Option<Signal>) {
        match (event, stop_signal) {
            (Event::Signaled(signal), Some(_)) => self.end(Verdict::Signaled(signal), OnEnd::Nothing),
            (Event::Signaled(signal), None) => {
                self.phase = Phase::Joining(Some(signal));
                self.orders.push_back(Order::StopJoining);
            }
            (Event::Joined { .. }, Some(signal)) => self.end(Verdict::Signaled(signal), OnEnd::Leave),
            // The node has left the rendezvous because of the signal, or could not leave it in time.
            (Event::JoinFailed { .. }, Some(signal)) => self.end(Verdict::Signaled(signal), OnEnd::Nothing),
            (Event::JoinFailed { is_spare: true }, None) => self.end(Verdict::Spare, OnEnd::Nothing),
            (Event::JoinFailed { is_spare: false }, None) => self.end(Verdict::Error, OnEnd::Nothing),
            (Event::Joined { restarts, nodes, world_size, lost, are_all_ours }, None) => {
                let has_lost_peers = lost > 0 || self.round.nodes.iter().any(|node| !nodes.contains(node));
                self.restarts = self.restarts.max(restarts);
                self.excused += u32::from(std::mem::take(&mut self.has_new_restart) && has_lost_peers);
                self.round = Round { nodes, size: world_size, are_all_ours, ..Round::default() };
                self.workers.fill(Process::Running);
                self.phase = Phase::Running;
                self.orders.push_back(Order::Start { restarts: self.restarts });
            }
            _ => {}
        }
    }

    /// Handles an event while the workers run, or while this node waits for the workers of other nodes.
    fn handle_while_in_round(&mut self, event: Event) {
        let (verdict, on_end) = match event {
            Event::Exited(worker, exit) if !exit.is_success() => return self.handle_failure(worker, exit),
            Event::Exited(..) => return self.finish_if_done(),
            Event::PeerRestarts => return self.reform(Reason::PeerRestarts),
            Event::NotStarted(_) => (Verdict::Error, OnEnd::Close),
            Event::Fenced(_) => {
                self.kill_all();
                return self.reform(Reason::RoundEnded(EndCause::Fenced));
            }
            Event::Stuck => (Verdict::Unhealthy, OnEnd::Close),
            Event::Signaled(signal) => (Verdict::Signaled(signal), OnEnd::Leave),
            Event::PeerFailed => (Verdict::FailedElsewhere, OnEnd::Close),
            Event::StoreLost => (Verdict::Error, OnEnd::Nothing),
            Event::Finished { all: true } => (Verdict::Succeeded, OnEnd::Close),
            // The other nodes may continue, so this node does not close the rendezvous.
            Event::Finished { all: false } => (Verdict::Succeeded, OnEnd::Leave),
            _ => return,
        };
        self.stop(AfterStop::End(verdict, on_end));
    }

    fn finish_if_done(&mut self) {
        if self.workers.iter().all(|worker| *worker == Process::Exited) {
            self.phase = Phase::Finishing { closed_since: None };
            self.orders.push_back(Order::Finish);
        }
    }

    fn handle_while_stopping(&mut self, event: Event, then: AfterStop) {
        let next = match (event, then) {
            (Event::Signaled(signal), _) => return self.handle_signal_while_stopping(signal),
            (Event::PeersAlive | Event::PeerFailed | Event::StoreLost, AfterStop::CheckPeers(worker)) => {
                self.orders.push_back(Order::PublishFailure { worker, is_final: true });
                AfterStop::End(Verdict::Failed, OnEnd::Close)
            }
            (Event::PeerFailed, AfterStop::Join(_)) => AfterStop::End(Verdict::FailedElsewhere, OnEnd::Close),
            (Event::Stuck, AfterStop::Join(_)) => AfterStop::End(Verdict::Unhealthy, OnEnd::Close),
            _ => return,
        };
        if let Phase::Stopping { then, .. } = &mut self.phase {
            *then = next;
        }
    }

    /// Handles a signal to the agent while the workers are being stopped. The first signal is passed to the workers and
    /// orphans. At the second signal, they get SIGKILL. If a signal started the stop, it counts as the first.
    fn handle_signal_while_stopping(&mut self, signal: Signal) {
        let Phase::Stopping { then, signals } = &mut self.phase else { return };
        *signals += 1;
        let is_first = *signals == 1;
        if is_first && matches!(then, AfterStop::Join(_) | AfterStop::CheckPeers(_)) {
            *then = AfterStop::End(Verdict::Signaled(signal), OnEnd::Leave);
        }
        let signal = if is_first { signal } else { Signal::KILL };
        self.workers.iter_mut().chain(&mut self.orphans).for_each(|process| process.request_stop(signal));
    }

    /// Stops the workers and rejoins, because of a change on other nodes.
    fn reform(&mut self, reason: Reason) {
        match &mut self.phase {
            Phase::Running => {}
            // A waiting node is no reason for a finished node to rejoin, because the waiting node can wait until all
            // nodes have finished. A lost node is a reason: the workers of all nodes worked together, so the remaining
            // nodes have to repeat the work.
            Phase::Finishing { .. } if !matches!(reason, Reason::NodesWaiting(_)) => {}
            Phase::Stopping { then: then @ AfterStop::CheckPeers(_), .. } => {
                let explains_failure = !matches!(
                    reason,
                    Reason::NodesWaiting(_) | Reason::PeerRestarts | Reason::RoundEnded(EndCause::Growth)
                );
                if explains_failure {
                    *then = AfterStop::Join(reason);
                }
                return;
            }
            _ => return,
        }
        if reason == Reason::PeerRestarts {
            self.count_restart();
        }
        self.stop(AfterStop::Join(reason));
    }

    fn handle_failure(&mut self, worker: LocalRank, exit: Exit) {
        let used = self.restarts.saturating_sub(self.excused);
        if used < self.policy.max_restarts {
            self.count_restart();
            self.orders.push_back(Order::PublishFailure { worker, is_final: false });
            let left = self.policy.max_restarts - used - 1;
            return self.stop(AfterStop::Join(Reason::WorkerFailed { worker, exit, left }));
        }
        if self.policy.is_elastic && self.round.size > 1 {
            self.orders.push_back(Order::CheckPeers(worker));
            return self.stop(AfterStop::CheckPeers(worker));
        }
        self.orders.push_back(Order::PublishFailure { worker, is_final: true });
        self.stop(AfterStop::End(Verdict::Failed, OnEnd::Close));
    }

    fn count_restart(&mut self) {
        self.restarts += 1;
        self.has_new_restart = true;
    }

    /// Stops the workers with SIGTERM, or with the signal that stops the node.
    fn stop(&mut self, then: AfterStop) {
        let (signal, signals) = match then {
            AfterStop::End(Verdict::Signaled(signal), _) => (signal, 1),
            _ => (Signal::TERM, 0),
        };
        self.workers.iter_mut().for_each(|worker| worker.request_stop(signal));
        self.phase = Phase::Stopping { then, signals };
    }

    /// Takes one step that is due, because time has passed or all processes have exited. Returns whether there was such
    /// a step.
    fn advance(&mut self, now: MonoTime) -> bool {
        let grace = self.policy.shutdown_grace;
        for (rank, worker) in (0..).zip(&mut self.workers) {
            if let Some(signal) = worker.poll_signal(now, grace) {
                self.orders.push_back(Order::Send(Target::Worker(LocalRank(rank)), signal));
                return true;
            }
        }
        if self.finish_deadline().is_some_and(|until| until <= now) {
            self.handle_event(Event::Finished { all: false });
            return true;
        }
        let Phase::Stopping { then, signals } = self.phase else { return false };
        if !self.workers.iter().all(|worker| worker.is_over()) {
            return false;
        }
        if !self.all_exited {
            let signal = if signals < 2 { Signal::TERM } else { Signal::KILL };
            let orphans = self.orphans.get_or_insert(Process::SignalPending(signal));
            if let Some(signal) = orphans.poll_signal(now, grace) {
                self.orders.push_back(Order::Send(Target::Orphans, signal));
                return true;
            }
            if !orphans.is_over() {
                return false;
            }
        }
        let is_unkillable = |process: &Process| *process == Process::Unkillable;
        match then {
            AfterStop::CheckPeers(_) => return false,
            // An unkillable process may still use a device or port that its successor needs.
            AfterStop::Join(_) if self.workers.iter().chain(&self.orphans).any(is_unkillable) => {
                self.end(Verdict::Unhealthy, OnEnd::Close);
            }
            AfterStop::Join(reason) => return self.join_when_due(reason, now),
            AfterStop::End(verdict, on_end) => self.end(verdict, on_end),
        }
        true
    }

    /// Determines and reports the delay of the next join, if that has not happened since the last run. Joins if the
    /// delay has passed. Returns whether there is an order to return.
    fn join_when_due(&mut self, reason: Reason, now: MonoTime) -> bool {
        if self.pause.is_none() {
            let pause = self.next_pause(reason, now);
            self.pause = Some((now, pause));
            if !pause.is_zero() {
                self.orders.push_back(Order::ReportRestartDelay(pause));
            }
        }
        let is_due = self.join_time().is_some_and(|until| until <= now);
        if is_due {
            self.join(reason);
        }
        is_due || !self.orders.is_empty()
    }

    /// Counts the last run if it was short, and returns the delay of the next join.
    fn next_pause(&mut self, reason: Reason, now: MonoTime) -> Duration {
        let is_short = now.since(self.started_at) < Policy::SHORT_RUN_INTERVAL;
        if !is_short {
            (self.short_failures, self.short_rounds) = (0, 0);
        }
        let longest = self.policy.max_restart_backoff;
        let (short_runs, longest) = match reason {
            Reason::WorkerFailed { .. } | Reason::PeerRestarts => (&mut self.short_failures, longest),
            _ => (&mut self.short_rounds, longest.min(Policy::MAX_REFORM_BACKOFF_INTERVAL)),
        };
        *short_runs += u32::from(is_short);
        Policy::restart_backoff(*short_runs, longest)
    }

    /// Returns when the next join is due.
    ///
    /// After a worker of this node has failed in a round with torch nodes, this node joins only after
    /// `TORCH_NOTICE_TIMEOUT`. In that time, the torch nodes notice that their own workers have failed as well, and
    /// count a restart. A torch node that first notices that this node waits for the next round treats that as a change
    /// of membership and counts no restart. Workers with different restart counts never find each other.
    ///
    /// There is no such delay once a node has left the round or waits for the next one, for example because a torch
    /// node has noticed the failure.
    fn join_time(&self) -> Option<MonoTime> {
        let (since, mut pause) = self.pause?;
        let has_failed =
            matches!(self.phase, Phase::Stopping { then: AfterStop::Join(Reason::WorkerFailed { .. }), .. });
        if has_failed && !self.round.are_all_ours && !self.round.has_changed {
            pause = pause.max(Policy::TORCH_NOTICE_TIMEOUT);
        }
        Some(since.after(pause))
    }

    fn join(&mut self, reason: Reason) {
        (self.orphans, self.pause) = (None, None);
        self.phase = Phase::Joining(None);
        self.orders.push_back(Order::Join(reason));
    }

    /// Ends the run. All processes have exited or count as unkillable, or none was started.
    fn end(&mut self, verdict: Verdict, on_end: OnEnd) {
        (self.orphans, self.pause) = (None, None);
        self.phase = Phase::Ended;
        self.orders.push_back(Order::End { verdict, on_end });
    }
}

#[cfg(test)]
mod tests;
