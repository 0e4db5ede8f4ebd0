//! The supervisor in a small world of processes, with events in random order: whatever comes, workers start together, get
//! their grace, are all gone before they are started again or it ends, and no more restarts are made than were allowed.

use std::time::Duration;

use proptest::prelude::*;
use rallypoint_core::rendezvous::{LossCause, Lost, Membership, MonoTime, NodeDesc};
use rallypoint_core::supervise::{
    Event, Exit, LocalRank, News, Obstacle, Order, Policy, Reason, Reports, Signal, Supervisor, Target,
    Verdict,
};

/// What may happen next, as far as it depends on chance.
#[derive(Debug, Clone)]
enum Chance {
    /// A worker ends by itself, well or not.
    Ends(usize, bool),
    /// A worker leaves a process behind when it ends.
    LeavesBehind(usize),
    /// A worker that was told to end does.
    Obeys(usize),
    /// What was left behind ends.
    StraysEnd,
    Signalled(i32),
    Waiting(u64),
    Left(u64),
    RoundOver,
    PeerRestarts,
    PeerFailed,
    Closed(u64),
    /// The rendezvous is looked at.
    Seen(Box<Membership>, Option<Reports>),
    StoreLost,
    Finished(bool),
    Formed {
        peers: bool,
        lost: bool,
    },
    PeersAlive,
    Dropped,
    NotFormed(Obstacle),
    NotStarted(usize),
    Stuck(usize),
    Time(u64),
}

fn chance() -> impl Strategy<Value = Chance> {
    let worker = 0..4usize;
    prop_oneof![
        4 => (any::<bool>(), any::<bool>()).prop_map(|(peers, lost)| Chance::Formed { peers, lost }),
        2 => Just(Chance::PeersAlive),
        1 => Just(Chance::Dropped),
        4 => (worker.clone(), any::<bool>()).prop_map(|(worker, well)| Chance::Ends(worker, well)),
        4 => worker.clone().prop_map(Chance::Obeys),
        2 => worker.clone().prop_map(Chance::LeavesBehind),
        3 => Just(Chance::StraysEnd),
        4 => (0..12_000u64).prop_map(Chance::Time),
        2 => any::<bool>().prop_map(Chance::Finished),
        1 => (0..3u64).prop_map(Chance::Waiting),
        1 => (0..3u64).prop_map(Chance::Left),
        1 => Just(Chance::RoundOver),
        1 => Just(Chance::PeerRestarts),
        1 => (0..3u64).prop_map(Chance::Closed),
        3 => seen(),
        1 => prop_oneof![Just(2), Just(15)].prop_map(Chance::Signalled),
        1 => prop_oneof![
            Just(Chance::PeerFailed),
            Just(Chance::StoreLost),
            Just(Chance::NotFormed(Obstacle::Failed)),
            Just(Chance::NotFormed(Obstacle::Spare)),
            worker.clone().prop_map(Chance::NotStarted),
            worker.prop_map(Chance::Stuck),
        ],
    ]
}

/// A membership of a round of three nodes, this one being the first.
fn seen() -> impl Strategy<Value = Chance> {
    let node = |number: i64| NodeDesc::new("host", number, 0);
    let place = 0..3usize;
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (place.clone(), place, flags, 0..3u64).prop_map(move |(second, third, flags, finished)| {
        let (is_closed, is_final, is_answered) = flags;
        let at = |place| [(1, second), (2, third)].into_iter().filter(move |(_, is)| *is == place);
        let nodes = |place| at(place).map(|(number, _)| node(number)).collect::<Vec<_>>();
        let lost = nodes(2);
        let seen = Membership {
            round: Some(0),
            members: [node(0)].into_iter().chain(nodes(0)).collect(),
            returned: nodes(1),
            waiting: nodes(1),
            is_round_over: !nodes(1).is_empty(),
            lost: (!lost.is_empty()).then_some(Lost { nodes: lost, cause: LossCause::Left, is_final }),
            is_closed,
            ..Membership::default()
        };
        let reports = Reports { finished, ours: 3, ..Reports::default() };
        Chance::Seen(seen.into(), is_answered.then_some(reports))
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Process {
    alive: bool,
    /// When it was told to end, and with how much grace at least.
    told: Option<MonoTime>,
    killed: bool,
    leaves: bool,
}

struct World {
    supervisor: Supervisor,
    policy: Policy,
    now: MonoTime,
    workers: Vec<Process>,
    strays: bool,
    strays_killed: bool,
    joining: bool,
    finishing: bool,
    /// How many signals came since the workers were first told to end.
    signals: u32,
    restarts: u32,
    /// Restarts since the last round formed, and those that a lost node was to blame for.
    failed: bool,
    excused: u32,
    checks_peers: bool,
    last_news: Option<News>,
    verdict: Option<Verdict>,
}

impl World {
    fn new(policy: Policy) -> World {
        let mut world = World {
            supervisor: Supervisor::new(policy),
            policy,
            now: MonoTime::default(),
            workers: vec![Process::default(); policy.workers as usize],
            strays: false,
            strays_killed: false,
            joining: false,
            finishing: false,
            signals: 0,
            restarts: 0,
            failed: false,
            excused: 0,
            checks_peers: false,
            last_news: None,
            verdict: None,
        };
        world.obey();
        world
    }

    /// What the driver can tell at this moment; other chances are passed over.
    fn event(&mut self, chance: &Chance) -> Option<Event> {
        let index = |worker: &usize| worker % self.workers.len();
        Some(match chance {
            Chance::Formed { peers, lost } if self.joining => {
                self.joining = false;
                self.excused += u32::from(std::mem::take(&mut self.failed) && *lost);
                Event::Formed { restarts: self.restarts, has_peers: *peers, lost_peers: *lost }
            }
            Chance::PeersAlive if self.checks_peers => {
                self.checks_peers = false;
                Event::PeersAlive
            }
            Chance::Dropped => Event::Dropped,
            Chance::NotFormed(obstacle) if self.joining => {
                self.joining = false;
                Event::NotFormed(*obstacle)
            }
            Chance::Ends(worker, well) => return self.exit(index(worker), Exit::Code(i32::from(!well))),
            Chance::Obeys(worker) if self.workers[index(worker)].told.is_some() => {
                return self.exit(index(worker), Exit::Signal(Signal::TERM));
            }
            Chance::LeavesBehind(worker) => {
                let worker = index(worker);
                self.workers[worker].leaves = true;
                return None;
            }
            Chance::StraysEnd => {
                self.strays = false;
                return None;
            }
            Chance::NotStarted(worker) if self.workers[index(worker)].alive => {
                let worker = index(worker);
                self.workers[worker].alive = false;
                Event::NotStarted(LocalRank(worker as u32))
            }
            Chance::Stuck(worker) if self.workers[index(worker)].alive => {
                Event::Stuck(LocalRank(index(worker) as u32))
            }
            Chance::Finished(all) if self.finishing => {
                self.finishing = false;
                Event::Finished { all: *all }
            }
            Chance::Signalled(signal) => {
                self.signals += 1;
                Event::Signalled(Signal(*signal))
            }
            Chance::Waiting(nodes) => Event::NodesWaiting(*nodes),
            Chance::Left(nodes) => Event::NodesLeft(*nodes),
            Chance::RoundOver => Event::RoundOver,
            Chance::PeerRestarts => Event::PeerRestarts,
            Chance::PeerFailed => Event::PeerFailed,
            Chance::Closed(finished) => Event::Closed { finished: *finished },
            Chance::StoreLost => Event::StoreLost,
            Chance::Seen(seen, reports) => {
                self.supervisor.handle_membership(seen, reports.as_ref(), self.now);
                return None;
            }
            Chance::Time(milliseconds) => {
                self.now = self.now.after(Duration::from_millis(*milliseconds));
                return None;
            }
            _ => return None,
        })
    }

    fn exit(&mut self, worker: usize, exit: Exit) -> Option<Event> {
        let process = std::mem::take(&mut self.workers[worker]);
        if process.alive && process.leaves {
            (self.strays, self.strays_killed) = (true, false);
        }
        process.alive.then_some(Event::Exited(LocalRank(worker as u32), exit))
    }

    fn is_alone(&self) -> bool {
        !self.strays && self.workers.iter().all(|worker| !worker.alive)
    }

    fn play(&mut self, chance: &Chance) {
        if let Some(event) = self.event(chance) {
            self.supervisor.handle_event(event);
        }
        self.obey();
    }

    /// Does what is ordered and checks that it may be.
    fn obey(&mut self) {
        if self.is_alone() {
            self.supervisor.handle_event(Event::Alone);
        }
        while let Some(order) = self.supervisor.poll_order(self.now) {
            assert_eq!(self.verdict, None, "{order:?} after the end");
            self.carry_out(order);
        }
        if let Some(next) = self.supervisor.timeout() {
            assert!(next > self.now, "what is due is done");
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::ReportLost | Order::ReportWaiting(_) | Order::ReportFailed | Order::Leave => {}
            Order::Join(reason) => {
                assert!(!self.joining, "it joins already");
                assert!(self.is_alone(), "joins while something is left");
                match reason {
                    Reason::WorkerFailed { worker, left, .. } => {
                        assert_eq!(
                            self.last_news,
                            Some(News::Restart(worker)),
                            "the others were told before"
                        );
                        (self.restarts, self.failed) = (self.restarts + 1, true);
                        assert_eq!(self.restarts + left, self.policy.max_restarts + self.excused);
                    }
                    Reason::PeerRestarts => (self.restarts, self.failed) = (self.restarts + 1, true),
                    _ => {}
                }
                (self.joining, self.signals) = (true, 0);
            }
            Order::StopJoining => assert!(self.joining),
            Order::Start { restarts } => {
                assert!(self.is_alone(), "starts beside what is left");
                assert_eq!(restarts, self.restarts, "every node counts every restart");
                self.workers.fill(Process { alive: true, ..Process::default() });
                (self.strays_killed, self.signals) = (false, 0);
            }
            Order::Send(Target::Worker(LocalRank(rank)), signal) => self.signal(rank as usize, signal),
            Order::Send(Target::Strays, signal) => {
                assert!(self.workers.iter().all(|worker| !worker.alive || worker.killed));
                assert!(!self.strays_killed, "killed twice");
                if signal == Signal::KILL {
                    (self.strays, self.strays_killed) = (false, true);
                }
            }
            Order::Tell(news) => self.last_news = Some(news),
            Order::CheckPeers(_) => self.checks_peers = true,
            Order::Finish => {
                assert!(self.workers.iter().all(|worker| !worker.alive));
                (self.finishing, self.signals) = (true, 0);
            }
            Order::StopFinishing => {
                assert!(self.finishing);
                self.finishing = false;
            }
            Order::End { verdict, .. } => {
                assert!(self.is_alone(), "{verdict:?} while something is left");
                self.verdict = Some(verdict);
            }
        }
        if self.is_alone() {
            self.supervisor.handle_event(Event::Alone);
        }
    }

    fn signal(&mut self, rank: usize, signal: Signal) {
        let worker = &mut self.workers[rank];
        assert!(worker.alive, "a signal for a worker that is gone");
        assert!(!worker.killed, "a signal for one that was killed");
        if signal != Signal::KILL {
            worker.told = Some(self.now);
            return;
        }
        let grace = self.policy.shutdown_grace.min(self.policy.restart_grace);
        let had_its_grace = worker.told.is_some_and(|told| self.now.since(told) >= grace);
        assert!(had_its_grace || self.signals >= 2, "killed without its grace");
        worker.killed = true;
        let event = self.exit(rank, Exit::Signal(Signal::KILL)).expect("it was alive");
        self.supervisor.handle_event(event);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn whatever_happens_nothing_is_left_and_it_ends_when_told_to(
        workers in 1..4u32,
        max_restarts in 0..3u32,
        shutdown in 0..40_000u64,
        restart in 0..40_000u64,
        is_elastic in any::<bool>(),
        chances in prop::collection::vec(chance(), 0..60),
    ) {
        let mut world = World::new(Policy {
            workers,
            max_restarts,
            shutdown_grace: Duration::from_millis(shutdown),
            restart_grace: Duration::from_millis(restart),
            is_elastic,
            runs_once: false,
            max_restart_backoff: Duration::from_secs(30),
        });
        for chance in &chances {
            world.play(chance);
        }
        // Told twice, it ends, whatever it was doing.
        for chance in [Chance::Signalled(15), Chance::Signalled(15), Chance::Signalled(15)] {
            world.play(&chance);
        }
        prop_assert!(world.verdict.is_some(), "it goes on");
        prop_assert!(world.supervisor.has_ended());
        if world.verdict == Some(Verdict::Failed) {
            prop_assert!(world.restarts >= max_restarts + world.excused);
            prop_assert!(matches!(world.last_news, Some(News::Failure(_))));
        }
    }
}
