//! An agent: a real supervisor, and what the rendezvous handler of the node knows.
//!
//! The order of the steps is that of the agent in `crates/agent` and of the native handler in `crates/rendezvous`. The
//! store of a round is simulated: a node gets the ranks of its workers when all nodes of the round have entered it and
//! the node reaches the node with group rank 0.

use std::collections::BTreeSet;
use std::time::Duration;

use rallypoint_coordinator::client::Event as ClientEvent;
use rallypoint_coordinator::job::Cause;
use rallypoint_coordinator::message::{Assignment, NotServed};
use rallypoint_coordinator::roster::WaitReason;
use rallypoint_core::rendezvous::{EndCause, Membership, MonoTime, NodeDesc};
use rallypoint_core::supervise::{
    Event, Exit, LocalRank, OnEnd, Order, Policy, Reports, Signal, Supervisor, Verdict,
};

use super::config::NativeConfig;
use super::faults::Point;
use super::host::{Call, Ended};
use super::worker::RoundId;
use super::world::{Event as WorldEvent, World};

/// How long a node waits for the other nodes of its round, and for the store of the round.
const ENTER_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval at which a node tries to reach the store of its round.
const ENTER_INTERVAL: Duration = Duration::from_millis(200);
/// How long an agent waits until the job is closed, or until the node has left.
const END_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a process whose job is closed keeps running until the other nodes have read that.
const LINGER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// The interval at which the agent reads the membership again while its round is not intact.
const MONITOR_INTERVAL: Duration = Duration::from_millis(500);

/// An agent.
pub(super) struct Agent {
    pub(super) supervisor: Supervisor,
    pub(super) stage: Stage,
    pub(super) state: NodeState,
    /// Whether the agent has decided to start its worker and has not forked yet.
    is_forking: bool,
    is_observing: bool,
    /// When the supervisor is called next.
    timeout_at: Option<Duration>,
}

/// What an agent does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    Joining,
    /// The node is a member of a round that has started, and waits for the ranks of its workers.
    Entering(Box<Assignment>, Duration),
    InRound(Box<Assignment>),
    /// The agent ends after it has closed or left the job.
    Ending(OnEnd, Duration),
    /// The agent waits until other nodes have read that the job is closed.
    Lingering(Duration),
}

/// What the rendezvous handler of a node knows about its job, like `NodeState` in `crates/rendezvous`.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    pub(super) leader: Option<String>,
    pub(super) not_served: Option<NotServed>,
    pub(super) waits_for: Option<WaitReason>,
    round: Option<Assignment>,
    end: Option<EndCause>,
    is_fenced: bool,
    /// Whether all workers had finished when the job was closed.
    pub(super) closed: Option<bool>,
    is_refused: bool,
    pub(super) is_drained: bool,
    has_left: bool,
    is_signaled: bool,
    /// Whether no node is connected to the coordinator of the process.
    is_idle: bool,
}

/// An event of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AgentEvent {
    /// The agent reads what its rendezvous handler knows.
    Observe,
    /// The node tries to get the ranks of its workers.
    Enter(RoundId),
    /// The agent forks the process of its worker.
    Fork(RoundId),
    WorkerExited(Exit),
    /// The worker was not started, because the lease is over.
    WorkerFenced,
    /// The supervisor has to be called, because time has passed.
    Timeout,
    /// A worker of another node has failed.
    PeerRestarts(RoundId),
    /// Another node has failed for good.
    PeerFailed(RoundId),
    PeersAlive(RoundId),
    /// The agent gets SIGTERM.
    Terminate,
    /// The agent gets SIGUSR2.
    Drain,
}

/// The nodes that have entered a round.
#[derive(Debug, Default)]
pub(super) struct Formation {
    entered: BTreeSet<usize>,
    /// The largest number of restarts that a node has counted.
    restarts: u32,
}

impl Agent {
    pub(super) fn new(config: &NativeConfig) -> Agent {
        let policy = Policy {
            workers: 1,
            max_restarts: config.max_restarts,
            shutdown_grace: Duration::from_secs(30),
            max_restart_backoff: Duration::from_millis(500),
            is_elastic: true,
            runs_once: false,
        };
        Agent {
            supervisor: Supervisor::new(policy),
            stage: Stage::Joining,
            state: NodeState::default(),
            is_forking: false,
            is_observing: false,
            timeout_at: None,
        }
    }
}

impl NodeState {
    fn has_ended(&self) -> bool {
        self.end.is_some() || self.is_fenced
    }

    fn membership(&self) -> Membership {
        let end = if self.is_fenced { Some(EndCause::Fenced) } else { self.end };
        Membership {
            round: self.round.as_ref().map(|round| round.round),
            members: self.round.iter().map(|_| NodeDesc::new("own", 1, 0)).collect(),
            is_round_over: end.is_some(),
            end,
            has_finished: self.closed == Some(true),
            has_failed: self.closed == Some(false),
            is_closed: self.closed.is_some(),
            ..Membership::default()
        }
    }
}

fn end_cause(cause: &Cause) -> EndCause {
    match cause {
        Cause::WorkerFailed { .. } | Cause::Rejoined { .. } => EndCause::WorkerFailed,
        Cause::NodeLost { .. } | Cause::Fenced { .. } => EndCause::NodeLost,
        Cause::Growth { .. } => EndCause::Growth,
        Cause::Drained { .. } => EndCause::Drained,
        Cause::Excluded { .. } => EndCause::Excluded,
    }
}

pub(super) fn round_id(assignment: &Assignment) -> RoundId {
    (assignment.group, assignment.round)
}

impl World {
    pub(super) fn agent(&mut self, host: usize) -> Option<&mut Agent> {
        self.hosts[host].process.as_mut()?.agent.as_mut()
    }

    pub(super) fn schedule_agent(&mut self, host: usize, process: u64, after: Duration, event: AgentEvent) {
        self.queue.schedule(self.now + after, WorldEvent::Agent { host, process, event });
    }

    /// Makes the agent of a host read what its rendezvous handler knows.
    fn schedule_observe(&mut self, host: usize, longest_ms: u64) {
        let Some(process) = self.hosts[host].process.as_ref().map(|process| process.number) else { return };
        let delay = Duration::from_micros(self.random.between(10, longest_ms * 1_000));
        if let Some(agent) = self.agent(host)
            && !std::mem::replace(&mut agent.is_observing, true)
        {
            self.schedule_agent(host, process, delay, AgentEvent::Observe);
        }
    }

    fn call(&mut self, host: usize, call: Call) {
        if let Some(process) = &mut self.hosts[host].process {
            process.call(call);
            let number = process.number;
            let delay = Duration::from_micros(self.random.between(1, 200));
            self.queue.schedule(self.now + delay, WorldEvent::Call { host, process: number });
        }
    }

    // ---- events of the client ----

    /// Handles an event of the node's client, like the rendezvous handler.
    pub(super) fn handle_client_event(&mut self, host: usize, event: ClientEvent) {
        let is_start = matches!(event, ClientEvent::Started(_));
        match &event {
            ClientEvent::Started(assignment) => {
                self.record_assignment(host, assignment);
                self.trace(|| {
                    format!(
                        "h{host} is in round {} as {}/{}",
                        assignment.round, assignment.rank, assignment.world_size
                    )
                });
            }
            ClientEvent::LeaseOver { round } => {
                self.summary.fenced += 1;
                self.record_fenced(host);
                self.trace(|| format!("h{host}: the lease is over in round {round}"));
            }
            ClientEvent::Ended { round, cause } => {
                self.trace(|| format!("h{host}: round {round} ended: {cause}"));
            }
            ClientEvent::Closed(closing) => self.trace(|| format!("h{host}: {closing}")),
            ClientEvent::Lease { .. } | ClientEvent::Waiting(_) => {}
            event => self.trace(|| format!("h{host}: {event:?}")),
        }
        let Some(agent) = self.agent(host) else { return };
        let state = &mut agent.state;
        match event {
            ClientEvent::Served { leader } => (state.leader, state.not_served) = (Some(leader), None),
            ClientEvent::NotServed { why, .. } => (state.leader, state.not_served) = (None, Some(why)),
            ClientEvent::Waiting(reason) => state.waits_for = Some(reason),
            ClientEvent::Started(assignment) => {
                (state.round, state.end, state.is_fenced) = (Some(assignment), None, false);
            }
            ClientEvent::Ended { round, cause } => {
                if state.round.as_ref().is_some_and(|current| current.round == round) && state.end.is_none() {
                    state.end = Some(end_cause(&cause));
                }
            }
            ClientEvent::Lease { deadline } => {
                self.hosts[host].fence = Some(deadline);
                return self.check_deadline(host, deadline);
            }
            ClientEvent::LeaseOver { .. } => state.is_fenced = true,
            ClientEvent::Drained => state.is_drained = true,
            ClientEvent::Closed(closing) => {
                state.closed = Some(closing.has_finished);
                // No other node replaces this one.
                self.hosts[host].fence = Some(Duration::from_secs(1 << 40));
            }
            ClientEvent::Refused(_) => state.is_refused = true,
            ClientEvent::Left => state.has_left = true,
            ClientEvent::Idle => state.is_idle = true,
            ClientEvent::Warning(_) => return,
        }
        self.schedule_observe(host, 2);
        if is_start {
            self.strike(Point::Told, host);
        }
    }

    // ---- events of the agent ----

    pub(super) fn handle_agent(&mut self, host: usize, number: u64, event: AgentEvent) {
        let Some(process) = self.hosts[host].process.as_mut().filter(|process| process.number == number)
        else {
            return;
        };
        if process.paused_until.is_some() {
            return process.deferred.push(event);
        }
        let now = self.now;
        let Some(agent) = &mut process.agent else { return };
        if agent.is_forking && !matches!(event, AgentEvent::Fork(_)) {
            return self.schedule_agent(host, number, Duration::from_micros(100), event);
        }
        match event {
            AgentEvent::Observe => {
                agent.is_observing = false;
                self.observe(host);
            }
            AgentEvent::Enter(round) => self.enter(host, number, round),
            AgentEvent::Fork(round) => {
                agent.is_forking = false;
                self.fork_worker(host, number, round);
                self.schedule_observe(host, 2);
                self.strike(Point::Forked, host);
            }
            AgentEvent::WorkerExited(_) | AgentEvent::WorkerFenced => {
                agent.supervisor.handle_event(match event {
                    AgentEvent::WorkerExited(exit) => Event::Exited(LocalRank(0), exit),
                    _ => Event::Fenced(LocalRank(0)),
                });
                if self.hosts[host].workers.iter().all(|worker| worker.process != number)
                    && let Some(agent) = self.agent(host)
                {
                    agent.supervisor.handle_event(Event::AllProcessesExited);
                }
            }
            AgentEvent::Timeout if agent.timeout_at == Some(now) => agent.timeout_at = None,
            AgentEvent::Timeout => return,
            AgentEvent::PeerRestarts(round) if agent.is_in(round) => {
                agent.supervisor.handle_event(Event::PeerRestarts);
            }
            AgentEvent::PeerFailed(round) if agent.is_in(round) => {
                agent.supervisor.handle_event(Event::PeerFailed)
            }
            AgentEvent::PeersAlive(round) if agent.is_in(round) => {
                agent.supervisor.handle_event(Event::PeersAlive)
            }
            AgentEvent::PeerRestarts(_) | AgentEvent::PeerFailed(_) | AgentEvent::PeersAlive(_) => return,
            AgentEvent::Terminate => {
                agent.state.is_signaled = true;
                agent.supervisor.handle_event(Event::Signaled(Signal::TERM));
            }
            AgentEvent::Drain => self.call(host, Call::Drain),
        }
        self.drive_agent(host);
    }

    /// Handles a change of what the rendezvous handler knows.
    fn observe(&mut self, host: usize) {
        let mono = MonoTime::from_start(self.local(host));
        let now = self.now;
        let Some(agent) = self.agent(host) else { return };
        match agent.stage.clone() {
            Stage::Joining => {
                let state = &agent.state;
                let failed = if let Some(has_finished) = state.closed {
                    Some(has_finished)
                } else if state.is_refused {
                    Some(false)
                } else {
                    state.is_drained.then_some(true)
                };
                if let Some(is_spare) = failed {
                    agent.supervisor.handle_event(Event::JoinFailed { is_spare });
                } else if let Some(assignment) = state.round.clone() {
                    let round = round_id(&assignment);
                    agent.stage = Stage::Entering(Box::new(assignment), now);
                    let number = self.hosts[host].process.as_ref().map_or(0, |process| process.number);
                    let delay = Duration::from_micros(self.random.between(10, 1_000));
                    self.schedule_agent(host, number, delay, AgentEvent::Enter(round));
                }
            }
            Stage::Entering(assignment, _) => {
                let round = round_id(&assignment);
                let number = self.hosts[host].process.as_ref().map_or(0, |process| process.number);
                self.enter(host, number, round);
            }
            Stage::InRound(_) => {
                let membership = agent.state.membership();
                let is_unchanged = membership.is_intact() && !membership.is_closed;
                let has_ended = membership.end.is_some() || membership.has_finished;
                let reports = (!is_unchanged && !has_ended).then(Reports::default);
                agent.supervisor.handle_membership(&membership, reports.as_ref(), mono);
                if !is_unchanged && (agent.supervisor.is_running() || agent.supervisor.timeout().is_some()) {
                    self.schedule_observe(host, MONITOR_INTERVAL.as_millis() as u64);
                }
            }
            Stage::Ending(on_end, since) => {
                let is_done = match on_end {
                    OnEnd::Close => agent.state.closed.is_some() || agent.state.is_refused,
                    OnEnd::Leave => agent.state.has_left,
                    OnEnd::Nothing => true,
                } || now >= since + END_TIMEOUT;
                if !is_done {
                    return self.schedule_observe(host, 100);
                }
                if agent.state.closed.is_none() {
                    return self.exit(host);
                }
                agent.stage = Stage::Lingering(now);
                self.call(host, Call::ReportIdle);
                self.schedule_observe(host, 100);
            }
            Stage::Lingering(since) if agent.state.is_idle || now >= since + LINGER_TIMEOUT => {
                self.exit(host)
            }
            Stage::Lingering(_) => self.schedule_observe(host, 100),
        }
    }

    /// Tries to get the ranks of the workers of a node.
    fn enter(&mut self, host: usize, number: u64, round: RoundId) {
        let now = self.now;
        let Some(agent) = self.agent(host) else { return };
        let Stage::Entering(assignment, since) = agent.stage.clone() else { return };
        if round_id(&assignment) != round {
            return;
        }
        // The calls to the store are canceled when the round has ended.
        let is_current = agent.state.round.as_ref().is_some_and(|current| round_id(current) == round);
        if agent.state.has_ended() || !is_current || agent.state.closed.is_some() {
            self.rejoin(host);
            return;
        }
        if now >= since + ENTER_TIMEOUT {
            agent.supervisor.handle_event(Event::JoinFailed { is_spare: false });
            return;
        }
        let restarts = agent.supervisor.restarts();
        let formation = self.formations.entry(round).or_default();
        let was_complete = formation.is_complete(&assignment);
        formation.entered.insert(host);
        formation.restarts = formation.restarts.max(restarts);
        if !formation.is_complete(&assignment) {
            return;
        }
        let restarts = formation.restarts;
        if !was_complete {
            for other in formation.entered.clone().into_iter().filter(|other| *other != host) {
                let process = self.hosts[other].process.as_ref().map_or(0, |process| process.number);
                let delay = Duration::from_micros(self.random.between(100, 5_000));
                self.schedule_agent(other, process, delay, AgentEvent::Enter(round));
            }
        }
        if !self.reaches_master(host, &assignment) {
            return self.schedule_agent(host, number, ENTER_INTERVAL, AgentEvent::Enter(round));
        }
        let Some(agent) = self.agent(host) else { return };
        let (world_size, lost) = (u64::from(assignment.world_size), u64::from(assignment.lost));
        agent.stage = Stage::InRound(assignment);
        agent.supervisor.handle_event(Event::Joined {
            restarts,
            nodes: Vec::new(),
            world_size,
            lost,
            are_all_ours: true,
        });
    }

    /// Returns whether a node reaches the store of its round.
    fn reaches_master(&self, host: usize, assignment: &Assignment) -> bool {
        let is_master = |other: &usize| self.hosts[*other].address == assignment.master;
        let masters = self.known_masters.get(&round_id(assignment)).copied();
        masters
            .filter(is_master)
            .is_some_and(|master| self.network.connects(host, master) && self.hosts[master].process.is_some())
    }

    fn rejoin(&mut self, host: usize) {
        if let Some(agent) = self.agent(host) {
            agent.stage = Stage::Joining;
            let state = &mut agent.state;
            (state.round, state.end, state.is_fenced, state.waits_for) = (None, None, false, None);
            self.call(host, Call::Join);
            self.schedule_observe(host, 2);
        }
    }

    // ---- orders of the supervisor ----

    /// Carries out the orders of a node's supervisor.
    pub(super) fn drive_agent(&mut self, host: usize) {
        loop {
            let mono = MonoTime::from_start(self.local(host));
            let Some(order) = self.agent(host).and_then(|agent| agent.supervisor.poll_order(mono)) else {
                break;
            };
            self.carry_out(host, order);
        }
        self.watch_supervisor(host);
    }

    /// Schedules the next call of the supervisor.
    pub(super) fn watch_supervisor(&mut self, host: usize) {
        let now = self.now;
        let Some(number) = self.hosts[host].process.as_ref().map(|process| process.number) else { return };
        let Some(timeout) = self.agent(host).and_then(|agent| agent.supervisor.timeout()) else { return };
        let left = timeout.since(MonoTime::from_start(self.local(host))) + Duration::from_micros(100);
        let Some(agent) = self.agent(host) else { return };
        let at = now + left.mul_f64(1.003);
        if agent.timeout_at.is_none_or(|earlier| at < earlier || earlier < now) {
            agent.timeout_at = Some(at);
            self.schedule_agent(host, number, at - now, AgentEvent::Timeout);
        }
    }

    fn carry_out(&mut self, host: usize, order: Order) {
        let Some(number) = self.hosts[host].process.as_ref().map(|process| process.number) else { return };
        let Some(agent) = self.agent(host) else { return };
        let assignment = match &agent.stage {
            Stage::InRound(assignment) => Some(assignment.clone()),
            _ => None,
        };
        let round = assignment.as_deref().map(round_id);
        match order {
            Order::Join(_) => self.rejoin(host),
            Order::StopJoining => {
                agent.supervisor.handle_event(Event::JoinFailed { is_spare: false });
                self.call(host, Call::StayOutside);
            }
            Order::Start { .. } => {
                if let Some(round) = round {
                    agent.is_forking = true;
                    let delay = Duration::from_micros(self.random.between(100, 5_000));
                    self.schedule_agent(host, number, delay, AgentEvent::Fork(round));
                    self.strike(Point::Decided, host);
                }
            }
            Order::Send(_, signal) => self.signal_workers(host, number, signal),
            Order::PublishFailure { is_final, .. } => {
                let Some(assignment) = assignment else { return };
                let round = round_id(&assignment);
                if !is_final {
                    self.call(host, Call::WorkerFailed);
                }
                let event =
                    if is_final { AgentEvent::PeerFailed(round) } else { AgentEvent::PeerRestarts(round) };
                if self.reaches_master(host, &assignment) {
                    self.announce(host, event, &assignment);
                }
            }
            Order::CheckPeers(_) => {
                if let Some(round) = round {
                    self.schedule_agent(host, number, Duration::from_secs(6), AgentEvent::PeersAlive(round));
                }
            }
            Order::Finish => match assignment.map(|assignment| assignment.world_size) {
                Some(1) => agent.supervisor.handle_event(Event::Finished { all: true }),
                _ => self.call(host, Call::Finish),
            },
            Order::Leave => self.call(host, Call::Leave),
            Order::End { verdict, on_end } => self.start_ending(host, verdict, on_end),
            Order::ReportRestartDelay(_)
            | Order::ReportLost
            | Order::ReportWaiting(_)
            | Order::PublishNodeFailed => {}
        }
    }

    /// Delivers an announcement to the other nodes of a round, through the store of the round.
    fn announce(&mut self, host: usize, event: AgentEvent, assignment: &Assignment) {
        let round = round_id(assignment);
        for other in 0..self.hosts.len() {
            let Some(process) = self.hosts[other].process.as_ref().map(|process| process.number) else {
                continue;
            };
            let is_in = self.agent(other).is_some_and(|agent| agent.is_in(round));
            if other != host && is_in && self.reaches_master(other, assignment) {
                let delay = Duration::from_micros(self.random.between(1_000, 40_000));
                self.schedule_agent(other, process, delay, event.clone());
            }
        }
    }

    fn start_ending(&mut self, host: usize, verdict: Verdict, on_end: OnEnd) {
        let (now, wall) = (self.now, self.hosts[host].clock.wall(self.now));
        let Some(agent) = self.agent(host) else { return };
        let (nodes, is_master) = match &agent.stage {
            Stage::InRound(assignment) => (assignment.world_size, assignment.rank == 0),
            _ => (1, false),
        };
        // After a success, the coordinator has closed the job.
        let is_closed = verdict == Verdict::Succeeded && nodes > 1 && !is_master;
        let on_end = if on_end == OnEnd::Close && is_closed { OnEnd::Nothing } else { on_end };
        agent.stage = Stage::Ending(on_end, now);
        self.trace(|| format!("the agent of h{host} ends: {verdict:?}, {on_end:?}"));
        match on_end {
            OnEnd::Close => self.call(host, Call::Close(wall)),
            OnEnd::Leave => self.call(host, Call::Leave),
            OnEnd::Nothing => {}
        }
        self.schedule_observe(host, 2);
    }

    /// Ends the process of an agent that has ended.
    fn exit(&mut self, host: usize) {
        let Some(agent) = self.agent(host) else { return };
        let state = &agent.state;
        let ended = if state.closed.is_some() {
            Ended::Job
        } else if state.is_drained || state.is_signaled {
            Ended::Left
        } else {
            Ended::Failed
        };
        self.trace(|| format!("the process of h{host} exits: {ended:?}"));
        self.end_process(host, false);
        self.hosts[host].ended = Some(ended);
    }
}

impl Agent {
    fn is_in(&self, round: RoundId) -> bool {
        matches!(&self.stage, Stage::InRound(assignment) if round_id(assignment) == round)
    }
}

impl Formation {
    fn is_complete(&self, assignment: &Assignment) -> bool {
        self.entered.len() >= assignment.world_size as usize
    }
}
