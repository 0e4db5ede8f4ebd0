//! From what happened to what is to be done. One node's workers are one unit: they start together and end together.

mod once;

use std::collections::VecDeque;
use std::time::Duration;

use super::event::{Event, Exit, LocalRank, Obstacle, Signal};
use super::ladder::Ladder;
use super::order::{News, Order, Parting, Reason, Target, Verdict};
use super::peers::{Peers, Reports};
use super::policy::Policy;
use crate::rendezvous::{Membership, MonoTime, NodeDesc};

/// What to do with the workers of one node.
#[derive(Debug, Clone)]
pub struct Supervisor {
    policy: Policy,
    /// How often workers were restarted after a failure, here or elsewhere.
    restarts: u32,
    /// How many of these restarts a lost node caused. They don't count towards the limit.
    excused: u32,
    /// Whether a restart was counted since the last round formed.
    has_new_restart: bool,
    /// Whether other nodes are in the round.
    has_peers: bool,
    /// When the workers were last started.
    started_at: MonoTime,
    /// How many runs in a row ended within [`Policy::SHORT_RUN_INTERVAL`] because a worker failed, here or on another node.
    short_failures: u32,
    /// How many runs in a row ended as early because nodes came or went.
    short_rounds: u32,
    phase: Phase,
    peers: Peers,
    /// The nodes of the round that have workers, if that is known.
    working_nodes: Option<Vec<NodeDesc>>,
    /// How many lost nodes have been reported, where the workers run once.
    reported_lost: usize,
    /// Whether the nodes that wait for the next round have been reported.
    waiting_is_reported: bool,
    workers: Vec<Ladder>,
    /// What the workers have left behind, once that is cleared away.
    strays: Option<Ladder>,
    /// No process of the workers is left.
    alone: bool,
    /// Workers were started at least once.
    started: bool,
    orders: VecDeque<Order>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// On its way into a round, or, if there is something else to come, out of it again.
    Joining(Option<Then>),
    Running,
    /// A pause before the next join, after short runs of the workers.
    BackingOff {
        until: MonoTime,
        reason: Reason,
    },
    /// A worker failed and no restart is left. The job continues only if a lost node is to blame.
    CheckingPeers(LocalRank),
    /// Its workers have done their work; the others' may not have.
    Finishing {
        /// Since when the rendezvous is closed, if it is.
        closed_since: Option<MonoTime>,
    },
    /// The workers are to end.
    Stopping {
        then: Then,
        grace: Duration,
        /// It was told to end while they were: once more, and there is no grace.
        told: bool,
        /// There is none.
        at_once: bool,
    },
    Ended,
}

/// What comes after the workers have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Join(Reason),
    /// Wait for the answer to `CheckPeers` about this worker.
    CheckPeers(LocalRank),
    End(Verdict, Parting),
}

impl Supervisor {
    /// Nothing has happened yet; the first order is to join.
    pub fn new(policy: Policy) -> Supervisor {
        Supervisor {
            policy,
            restarts: 0,
            excused: 0,
            has_new_restart: false,
            has_peers: false,
            started_at: MonoTime::default(),
            short_failures: 0,
            short_rounds: 0,
            phase: Phase::Joining(None),
            peers: Peers::default(),
            working_nodes: None,
            reported_lost: 0,
            waiting_is_reported: false,
            workers: vec![Ladder::Gone; policy.workers as usize],
            strays: None,
            alone: true,
            started: false,
            orders: [Order::Join(Reason::FirstStart)].into(),
        }
    }

    /// How often workers were restarted after a failure, here or on another node.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Whether workers are to run: they were started, and nobody has told them to end.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Returns how long the supervisor still pauses before the next join, if it does.
    pub fn backoff(&self, now: MonoTime) -> Option<Duration> {
        self.backoff_end().map(|until| until.since(now))
    }

    fn backoff_end(&self) -> Option<MonoTime> {
        match self.phase {
            Phase::BackingOff { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended && self.orders.is_empty()
    }

    /// Something happened.
    pub fn handle_event(&mut self, event: Event) {
        match event {
            Event::Exited(LocalRank(rank), _) | Event::NotStarted(LocalRank(rank)) => {
                if let Some(worker) = self.workers.get_mut(rank as usize) {
                    *worker = Ladder::Gone;
                }
            }
            Event::Alone => self.alone = true,
            _ => {}
        }
        match self.phase {
            Phase::Joining(then) => self.while_joining(event, then),
            Phase::Running if self.policy.runs_once => self.while_running_once(event),
            Phase::Running => self.while_running(event),
            Phase::BackingOff { .. } => self.while_backing_off(event),
            Phase::CheckingPeers(worker) => self.while_checking_peers(event, worker),
            Phase::Finishing { .. } if self.policy.runs_once => self.while_finishing_once(event),
            Phase::Finishing { .. } => self.while_finishing(event),
            Phase::Stopping { then, .. } => self.while_stopping(event, then),
            Phase::Ended => {}
        }
    }

    /// Handles the membership of the rendezvous as it was seen at `now`, with what the nodes of the round have reported; `None` if
    /// the round's store did not answer.
    pub fn handle_membership(&mut self, seen: &Membership, reports: Option<&Reports>, now: MonoTime) {
        if matches!(self.phase, Phase::Joining(_) | Phase::Ended) {
            return;
        }
        if let Phase::Finishing { closed_since } = &mut self.phase
            && seen.is_closed
        {
            closed_since.get_or_insert(now);
        }
        if self.policy.runs_once {
            return self.handle_membership_once(seen, reports, now);
        }
        let findings = self.peers.observe(seen, reports, now);
        if findings.reports_lost {
            self.orders.push_back(Order::ReportLost);
        }
        findings.events.into_iter().for_each(|event| self.handle_event(event));
    }

    /// What is to be done now, one thing after the other until there is no more.
    pub fn poll_order(&mut self, now: MonoTime) -> Option<Order> {
        loop {
            if let Some(order) = self.orders.pop_front() {
                if matches!(order, Order::Start { .. }) {
                    // Not before: until now nobody was there.
                    self.alone = false;
                    self.started_at = now;
                }
                return Some(order);
            }
            if !self.advance(now) {
                return None;
            }
        }
    }

    /// When there is something to be done even if nothing happens.
    pub fn timeout(&self) -> Option<MonoTime> {
        let ladders = self.workers.iter().chain(&self.strays).filter_map(|ladder| ladder.until());
        ladders.chain(self.backoff_end()).chain(self.end_of_finishing()).min()
    }

    /// When a node that has finished no longer waits for the others, because the rendezvous is closed.
    fn end_of_finishing(&self) -> Option<MonoTime> {
        match self.phase {
            Phase::Finishing { closed_since } => closed_since.map(|since| since.after(Policy::CLOSED_GRACE)),
            _ => None,
        }
    }

    fn while_joining(&mut self, event: Event, then: Option<Then>) {
        match (event, then) {
            (Event::Signalled(signal), Some(_)) => {
                self.end(Then::End(self.signalled(signal), Parting::Nothing))
            }
            (Event::Signalled(signal), None) => {
                self.phase = Phase::Joining(Some(Then::End(self.signalled(signal), Parting::Leave)));
                self.orders.push_back(Order::StopJoining);
            }
            (Event::Formed { .. }, Some(then)) => self.end(then),
            // It was told to leave, and has left.
            (Event::NotFormed(_), Some(Then::End(verdict, _))) => {
                self.end(Then::End(verdict, Parting::Nothing));
            }
            (Event::Formed { restarts, has_peers, lost_peers }, None) => {
                self.restarts = self.restarts.max(restarts);
                self.has_peers = has_peers;
                self.excused += u32::from(std::mem::take(&mut self.has_new_restart) && lost_peers);
                self.workers.fill(Ladder::Running);
                (self.started, self.strays) = (true, None);
                (self.peers, self.working_nodes, self.reported_lost) = (Peers::default(), None, 0);
                self.phase = Phase::Running;
                self.orders.push_back(Order::Start { restarts: self.restarts });
            }
            (Event::NotFormed(obstacle), _) => {
                let verdict = match obstacle {
                    Obstacle::Spare => Verdict::Spare,
                    Obstacle::Interrupted | Obstacle::Failed => Verdict::Error,
                };
                self.end(Then::End(verdict, Parting::Nothing));
            }
            _ => {}
        }
    }

    fn while_running(&mut self, event: Event) {
        let Policy { restart_grace, shutdown_grace, .. } = self.policy;
        match event {
            Event::Exited(worker, exit) if !exit.is_success() => self.fail(worker, exit),
            Event::Exited(..) if self.workers.iter().all(|worker| *worker == Ladder::Gone) => {
                self.phase = Phase::Finishing { closed_since: None };
                self.orders.push_back(Order::Finish);
            }
            Event::NotStarted(_) => {
                self.stop(Signal::TERM, shutdown_grace, Then::End(Verdict::Error, Parting::Close))
            }
            Event::Stuck(_) => {
                self.stop(Signal::TERM, shutdown_grace, Then::End(Verdict::Unhealthy, Parting::Close))
            }
            Event::Signalled(signal) => {
                self.stop(signal, shutdown_grace, Then::End(self.signalled(signal), Parting::Leave));
            }
            Event::NodesWaiting(nodes) if nodes > 0 => {
                self.stop(Signal::TERM, restart_grace, Then::Join(Reason::NodesWaiting(nodes)));
            }
            Event::NodesLeft(nodes) if nodes > 0 => {
                self.stop(Signal::TERM, restart_grace, Then::Join(Reason::NodesLeft(nodes)));
            }
            Event::Dropped => {
                self.stop(Signal::TERM, restart_grace, Then::Join(Reason::Dropped));
            }
            Event::PeerRestarts => {
                self.count_restart();
                self.stop(Signal::TERM, restart_grace, Then::Join(Reason::PeerRestarts));
            }
            Event::PeerFailed | Event::Closed { finished: 0 } => {
                self.stop(Signal::TERM, shutdown_grace, Then::End(Verdict::FailedElsewhere, Parting::Close));
            }
            Event::StoreLost => {
                self.stop(Signal::TERM, shutdown_grace, Then::End(Verdict::Error, Parting::Nothing));
            }
            _ => {}
        }
    }

    fn while_finishing(&mut self, event: Event) {
        let grace = self.policy.shutdown_grace;
        let then = match event {
            Event::Finished { all } => {
                // Who has finished alone must not keep the others from going on.
                let parting = if all { Parting::Close } else { Parting::Leave };
                return self.stop(Signal::TERM, grace, Then::End(Verdict::Succeeded, parting));
            }
            Event::Signalled(signal) => Then::End(self.signalled(signal), Parting::Leave),
            Event::PeerRestarts => {
                self.count_restart();
                Then::Join(Reason::PeerRestarts)
            }
            // What this node has done was done together with them: it is done again with those who are left.
            Event::NodesLeft(nodes) if nodes > 0 => Then::Join(Reason::NodesLeft(nodes)),
            // They wait until this node has left the round, too.
            Event::RoundOver => Then::Join(Reason::RoundOver),
            Event::Dropped => Then::Join(Reason::Dropped),
            Event::StoreLost => Then::End(Verdict::Error, Parting::Nothing),
            // If another has finished too, it may be the one who closed it, tired of waiting.
            Event::PeerFailed | Event::Closed { finished: 0 | 1 } => {
                Then::End(Verdict::FailedElsewhere, Parting::Close)
            }
            _ => return,
        };
        self.orders.push_back(Order::StopFinishing);
        self.stop(Signal::TERM, grace, then);
    }

    fn while_backing_off(&mut self, event: Event) {
        match event {
            Event::Signalled(signal) => self.end(Then::End(self.signalled(signal), Parting::Leave)),
            Event::PeerFailed | Event::Closed { finished: 0 } => {
                self.end(Then::End(Verdict::FailedElsewhere, Parting::Close));
            }
            _ => {}
        }
    }

    fn while_checking_peers(&mut self, event: Event, worker: LocalRank) {
        let then = match event {
            Event::Signalled(signal) => Some(Then::End(self.signalled(signal), Parting::Leave)),
            event => self.after_last_failure(event, worker),
        };
        if let Some(then) = then {
            self.end(then);
        }
    }

    /// Decides what follows a failure for which no restart is left: a new round if a node was lost, else the end of the
    /// job. Returns `None` if this event does not answer that.
    fn after_last_failure(&mut self, event: Event, worker: LocalRank) -> Option<Then> {
        match event {
            Event::NodesLeft(nodes) if nodes > 0 => Some(Then::Join(Reason::NodesLeft(nodes))),
            Event::RoundOver => Some(Then::Join(Reason::RoundOver)),
            Event::PeersAlive | Event::PeerFailed | Event::Closed { .. } | Event::StoreLost => {
                self.orders.push_back(Order::Tell(News::Failure(worker)));
                Some(Then::End(Verdict::Failed, Parting::Close))
            }
            _ => None,
        }
    }

    fn while_stopping(&mut self, event: Event, then: Then) {
        let next = match (event, then) {
            (Event::Signalled(signal), _) => return self.hurry(signal),
            (event, Then::CheckPeers(worker)) => match self.after_last_failure(event, worker) {
                Some(then) => then,
                None => return,
            },
            (Event::PeerFailed, Then::Join(_)) => Then::End(Verdict::FailedElsewhere, Parting::Close),
            (Event::Stuck(_), Then::Join(_)) => Then::End(Verdict::Unhealthy, Parting::Close),
            _ => return,
        };
        if let Phase::Stopping { then, .. } = &mut self.phase {
            *then = next;
        }
    }

    /// Told to end while the workers are ending: they get that signal, too; and the second time they are killed.
    fn hurry(&mut self, signal: Signal) {
        let verdict = self.signalled(signal);
        let shutdown_grace = self.policy.shutdown_grace;
        let Phase::Stopping { then, grace, told, at_once } = &mut self.phase else { return };
        if std::mem::replace(told, true) {
            *at_once = true;
            self.workers.iter_mut().chain(&mut self.strays).for_each(Ladder::doom);
            return;
        }
        if matches!(then, Then::Join(_) | Then::CheckPeers(_)) {
            *then = Then::End(verdict, Parting::Leave);
        }
        *grace = shutdown_grace;
        self.workers
            .iter_mut()
            .chain(&mut self.strays)
            .for_each(|ladder| ladder.tell(signal, shutdown_grace));
    }

    fn fail(&mut self, worker: LocalRank, exit: Exit) {
        let grace = self.policy.restart_grace;
        let used = self.restarts.saturating_sub(self.excused);
        if used >= self.policy.max_restarts && self.policy.is_elastic && self.has_peers {
            self.orders.push_back(Order::CheckPeers(worker));
            return self.stop(Signal::TERM, grace, Then::CheckPeers(worker));
        }
        if used >= self.policy.max_restarts {
            self.orders.push_back(Order::Tell(News::Failure(worker)));
            return self.stop(Signal::TERM, grace, Then::End(Verdict::Failed, Parting::Close));
        }
        self.count_restart();
        self.orders.push_back(Order::Tell(News::Restart(worker)));
        let left = self.policy.max_restarts - used - 1;
        self.stop(Signal::TERM, grace, Then::Join(Reason::WorkerFailed { worker, exit, left }));
    }

    fn count_restart(&mut self) {
        self.restarts += 1;
        self.has_new_restart = true;
    }

    fn stop(&mut self, signal: Signal, grace: Duration, then: Then) {
        self.workers.iter_mut().for_each(|worker| worker.tell(signal, grace));
        let told = matches!(then, Then::End(Verdict::Signalled { .. }, _));
        self.phase = Phase::Stopping { then, grace, told, at_once: false };
    }

    /// Takes one step that only time, or that all are gone, makes possible. Whether there was one.
    fn advance(&mut self, now: MonoTime) -> bool {
        for (rank, worker) in (0..).zip(&mut self.workers) {
            if let Some(signal) = worker.poll_signal(now) {
                self.orders.push_back(Order::Send(Target::Worker(LocalRank(rank)), signal));
                return true;
            }
        }
        if let Phase::BackingOff { until, reason } = self.phase
            && until <= now
        {
            self.join(reason);
            return true;
        }
        if self.end_of_finishing().is_some_and(|until| until <= now) {
            self.orders.push_back(Order::StopFinishing);
            self.while_finishing(Event::Finished { all: false });
            return true;
        }
        let Phase::Stopping { then, grace, at_once, .. } = self.phase else { return false };
        if !self.workers.iter().all(|worker| worker.is_over()) {
            return false;
        }
        if !self.alone {
            let strays = self.strays.get_or_insert(match at_once {
                true => Ladder::Doomed,
                false => Ladder::Told(Signal::TERM, grace),
            });
            if let Some(signal) = strays.poll_signal(now) {
                self.orders.push_back(Order::Send(Target::Strays, signal));
                return true;
            }
            if !strays.is_over() {
                return false;
            }
        }
        let is_lost = |ladder: &Ladder| *ladder == Ladder::Lost;
        match then {
            // What can't be killed may still hold what its successor needs.
            Then::Join(_) if self.workers.iter().chain(&self.strays).any(is_lost) => {
                self.end(Then::End(Verdict::Unhealthy, Parting::Close));
            }
            Then::Join(reason) => self.back_off(reason, now),
            then => self.end(then),
        }
        true
    }

    /// Joins again, immediately or after a pause.
    fn back_off(&mut self, reason: Reason, now: MonoTime) {
        let is_short = now.since(self.started_at) < Policy::SHORT_RUN_INTERVAL;
        if !is_short {
            (self.short_failures, self.short_rounds) = (0, 0);
        }
        let (short_runs, longest) = match reason {
            Reason::WorkerFailed { .. } | Reason::PeerRestarts => {
                (&mut self.short_failures, self.policy.max_restart_backoff)
            }
            _ => (&mut self.short_rounds, self.policy.max_restart_backoff.min(Policy::MAX_REFORM_BACKOFF)),
        };
        *short_runs += u32::from(is_short);
        let pause = Policy::restart_backoff(*short_runs, longest);
        self.strays = None;
        match pause.is_zero() {
            true => self.join(reason),
            false => self.phase = Phase::BackingOff { until: now.after(pause), reason },
        }
    }

    fn join(&mut self, reason: Reason) {
        self.phase = Phase::Joining(None);
        self.orders.push_back(Order::Join(reason));
    }

    /// The workers are gone, or there never were any.
    fn end(&mut self, then: Then) {
        self.strays = None;
        match then {
            Then::Join(reason) => self.join(reason),
            Then::CheckPeers(worker) => self.phase = Phase::CheckingPeers(worker),
            Then::End(verdict, parting) => {
                self.phase = Phase::Ended;
                self.orders.push_back(Order::End { verdict, parting });
            }
        }
    }

    fn signalled(&self, signal: Signal) -> Verdict {
        Verdict::Signalled { signal, started: self.started }
    }
}

#[cfg(test)]
mod tests;
