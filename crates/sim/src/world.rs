//! Runs one simulation. The world handles events in the order of virtual time, until `Config::stable_time` after the
//! nodes have recovered from the last fault.

use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use rallypoint_core::rendezvous::{Phase, Settings, State, WITHDRAW_GRACE, keys};

use crate::check::{Checks, Violation, Writer};
use crate::config::{Config, Summary};
use crate::network::{Key, Reply, Request, Store};
use crate::node::{Command, Node, Report, Step};
use crate::queue::Queue;
use crate::random::Random;

#[derive(Debug)]
pub(crate) enum Event {
    /// A request reaches the store.
    Request { node: usize, number: u64, sent: Duration, request: Request },
    /// A reply reaches a node.
    Reply { node: usize, number: u64, reply: Reply },
    /// A request of a node times out.
    NoReply { node: usize, number: u64 },
    /// The pause that a node requested is over, by time or by a signal.
    Timer { node: usize, number: u64, is_woken: bool },
    /// The signal that a phase is over is sent to the nodes that wait for it.
    PhaseOver { job: usize, phase: Phase },
    /// A random fault happens.
    Fault,
    /// An outage ends, and the store has lost everything.
    StoreEmptied,
    /// A node that a fault has paused handles events again.
    Resume { node: usize },
    /// A node starts.
    Start { node: usize },
    /// R10: a dead node must have been removed by now.
    CheckDeadRemoved { node: usize, died: Duration },
    /// R12: nodes in a round must have noticed by now that a node waits.
    CheckWaitingNoticed { job: usize, since: Duration },
    /// R17: nodes in a round must have noticed by now that a node is lost.
    CheckLostNoticed { job: usize, since: Duration },
    /// R13: a join must have ended by now.
    CheckJoinEnded { node: usize, since: Duration },
    /// R11: a round must have been completed by now.
    CheckRoundFound { job: usize },
}

/// One rendezvous.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) key: Key,
    pub(crate) checks: Checks,
}

pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) random: Random,
    pub(crate) now: Duration,
    pub(crate) store: Store,
    pub(crate) jobs: Vec<Job>,
    pub(crate) nodes: Vec<Node>,
    events: Queue<Event>,
    last_number: u64,
    pub(crate) summary: Summary,
    pub(crate) next_pid: i64,
    /// When all faults are over, including pauses and outages.
    pub(crate) faults_end: Duration,
    /// The outages of the store.
    pub(crate) outages: Vec<Range<Duration>>,
    /// Whether the last event may have made all jobs stable.
    has_changed: bool,
    /// When a torch node last removed a live node, or a join last timed out.
    pub(crate) disturbed_at: Option<Duration>,
}

/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the nodes may take to form a stable round after the last fault. They have to detect dead nodes, wait for a
/// last call, and admit the remaining nodes to another round with another last call.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(240);

/// The state of a rendezvous that no node has written yet.
static EMPTY_STATE: LazyLock<State> = LazyLock::new(State::default);

/// Runs a simulation with this configuration, and returns its summary.
///
/// # Errors
///
/// Fails with the first [`Violation`] of a rule.
pub fn run(config: &Config) -> Result<Summary, Violation> {
    World::new(config).run()
}

impl World {
    fn new(config: &Config) -> World {
        // The second run id looks like a part of a key of the first run. The two runs must still not share a key (R16).
        let jobs = ["sim", "sim/announced/0"].into_iter().take(config.jobs).map(|run_id| {
            let mut settings = Settings::new(run_id, config.min_nodes, config.max_nodes);
            settings.last_call_timeout = Duration::from_secs(10);
            settings.join_timeout = config.join_timeout;
            Job { key: keys::state(run_id).into(), checks: Checks::new(settings) }
        });
        World {
            random: Random::new(config.seed ^ 0x5EED),
            now: Duration::ZERO,
            store: Store::new(config.uses_codec, config.has_announcements),
            jobs: jobs.collect(),
            nodes: Vec::new(),
            events: Queue::new(),
            last_number: 0,
            summary: Summary::default(),
            next_pid: 100,
            faults_end: config.fault_duration,
            outages: Vec::new(),
            has_changed: false,
            disturbed_at: None,
            config: config.clone(),
        }
    }

    fn run(mut self) -> Result<Summary, Violation> {
        for job in 0..self.jobs.len() {
            for _ in 0..self.config.nodes {
                let delay = Duration::from_micros(self.random.between(0, 300_000));
                self.add_node(job, delay);
            }
            self.schedule(self.config.fault_duration, Event::CheckRoundFound { job });
        }
        if self.config.fault_interval_ms > 0 {
            self.schedule_fault();
        }
        while let Some((at, event)) = self.events.pop_until(self.end()) {
            self.now = at;
            if self.config.trace {
                println!("{:>10.6} {event:?}", at.as_secs_f64());
            }
            self.handle_event(event)?;
            if self.has_changed
                && self.now > self.faults_end
                && self.summary.recovered_at.is_none()
                && self.are_all_stable()
            {
                self.summary.recovered_at = Some(self.now);
                self.summary.writes_to_recover = self.store.writes;
                self.check_write_count()?;
                if self.config.restarts > 0 {
                    self.config.restarts -= 1;
                    (self.summary.recovered_at, self.config.max_writes) = (None, u64::MAX);
                    self.start_join(0)?;
                }
            }
            self.has_changed = false;
        }
        self.summary.writes = self.store.writes;
        self.summary.failed_writes = self.store.failed_writes;
        self.check_end()?;
        Ok(self.summary)
    }

    /// Returns the time at which the run ends.
    fn end(&self) -> Duration {
        self.summary
            .recovered_at
            .map_or(self.faults_end + RECOVERY_TIMEOUT, |recovered_at| recovered_at + self.config.stable_time)
    }

    pub(crate) fn schedule(&mut self, after: Duration, event: Event) {
        self.events.schedule(self.now + after, event);
    }

    /// Returns the shared state of a rendezvous.
    pub(crate) fn state(&self, job: usize) -> &State {
        self.store.state(&self.jobs[job].key).map_or(&EMPTY_STATE, |state| state)
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Violation> {
        let (node, number) = match &event {
            Event::Reply { node, number, .. }
            | Event::NoReply { node, number }
            | Event::Timer { node, number, .. } => (*node, *number),
            _ => return self.handle_world_event(event),
        };
        let target = &mut self.nodes[node];
        if target.awaited_number != number || !target.is_up() {
            return Ok(());
        }
        // A paused node handles the event when it resumes.
        if let Some(until) = target.paused_until.filter(|until| *until > self.now) {
            self.schedule(until - self.now, event);
            return Ok(());
        }
        let next = match event {
            Event::Reply { reply, .. } => {
                let random = self.random.next();
                target.behavior.handle_reply(&mut target.context, reply, random, self.now)
            }
            Event::NoReply { .. } => {
                (target.last_fault_at, target.has_stray_request) = (target.last_fault_at.max(self.now), true);
                target.behavior.handle_no_reply(&mut target.context, self.now)
            }
            Event::Timer { is_woken, .. } => {
                target.behavior.handle_timer(&mut target.context, is_woken, self.now)
            }
            other => unreachable!("{other:?} is not for one node"),
        };
        self.execute(node, next)
    }

    fn handle_world_event(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request { node, number, sent, request } => {
                self.handle_request(node, number, sent, request)
            }
            Event::Start { node } => self.start_join(node),
            Event::PhaseOver { job, phase } => {
                for node in 0..self.nodes.len() {
                    let target = &self.nodes[node];
                    if target.job == job && target.context.wake_phase == Some(phase) && !self.loses_message()
                    {
                        let (number, delay) = (self.nodes[node].awaited_number, self.draw_latency());
                        self.schedule(delay, Event::Timer { node, number, is_woken: true });
                    }
                }
                Ok(())
            }
            Event::Resume { node } => {
                self.nodes[node].paused_until.take_if(|until| *until <= self.now);
                self.nodes[node].resumed_at = Some(self.now);
                Ok(())
            }
            Event::StoreEmptied => {
                self.store.clear();
                self.jobs.iter_mut().for_each(|job| job.checks.lose_state());
                self.nodes.iter_mut().for_each(|node| node.behavior.handle_store_emptied());
                Ok(())
            }
            Event::Fault => self.cause_fault(),
            Event::CheckDeadRemoved { node, died } => self.check_dead_removed(node, died),
            Event::CheckWaitingNoticed { job, since } => self.check_waiting_noticed(job, since),
            Event::CheckLostNoticed { job, since } => self.check_lost_noticed(job, since),
            Event::CheckJoinEnded { node, since } => self.check_join_ended(node, since),
            Event::CheckRoundFound { job } => self.check_round_found(job),
            Event::Reply { .. } | Event::NoReply { .. } | Event::Timer { .. } => unreachable!("for one node"),
        }
    }

    pub(crate) fn start_join(&mut self, node: usize) -> Result<(), Violation> {
        let target = &mut self.nodes[node];
        let next = target.behavior.join(&mut target.context, self.now);
        self.execute(node, next)
    }

    fn handle_request(
        &mut self,
        node: usize,
        number: u64,
        sent: Duration,
        request: Request,
    ) -> Result<(), Violation> {
        let Node { job, is_torch, .. } = self.nodes[node];
        if let (Request::Announce { key, node }, true) = (&request, self.config.checks_writes) {
            let round = key.rsplit('/').next().and_then(|round| round.parse().ok());
            let round = round.expect("announcements are for a round");
            self.jobs[job].checks.announced.entry(round).or_default().insert(node.clone());
        }
        let (reply, change) = self.store.handle(request);
        if let Reply::Written { won, .. } = &reply {
            let target = &mut self.nodes[node];
            target.failed_writes = if *won { 0 } else { target.failed_writes + 1 };
        }
        if let Some((key, before, after)) = change {
            self.has_changed = true;
            let before = before.as_deref().unwrap_or(&EMPTY_STATE);
            let Checks { waiting_since: was_waiting, losing_since: was_losing, .. } = self.jobs[job].checks;
            let me = self.nodes[node].me.clone();
            let writer = Writer { node: &me, is_torch };
            let restored = self.jobs[job].checks.restored(before, &after, &me).is_some();
            self.check_written(job, &key, before, &after, writer)?;
            let checks = &mut self.jobs[job].checks;
            if !restored && after.complete && (!before.complete || after.round > before.round) {
                checks.record_completed(&after, writer, self.now);
                self.summary.rounds += 1;
                self.summary.first_round_at.get_or_insert(self.now);
            }
            let losing = checks.losing_since.filter(|_| was_losing.is_none());
            if let (None, Some(since)) = (was_waiting, checks.waiting_since) {
                self.schedule_waiting_check(job, since);
            }
            if let Some(since) = losing {
                self.schedule_lost_check(job, since);
            }
        }
        let delay = self.draw_latency();
        let is_lost = self.loses_message();
        if is_lost || self.now + delay > sent + REQUEST_TIMEOUT {
            self.schedule((sent + REQUEST_TIMEOUT).saturating_sub(self.now), Event::NoReply { node, number });
        }
        if !is_lost {
            self.schedule(delay, Event::Reply { node, number, reply });
        }
        Ok(())
    }

    /// Executes the command of a node, and handles its report.
    pub(crate) fn execute(&mut self, node: usize, (command, report): Step) -> Result<(), Violation> {
        self.last_number += 1;
        let (number, sent) = (self.last_number, self.now);
        if self.nodes[node].record(&command, number, sent) {
            // On a node with the slowest simulated clock, a join takes 1 % longer.
            let limit = (self.config.join_timeout + WITHDRAW_GRACE + Duration::from_secs(1)).mul_f64(1.011);
            self.schedule(limit, Event::CheckJoinEnded { node, since: sent });
        }
        match command {
            Command::Nothing => {}
            Command::Sleep(time) => self.schedule(time, Event::Timer { node, number, is_woken: false }),
            Command::Send(request) => {
                if let Request::Write { .. } = request {
                    self.check_write_rate(node)?;
                }
                let delay = self.draw_latency();
                match self.loses_message() {
                    true => self.schedule(REQUEST_TIMEOUT, Event::NoReply { node, number }),
                    false => self.schedule(delay, Event::Request { node, number, sent, request }),
                }
            }
        }
        if let Some(phase) = self.nodes[node].context.ended_phase.take()
            && !self.loses_message()
        {
            let (job, delay) = (self.nodes[node].job, self.draw_latency());
            self.schedule(delay, Event::PhaseOver { job, phase });
        }
        let target = &mut self.nodes[node];
        match report {
            None => Ok(()),
            Some(Report::Joined { state }) => {
                self.summary.joins += 1;
                self.has_changed = true;
                let (job, me, is_torch) = (target.job, target.me.clone(), target.is_torch);
                let resumed_at = target.resumed_at;
                if self.jobs[job].checks.waiting_since.is_some() {
                    self.schedule_waiting_check(job, self.now);
                }
                let current = self.store.state(&self.jobs[job].key).cloned().unwrap_or_default();
                // A torch node that was paused compares heartbeats that it read before the pause with its clock after
                // the pause, so live nodes may seem dead to it.
                let was_awake = resumed_at.is_none_or(|at| at + Duration::from_secs(5) < self.now);
                self.jobs[job].checks.check_joined(&me, is_torch, was_awake, &state, &current, self.now)
            }
            Some(Report::Left) => {
                target.has_left = true;
                Ok(())
            }
            Some(Report::TimedOut { is_clean }) => {
                self.summary.timeouts += 1;
                // Until this node gave up, the job may have had more than `max_nodes` nodes. In that case, torch nodes
                // on the wait list made even a full round re-form. The other nodes get 60 s to form a stable round.
                self.disturbed_at = Some(self.now);
                self.check_timed_out(node, is_clean)
            }
            Some(Report::RuleBroken { rule, what }) => Err(self.violation(rule, what)),
        }
    }
}
