//! The run of a seed: events in the order of virtual time, faults for a while, then peace, in which all must end well.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{Goal, NodeDesc, Phase, Settings, State};

use crate::check::{Checks, Violation};
use crate::network::{Reply, Request, Store};
use crate::node::{Clocks, Node, Report, Stage, Want};
use crate::random::Random;

/// What a run is like. [`Config::of`] draws one from a seed.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where all randomness comes from.
    pub seed: u64,
    /// How many nodes there are at first.
    pub nodes: u64,
    /// A round needs at least so many.
    pub min_nodes: u64,
    /// And has at most so many.
    pub max_nodes: u64,
    /// How long faults happen.
    pub trouble: Duration,
    /// How long a message may take, in microseconds, most of the time.
    pub latency: u64,
    /// One message in so many is much later; 0 for none.
    pub late: u64,
    /// One message in so many is lost; 0 for none.
    pub lost: u64,
    /// One fault on a node in so many milliseconds; 0 for none.
    pub fault_every: u64,
    /// How far wall clocks may be off, in seconds.
    pub skew: u64,
    /// Whether somebody closes the rendezvous.
    pub closes: bool,
    /// Whether to print every event.
    pub trace: bool,
}

impl Config {
    /// What this seed is like.
    pub fn of(seed: u64) -> Config {
        let mut random = Random::new(seed);
        let nodes = random.between(1, 9);
        let min_nodes = random.between(1, nodes + 1);
        Config {
            seed,
            nodes,
            min_nodes,
            max_nodes: random.between(min_nodes, nodes + 2),
            trouble: Duration::from_secs(random.between(0, 200)),
            latency: [200, 2_000, 50_000][random.between(0, 3) as usize],
            late: [0, 50, 10][random.between(0, 3) as usize],
            lost: [0, 0, 100, 20][random.between(0, 4) as usize],
            fault_every: [0, 30_000, 10_000, 3_000][random.between(0, 4) as usize],
            skew: [0, 20, 3_600][random.between(0, 3) as usize],
            closes: random.one_in(10),
            trace: false,
        }
    }
}

/// What a run came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rounds that were completed.
    pub rounds: u64,
    /// Times a node returned from a round.
    pub joins: u64,
    /// Compare-and-sets, and those that lost.
    pub writes: u64,
    /// Those that lost.
    pub losses: u64,
    /// When the first round was complete.
    pub first_round: Option<Duration>,
    /// When everybody who can be was in one round after the faults had ended.
    pub healed: Option<Duration>,
}

#[derive(Debug)]
enum Event {
    /// A request reaches the store.
    Request { node: usize, number: u64, request: Request },
    /// A reply reaches a node.
    Reply { node: usize, number: u64, reply: Reply },
    /// A node gives up waiting for a reply.
    NoReply { node: usize, number: u64 },
    /// A pause is over.
    Timer { node: usize, number: u64 },
    /// Word of the end of a phase reaches those who wait for it.
    PhaseOver { phase: Phase },
    /// Something happens to a node.
    Fault,
    /// A node that was paused goes on.
    Resume { node: usize },
    /// A node starts.
    Start { node: usize },
}

struct World {
    config: Config,
    settings: Settings,
    random: Random,
    now: Duration,
    store: Store,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    bodies: BTreeMap<usize, Event>,
    numbered: u64,
    checks: Checks,
    summary: Summary,
    next_pid: i64,
}

/// A driver's patience with one request.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the nodes have, after the faults, to find together: the dead must be noticed, a last call waited out, and
/// those left outside let in by another round with another last call.
const HEALING: Duration = Duration::from_secs(240);

/// Runs a seed.
pub fn run(config: &Config) -> Result<Summary, Violation> {
    let mut settings = Settings::new("sim", config.min_nodes, config.max_nodes);
    settings.last_call_timeout = Duration::from_secs(10);
    let mut world = World {
        settings,
        random: Random::new(config.seed ^ 0x5EED),
        now: Duration::ZERO,
        store: Store::default(),
        nodes: Vec::new(),
        events: BinaryHeap::new(),
        bodies: BTreeMap::new(),
        numbered: 0,
        checks: Checks::default(),
        summary: Summary::default(),
        next_pid: 100,
        config: config.clone(),
    };
    world.play()
}

impl World {
    fn play(&mut self) -> Result<Summary, Violation> {
        for _ in 0..self.config.nodes {
            let delay = Duration::from_micros(self.random.between(0, 300_000));
            self.add_node(delay);
        }
        if self.config.fault_every > 0 {
            self.plan_fault();
        }
        let end = self.config.trouble + HEALING;
        while let Some(Reverse((at, _, id))) = self.events.pop() {
            if at > end {
                break;
            }
            self.now = at;
            let event = self.bodies.remove(&id).expect("every event has a body");
            if self.config.trace {
                println!("{:>10.6} {event:?}", at.as_secs_f64());
            }
            self.happen(event)?;
            if self.now > self.config.trouble && self.summary.healed.is_none() && self.is_well() {
                self.summary.healed = Some(self.now);
            }
        }
        self.summary.writes = self.store.writes;
        self.summary.losses = self.store.losses;
        self.check_end()?;
        Ok(self.summary.clone())
    }

    // ---- events ----

    fn plan(&mut self, after: Duration, event: Event) {
        self.numbered += 1;
        let id = self.numbered as usize;
        self.bodies.insert(id, event);
        self.events.push(Reverse((self.now + after, self.numbered, id)));
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Start { node } => {
                let want = self.nodes[node].start_join(self.now);
                self.grant(node, want, None)
            }
            Event::Request { node, number, request } => self.at_store(node, number, request),
            Event::Reply { node, number, reply } => {
                if let Some(until) = self.held_up(node, number) {
                    self.plan(until, Event::Reply { node, number, reply });
                    return Ok(());
                }
                if self.nodes[node].waiting_for != number || !self.nodes[node].is_up() {
                    return Ok(());
                }
                let random = self.random.next();
                let (want, report) = self.nodes[node].handle_reply(reply, random, self.now);
                self.grant(node, want, report)
            }
            Event::NoReply { node, number } => {
                if let Some(until) = self.held_up(node, number) {
                    self.plan(until, Event::NoReply { node, number });
                    return Ok(());
                }
                if self.nodes[node].waiting_for != number || !self.nodes[node].is_up() {
                    return Ok(());
                }
                self.nodes[node].trouble = self.now;
                let (want, report) = self.nodes[node].handle_no_reply(self.now);
                self.grant(node, want, report)
            }
            Event::Timer { node, number } => {
                if let Some(until) = self.held_up(node, number) {
                    self.plan(until, Event::Timer { node, number });
                    return Ok(());
                }
                if self.nodes[node].waiting_for != number || !self.nodes[node].is_up() {
                    return Ok(());
                }
                let (want, report) = self.nodes[node].handle_timer(self.now);
                self.grant(node, want, report)
            }
            Event::PhaseOver { phase } => {
                for node in 0..self.nodes.len() {
                    if self.nodes[node].pausing == Some(phase) && !self.is_lost() {
                        let (number, delay) = (self.nodes[node].waiting_for, self.latency());
                        self.plan(delay, Event::Timer { node, number });
                    }
                }
                Ok(())
            }
            Event::Resume { node } => {
                self.nodes[node].paused_until = None;
                Ok(())
            }
            Event::Fault => self.fault(),
        }
    }

    /// How long a paused node is still paused.
    fn held_up(&self, node: usize, number: u64) -> Option<Duration> {
        let known = &self.nodes[node];
        let until = known.paused_until.filter(|until| *until > self.now && known.waiting_for == number)?;
        Some(until - self.now)
    }

    fn at_store(&mut self, node: usize, number: u64, request: Request) -> Result<(), Violation> {
        let writer = self.nodes[node].me().clone();
        let (reply, changed) = self.store.handle(request);
        if let Some(before) = changed {
            let after = self.store.state.clone().unwrap_or_default();
            let limits = (self.config.min_nodes, self.config.max_nodes);
            self.checks.written(before.as_deref(), &after, limits, self.now)?;
            self.check_evicted(before.as_deref(), &after, &writer)?;
            if after.complete && !before.as_deref().is_some_and(|before| before.complete) {
                self.summary.rounds += 1;
                self.summary.first_round.get_or_insert(self.now);
            }
        }
        if !self.is_lost() {
            let delay = self.latency();
            self.plan(delay, Event::Reply { node, number, reply });
        }
        Ok(())
    }

    /// Does what a node wants, and takes note of what it reports.
    fn grant(&mut self, node: usize, want: Want, report: Option<Report>) -> Result<(), Violation> {
        self.numbered += 1;
        let number = self.numbered;
        self.nodes[node].waiting_for = number;
        match want {
            Want::Nothing => {}
            Want::Sleep(time) => self.plan(time, Event::Timer { node, number }),
            Want::Send(request) => {
                if !self.is_lost() {
                    let delay = self.latency();
                    self.plan(delay, Event::Request { node, number, request });
                }
                self.plan(PATIENCE, Event::NoReply { node, number });
            }
        }
        if let Some(phase) = self.nodes[node].to_end.take()
            && !self.is_lost()
        {
            let delay = self.latency();
            self.plan(delay, Event::PhaseOver { phase });
        }
        match report {
            Some(Report::Joined { state }) => {
                self.summary.joins += 1;
                let me = self.nodes[node].me().clone();
                self.checks.joined(&me, &state, self.config.max_nodes, self.now)
            }
            Some(Report::TimedOut) => self.check_timed_out(node),
            Some(Report::Closed | Report::Graceful | Report::Dropped) | None => Ok(()),
        }
    }

    // ---- chance ----

    fn troubled(&self) -> bool {
        self.now < self.config.trouble
    }

    fn is_lost(&mut self) -> bool {
        self.config.lost > 0 && self.troubled() && self.random.one_in(self.config.lost)
    }

    fn latency(&mut self) -> Duration {
        let late = self.config.late > 0 && self.troubled() && self.random.one_in(self.config.late);
        let most = if late { 1_400_000 } else { self.config.latency };
        Duration::from_micros(self.random.between(most / 4, most))
    }

    fn add_node(&mut self, delay: Duration) {
        self.next_pid += 1;
        let skew = self.config.skew as i64 * 1_000_000;
        let offset = if skew == 0 { 0 } else { self.random.between(0, 2 * skew as u64) as i64 - skew };
        let clocks = Clocks { offset, drift: self.random.between(0, 20_001) as i64 - 10_000 };
        let host = format!("host{}", self.random.between(0, 4));
        let node = Node::new(NodeDesc::new(host, self.next_pid, 0), self.settings.clone(), clocks);
        self.nodes.push(node);
        self.plan(delay, Event::Start { node: self.nodes.len() - 1 });
    }

    fn plan_fault(&mut self) {
        let after = Duration::from_millis(self.random.between(1, 2 * self.config.fault_every));
        if self.now + after < self.config.trouble {
            self.plan(after, Event::Fault);
        }
    }

    fn fault(&mut self) -> Result<(), Violation> {
        self.plan_fault();
        let node = self.random.between(0, self.nodes.len() as u64) as usize;
        if !self.nodes[node].is_up() {
            return Ok(());
        }
        match self.random.between(0, 7) {
            0 => {
                self.nodes[node].stage = Stage::Gone;
                self.nodes[node].died = Some(self.now);
                if !self.random.one_in(4) {
                    let delay = Duration::from_millis(self.random.between(0, 20_000));
                    self.add_node(delay);
                }
            }
            1 => {
                let pause = Duration::from_millis(self.random.between(100, 40_000));
                self.nodes[node].paused_until = Some(self.now + pause);
                self.nodes[node].trouble = self.now + pause;
                self.plan(pause, Event::Resume { node });
            }
            2 => {
                let jump = self.random.between(0, 7_200_000_000) as i64 - 3_600_000_000;
                self.nodes[node].clocks.offset += jump;
            }
            3 => {
                // Its workers failed: it wants another round.
                if matches!(self.nodes[node].stage, Stage::Working { .. }) {
                    let want = self.nodes[node].start_join(self.now);
                    return self.grant(node, want, None);
                }
            }
            4 if self.nodes.iter().filter(|node| node.is_up()).count() as u64 > self.config.min_nodes => {
                self.nodes[node].stage = Stage::Leaving;
                let want = self.nodes[node].start(Goal::Leave, self.now);
                return self.grant(node, want, None);
            }
            5 if self.config.closes && self.random.one_in(8) => {
                self.nodes[node].stage = Stage::Closing;
                let want = self.nodes[node].start(Goal::Close, self.now);
                return self.grant(node, want, None);
            }
            6 if self.nodes.len() < 24 => self.add_node(Duration::ZERO),
            _ => {}
        }
        Ok(())
    }

    // ---- what must hold ----

    /// R9 and R10: only the dead are put out, and not too soon.
    fn check_evicted(
        &self,
        before: Option<&State>,
        after: &State,
        writer: &NodeDesc,
    ) -> Result<(), Violation> {
        let Some(before) = before else { return Ok(()) };
        for gone in before.members() {
            if gone == writer || after.has(gone) {
                continue;
            }
            let Some(node) = self.nodes.iter().find(|node| node.me() == gone) else { continue };
            let limit = Duration::from_secs(9);
            if let Some(died) = node.died {
                if self.now.saturating_sub(died) < limit
                    && self.config.lost == 0
                    && self.config.late == 0
                    && node.trouble < died
                {
                    return Err(self.violation(
                        "R10",
                        format!("{gone} was put out {:?} after it died", self.now - died),
                    ));
                }
                continue;
            }
            let well = self.now.saturating_sub(node.trouble) > Duration::from_secs(40)
                && node.paused_until.is_none();
            let steady = matches!(node.stage, Stage::Working { .. } | Stage::Joining);
            if well && steady && self.config.lost == 0 {
                return Err(self.violation("R9", format!("{gone} is alive and was put out by {writer}")));
            }
        }
        Ok(())
    }

    /// R13: who gave up is in no list.
    fn check_timed_out(&self, node: usize) -> Result<(), Violation> {
        let me = self.nodes[node].me();
        if self.config.lost == 0 && self.store.state.as_ref().is_some_and(|state| state.has(me)) {
            return Err(self.violation("R13", format!("{me} gave up and is still in the state")));
        }
        Ok(())
    }

    /// Whether everybody who can be is in one round.
    fn is_well(&self) -> bool {
        let state: Arc<State> = self.store.state.clone().unwrap_or_default();
        let up: Vec<_> = self.nodes.iter().filter(|node| node.is_up()).collect();
        let wanted = (up.len() as u64).min(self.config.max_nodes);
        state.complete
            && state.participants.len() as u64 == wanted
            && state.wait_list.is_empty()
            && state.participants.keys().all(|member| {
                up.iter()
                    .any(|node| node.me() == member && node.stage == Stage::Working { round: state.round })
            })
    }

    /// R11: with enough nodes a round is found.
    fn check_end(&self) -> Result<(), Violation> {
        let state = self.store.state.clone().unwrap_or_default();
        let up = self.nodes.iter().filter(|node| node.is_up()).count() as u64;
        if state.closed || up < self.config.min_nodes || self.is_well() {
            return Ok(());
        }
        let stages: Vec<_> = self
            .nodes
            .iter()
            .filter(|node| node.is_up())
            .map(|node| (node.me().to_string(), node.stage.clone()))
            .collect();
        Err(self.violation("R11", format!("{up} nodes are up but not in one round: {stages:?}; {state:?}")))
    }

    fn violation(&self, rule: &'static str, what: String) -> Violation {
        Violation { rule, what, at: self.now }
    }
}
