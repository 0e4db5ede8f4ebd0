//! One fact each; random orders of events are in `tests/supervise.rs`.

use super::*;

const GRACE: Duration = Duration::from_secs(3);
const OK: Exit = Exit::Code(0);
const BAD: Exit = Exit::Code(1);

fn at(seconds: u64) -> MonoTime {
    MonoTime::from_start(Duration::from_secs(seconds))
}

fn rank(rank: u32) -> LocalRank {
    LocalRank(rank)
}

fn send(to: u32, signal: Signal) -> Order {
    Order::Send(Target::Worker(rank(to)), signal)
}

fn end(verdict: Verdict, on_end: OnEnd) -> Order {
    Order::End { verdict, on_end }
}

fn nodes(count: i64) -> Vec<NodeDesc> {
    (0..count).map(|number| NodeDesc::new("host", number, 0)).collect()
}

fn announce(worker: u32, is_final: bool) -> Order {
    Order::PublishFailure { worker: rank(worker), is_final }
}

fn formed(restarts: u32) -> Event {
    Event::Joined { restarts, nodes: nodes(1), are_all_ours: true }
}

struct Scene(Supervisor);

impl Scene {
    /// Nothing has been done about its first order yet.
    fn new(workers: u32, max_restarts: u32) -> Scene {
        Scene(Supervisor::new(Policy {
            workers,
            max_restarts,
            shutdown_grace: GRACE,
            max_restart_backoff: Duration::from_secs(30),
            is_elastic: true,
            runs_once: false,
        }))
    }

    fn running(workers: u32, max_restarts: u32) -> Scene {
        let mut scene = Scene::new(workers, max_restarts);
        assert_eq!(scene.orders(0), [Order::Join(Reason::FirstStart)]);
        assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 0 }]);
        scene
    }

    fn tell(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Order> {
        self.tell_at(0, events)
    }

    fn tell_at(&mut self, seconds: u64, events: impl IntoIterator<Item = Event>) -> Vec<Order> {
        events.into_iter().for_each(|event| self.0.handle_event(event));
        self.orders(seconds)
    }

    /// What the other nodes do makes this one start over.
    fn reform(&mut self, seconds: u64, reason: Reason) -> Vec<Order> {
        self.0.reform(reason);
        self.orders(seconds)
    }

    /// The rendezvous was closed when this many nodes had finished.
    fn close(&mut self, finished: u64) -> Vec<Order> {
        self.0.handle_closed(Some(&Reports { finished, ..Reports::default() }));
        self.orders(0)
    }

    fn orders(&mut self, seconds: u64) -> Vec<Order> {
        std::iter::from_fn(|| self.0.poll_order(at(seconds))).collect()
    }
}

#[test]
fn a_job_that_succeeds_starts_waits_for_the_others_and_closes() {
    let mut scene = Scene::running(2, 0);
    assert_eq!(scene.tell([Event::Exited(rank(1), OK)]), []);
    assert_eq!(scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [Order::Finish]);
    let orders = scene.tell([Event::Finished { all: true }]);
    assert_eq!(orders, [end(Verdict::Succeeded, OnEnd::Close)]);
    assert!(scene.0.has_ended());
}

#[test]
fn who_has_finished_but_not_all_others_leaves_and_closes_nothing() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    let orders = scene.tell([Event::Finished { all: false }]);
    assert_eq!(orders, [end(Verdict::Succeeded, OnEnd::Leave)]);
}

#[test]
fn a_failure_is_told_at_once_and_costs_one_restart() {
    let mut scene = Scene::running(2, 1);
    let orders = scene.tell([Event::Exited(rank(1), BAD)]);
    assert_eq!(orders, [announce(1, false), send(0, Signal::TERM)]);
    let orders = scene.tell([Event::Exited(rank(0), Exit::Signal(Signal::TERM)), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::WorkerFailed { worker: rank(1), exit: BAD, left: 0 })]);
    assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 1 }]);
    let orders = scene.tell([Event::Exited(rank(0), BAD)]);
    assert_eq!(orders, [announce(0, true), send(1, Signal::TERM)]);
    let orders = scene.tell([Event::Exited(rank(1), OK), Event::AllProcessesExited]);
    assert_eq!(orders, [end(Verdict::Failed, OnEnd::Close)]);
    assert_eq!(scene.0.restarts(), 1);
}

#[test]
fn coming_and_going_of_nodes_restarts_without_cost() {
    for reason in [Reason::NodesWaiting(1), Reason::NodesLeft(2), Reason::RoundOver] {
        let mut scene = Scene::running(1, 0);
        assert_eq!(scene.reform(0, reason), [send(0, Signal::TERM)], "{reason:?}");
        // That a worker fails on the way out is no failure.
        let orders = scene.tell([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
        assert_eq!(orders, [Order::Join(reason)]);
        assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 0 }]);
    }
}

#[test]
fn all_nodes_count_a_restart_and_who_comes_later_counts_on() {
    let mut scene = Scene::running(1, 2);
    scene.tell([Event::PeerRestarts]);
    let orders = scene.tell([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::PeerRestarts)]);
    assert_eq!(scene.tell([formed(1)]), [Order::Start { restarts: 1 }]);
    let mut late = Scene::new(1, 2);
    late.orders(0);
    assert_eq!(late.tell([formed(1)]), [Order::Start { restarts: 1 }]);
    late.tell([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(late.tell([formed(2)]), [Order::Start { restarts: 2 }]);
    assert_eq!(late.tell([Event::Exited(rank(0), BAD)])[0], announce(0, true));
}

#[test]
fn nobody_starts_over_because_somebody_who_has_finished_closes_the_rendezvous() {
    let mut scene = Scene::running(1, 0);
    assert_eq!(scene.close(1), []);
    assert!(scene.0.is_running());
}

#[test]
fn a_final_failure_elsewhere_ends_the_run_in_every_phase_that_has_workers() {
    let elsewhere = end(Verdict::FailedElsewhere, OnEnd::Close);
    let hear = |scene: &mut Scene| scene.tell([Event::PeerFailed]);
    let close = |scene: &mut Scene| scene.close(0);
    for learn in [hear as fn(&mut Scene) -> Vec<Order>, close] {
        let mut scene = Scene::running(1, 3);
        assert_eq!(learn(&mut scene), [send(0, Signal::TERM)]);
        assert_eq!(scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [elsewhere]);
        let mut stopping = Scene::running(1, 3);
        stopping.tell([Event::PeerRestarts]);
        assert_eq!(learn(&mut stopping), []);
        assert_eq!(stopping.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [elsewhere]);
    }
    let mut finishing = Scene::running(1, 3);
    finishing.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    assert_eq!(finishing.tell([Event::PeerFailed]), [elsewhere]);
}

#[test]
fn a_node_that_has_finished_starts_over_with_one_that_has_not() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    let orders = scene.tell([Event::PeerRestarts]);
    assert_eq!(orders, [Order::Join(Reason::PeerRestarts)]);
}

#[test]
fn a_node_that_has_finished_starts_over_without_one_that_is_gone_and_with_those_who_do() {
    for reason in [Reason::NodesLeft(1), Reason::RoundOver] {
        let mut scene = Scene::running(1, 0);
        scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
        // Who only wants to come in is the others' affair: they may be about to finish.
        assert_eq!(scene.reform(0, Reason::NodesWaiting(1)), []);
        assert_eq!(scene.reform(0, reason), [Order::Join(reason)]);
        assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 0 }]);
    }
}

#[test]
fn who_loses_the_store_before_all_have_finished_has_not_succeeded() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    let orders = scene.tell([Event::StoreLost]);
    assert_eq!(orders, [end(Verdict::Error, OnEnd::Nothing)]);
}

#[test]
fn a_rendezvous_closed_by_somebody_who_has_not_finished_is_a_failure_of_the_job() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    assert_eq!(scene.close(2), []);
    assert_eq!(scene.close(1), [end(Verdict::FailedElsewhere, OnEnd::Close)]);
}

#[test]
fn each_worker_has_its_own_grace_before_it_is_killed() {
    let mut scene = Scene::running(2, 0);
    assert_eq!(scene.tell_at(10, [Event::Signaled(Signal(2))]), [send(0, Signal(2)), send(1, Signal(2))]);
    assert_eq!(scene.tell_at(12, [Event::Exited(rank(0), BAD)]), []);
    assert_eq!(scene.0.timeout(), Some(at(13)));
    assert_eq!(scene.orders(13), [send(1, Signal::KILL)]);
    let orders =
        scene.tell_at(13, [Event::Exited(rank(1), Exit::Signal(Signal::KILL)), Event::AllProcessesExited]);
    let verdict = Verdict::Signaled(Signal(2));
    assert_eq!(orders, [end(verdict, OnEnd::Leave)]);
}

#[test]
fn a_second_signal_kills_at_once() {
    let mut scene = Scene::running(2, 0);
    scene.tell([Event::Signaled(Signal::TERM)]);
    let orders = scene.tell_at(1, [Event::Signaled(Signal(2))]);
    assert_eq!(orders, [send(0, Signal::KILL), send(1, Signal::KILL)]);
    scene.tell([Event::Exited(rank(0), BAD)]);
    let orders = scene.tell_at(1, [Event::Exited(rank(1), BAD)]);
    assert_eq!(orders, [Order::Send(Target::Orphans, Signal::KILL)], "what they left behind, too");
}

#[test]
fn a_signal_during_a_restart_is_passed_on_and_ends_the_run() {
    let mut scene = Scene::running(2, 3);
    scene.tell([Event::Exited(rank(0), BAD)]);
    assert_eq!(scene.tell_at(5, [Event::Signaled(Signal(2))]), [send(1, Signal(2))]);
    assert_eq!(scene.0.timeout(), Some(at(5).after(GRACE)));
    assert_eq!(scene.tell_at(6, [Event::Signaled(Signal(2))]), [send(1, Signal::KILL)]);
    let verdict = Verdict::Signaled(Signal(2));
    let orders = scene.tell([Event::Exited(rank(1), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [end(verdict, OnEnd::Leave)]);
}

#[test]
fn a_signal_while_it_waits_for_others_makes_it_leave_and_a_second_one_end() {
    let verdict = Verdict::Signaled(Signal::TERM);
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    assert_eq!(scene.tell([Event::Signaled(Signal::TERM)]), [Order::StopJoining]);
    let orders = scene.clone().tell([Event::JoinFailed { is_spare: false }]);
    assert_eq!(orders, [end(verdict, OnEnd::Nothing)]);
    assert_eq!(scene.clone().tell([formed(0)]), [end(verdict, OnEnd::Leave)], "it came too late");
    assert_eq!(scene.tell([Event::Signaled(Signal::TERM)]), [end(verdict, OnEnd::Nothing)]);
}

#[test]
fn what_workers_leave_behind_is_ended_before_they_are_started_again() {
    let mut scene = Scene::running(1, 1);
    let orders = scene.tell([Event::Exited(rank(0), BAD)]);
    let orphans = |signal| Order::Send(Target::Orphans, signal);
    assert_eq!(orders, [announce(0, false), orphans(Signal::TERM)]);
    assert_eq!(scene.orders(2), []);
    assert_eq!(scene.orders(3), [orphans(Signal::KILL)]);
    assert!(matches!(scene.tell([Event::AllProcessesExited])[..], [Order::Join(_)]));
}

#[test]
fn that_nobody_was_there_before_the_start_does_not_count_after_it() {
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    assert_eq!(scene.tell([formed(0), Event::AllProcessesExited]), [Order::Start { restarts: 0 }]);
    scene.tell([Event::Exited(rank(0), OK)]);
    let orders = scene.tell([Event::Finished { all: true }]);
    assert_eq!(orders, [Order::Send(Target::Orphans, Signal::TERM)]);
}

#[test]
fn who_can_not_be_killed_has_no_successor() {
    let mut scene = Scene::running(1, 1);
    scene.tell([Event::PeerRestarts]);
    assert_eq!(scene.orders(3), [send(0, Signal::KILL)]);
    let later = at(3).after(Policy::KILL_GRACE);
    assert_eq!(scene.0.timeout(), Some(later));
    assert_eq!(scene.orders(13), [Order::Send(Target::Orphans, Signal::TERM)]);
    assert_eq!(scene.orders(16), [Order::Send(Target::Orphans, Signal::KILL)]);
    assert_eq!(scene.orders(26), [end(Verdict::Unhealthy, OnEnd::Close)]);
}

#[test]
fn a_worker_that_can_not_be_started_ends_the_run_without_a_restart() {
    let mut scene = Scene::running(3, 5);
    let orders = scene.tell([Event::NotStarted(rank(1)), Event::NotStarted(rank(2))]);
    assert_eq!(orders, [send(0, Signal::TERM)]);
    let orders = scene.tell([Event::Exited(rank(0), Exit::Signal(Signal::TERM)), Event::AllProcessesExited]);
    assert_eq!(orders, [end(Verdict::Error, OnEnd::Close)]);
}

#[test]
fn a_spare_that_was_not_needed_has_not_failed() {
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    let orders = scene.tell([Event::JoinFailed { is_spare: true }]);
    assert_eq!(orders, [end(Verdict::Spare, OnEnd::Nothing)]);
}

#[test]
fn reasons_say_what_happened() {
    for (reason, text) in [
        (
            Reason::WorkerFailed { worker: rank(3), exit: Exit::Signal(Signal(9)), left: 2 },
            "worker 3 of this node failed (signal 9); restarts left: 2",
        ),
        (Reason::NodesWaiting(1), "1 node waits to be let in"),
        (Reason::NodesLeft(2), "2 nodes left or died"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}

impl Clone for Scene {
    fn clone(&self) -> Scene {
        Scene(self.0.clone())
    }
}

fn with_peers(restarts: u32, nodes: Vec<NodeDesc>) -> Event {
    Event::Joined { restarts, nodes, are_all_ours: true }
}

/// Runs one worker of one node with peers and no restarts, and lets it fail.
fn failing_beside_peers() -> Scene {
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    assert_eq!(scene.tell([with_peers(0, nodes(2))]), [Order::Start { restarts: 0 }]);
    let orders = scene.tell_at(60, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::CheckPeers(rank(0))]);
    scene
}

#[test]
fn a_worker_that_fails_because_a_peer_was_lost_ends_nothing_even_without_restarts() {
    let mut scene = failing_beside_peers();
    let orders = scene.reform(76, Reason::NodesLeft(1));
    assert_eq!(orders, [Order::Join(Reason::NodesLeft(1))]);
    let mut scene = failing_beside_peers();
    assert_eq!(scene.reform(61, Reason::RoundOver), [Order::Join(Reason::RoundOver)]);
}

#[test]
fn a_worker_that_fails_while_all_peers_live_ends_the_job() {
    let mut scene = failing_beside_peers();
    let orders = scene.tell_at(61, [Event::PeersAlive]);
    assert_eq!(orders, [announce(0, true), end(Verdict::Failed, OnEnd::Close)]);
}

#[test]
fn restarts_that_a_lost_peer_is_to_blame_for_are_not_counted() {
    let mut scene = Scene::new(1, 1);
    scene.orders(0);
    scene.tell([with_peers(0, nodes(6))]);
    for restart in 1..4 {
        scene.tell_at(60 * restart, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
        let restarts = restart as u32;
        let orders = scene.tell_at(60 * restart, [with_peers(restarts, nodes(6 - i64::from(restarts)))]);
        assert_eq!(orders, [Order::Start { restarts }], "a node was lost each time");
    }
    scene.tell_at(300, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    scene.tell_at(300, [with_peers(4, nodes(3))]);
    let orders = scene.tell_at(360, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::CheckPeers(rank(0))], "this one counted");
}

/// The pause in milliseconds before the join that follows: none if the node joins now.
fn pause(orders: &[Order]) -> u128 {
    match orders.last() {
        Some(Order::ReportRestartDelay(pause)) => pause.as_millis(),
        Some(Order::Join(_)) => 0,
        _ => panic!("{orders:?}"),
    }
}

#[test]
fn restarts_back_off_while_workers_end_soon_after_their_start() {
    let mut scene = Scene::running(1, 100);
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        pauses.push(pause(&scene.tell_at(now, [Event::Exited(rank(0), BAD), Event::AllProcessesExited])));
        now += 31;
        scene.orders(now);
        scene.tell_at(now, [formed(0)]);
    }
    let expected = [0, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
    assert_eq!(pauses, expected);
    let orders = scene.tell_at(now + 11, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(pause(&orders), 0, "they ran for long enough");
}

/// The survivors of a lost node are to run again within 5 s, of which the last call takes 3 s.
#[test]
fn nodes_that_come_and_go_delay_a_restart_by_at_most_1_s_and_are_no_failures() {
    let mut scene = Scene::running(1, 100);
    let mut pauses = Vec::new();
    for now in (0..30).step_by(3) {
        scene.reform(now, Reason::NodesLeft(1));
        pauses.push(pause(&scene.tell_at(now, [Event::Exited(rank(0), BAD), Event::AllProcessesExited])));
        scene.orders(now + 2);
        scene.tell_at(now + 2, [formed(0)]);
    }
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
    let orders = scene.tell_at(30, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert!(
        matches!(orders[..], [.., Order::Join(Reason::WorkerFailed { .. })]),
        "the first is immediate: {orders:?}"
    );
}

#[test]
fn a_node_that_was_dropped_starts_over_and_says_so() {
    let mut scene = Scene::running(1, 0);
    scene.reform(0, Reason::Dropped);
    let orders = scene.tell([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::Dropped)]);
    assert!(Reason::Dropped.to_string().contains("dropped this one"));
}

#[test]
fn nodes_of_torchs_get_time_to_notice_that_their_workers_have_failed() {
    let mixed = |scene: &mut Scene| {
        scene.orders(0);
        scene.tell([Event::Joined { restarts: 0, nodes: nodes(2), are_all_ours: false }]);
        scene.tell_at(60, [Event::Exited(rank(0), BAD), Event::AllProcessesExited])
    };
    let mut scene = Scene::new(1, 1);
    assert_eq!(mixed(&mut scene), [announce(0, false)]);
    assert_eq!(scene.0.timeout(), Some(at(65)));
    assert!(matches!(scene.orders(65)[..], [Order::Join(_)]), "they had their time");
    let mut scene = Scene::new(1, 1);
    mixed(&mut scene);
    let seen = Membership { waiting: nodes(1), ..Membership::default() };
    scene.0.handle_membership(&seen, None, at(61));
    assert!(matches!(scene.orders(61)[..], [Order::Join(_)]), "they have noticed");
}
