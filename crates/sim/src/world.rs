//! The run of a seed: events in the order of virtual time, faults for a while, then peace, in which all must end well.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Duration;

use rallypoint_core::rendezvous::{Phase, Settings, State, WITHDRAW_GRACE, keys};

use crate::check::{Checks, Violation, Writer};
use crate::config::{Config, Summary};
use crate::network::{Name, Reply, Request, Store};
use crate::node::{Next, Node, Report, Want};
use crate::random::Random;

#[derive(Debug)]
pub(crate) enum Event {
    /// A request reaches the store.
    Request { node: usize, number: u64, sent: Duration, request: Request },
    /// A reply reaches a node.
    Reply { node: usize, number: u64, reply: Reply },
    /// A node gives up waiting for a reply.
    NoReply { node: usize, number: u64 },
    /// A pause is over.
    Timer { node: usize, number: u64, is_woken: bool },
    /// Word of the end of a phase reaches those who wait for it.
    PhaseOver { job: usize, phase: Phase },
    /// Something happens to a node.
    Fault,
    /// The store comes back, and has lost everything.
    StoreEmptied,
    /// A node that was paused goes on.
    Resume { node: usize },
    /// A node starts.
    Start { node: usize },
    /// A node that died must have been put out.
    LookForDead { node: usize, died: Duration },
    /// Who works must have seen that somebody waits since then.
    LookForWaiting { job: usize, since: Duration },
    /// A node that works must have seen that nodes of its round are lost since then.
    LookForLost { job: usize, since: Duration },
    /// A node that wanted to join must have done so or given up.
    LookForJoined { node: usize, since: Duration },
    /// A round must have been found.
    LookForRound { job: usize },
}

/// An event and its time. The heap gives out the greatest first, so the earliest is the greatest.
#[derive(Debug)]
struct Planned {
    at: Duration,
    number: u64,
    event: Event,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Planned {}

/// One rendezvous.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) key: Name,
    pub(crate) checks: Checks,
}

pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) random: Random,
    pub(crate) now: Duration,
    pub(crate) store: Store,
    pub(crate) jobs: Vec<Job>,
    pub(crate) nodes: Vec<Node>,
    events: BinaryHeap<Planned>,
    numbered: u64,
    pub(crate) summary: Summary,
    pub(crate) next_pid: i64,
    /// When the last of the faults is over, pauses included.
    pub(crate) peace: Duration,
    /// When the store could not be reached.
    pub(crate) away: Vec<Range<Duration>>,
    /// Whether all may have become well with what happened last.
    unsettled: bool,
    /// When torch's nodes have last put somebody out who is alive, or anybody has given up.
    pub(crate) disturbed: Option<Duration>,
}

/// A driver's patience with one request.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the nodes have, after the faults, to find together: the dead must be noticed, a last call waited out, and
/// those left outside let in by another round with another last call.
const HEALING: Duration = Duration::from_secs(240);

/// The state of a rendezvous that nobody has come to.
static EMPTY: LazyLock<State> = LazyLock::new(State::default);

/// Runs a seed.
pub fn run(config: &Config) -> Result<Summary, Violation> {
    World::new(config).play()
}

impl World {
    fn new(config: &Config) -> World {
        // The second id looks like a key of the first.
        let jobs = ["sim", "sim/announced/0"].into_iter().take(config.jobs).map(|run_id| {
            let mut settings = Settings::new(run_id, config.min_nodes, config.max_nodes);
            settings.last_call_timeout = Duration::from_secs(10);
            settings.join_timeout = config.join_timeout;
            Job { key: keys::state(run_id).into(), checks: Checks::new(settings) }
        });
        World {
            random: Random::new(config.seed ^ 0x5EED),
            now: Duration::ZERO,
            store: Store::new(config.codec, config.helped),
            jobs: jobs.collect(),
            nodes: Vec::new(),
            events: BinaryHeap::new(),
            numbered: 0,
            summary: Summary::default(),
            next_pid: 100,
            peace: config.trouble,
            away: Vec::new(),
            unsettled: false,
            disturbed: None,
            config: config.clone(),
        }
    }

    fn play(mut self) -> Result<Summary, Violation> {
        for job in 0..self.jobs.len() {
            for _ in 0..self.config.nodes {
                let delay = Duration::from_micros(self.random.between(0, 300_000));
                self.add_node(job, delay);
            }
            self.plan(self.config.trouble, Event::LookForRound { job });
        }
        if self.config.fault_every > 0 {
            self.plan_fault();
        }
        while let Some(Planned { at, event, .. }) = self.events.pop() {
            let end = self.summary.healed.map_or(self.peace + HEALING, |healed| healed + self.config.steady);
            if at > end {
                break;
            }
            self.now = at;
            if self.config.trace {
                println!("{:>10.6} {event:?}", at.as_secs_f64());
            }
            self.happen(event)?;
            if self.unsettled && self.now > self.peace && self.summary.healed.is_none() && self.is_all_well()
            {
                self.summary.healed = Some(self.now);
                self.summary.writes_to_heal = self.store.writes;
                self.check_writes()?;
                if self.config.restarts > 0 {
                    self.config.restarts -= 1;
                    (self.summary.healed, self.config.most_writes) = (None, u64::MAX);
                    self.start_join(0)?;
                }
            }
            self.unsettled = false;
        }
        self.summary.writes = self.store.writes;
        self.summary.losses = self.store.losses;
        self.check_end()?;
        Ok(self.summary)
    }

    pub(crate) fn plan(&mut self, after: Duration, event: Event) {
        self.numbered += 1;
        self.events.push(Planned { at: self.now + after, number: self.numbered, event });
    }

    /// The shared state of a rendezvous.
    pub(crate) fn state(&self, job: usize) -> &State {
        self.store.state(&self.jobs[job].key).map_or(&EMPTY, |state| state)
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        let (node, number) = match &event {
            Event::Reply { node, number, .. }
            | Event::NoReply { node, number }
            | Event::Timer { node, number, .. } => (*node, *number),
            _ => return self.happen_outside(event),
        };
        let known = &mut self.nodes[node];
        if known.waiting_for != number || !known.is_up() {
            return Ok(());
        }
        // What reaches a node that is paused, it sees when it goes on.
        if let Some(until) = known.paused_until.filter(|until| *until > self.now) {
            self.plan(until - self.now, event);
            return Ok(());
        }
        let next = match event {
            Event::Reply { reply, .. } => {
                let random = self.random.next();
                known.behavior.handle_reply(&mut known.life, reply, random, self.now)
            }
            Event::NoReply { .. } => {
                (known.trouble, known.overtaken) = (known.trouble.max(self.now), true);
                known.behavior.handle_no_reply(&mut known.life, self.now)
            }
            Event::Timer { is_woken, .. } => known.behavior.handle_timer(&mut known.life, is_woken, self.now),
            other => unreachable!("{other:?} is for no node"),
        };
        self.grant(node, next)
    }

    fn happen_outside(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request { node, number, sent, request } => self.at_store(node, number, sent, request),
            Event::Start { node } => self.start_join(node),
            Event::PhaseOver { job, phase } => {
                for node in 0..self.nodes.len() {
                    let known = &self.nodes[node];
                    if known.job == job && known.life.pausing == Some(phase) && !self.is_lost() {
                        let (number, delay) = (self.nodes[node].waiting_for, self.latency());
                        self.plan(delay, Event::Timer { node, number, is_woken: true });
                    }
                }
                Ok(())
            }
            Event::Resume { node } => {
                self.nodes[node].paused_until.take_if(|until| *until <= self.now);
                self.nodes[node].resumed = Some(self.now);
                Ok(())
            }
            Event::StoreEmptied => {
                self.store.lose_everything();
                self.jobs.iter_mut().for_each(|job| job.checks.lose_state());
                self.nodes.iter_mut().for_each(|node| node.behavior.handle_store_emptied());
                Ok(())
            }
            Event::Fault => self.fault(),
            Event::LookForDead { node, died } => self.look_for_dead(node, died),
            Event::LookForWaiting { job, since } => self.look_for_waiting(job, since),
            Event::LookForLost { job, since } => self.look_for_lost(job, since),
            Event::LookForJoined { node, since } => self.look_for_joined(node, since),
            Event::LookForRound { job } => self.look_for_round(job),
            Event::Reply { .. } | Event::NoReply { .. } | Event::Timer { .. } => unreachable!("for a node"),
        }
    }

    pub(crate) fn start_join(&mut self, node: usize) -> Result<(), Violation> {
        let known = &mut self.nodes[node];
        let next = known.behavior.join(&mut known.life, self.now);
        self.grant(node, next)
    }

    fn at_store(
        &mut self,
        node: usize,
        number: u64,
        sent: Duration,
        request: Request,
    ) -> Result<(), Violation> {
        let Node { job, is_torch, .. } = self.nodes[node];
        if let (Request::Announce { key, node }, true) = (&request, self.config.thorough) {
            let round = key.rsplit('/').next().and_then(|round| round.parse().ok());
            let round = round.expect("announcements are for a round");
            self.jobs[job].checks.asked.entry(round).or_default().insert(node.clone());
        }
        let (reply, changed) = self.store.handle(request);
        if let Reply::Written { won, .. } = &reply {
            let known = &mut self.nodes[node];
            known.lost = if *won { 0 } else { known.lost + 1 };
        }
        if let Some((key, before, after)) = changed {
            self.unsettled = true;
            let before = before.as_deref().unwrap_or(&EMPTY);
            let Checks { waiting_since: waited, losing_since: losing, .. } = self.jobs[job].checks;
            let me = self.nodes[node].me.clone();
            let writer = Writer { node: &me, is_torch };
            let restored = self.jobs[job].checks.restored(before, &after, &me).is_some();
            self.check_written(job, &key, before, &after, writer)?;
            let checks = &mut self.jobs[job].checks;
            if !restored && after.complete && (!before.complete || after.round > before.round) {
                checks.completed(&after, writer, self.now);
                self.summary.rounds += 1;
                self.summary.first_round.get_or_insert(self.now);
            }
            let losing = checks.losing_since.filter(|_| losing.is_none());
            if let (None, Some(since)) = (waited, checks.waiting_since) {
                self.plan_look_for_waiting(job, since);
            }
            if let Some(since) = losing {
                self.plan_look_for_lost(job, since);
            }
        }
        let delay = self.latency();
        let lost = self.is_lost();
        if lost || self.now + delay > sent + PATIENCE {
            self.plan((sent + PATIENCE).saturating_sub(self.now), Event::NoReply { node, number });
        }
        if !lost {
            self.plan(delay, Event::Reply { node, number, reply });
        }
        Ok(())
    }

    /// Does what a node wants, and takes note of what it reports.
    pub(crate) fn grant(&mut self, node: usize, (want, report): Next) -> Result<(), Violation> {
        self.numbered += 1;
        let (number, sent) = (self.numbered, self.now);
        if self.nodes[node].note(&want, number, sent) {
            // By the slowest clock.
            let most = (self.config.join_timeout + WITHDRAW_GRACE + Duration::from_secs(1)).mul_f64(1.011);
            self.plan(most, Event::LookForJoined { node, since: sent });
        }
        match want {
            Want::Nothing => {}
            Want::Sleep(time) => self.plan(time, Event::Timer { node, number, is_woken: false }),
            Want::Send(request) => {
                if let Request::Write { .. } = request {
                    self.check_attempts(node)?;
                }
                let delay = self.latency();
                match self.is_lost() {
                    true => self.plan(PATIENCE, Event::NoReply { node, number }),
                    false => self.plan(delay, Event::Request { node, number, sent, request }),
                }
            }
        }
        if let Some(phase) = self.nodes[node].life.ended.take()
            && !self.is_lost()
        {
            let (job, delay) = (self.nodes[node].job, self.latency());
            self.plan(delay, Event::PhaseOver { job, phase });
        }
        let known = &mut self.nodes[node];
        match report {
            None => Ok(()),
            Some(Report::Joined { state }) => {
                self.summary.joins += 1;
                self.unsettled = true;
                let (job, me, is_torch) = (known.job, known.me.clone(), known.is_torch);
                let resumed = known.resumed;
                if self.jobs[job].checks.waiting_since.is_some() {
                    self.plan_look_for_waiting(job, self.now);
                }
                let now = self.store.state(&self.jobs[job].key).cloned().unwrap_or_default();
                // What it had read before a pause it judges by the time after it.
                let alert = resumed.is_none_or(|at| at + Duration::from_secs(5) < self.now);
                self.jobs[job].checks.joined(&me, is_torch, alert, &state, &now, self.now)
            }
            Some(Report::Left) => {
                known.left = true;
                Ok(())
            }
            Some(Report::TimedOut { cleanly }) => {
                self.summary.timeouts += 1;
                // One to spare less: with torch's nodes a full round may have started over again and again until now.
                self.disturbed = Some(self.now);
                self.check_timed_out(node, cleanly)
            }
            Some(Report::Broken { rule, what }) => Err(self.violation(rule, what)),
        }
    }
}
