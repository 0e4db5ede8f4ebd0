//! Runs the supervisor with simulated processes and random sequences of events.
//!
//! In every sequence, the workers start together, and all have exited before they are restarted or the run ends. A
//! worker gets its grace before SIGKILL, unless the agent received two signals. A failed worker causes a restart only
//! while the restart budget allows it. Restarts that other nodes request are not limited.

use std::time::Duration;

use proptest::prelude::*;
use rallypoint_core::rendezvous::{LossCause, Lost, Membership, MonoTime, NodeDesc};
use rallypoint_core::supervise::{
    Event, Exit, LocalRank, Order, Policy, Reason, Reports, Signal, Supervisor, Target, Verdict,
};

/// A random event. An event that is impossible in the current state is ignored.
#[derive(Debug, Clone)]
enum RandomEvent {
    /// A worker exits by itself, successfully or not.
    Exits(usize, bool),
    /// A worker will leave an orphan when it exits.
    LeavesOrphan(usize),
    /// A worker that got a signal exits.
    ExitsOnSignal(usize),
    /// All orphans exit.
    OrphansExit,
    Signaled(i32),
    PeerRestarts,
    PeerFailed,
    /// The agent reads the membership and the reports of the nodes. The reports are `None` if the store of the round
    /// does not answer.
    Membership(Box<Membership>, Option<Reports>),
    StoreLost,
    Finished(bool),
    Joined {
        /// The number of the first node of the round. The last node has the number 2.
        first: i64,
        are_all_ours: bool,
    },
    PeersAlive,
    JoinFailed {
        is_spare: bool,
    },
    NotStarted(usize),
    Stuck,
    Time(u64),
}

fn random_event() -> impl Strategy<Value = RandomEvent> {
    let worker = 0..4usize;
    prop_oneof![
        4 => (0..3i64, any::<bool>()).prop_map(|(first, are_all_ours)| RandomEvent::Joined { first, are_all_ours }),
        2 => Just(RandomEvent::PeersAlive),
        4 => (worker.clone(), any::<bool>()).prop_map(|(worker, succeeds)| RandomEvent::Exits(worker, succeeds)),
        4 => worker.clone().prop_map(RandomEvent::ExitsOnSignal),
        2 => worker.clone().prop_map(RandomEvent::LeavesOrphan),
        3 => Just(RandomEvent::OrphansExit),
        4 => (0..12_000u64).prop_map(RandomEvent::Time),
        2 => any::<bool>().prop_map(RandomEvent::Finished),
        1 => Just(RandomEvent::PeerRestarts),
        6 => membership(),
        1 => prop_oneof![Just(2), Just(15)].prop_map(RandomEvent::Signaled),
        1 => prop_oneof![
            Just(RandomEvent::PeerFailed),
            Just(RandomEvent::StoreLost),
            any::<bool>().prop_map(|is_spare| RandomEvent::JoinFailed { is_spare }),
            worker.prop_map(RandomEvent::NotStarted),
            Just(RandomEvent::Stuck),
        ],
    ]
}

/// Generates the membership of a round of three nodes. This node is the first of them. Each of the other two is a
/// member (place 0), rejoins (place 1), or is lost (place 2).
fn membership() -> impl Strategy<Value = RandomEvent> {
    let node = |number: i64| NodeDesc::new("host", number, 0);
    let place = 0..3usize;
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (place.clone(), place, flags, 0..3u64).prop_map(move |(second, third, flags, finished)| {
        let (is_closed, have_left, has_reports, is_dropped) = flags;
        let cause = if have_left { LossCause::Left } else { LossCause::NoHeartbeat(Duration::from_secs(15)) };
        let at = |place| [(1, second), (2, third)].into_iter().filter(move |(_, is)| *is == place);
        let nodes = |place| at(place).map(|(number, _)| node(number)).collect::<Vec<_>>();
        let lost = nodes(2);
        let seen = Membership {
            round: Some(0),
            members: [node(0)].into_iter().chain(nodes(0)).collect(),
            rejoining: nodes(1),
            waiting: nodes(1),
            is_round_over: !nodes(1).is_empty(),
            lost: (!lost.is_empty()).then_some(Lost { nodes: lost, cause }),
            is_closed,
            is_dropped,
            ..Membership::default()
        };
        let reports = Reports { finished, ..Reports::default() };
        RandomEvent::Membership(seen.into(), has_reports.then_some(reports))
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Process {
    alive: bool,
    /// When the process last got a signal other than SIGKILL.
    signaled_at: Option<MonoTime>,
    killed: bool,
    leaves_orphan: bool,
}

struct World {
    supervisor: Supervisor,
    policy: Policy,
    now: MonoTime,
    workers: Vec<Process>,
    orphans: bool,
    orphans_killed: bool,
    joining: bool,
    finishing: bool,
    /// The number of signals to the agent since the last join, start or finish.
    signals: u32,
    restarts: u32,
    /// Whether a restart was counted since the last round was joined.
    has_new_restart: bool,
    /// The number of restarts after which the next round lacked a node of the round before. They do not count toward
    /// the restart budget.
    excused: u32,
    checks_peers: bool,
    /// The number of the first node of the most recent round, or 3 before the first round.
    first: i64,
    /// The worker whose failure was published last, and whether the failure was final.
    published: Option<(LocalRank, bool)>,
    verdict: Option<Verdict>,
}

impl World {
    fn new(policy: Policy) -> World {
        let mut world = World {
            supervisor: Supervisor::new(policy),
            policy,
            now: MonoTime::default(),
            workers: vec![Process::default(); policy.workers as usize],
            orphans: false,
            orphans_killed: false,
            joining: false,
            finishing: false,
            signals: 0,
            restarts: 0,
            has_new_restart: false,
            excused: 0,
            checks_peers: false,
            first: 3,
            published: None,
            verdict: None,
        };
        world.carry_out_orders();
        world
    }

    /// Applies a random event to the simulated processes. Returns the event that the agent would pass to the
    /// supervisor.
    fn translate(&mut self, random_event: &RandomEvent) -> Option<Event> {
        let index = |worker: &usize| worker % self.workers.len();
        Some(match random_event {
            RandomEvent::Joined { first, are_all_ours } if self.joining => {
                self.joining = false;
                let has_lost = self.first < *first;
                self.excused += u32::from(std::mem::take(&mut self.has_new_restart) && has_lost);
                self.first = *first;
                let nodes: Vec<_> = (*first..3).map(|number| NodeDesc::new("host", number, 0)).collect();
                Event::Joined {
                    restarts: self.restarts,
                    world_size: nodes.len() as u64,
                    lost: 0,
                    nodes,
                    are_all_ours: *are_all_ours,
                }
            }
            RandomEvent::PeersAlive if self.checks_peers => {
                self.checks_peers = false;
                Event::PeersAlive
            }
            RandomEvent::JoinFailed { is_spare } if self.joining => {
                self.joining = false;
                Event::JoinFailed { is_spare: *is_spare }
            }
            RandomEvent::Exits(worker, succeeds) => {
                return self.exit(index(worker), Exit::Code(i32::from(!succeeds)));
            }
            RandomEvent::ExitsOnSignal(worker) if self.workers[index(worker)].signaled_at.is_some() => {
                return self.exit(index(worker), Exit::Signal(Signal::TERM));
            }
            RandomEvent::LeavesOrphan(worker) => {
                let worker = index(worker);
                self.workers[worker].leaves_orphan = true;
                return None;
            }
            RandomEvent::OrphansExit => {
                self.orphans = false;
                return None;
            }
            RandomEvent::NotStarted(worker) if self.workers[index(worker)].alive => {
                let worker = index(worker);
                self.workers[worker].alive = false;
                Event::NotStarted(LocalRank(worker as u32))
            }
            RandomEvent::Stuck if self.workers.iter().any(|worker| worker.alive) => Event::Stuck,
            RandomEvent::Finished(all) if self.finishing => {
                self.finishing = false;
                Event::Finished { all: *all }
            }
            RandomEvent::Signaled(signal) => {
                self.signals += 1;
                Event::Signaled(Signal(*signal))
            }
            RandomEvent::PeerRestarts => Event::PeerRestarts,
            RandomEvent::PeerFailed => Event::PeerFailed,
            RandomEvent::StoreLost => Event::StoreLost,
            RandomEvent::Membership(seen, reports) => {
                self.supervisor.handle_membership(seen, reports.as_ref(), self.now);
                return None;
            }
            RandomEvent::Time(milliseconds) => {
                self.now = self.now.after(Duration::from_millis(*milliseconds));
                return None;
            }
            _ => return None,
        })
    }

    fn exit(&mut self, worker: usize, exit: Exit) -> Option<Event> {
        let process = std::mem::take(&mut self.workers[worker]);
        if process.alive && process.leaves_orphan {
            (self.orphans, self.orphans_killed) = (true, false);
        }
        process.alive.then_some(Event::Exited(LocalRank(worker as u32), exit))
    }

    fn all_exited(&self) -> bool {
        !self.orphans && self.workers.iter().all(|worker| !worker.alive)
    }

    fn apply(&mut self, random_event: &RandomEvent) {
        if let Some(event) = self.translate(random_event) {
            self.supervisor.handle_event(event);
        }
        self.carry_out_orders();
    }

    /// Carries out all orders of the supervisor, and checks that each order is allowed in the current state.
    fn carry_out_orders(&mut self) {
        if self.all_exited() {
            self.supervisor.handle_event(Event::AllProcessesExited);
        }
        while let Some(order) = self.supervisor.poll_order(self.now) {
            assert_eq!(self.verdict, None, "{order:?} after the verdict");
            self.carry_out(order);
        }
        if let Some(next) = self.supervisor.timeout() {
            assert!(next > self.now, "an order that is due was not issued");
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::ReportLost | Order::ReportWaiting(_) | Order::ReportRestartDelay(_) => {}
            Order::PublishNodeFailed | Order::Leave => panic!("{order:?} is for workers that run once"),
            Order::Join(reason) => {
                assert!(!self.joining, "a second join before the first has ended");
                assert!(self.all_exited(), "a join while a process is left");
                match reason {
                    Reason::WorkerFailed { worker, left, .. } => {
                        assert_eq!(self.published, Some((worker, false)), "the failure is not published");
                        (self.restarts, self.has_new_restart) = (self.restarts + 1, true);
                        assert_eq!(self.restarts + left, self.policy.max_restarts + self.excused);
                    }
                    Reason::PeerRestarts => (self.restarts, self.has_new_restart) = (self.restarts + 1, true),
                    _ => {}
                }
                (self.joining, self.finishing, self.signals) = (true, false, 0);
            }
            Order::StopJoining => assert!(self.joining),
            Order::Start { restarts } => {
                assert!(self.all_exited(), "a start while a process is left");
                assert_eq!(restarts, self.restarts, "restarts of this node and of other nodes are counted");
                self.workers.fill(Process { alive: true, ..Process::default() });
                (self.orphans_killed, self.signals) = (false, 0);
            }
            Order::Send(Target::Worker(LocalRank(rank)), signal) => self.signal(rank as usize, signal),
            Order::Send(Target::Orphans, signal) => {
                assert!(self.workers.iter().all(|worker| !worker.alive || worker.killed));
                assert!(!self.orphans_killed, "a signal to orphans that were killed");
                if signal == Signal::KILL {
                    (self.orphans, self.orphans_killed) = (false, true);
                }
            }
            Order::PublishFailure { worker, is_final } => self.published = Some((worker, is_final)),
            Order::CheckPeers(_) => self.checks_peers = true,
            Order::Finish => {
                assert!(self.workers.iter().all(|worker| !worker.alive));
                (self.finishing, self.signals) = (true, 0);
            }
            Order::End { verdict, .. } => {
                assert!(self.all_exited(), "{verdict:?} while a process is left");
                self.verdict = Some(verdict);
            }
        }
        if self.all_exited() {
            self.supervisor.handle_event(Event::AllProcessesExited);
        }
    }

    fn signal(&mut self, rank: usize, signal: Signal) {
        let worker = &mut self.workers[rank];
        assert!(worker.alive, "a signal to a worker that has exited");
        assert!(!worker.killed, "a signal to a worker that was killed");
        if signal != Signal::KILL {
            worker.signaled_at = Some(self.now);
            return;
        }
        let had_grace = worker
            .signaled_at
            .is_some_and(|signaled_at| self.now.since(signaled_at) >= self.policy.shutdown_grace);
        assert!(had_grace || self.signals >= 2, "SIGKILL before the grace has passed");
        worker.killed = true;
        let event = self.exit(rank, Exit::Signal(Signal::KILL)).expect("the worker was alive");
        self.supervisor.handle_event(event);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn three_signals_end_the_run_after_any_events_and_no_process_is_left(
        workers in 1..4u32,
        max_restarts in 0..3u32,
        shutdown in 0..40_000u64,
        is_elastic in any::<bool>(),
        random_events in prop::collection::vec(random_event(), 0..60),
    ) {
        let mut world = World::new(Policy {
            workers,
            max_restarts,
            shutdown_grace: Duration::from_millis(shutdown),
            is_elastic,
            runs_once: false,
            max_restart_backoff: Duration::from_secs(30),
        });
        for random_event in &random_events {
            world.apply(random_event);
        }
        // Three signals end the run in every phase.
        for random_event in [RandomEvent::Signaled(15), RandomEvent::Signaled(15), RandomEvent::Signaled(15)] {
            world.apply(&random_event);
        }
        prop_assert!(world.verdict.is_some(), "the run continues");
        prop_assert!(world.supervisor.has_ended());
        if world.verdict == Some(Verdict::Failed) {
            prop_assert!(world.restarts >= max_restarts + world.excused);
            prop_assert!(matches!(world.published, Some((_, true))));
        }
    }
}
