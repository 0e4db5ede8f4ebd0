//! Decides what a node does about what happens. The workers of one node are one unit: they start together and end together.

mod once;

use std::collections::VecDeque;
use std::time::Duration;

use super::event::{Event, Exit, LocalRank, Signal};
use super::order::{OnEnd, Order, Reason, Target, Verdict};
use super::peers::{Peers, Reports};
use super::process::Process;
use crate::rendezvous::{Membership, MonoTime, NodeDesc};

/// How many workers, how often, how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many workers this node runs.
    pub workers: u32,
    /// How often they may be restarted after a failure.
    pub max_restarts: u32,
    /// How long each may take to end before it is killed.
    pub shutdown_grace: Duration,
    /// The longest pause before a restart.
    pub max_restart_backoff: Duration,
    /// Whether the job continues without nodes that are lost.
    pub is_elastic: bool,
    /// Whether the workers belong to one round, as those of `rallypoint join` do: they are never restarted, and how they end
    /// does not end the job of the other nodes.
    pub runs_once: bool,
}

impl Policy {
    /// How long a killed process may take to be gone. One that takes longer is held up by the kernel; torch waits for the
    /// grace time once more.
    pub const KILL_GRACE: Duration = Duration::from_secs(10);

    /// How long a node that has finished waits for the others after the rendezvous was closed. Nodes that failed have said so
    /// by then.
    pub const CLOSED_GRACE: Duration = Duration::from_secs(5);

    /// How long after a round has formed its nodes may take to report whether they have workers. Some never do.
    pub const WORKERS_REPORT_GRACE: Duration = Duration::from_secs(3);

    /// How long nodes of torch's may take to notice that their workers have failed: Python may need a while to end.
    pub const TORCH_NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

    /// A run of the workers that is shorter than this counts as a short run. Short runs in a row delay the next restart.
    pub const SHORT_RUN_INTERVAL: Duration = Duration::from_secs(10);

    /// The longest pause before a restart if nodes came or went and no worker failed. Short, because the other nodes wait for
    /// this one, and not zero, because a node that can't be let in must not restart the job many times a second.
    pub const MAX_REFORM_BACKOFF: Duration = Duration::from_secs(1);

    /// Returns the pause before a restart after this many short runs in a row: none after the first, 0.1 s after the second,
    /// then doubling up to `longest`.
    pub fn restart_backoff(short_runs: u32, longest: Duration) -> Duration {
        match short_runs.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => Duration::from_millis(100 << doublings.min(16)).min(longest),
        }
    }
}

/// What to do with the workers of one node.
#[derive(Debug, Clone)]
pub struct Supervisor {
    policy: Policy,
    phase: Phase,
    /// How often workers were restarted after a failure, here or elsewhere.
    restarts: u32,
    /// How many of these restarts a lost node caused. They don't count towards the limit.
    excused: u32,
    /// Whether a restart was counted since the last round formed.
    has_new_restart: bool,
    round: Round,
    /// Whether the nodes that wait for the next round have been reported.
    waiting_is_reported: bool,
    /// When the workers were last started.
    started_at: MonoTime,
    /// How many runs in a row ended within [`Policy::SHORT_RUN_INTERVAL`] because a worker failed, here or on another node.
    short_failures: u32,
    /// How many runs in a row ended as early because nodes came or went.
    short_rounds: u32,
    /// When the workers were gone, and how long the next join waits from then on.
    pause: Option<(MonoTime, Duration)>,
    workers: Vec<Process>,
    /// The processes that the workers have left behind, once they are ended.
    orphans: Option<Process>,
    /// Whether no process of the workers is left.
    all_exited: bool,
    orders: VecDeque<Order>,
}

/// What is known about the last round.
#[derive(Debug, Clone, Default)]
struct Round {
    /// Its nodes, where they are known.
    nodes: Vec<NodeDesc>,
    /// Whether all of them are ours.
    are_all_ours: bool,
    /// Whether nodes have left it or wait for the next one.
    has_changed: bool,
    peers: Peers,
    /// The nodes that have workers, if that is known. Matters to nodes without workers only.
    working_nodes: Option<Vec<NodeDesc>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// On its way into a round; after a signal, out of it again.
    Joining(Option<Signal>),
    Running,
    /// The workers of this node have finished. Those of other nodes may not have.
    Finishing {
        /// Since when the rendezvous is closed, if it is.
        closed_since: Option<MonoTime>,
    },
    /// The workers are to end, or have ended and something is waited for.
    Stopping {
        then: AfterStop,
        /// How many signals have told the node to end. The second one kills.
        signals: u32,
    },
    Ended,
}

/// What comes after the workers have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterStop {
    Join(Reason),
    /// This worker failed and no restart is left. The job continues only if a lost node is to blame.
    CheckPeers(LocalRank),
    End(Verdict, OnEnd),
}

impl Supervisor {
    /// Returns a supervisor whose first order is to join.
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

    /// Returns how often workers were restarted after a failure, here or on another node.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Returns whether workers run that have not been told to end.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Returns whether the last order was given.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended && self.orders.is_empty()
    }

    /// Handles something that happened.
    pub fn handle_event(&mut self, event: Event) {
        match event {
            Event::Exited(LocalRank(rank), _) | Event::NotStarted(LocalRank(rank)) => {
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

    /// Handles the membership of the rendezvous as it was seen at `now`, with what the nodes of the round have reported; `None` if
    /// the round's store did not answer.
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
        if self.policy.runs_once {
            return self.handle_membership_once(seen, reports, now);
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

    /// A rendezvous that a node closed before the work was done means that the job has failed there. A node that has finished
    /// may close it, too, when it does not wait for the other nodes any longer.
    fn handle_closed(&mut self, reports: Option<&Reports>) {
        let Some(reports) = reports else { return };
        let is_failure = match self.phase {
            Phase::Finishing { .. } => reports.finished <= 1,
            Phase::Stopping { then: AfterStop::CheckPeers(_), .. } => true,
            _ => reports.finished == 0,
        };
        if is_failure {
            self.handle_event(Event::PeerFailed);
        }
    }

    /// Reports the lost nodes of the round, if there are more than were reported.
    fn report_lost(&mut self, seen: &Membership) {
        let lost = seen.lost.as_ref().map_or(0, |lost| lost.nodes.len());
        if lost > std::mem::replace(&mut self.round.peers.reported_lost, lost) {
            self.orders.push_back(Order::ReportLost);
        }
    }

    /// Returns what is to be done now, one order after the other, until there is none.
    pub fn poll_order(&mut self, now: MonoTime) -> Option<Order> {
        loop {
            if let Some(order) = self.orders.pop_front() {
                if matches!(order, Order::Start { .. }) {
                    // Not before: until now there was no process.
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

    /// Returns when there is something to be done even if nothing happens.
    pub fn timeout(&self) -> Option<MonoTime> {
        let deadlines = self.workers.iter().chain(&self.orphans).filter_map(|process| process.deadline());
        deadlines.chain(self.join_time()).chain(self.finish_deadline()).min()
    }

    /// When a node that has finished no longer waits for the others, because the rendezvous is closed.
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
            // The node was told to leave, and has left.
            (Event::JoinFailed { .. }, Some(signal)) => self.end(Verdict::Signaled(signal), OnEnd::Nothing),
            (Event::JoinFailed { is_spare: true }, None) => self.end(Verdict::Spare, OnEnd::Nothing),
            (Event::JoinFailed { is_spare: false }, None) => self.end(Verdict::Error, OnEnd::Nothing),
            (Event::Joined { restarts, nodes, are_all_ours }, None) => {
                let lost_peers = self.round.nodes.iter().any(|node| !nodes.contains(node));
                self.restarts = self.restarts.max(restarts);
                self.excused += u32::from(std::mem::take(&mut self.has_new_restart) && lost_peers);
                self.round = Round { nodes, are_all_ours, ..Round::default() };
                self.workers.fill(Process::Running);
                self.phase = Phase::Running;
                self.orders.push_back(Order::Start { restarts: self.restarts });
            }
            _ => {}
        }
    }

    /// Handles an event while the workers run, or have finished and those of other nodes may not have.
    fn handle_while_in_round(&mut self, event: Event) {
        let (verdict, on_end) = match event {
            Event::Exited(worker, exit) if !exit.is_success() => return self.handle_failure(worker, exit),
            Event::Exited(..) => return self.finish_if_done(),
            Event::PeerRestarts => return self.reform(Reason::PeerRestarts),
            Event::NotStarted(_) => (Verdict::Error, OnEnd::Close),
            Event::Stuck => (Verdict::Unhealthy, OnEnd::Close),
            Event::Signaled(signal) => (Verdict::Signaled(signal), OnEnd::Leave),
            Event::PeerFailed => (Verdict::FailedElsewhere, OnEnd::Close),
            Event::StoreLost => (Verdict::Error, OnEnd::Nothing),
            Event::Finished { all: true } => (Verdict::Succeeded, OnEnd::Close),
            // The other nodes may go on.
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

    /// Handles a signal that comes while the workers end: they get it, too. The second one kills them.
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

    /// Starts over because of what the other nodes do.
    fn reform(&mut self, reason: Reason) {
        match &mut self.phase {
            Phase::Running => {}
            // A node that only wants to come in may wait until all have finished. The work of lost nodes was done together with
            // this node's, and is done again with the nodes that are left.
            Phase::Finishing { .. } if !matches!(reason, Reason::NodesWaiting(_)) => {}
            Phase::Stopping { then: then @ AfterStop::CheckPeers(_), .. } => {
                if !matches!(reason, Reason::NodesWaiting(_) | Reason::PeerRestarts) {
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
        if self.policy.is_elastic && self.round.nodes.len() > 1 {
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

    /// Ends the workers: with SIGTERM, or with the signal that told the node to end.
    fn stop(&mut self, then: AfterStop) {
        let (signal, signals) = match then {
            AfterStop::End(Verdict::Signaled(signal), _) => (signal, 1),
            _ => (Signal::TERM, 0),
        };
        self.workers.iter_mut().for_each(|worker| worker.request_stop(signal));
        self.phase = Phase::Stopping { then, signals };
    }

    /// Takes one step that time, or the end of all processes, makes possible. Returns whether there was one.
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
            // A process that can't be killed may still hold what its successor needs.
            AfterStop::Join(_) if self.workers.iter().chain(&self.orphans).any(is_unkillable) => {
                self.end(Verdict::Unhealthy, OnEnd::Close);
            }
            AfterStop::Join(reason) => return self.join_when_due(reason, now),
            AfterStop::End(verdict, on_end) => self.end(verdict, on_end),
        }
        true
    }

    /// Joins again, immediately or after a pause. Returns whether there was something to do.
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

    /// Returns how long the next join has to wait because runs of the workers were short.
    fn next_pause(&mut self, reason: Reason, now: MonoTime) -> Duration {
        let is_short = now.since(self.started_at) < Policy::SHORT_RUN_INTERVAL;
        if !is_short {
            (self.short_failures, self.short_rounds) = (0, 0);
        }
        let longest = self.policy.max_restart_backoff;
        let (short_runs, longest) = match reason {
            Reason::WorkerFailed { .. } | Reason::PeerRestarts => (&mut self.short_failures, longest),
            _ => (&mut self.short_rounds, longest.min(Policy::MAX_REFORM_BACKOFF)),
        };
        *short_runs += u32::from(is_short);
        Policy::restart_backoff(*short_runs, longest)
    }

    /// When the next join is due. Nodes of torch's get time to notice that their workers have failed along with ours. If they
    /// first notice that this node waits for the next round, they take that for a change of membership and count no
    /// restart. Workers with different restart counts never meet.
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

    /// Ends, because the workers are gone or there never were any.
    fn end(&mut self, verdict: Verdict, on_end: OnEnd) {
        (self.orphans, self.pause) = (None, None);
        self.phase = Phase::Ended;
        self.orders.push_back(Order::End { verdict, on_end });
    }
}

#[cfg(test)]
mod tests;
