//! The processes of workers on a host, and the guard, which kills them at the end of their lease.

use std::time::Duration;

use rallypoint_coordinator::message::GroupId;
use rallypoint_core::supervise::{Exit, Signal};

use super::agent::AgentEvent;
use super::faults::Point;
use super::world::{Event, World};

/// A round. A new group counts rounds of its own.
pub(super) type RoundId = (GroupId, u64);

/// The longest interval between two reads of the deadline, as in `crates/agent`.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the guard repeats a search that has found processes, as in `crates/agent`.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);
/// How long after the end of an agent the kernel has killed its workers, at most. A packet and its reply take longer.
const PARENT_DEATH_DELAY: Duration = Duration::from_micros(300);

/// A process that becomes a worker, or a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Worker {
    pub(super) number: u64,
    /// The number of the agent's process.
    pub(super) process: u64,
    pub(super) round: RoundId,
    pub(super) stage: Stage,
    is_killed: bool,
}

/// What a process of a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The process has not checked the deadline yet.
    Forked,
    /// The process is about to execute the worker's program.
    Checked,
    /// The worker runs.
    Running,
}

/// An event of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerEvent {
    /// The process checks the deadline.
    Check,
    /// The process executes the worker's program.
    Start,
    /// The worker exits.
    Exit(Exit),
    /// The worker fails because it misses the workers of another node.
    MissPeer,
}

impl World {
    fn worker(&mut self, host: usize, number: u64) -> Option<&mut Worker> {
        self.hosts[host].workers.iter_mut().find(|worker| worker.number == number)
    }

    fn schedule_worker(&mut self, host: usize, worker: u64, longest: Duration, event: WorkerEvent) {
        let delay = Duration::from_micros(self.random.between(0, longest.as_micros() as u64 + 1));
        self.queue.schedule(self.now + delay, Event::Worker { host, worker, event });
    }

    /// Forks a process that becomes the worker of a host.
    pub(super) fn fork_worker(&mut self, host: usize, process: u64, round: RoundId) {
        self.next_worker += 1;
        let number = self.next_worker;
        let worker = Worker { number, process, round, stage: Stage::Forked, is_killed: false };
        self.hosts[host].workers.push(worker);
        self.schedule_worker(host, number, Duration::from_millis(5), WorkerEvent::Check);
    }

    pub(super) fn handle_worker(&mut self, host: usize, number: u64, event: WorkerEvent) {
        let (local, fence) = (self.local(host), self.hosts[host].fence);
        let start_pause = self.config.start_pause;
        let Some(worker) = self.worker(host, number) else { return };
        let round = worker.round;
        match event {
            WorkerEvent::Check if fence.is_some_and(|deadline| deadline <= local) => {
                self.summary.refused_starts += 1;
                self.trace(|| format!("h{host} starts no worker of round {}: its lease is over", round.1));
                self.end_worker(host, number, AgentEvent::WorkerFenced);
            }
            WorkerEvent::Check => {
                worker.stage = Stage::Checked;
                // A worker that is to pause is about to execute its program.
                let pause = if self.random.one_in(2) { start_pause } else { Duration::ZERO };
                self.schedule_worker(host, number, pause, WorkerEvent::Start);
            }
            WorkerEvent::Start => {
                worker.stage = Stage::Running;
                self.summary.starts += 1;
                self.record_start(host, number, round);
                self.strike(Point::Started, host);
                if let Some(work) = self.config.work {
                    let delay = work + Duration::from_millis(self.random.between(0, 500));
                    let event = WorkerEvent::Exit(Exit::Code(0));
                    self.queue.schedule(self.now + delay, Event::Worker { host, worker: number, event });
                }
            }
            WorkerEvent::MissPeer if worker.is_killed || worker.stage != Stage::Running => {}
            WorkerEvent::MissPeer => self.end_worker(host, number, AgentEvent::WorkerExited(Exit::Code(1))),
            WorkerEvent::Exit(exit) => self.end_worker(host, number, AgentEvent::WorkerExited(exit)),
        }
    }

    /// Makes the worker of a host fail, if it runs.
    pub(super) fn fail_worker(&mut self, host: usize) {
        let is_running = |worker: &&Worker| worker.stage == Stage::Running && !worker.is_killed;
        if let Some(worker) = self.hosts[host].workers.iter().find(is_running).map(|worker| worker.number) {
            self.end_worker(host, worker, AgentEvent::WorkerExited(Exit::Code(1)));
        }
    }

    fn end_worker(&mut self, host: usize, number: u64, end: AgentEvent) {
        let workers = &mut self.hosts[host].workers;
        let Some(index) = workers.iter().position(|worker| worker.number == number) else { return };
        let worker = workers.remove(index);
        if end == AgentEvent::WorkerExited(Exit::Code(0)) {
            self.record_finished(worker.process, worker.round);
        }
        self.forget_worker(host, &worker);
        if self.is_running(host, worker.process) {
            let delay = Duration::from_micros(self.random.between(10, 500));
            self.schedule_agent(host, worker.process, delay, end);
        }
    }

    /// Records that a worker does not run any more.
    pub(super) fn forget_worker(&mut self, host: usize, worker: &Worker) {
        if worker.stage != Stage::Running {
            return;
        }
        self.record_end(host, worker.number, worker.round);
        // Workers that are stopped or that finish do not disturb the workers of other nodes.
        let was_lost = !self.is_running(host, worker.process);
        if !self.config.workers_notice_loss || !was_lost {
            return;
        }
        for other in 0..self.hosts.len() {
            let peers = self.hosts[other].workers.iter().filter(|peer| peer.round == worker.round);
            for peer in peers.map(|peer| peer.number).collect::<Vec<_>>() {
                if self.random.one_in(2) {
                    self.schedule_worker(other, peer, Duration::from_secs(4), WorkerEvent::MissPeer);
                }
            }
        }
    }

    /// Sends a signal to the workers of an agent.
    pub(super) fn signal_workers(&mut self, host: usize, process: u64, signal: Signal) {
        let workers: Vec<(u64, Stage)> = (self.hosts[host].workers.iter())
            .filter(|worker| worker.process == process)
            .map(|worker| (worker.number, worker.stage))
            .collect();
        for (number, stage) in workers {
            let is_kill = signal == Signal::KILL;
            let time = if is_kill || stage != Stage::Running {
                self.config.kill_delay
            } else {
                self.config.stop_time
            };
            if let Some(worker) = self.worker(host, number) {
                worker.is_killed = true;
            }
            self.schedule_worker(host, number, time, WorkerEvent::Exit(Exit::Signal(signal)));
        }
    }

    /// Kills the workers whose agent has ended, like the kernel.
    pub(super) fn kill_workers_of_dead_agent(&mut self, host: usize) {
        for worker in self.hosts[host].workers.iter().map(|worker| worker.number).collect::<Vec<_>>() {
            let exit = WorkerEvent::Exit(Exit::Signal(Signal::KILL));
            self.schedule_worker(host, worker, PARENT_DEATH_DELAY, exit);
        }
    }

    // ---- the guard ----

    /// Starts the guard of an agent.
    pub(super) fn watch_fence(&mut self, host: usize, process: u64) {
        self.queue.schedule(self.now, Event::Guard { host, process });
    }

    /// Reads the deadline, and kills the workers if it has passed, like the guard in `crates/agent`. The guard is a
    /// process of its own, so it works while the agent is paused.
    pub(super) fn handle_guard(&mut self, host: usize, process: u64) {
        if !self.is_running(host, process) {
            return;
        }
        let local = self.local(host);
        let next = match self.hosts[host].fence.map(|deadline| deadline.saturating_sub(local)) {
            Some(Duration::ZERO) => {
                let count =
                    self.hosts[host].workers.iter().filter(|worker| worker.process == process).count();
                if count > 0 {
                    self.summary.killed_by_guard += count as u64;
                    self.trace(|| format!("the guard of h{host} kills {count} workers"));
                    self.signal_workers(host, process, Signal::KILL);
                }
                if count == 0 { MAX_CHECK_INTERVAL } else { SEARCH_INTERVAL }
            }
            Some(left) => left.min(MAX_CHECK_INTERVAL),
            None => MAX_CHECK_INTERVAL,
        };
        let at = self.hosts[host].clock.virtual_time(local + next).max(self.now + Duration::from_micros(1));
        self.queue.schedule(at, Event::Guard { host, process });
    }
}
