//! Runs one simulation: handles events in the order of virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::agent::{AgentEvent, Formation};
use super::config::{NativeConfig, NativeSummary};
use super::faults::{ArmedCrash, FaultEnd};
use super::host::{Clock, Host};
use super::network::{ConnectionIndex, Network, Segment, Side};
use super::operator::Operator;
use super::rules::Rules;
use super::worker::{RoundId, WorkerEvent};
use crate::check::Violation;
use crate::queue::Queue;
use crate::random::Random;

#[derive(Debug)]
pub(super) enum Event {
    /// A segment arrives at one side of a connection.
    Arrive {
        connection: ConnectionIndex,
        to: Side,
        segment: Segment,
    },
    /// TCP repeats the segments that were held.
    Retransmit {
        connection: ConnectionIndex,
        to: Side,
    },
    /// The event loop of a process has waited long enough.
    Wake {
        host: usize,
        process: u64,
    },
    /// An event loop that has stalled continues.
    Proceed {
        host: usize,
        process: u64,
    },
    /// The agent has called the event loop of its process.
    Call {
        host: usize,
        process: u64,
    },
    Agent {
        host: usize,
        process: u64,
        event: AgentEvent,
    },
    Worker {
        host: usize,
        worker: u64,
        event: WorkerEvent,
    },
    /// The guard of an agent reads the deadline.
    Guard {
        host: usize,
        process: u64,
    },
    /// A fault ends.
    EndFault(FaultEnd),
}

pub(super) struct World {
    pub(super) config: NativeConfig,
    pub(super) random: Random,
    pub(super) now: Duration,
    pub(super) queue: Queue<Event>,
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    pub(super) operators: BTreeMap<u64, Operator>,
    pub(super) formations: BTreeMap<RoundId, Formation>,
    /// The host that has the store of each round.
    pub(super) known_masters: BTreeMap<RoundId, usize>,
    pub(super) next_process: u64,
    pub(super) next_worker: u64,
    pub(super) rules: Rules,
    pub(super) armed: Option<ArmedCrash>,
    /// Whether packets can be lost and event loops can stall.
    pub(super) is_faulty: bool,
    pub(super) summary: NativeSummary,
    pub(super) violation: Option<Violation>,
}

/// Runs a simulation with this configuration, and returns its summary.
///
/// # Errors
///
/// Fails with the first [`Violation`] of a rule.
pub fn run_native(config: &NativeConfig) -> Result<NativeSummary, Violation> {
    let mut world = World::new(config);
    world.run_with_faults()?;
    Ok(world.finish())
}

impl World {
    pub(super) fn new(config: &NativeConfig) -> World {
        let mut random = Random::new(config.seed ^ 0xC0_0D);
        let count = config.nodes + usize::from(config.has_server);
        let hosts = (0..count).map(|index| {
            let offset = Duration::from_micros(random.between(1_000_000, 100_000_000_000));
            let drift = random.between(0, 2 * config.max_drift_ppm as u64 + 1) as i64 - config.max_drift_ppm;
            let is_server = config.has_server && index == 0;
            let pin = (index - usize::from(config.has_server && index > 0)) as u32;
            Host {
                name: format!("h{index}"),
                address: format!("h{index}:29400"),
                clock: Clock::new(offset, drift),
                is_powered: true,
                process: None,
                workers: Vec::new(),
                fence: None,
                pin: Some(pin)
                    .filter(|pin| config.has_pins && !is_server && *pin < config.settings.max_nodes),
                ended: None,
            }
        });
        World {
            hosts: hosts.collect(),
            random,
            now: Duration::ZERO,
            queue: Queue::new(),
            network: Network::default(),
            operators: BTreeMap::new(),
            formations: BTreeMap::new(),
            known_masters: BTreeMap::new(),
            next_process: 0,
            next_worker: 0,
            rules: Rules::default(),
            armed: None,
            is_faulty: true,
            summary: NativeSummary { runs: 1, ..NativeSummary::default() },
            violation: None,
            config: config.clone(),
        }
    }

    pub(super) fn has_faults(&self) -> bool {
        self.is_faulty
    }

    /// Returns the summary of the run.
    pub(super) fn finish(mut self) -> NativeSummary {
        (self.summary.bytes, self.summary.messages) = (self.network.bytes, self.network.messages);
        self.summary.time = self.now;
        self.summary
    }

    /// Prints what happens, if the run is traced.
    pub(super) fn trace(&self, text: impl FnOnce() -> String) {
        if self.config.trace {
            println!("{:>10.6} {}", self.now.as_secs_f64(), text());
        }
    }

    /// Records that a rule was broken.
    pub(super) fn fail(&mut self, rule: &'static str, what: String) {
        let at = self.now;
        self.violation.get_or_insert(Violation { rule, what, at });
    }

    /// Runs until this virtual time.
    ///
    /// # Errors
    ///
    /// Fails with the first violation of a rule.
    pub(super) fn run_until(&mut self, until: Duration) -> Result<(), Violation> {
        while let Some((at, event)) = self.queue.pop_until(until) {
            self.now = at;
            self.handle_event(event);
            if let Some(violation) = self.violation.take() {
                return Err(violation);
            }
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn run_for(&mut self, time: Duration) -> Result<(), Violation> {
        self.run_until(self.now + time)
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Arrive { connection, to, segment } => self.handle_arrival(connection, to, segment),
            Event::Retransmit { connection, to } => self.retransmit(connection, to),
            Event::Wake { host, process } => self.handle_wake(host, process),
            Event::Proceed { host, process } => self.proceed(host, process),
            Event::Call { host, process } => {
                if self.is_running(host, process) {
                    self.run_pass(host);
                }
            }
            Event::Agent { host, process, event } => self.handle_agent(host, process, event),
            Event::Worker { host, worker, event } => self.handle_worker(host, worker, event),
            Event::Guard { host, process } => self.handle_guard(host, process),
            Event::EndFault(end) => self.end_fault(end),
        }
    }

    /// Returns the host whose process leads the job, with the highest term.
    pub(super) fn leader(&mut self) -> Option<usize> {
        let term = |host: &mut Host| {
            let coordinator = host.process.as_mut()?.coordinator()?;
            coordinator.is_leader().then(|| coordinator.replica().term())
        };
        let terms = self.hosts.iter_mut().enumerate().filter_map(|(index, host)| Some((term(host)?, index)));
        terms.max().map(|(_, index)| index)
    }
}
