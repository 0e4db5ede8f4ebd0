//! The agent's loop: waits for workers, signals, other nodes and timeouts, passes events to the supervisor, and carries
//! out its orders.

mod end;
mod message;
mod snapshot;
mod start;

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::MonoTime;
use rallypoint_core::supervise::{Event, Exit, LocalRank, Order, Policy, Reason, Signal, Supervisor};
use rallypoint_http::HealthServer;
use rallypoint_rendezvous::{
    EndCause, Membership, NATIVE_BACKEND, NativeFault, Observer, RendezvousError, RendezvousHandler,
    RendezvousInfo, Report, RoundEnd,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::announcements::Announcement;
use crate::channel::{Receiver, Sender};
use crate::config::LaunchConfig;
use crate::error::{AgentError, Result};
use crate::events::Events;
use crate::exit_barrier::EXIT_BARRIER_TIMEOUT;
use crate::formation::Formation;
use crate::joiner::Joiner;
use crate::logs::Logs;
use crate::outcome::Outcome;
use crate::processes::Processes;
use crate::report::Failure;
use crate::round_watch::{Observation, RoundWatch};
use crate::signals::{Signals, drain, register};
use crate::stuck::StuckWorkers;
use crate::timers::Timers;
use message::Message;

/// Shows users what an agent does.
pub trait LaunchObserver: Send + Sync {
    /// Returns the observer of the rendezvous, which shows what the node waits for.
    fn rendezvous(&self) -> Arc<dyn Observer>;

    /// Called when the node is in a round. The ranks of its workers are not known yet.
    ///
    /// # Errors
    ///
    /// If this call fails, the node leaves the rendezvous and the agent ends.
    fn joined(&self, _round: &RendezvousInfo) -> io::Result<()> {
        Ok(())
    }

    /// Called before the workers of the node start. `description` describes the round in one line.
    fn formed(&self, description: &str);

    /// Called when the agent ends.
    fn ended(&self);
}

/// How long a node may take to leave after a signal. Leaving itself takes at most 5 s.
const LEAVE_GRACE: Duration = Duration::from_secs(6);
/// The same grace if the node has nothing to leave, because it has no handler yet or the rendezvous is static.
const NOTHING_TO_LEAVE_GRACE: Duration = Duration::from_millis(500);

/// Runs the workers of this node until the end of the job.
///
/// The program must call [`enter`](crate::enter) first in `main`. The calling thread must be the main thread, because
/// the workers die with it. If the process was not started by [`start_agent`](crate::start_agent), processes that the
/// workers have started may be left behind.
pub fn run(config: LaunchConfig, observer: Arc<dyn LaunchObserver>) -> Outcome {
    let start = Instant::now();
    match Agent::new(config, observer, start) {
        Ok(agent) => agent.run(),
        Err(error) => Outcome::of_error(error, start.elapsed()),
    }
}

struct Agent {
    config: Arc<LaunchConfig>,
    supervisor: Supervisor,
    processes: Processes,
    signals: Signals,
    child_ended: UnixStream,
    /// SIGUSR2, with which an operator drains the node.
    drain_signal: Option<UnixStream>,
    sender: Sender<Message>,
    receiver: Receiver<Message>,
    joiner: Arc<Joiner>,
    /// The deadline after which the agent no longer waits for the thread that joins. Set by
    /// `Order::StopJoining`.
    give_up_deadline: Option<Instant>,
    observer: Arc<dyn LaunchObserver>,
    logs: Logs,
    /// Whether a signal was received.
    signaled: bool,
    /// The round that this node joined last.
    formation: Option<Arc<Formation>>,
    /// The number of earlier starts in this round.
    epoch: u64,
    round_watch: Option<RoundWatch>,
    /// The membership that `round_watch` delivered last. `None` until the membership of this round first changes.
    membership: Option<Membership>,
    /// Set while this node is counted as finished at the exit barrier. The thread that waits there stops waiting when
    /// the value is false.
    finishing: Option<Arc<AtomicBool>>,
    /// Threads whose calls to the store must be complete before this node joins the next round or ends.
    calls: Vec<JoinHandle<()>>,
    /// The process ids of the workers of the last start, by local rank.
    pids: Vec<u32>,
    /// The error files of the workers of the last start, by local rank.
    error_files: Vec<Option<PathBuf>>,
    /// The failures of the workers of the last start.
    failures: Vec<Failure>,
    last_exit: Option<Exit>,
    /// The failure that ended the job, if another node has announced it.
    peer_failure: Option<Failure>,
    error: Option<AgentError>,
    events: Events,
    stuck: Option<StuckWorkers>,
    timers: Option<Timers>,
    _health: Option<HealthServer>,
    starts: u32,
    /// When the last join started.
    join_start: Instant,
    start: Instant,
}

impl Agent {
    fn new(config: LaunchConfig, observer: Arc<dyn LaunchObserver>, start: Instant) -> Result<Agent> {
        let config = Arc::new(config);
        let (sender, receiver) = crate::channel::open().map_err(AgentError::system("open a pipe"))?;
        let signals = Signals::catch(&config.signals).map_err(AgentError::system("handle signals"))?;
        let child_ended =
            register(signal_hook::consts::SIGCHLD).map_err(AgentError::system("handle SIGCHLD"))?;
        let is_drainable = config.rendezvous.backend == NATIVE_BACKEND;
        let drain_signal = is_drainable.then(|| register(signal_hook::consts::SIGUSR2)).transpose();
        let drain_signal = drain_signal.map_err(AgentError::system("handle SIGUSR2"))?;
        let processes = Processes::new().map_err(AgentError::system("open a socket"))?;
        let events = Events::open(&config, start)?;
        let query_sender = sender.clone();
        let query = move |timeout| {
            let (reply, replied) = channel();
            query_sender.send(Message::Snapshot(reply));
            replied.recv_timeout(timeout).ok()
        };
        let health = config.watch.health_check.map(|at| {
            let health = TcpListener::bind(at).and_then(|listener| HealthServer::start(listener, query));
            health.map_err(AgentError::system(format!("listen for health checks at {at}")))
        });
        let health = health.transpose()?;
        if let Some(health) = &health {
            tracing::info!("health checks are answered at http://{}/", health.address());
        }
        let timers = config.watch.file_timer.then(|| Timers::new(config.watch.timer_file.as_deref()));
        Ok(Agent {
            supervisor: Supervisor::new(start::policy(&config)),
            processes,
            signals,
            child_ended,
            drain_signal,
            sender,
            receiver,
            joiner: Arc::new(Joiner::new(Arc::clone(&config), Arc::clone(&observer))),
            give_up_deadline: None,
            observer,
            logs: Logs::create(&config)?,
            signaled: false,
            formation: None,
            epoch: 0,
            round_watch: None,
            membership: None,
            finishing: None,
            calls: Vec::new(),
            pids: Vec::new(),
            error_files: Vec::new(),
            failures: Vec::new(),
            last_exit: None,
            peer_failure: None,
            error: None,
            events,
            stuck: config.watch.uninterruptible_timeout.map(StuckWorkers::new),
            timers,
            _health: health,
            starts: 0,
            join_start: Instant::now(),
            start,
            config,
        })
    }

    fn run(mut self) -> Outcome {
        loop {
            while let Some(order) = self.supervisor.poll_order(self.now()) {
                tracing::debug!("{order:?}");
                if let Order::End { verdict, on_end } = order {
                    return self.end(verdict, on_end);
                }
                self.carry_out(order);
            }
            self.wait();
            self.collect_events();
        }
    }

    fn now(&self) -> MonoTime {
        MonoTime::from_start(self.start.elapsed())
    }

    fn handler(&self) -> Option<&Arc<dyn RendezvousHandler>> {
        self.joiner.handler()
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Join(reason) => {
                match self.starts {
                    0 => {}
                    _ if self.config.runs_once => tracing::info!("joining again: {reason}"),
                    _ => tracing::warn!("restarting the workers: {reason}{}", self.lost_node_hint(reason)),
                }
                self.join();
            }
            Order::StopJoining => {
                let is_static = self.config.rendezvous.backend == "static";
                let grace = match self.joiner.give_up() {
                    true if !is_static => LEAVE_GRACE,
                    _ => NOTHING_TO_LEAVE_GRACE,
                };
                self.give_up_deadline = Some(Instant::now() + grace);
            }
            Order::Start { restarts } => self.start_workers(restarts),
            Order::Send(target, signal) => self.processes.send(target, signal),
            Order::PublishFailure { worker, is_final } => self.announce(worker, is_final),
            Order::ReportRestartDelay(pause) => tracing::warn!(
                "the workers ran for less than {} s again; the next start is delayed by {:.1} s",
                Policy::SHORT_RUN_INTERVAL.as_secs(),
                pause.as_secs_f64()
            ),
            Order::ReportLost => self.report_lost(),
            Order::ReportWaiting(nodes) => self.report_waiting(nodes),
            Order::PublishNodeFailed => self.publish_node_failed(),
            Order::Leave => self.leave(),
            Order::CheckPeers(worker) => self.check_peers(worker),
            Order::Finish => self.finish(),
            Order::End { .. } => unreachable!("the loop ends with this order"),
        }
    }

    /// Waits for an event or the next timeout.
    fn wait(&mut self) {
        let ticks = self.stuck.is_some() && self.supervisor.is_running();
        let tick = ticks.then_some(self.config.monitor_interval);
        let next = self.supervisor.timeout().map(|at| at.since(self.now()));
        let give_up = self.give_up_deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let disk_check = self.logs.time_to_disk_check();
        let timeout = [next, tick, give_up, disk_check].into_iter().flatten().min();
        // Wait 100 µs longer, so that the timeout has certainly passed when `poll` returns.
        let timeout = timeout.map(|time| time + Duration::from_micros(100));
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let streams = self.signals.streams().chain([&self.child_ended, &self.receiver.wakeup]);
        let streams = streams.chain(&self.drain_signal);
        let mut watched: Vec<_> =
            streams.map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)).collect();
        if let Err(error) = poll(&mut watched, timeout.as_ref())
            && error != rustix::io::Errno::INTR
        {
            tracing::debug!("cannot poll for events: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Passes all new events to the supervisor. Messages are handled before exits of workers, because a message may
    /// report the cause of an exit.
    fn collect_events(&mut self) {
        for message in self.receiver.take() {
            self.handle_message(message);
        }
        for signal in self.signals.take(Instant::now()) {
            self.signaled = true;
            if self.starts > 0 && !self.config.runs_once {
                tracing::warn!("Received {signal} death signal, shutting down workers");
            }
            self.supervisor.handle_event(Event::Signaled(Signal(signal)));
        }
        if self.drain_signal.as_ref().is_some_and(|signal| drain(signal) > 0) {
            tracing::info!("received SIGUSR2: this node leaves the job at the next restart");
            self.joiner.drain();
        }
        if self.give_up_deadline.is_some_and(|at| at <= Instant::now()) {
            self.give_up_deadline = None;
            self.supervisor.handle_event(Event::JoinFailed { is_spare: false });
        }
        if drain(&self.child_ended) > 0 || self.starts > 0 {
            self.reap();
        }
        self.logs.check_disk_if_due();
        if let Some(stuck) = &mut self.stuck
            && stuck.check(self.processes.running())
        {
            self.supervisor.handle_event(Event::Stuck);
        }
    }

    fn reap(&mut self) {
        let (ended, no_process_is_left) = self.processes.reap();
        if !ended.is_empty() {
            self.check_lease();
        }
        for worker in ended {
            let event = self.handle_exit(worker);
            self.supervisor.handle_event(event);
        }
        if no_process_is_left {
            self.supervisor.handle_event(Event::AllProcessesExited);
        }
    }

    /// Tells the supervisor if the lease of this node is over. Then its guard has killed the workers, and their ends are
    /// no failures. This agent may have been stopped meanwhile.
    fn check_lease(&mut self) {
        let handler = self.handler().filter(|_| self.has_coordinator());
        let membership = handler.and_then(|handler| handler.membership().ok());
        if let Some(membership) = membership.filter(|seen| seen.end == Some(EndCause::Fenced)) {
            self.supervisor.handle_membership(&membership, None, self.now());
        }
    }

    fn handle_message(&mut self, message: Message) {
        let event = match message {
            Message::Joined(Ok(formation)) => {
                let nodes = formation.round.participants.clone();
                let (world_size, lost) = (formation.round.world_size, formation.round.lost);
                let (restarts, are_all_ours) = (formation.restarts, formation.torch_nodes.is_empty());
                // A node that gives up does not start workers in the round that it has joined.
                if self.give_up_deadline.is_none() {
                    self.handle_formation(formation);
                }
                Event::Joined { restarts, nodes, world_size, lost, are_all_ours }
            }
            Message::Joined(Err(error)) => {
                let error = self.error.insert(error);
                self.events.record_duration("RENDEZVOUS", self.join_start.elapsed());
                let is_spare = match error {
                    AgentError::Rendezvous(RendezvousError::Interrupted { .. }) => {
                        tracing::info!("left the rendezvous on a signal");
                        false
                    }
                    AgentError::Rendezvous(RendezvousError::GracefulExit { .. }) => true,
                    AgentError::Rendezvous(RendezvousError::Native {
                        fault: NativeFault::Drained, ..
                    }) => {
                        tracing::info!("this node has left the job: {}", NativeFault::Drained);
                        true
                    }
                    _ => false,
                };
                Event::JoinFailed { is_spare }
            }
            // The message belongs to an earlier start.
            Message::Observed(start, _)
            | Message::Finished(start, _)
            | Message::PeersAlive(start)
            | Message::WorkingNodes(start, _)
                if start != self.starts =>
            {
                return;
            }
            Message::PeersAlive(_) => Event::PeersAlive,
            Message::WorkingNodes(_, nodes) => Event::WorkingNodes(nodes),
            Message::Observed(_, observation) => match observation {
                Observation::Membership(membership, reports) => {
                    self.supervisor.handle_membership(&membership, reports.as_ref(), self.now());
                    self.membership = Some(*membership);
                    return;
                }
                Observation::StoreLost(error) => {
                    // A node that waits at the exit barrier learns from the barrier that the store was lost, unless the
                    // outage has lasted for `store_outage_timeout`.
                    let is_final =
                        matches!(error, RendezvousError::Outage { .. } | RendezvousError::Native { .. });
                    if !self.supervisor.is_running() && !is_final {
                        return;
                    }
                    self.error = Some(error.into());
                    Event::StoreLost
                }
                // This node itself has announced the failure.
                Observation::Announced(
                    Announcement::Restart(Some(failure)) | Announcement::Failure(Some(failure)),
                ) if self
                    .formation
                    .as_ref()
                    .is_some_and(|formation| formation.round.rank == failure.group_rank) =>
                {
                    return;
                }
                Observation::Announced(Announcement::Restart(failure)) => {
                    self.log_peer_failure("restarts its workers", failure.as_ref());
                    Event::PeerRestarts
                }
                Observation::Announced(Announcement::Failure(failure)) => {
                    self.log_peer_failure("has failed for good", failure.as_ref());
                    self.peer_failure = failure;
                    Event::PeerFailed
                }
            },
            // A node learns from the store that all nodes have finished. The host of the store waits up to 10 s until
            // every node has read that. A node that loses the store earlier does not know whether all have finished.
            Message::Finished(_, RoundEnd::StoreLost) => {
                self.error = Some(AgentError::Unfinished);
                Event::StoreLost
            }
            Message::Finished(_, end) => Event::Finished { all: end == RoundEnd::Finished },
            Message::Snapshot(reply) => {
                // The health check may have given up.
                let _ = reply.send(self.snapshot());
                return;
            }
        };
        self.supervisor.handle_event(event);
    }

    fn log_peer_failure(&self, what: &str, failure: Option<&Failure>) {
        match failure {
            Some(failure) => tracing::warn!(
                "node {} ({}) {what}: its worker {} (rank {}) ended with {}",
                failure.group_rank,
                failure.host,
                failure.local_rank,
                failure.rank,
                failure.exit.as_python()
            ),
            None => tracing::warn!("another node {what}"),
        }
    }

    /// Returns a hint that a lost node may be the cause of this restart. The workers of the other nodes usually fail
    /// before any node misses the heartbeats of the lost one. They fail by themselves, never by SIGKILL.
    fn lost_node_hint(&self, reason: Reason) -> &'static str {
        let is_elastic = self.config.rendezvous.backend != "static";
        let has_peers = self.formation.as_ref().is_some_and(|formation| formation.round.world_size > 1);
        match reason {
            Reason::WorkerFailed { exit: Exit::Signal(Signal::KILL), .. } => "",
            Reason::WorkerFailed { .. } if is_elastic && has_peers => {
                "\nhint: the loss of another node may have caused this; if that node is not in the next round, this \
                 restart does not count toward --max-restarts"
            }
            _ => "",
        }
    }

    /// Announces a failure to the other nodes in the background.
    fn announce(&mut self, worker: LocalRank, is_final: bool) {
        let failure = self.failures.iter().find(|failure| failure.local_rank == worker.0).cloned();
        // A coordinator ends the round and tells the other nodes why.
        if let (Some(handler), Some(failure), false, true) =
            (self.handler(), &failure, is_final, self.has_coordinator())
        {
            let exit = failure.exit.describe();
            return handler.report(Report::WorkerFailed { local_rank: worker.0, exit });
        }
        if let (Some(round_watch), Some(failure)) = (&self.round_watch, failure) {
            let announcements_store = Arc::clone(&round_watch.announcements_store);
            self.calls.push(std::thread::spawn(move || {
                if let Err(error) = crate::announcements::announce(&*announcements_store, &failure, is_final)
                {
                    tracing::warn!("could not announce the failure to the other nodes: {error}");
                }
            }));
        }
    }

    fn report_lost(&self) {
        if let Some(membership) = &self.membership
            && let (Some(round), Some(lost)) = (membership.round, &membership.lost)
        {
            match self.config.runs_once {
                // Log at info level, because a torch node that has finished sends no heartbeats and looks lost, too.
                true => tracing::info!("lost from round {round}: {lost}"),
                false => tracing::warn!("lost from round {round}: {lost}"),
            }
        }
    }

    fn report_waiting(&self, nodes: u64) {
        let then = match self.config.nproc_per_node {
            0 => "the next round begins when the nodes with a command exit or rejoin",
            _ => "this node stays until its command has exited",
        };
        tracing::info!("nodes wait for the next round ({nodes} now); {then}");
    }

    fn publish_node_failed(&mut self) {
        // A coordinator learns it when this node leaves.
        if let Some(formation) = self.formation.as_ref().filter(|_| !self.has_coordinator()) {
            let round = formation.round.clone();
            self.calls.push(std::thread::spawn(move || crate::exit_barrier::fail(&round)));
        }
    }

    /// Leaves the round that the other nodes have left.
    fn leave(&mut self) {
        let (Some(handler), Some(formation)) = (self.handler().cloned(), &self.formation) else { return };
        if self.has_coordinator() {
            // The next round may start as soon as this node has left, so its command must have ended first.
            return tracing::warn!(
                "round {} has ended; this node stops its command and leaves (run it again to join the next round)",
                formation.round.round
            );
        }
        tracing::warn!(
            "other nodes have left round {} and join the next one; this node stops its command and leaves (run it \
             again to join the next round)",
            formation.round.round
        );
        self.calls.push(std::thread::spawn(move || drop(handler.leave())));
    }

    /// Checks whether a node was lost, because a lost node may be the reason why this worker failed. Sends
    /// `Message::PeersAlive` when the other nodes have reported that they are alive, or after a timeout.
    fn check_peers(&self, worker: LocalRank) {
        let (sender, start) = (self.sender.clone(), self.starts);
        let (Some(round_watch), Some(formation)) = (&self.round_watch, &self.formation) else {
            return sender.send(Message::PeersAlive(start));
        };
        tracing::warn!(
            "worker {} failed and no restart is left; checking whether another node was lost",
            worker.0
        );
        let (announcements_store, nodes) =
            (Arc::clone(&round_watch.announcements_store), formation.round.world_size);
        let are_all_ours = formation.torch_nodes.is_empty();
        std::thread::spawn(move || {
            crate::announcements::await_alive(&*announcements_store, nodes, are_all_ours);
            sender.send(Message::PeersAlive(start));
        });
    }

    fn finish(&mut self) {
        let (Some(handler), Some(formation)) = (self.handler(), &self.formation) else { return };
        let (sender, start) = (self.sender.clone(), self.starts);
        // A coordinator must know that the job has finished, because a node may wait as a spare.
        if formation.round.world_size == 1 && !self.has_coordinator() {
            return self.supervisor.handle_event(Event::Finished { all: true });
        }
        tracing::info!(
            "all workers of this node have finished; waiting at most {} s for the other nodes",
            EXIT_BARRIER_TIMEOUT.as_secs()
        );
        let wanted = Arc::new(AtomicBool::new(true));
        if self.has_coordinator() {
            // The coordinator closes the job when all nodes have finished.
            handler.report(Report::Finished);
            let is_wanted = Arc::clone(&wanted);
            std::thread::spawn(move || {
                std::thread::sleep(EXIT_BARRIER_TIMEOUT);
                if is_wanted.load(Ordering::SeqCst) {
                    sender.send(Message::Finished(start, RoundEnd::Incomplete));
                }
            });
            self.finishing = Some(wanted);
            return;
        }
        let (handler, round, is_wanted) = (Arc::clone(handler), formation.round.clone(), Arc::clone(&wanted));
        std::thread::spawn(move || {
            let end = crate::exit_barrier::finish(&*handler, &round, || is_wanted.load(Ordering::SeqCst));
            sender.send(Message::Finished(start, end));
        });
        self.finishing = Some(wanted);
    }

    /// Returns whether the rendezvous has a coordinator.
    pub(super) fn has_coordinator(&self) -> bool {
        self.config.rendezvous.backend == NATIVE_BACKEND
    }

    /// Stops waiting for the other nodes to finish. Returns whether this node was counted as finished.
    fn stop_finishing(&mut self) -> bool {
        let finishing = self.finishing.take();
        finishing.is_some_and(|wanted| wanted.swap(false, Ordering::SeqCst))
    }
}
