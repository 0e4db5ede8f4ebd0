//! The start of a round: joins it, starts the workers, and records how they end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rallypoint_core::supervise::{Event, Exit, LocalRank, Policy};

use super::Agent;
use super::message::Message;
use crate::config::LaunchConfig;
use crate::error::{AgentError, Result};
use crate::error_file::Cause;
use crate::events::WorkerEvent;
use crate::exec::is_lease_over;
use crate::formation::Formation;
use crate::processes::Ended;
use crate::report::{self, Failure};
use crate::round_watch::RoundWatch;
use crate::worker::{WorkerPlan, command_line, plan};

/// How long the reader of the agent's output may read nothing before the agent joins again. The rest of the output of
/// the last start is then shown along with the output of the next start.
const RESTART_OUTPUT_STALL_TIMEOUT: Duration = Duration::from_millis(500);

const JOIN_PANIC_MESSAGE: &str = "joining the rendezvous failed with a panic; please report this";

pub(super) fn policy(config: &LaunchConfig) -> Policy {
    Policy {
        workers: config.nproc_per_node,
        max_restarts: config.max_restarts,
        shutdown_grace: config.shutdown_grace,
        max_restart_backoff: config.max_restart_backoff,
        is_elastic: config.rendezvous.backend != "static",
        runs_once: config.runs_once,
    }
}

impl Agent {
    /// Shows the output of the last start, and then starts a thread that joins the next round.
    pub(super) fn join(&mut self) {
        self.logs.finish(RESTART_OUTPUT_STALL_TIMEOUT, || false);
        if self.stop_finishing()
            && !self.has_coordinator()
            && let Some(formation) = &self.formation
        {
            crate::exit_barrier::retract(&formation.round);
        }
        self.join_start = Instant::now();
        let (joiner, sender) = (Arc::clone(&self.joiner), self.sender.clone());
        if let Some(round_watch) = &self.round_watch {
            round_watch.stop_polling();
        }
        let (restarts, calls) = (self.supervisor.restarts(), std::mem::take(&mut self.calls));
        std::thread::spawn(move || {
            // Complete pending announcements first: the other nodes must read them before they see that this node waits
            // for the next round.
            calls.into_iter().for_each(|call| drop(call.join()));
            // The agent waits for this message, so it is also sent after a panic. The agent then ends and drops the
            // joiner.
            let joined = catch_unwind(AssertUnwindSafe(|| joiner.join(restarts)));
            let joined = joined.unwrap_or_else(|_| Err(AgentError::Config(JOIN_PANIC_MESSAGE.into())));
            sender.send(Message::Joined(joined.map(Arc::new)));
        });
    }

    /// Records the round that this node has joined.
    pub(super) fn handle_formation(&mut self, formation: Arc<Formation>) {
        let (rendezvous_time, ranks_time) = formation.took;
        self.events.record_duration("RENDEZVOUS", rendezvous_time);
        self.events.record_duration("ASSIGN_WORKER_RANKS", ranks_time);
        let before = self.formation.as_ref().map(|before| before.round.round);
        self.epoch = if before == Some(formation.round.round) { self.epoch + 1 } else { 0 };
        (self.round_watch, self.membership) = (None, None);
        self.formation = Some(formation);
    }

    /// Starts the workers, up to the first one that can't be started. Reports to the supervisor which workers were not
    /// started.
    pub(super) fn start_workers(&mut self, restarts: u32) {
        let (Some(formation), Some(handler)) = (self.formation.take(), self.handler().cloned()) else {
            return;
        };
        let formation = Arc::new(Formation { restarts, ..(*formation).clone() });
        let round = &formation.round;
        self.starts += 1;
        self.failures.clear();
        self.pids.clear();
        self.observer.formed(&formation.describe(&self.config));
        self.events.formation = Some(Arc::clone(&formation));
        let started = self.prepare(&formation).map(|plans| self.start_all(plans));
        self.formation = Some(Arc::clone(&formation));
        if let Err(error) = started {
            self.error = Some(error);
            for rank in 0..self.config.nproc_per_node {
                self.supervisor.handle_event(Event::NotStarted(LocalRank(rank)));
            }
        }
        if self.config.nproc_per_node == 0 {
            let (sender, start, round) = (self.sender.clone(), self.starts, round.clone());
            std::thread::spawn(move || match crate::joiner::take_part_without_workers(&round) {
                Ok(nodes) => sender.send(Message::WorkingNodes(start, nodes)),
                Err(error) => tracing::debug!("could not take part in the assignment of ranks: {error}"),
            });
        }
        // Even a single node can be dropped, and a spare then replaces it. That is impossible only if no other node
        // knows the store, or in a static rendezvous.
        let rendezvous = &self.config.rendezvous;
        let is_private = handler.hosts_store() && rendezvous.has_private_port();
        let may_have_spares = rendezvous.backend != "static" && !is_private;
        if round.world_size > 1 || rendezvous.max_nodes > 1 || may_have_spares {
            let (sender, start) = (self.sender.clone(), self.starts);
            let deliver = move |observation| sender.send(Message::Observed(start, observation));
            let interval = self.config.monitor_interval;
            self.round_watch = Some(RoundWatch::start(&handler, round, self.epoch, interval, deliver));
        }
        // If no process was started, no SIGCHLD follows, so check now whether a process is left.
        self.reap();
    }

    fn prepare(&mut self, formation: &Formation) -> Result<Vec<WorkerPlan>> {
        let timer_file = self.timers.as_mut().map(|timers| timers.restart()).transpose()?;
        self.logs.start(formation);
        let plans = plan(&self.config, formation, &mut self.logs, timer_file.as_deref())?;
        self.error_files = plans.iter().map(|plan| plan.error_file.clone()).collect();
        Ok(plans)
    }

    fn start_all(&mut self, plans: Vec<WorkerPlan>) {
        let mut failed = false;
        for plan in plans {
            let (local_rank, program) = (plan.local_rank, plan.program.clone());
            let started = if failed { None } else { Some(self.processes.start(plan)) };
            match started {
                Some(Ok(pid)) => {
                    self.pids.push(pid);
                    self.events
                        .record_worker("START", WorkerEvent { local_rank, pid, ..WorkerEvent::default() });
                }
                Some(Err(source)) => {
                    failed = true;
                    self.error = Some(AgentError::Start { local_rank, program, source });
                    self.supervisor.handle_event(Event::NotStarted(LocalRank(local_rank)));
                }
                None => self.supervisor.handle_event(Event::NotStarted(LocalRank(local_rank))),
            }
        }
    }

    /// Returns the event for the supervisor that describes the exit of a worker, and records the failure if the worker
    /// failed. A worker that the agent has stopped did not fail, whatever its exit code is.
    pub(super) fn handle_exit(&mut self, worker: Ended) -> Event {
        let rank = worker.local_rank;
        let exit = match worker.exit {
            Ok(exit) => exit,
            Err(source) if is_lease_over(&source) => return Event::Fenced(rank),
            Err(source) => {
                let program = command_line(&self.config, rank.0).map(|(program, _)| program);
                let program = program.unwrap_or_else(|_| self.config.command.target.clone());
                self.error = Some(AgentError::Start { local_rank: rank.0, program, source });
                return Event::NotStarted(rank);
            }
        };
        self.last_exit = Some(exit);
        if !exit.is_success() && !worker.stopped {
            let failure = self.failure(rank, worker.pid, worker.ran, exit);
            // A full disk may be the reason for the failure.
            self.logs.check_disk();
            if self.supervisor.is_running() {
                tracing::error!(
                    "failed (exitcode: {}) local_rank: {} (pid: {}) of binary: {}",
                    failure.exit.as_python(),
                    rank.0,
                    worker.pid,
                    self.config.command.target.display()
                );
            }
            self.failures.push(failure);
        }
        Event::Exited(rank, exit)
    }

    fn failure(
        &self,
        LocalRank(local_rank): LocalRank,
        pid: u32,
        ran: std::time::Duration,
        exit: Exit,
    ) -> Failure {
        let exit = report::Exit::from(exit);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let path = self.error_files.get(local_rank as usize).cloned().flatten();
        let cause = path.as_deref().and_then(Cause::read);
        let formation = self.formation.as_ref();
        let (last_lines, shown) = self.logs.last_lines(local_rank);
        Failure {
            host: crate::host::full_name(),
            group_rank: formation.map_or(0, |formation| formation.round.rank),
            role: self.config.role.clone(),
            rank: formation.map_or(0, |formation| formation.rank(local_rank)),
            local_rank,
            pid,
            exit,
            timestamp: cause.as_ref().and_then(|cause| cause.timestamp).unwrap_or(now),
            ran: ran.as_secs_f64(),
            restart: formation.map_or(0, |formation| formation.restarts),
            error_file: path.filter(|_| cause.is_some()).map(|path| path.to_string_lossy().into_owned()),
            message: cause.map_or_else(|| exit.message(pid), |cause| cause.message),
            last_lines,
            shown,
        }
    }
}
