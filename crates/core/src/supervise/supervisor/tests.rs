//! One fact each; random orders of events are in `tests/supervise.rs`.

use super::*;

const GRACE: Duration = Duration::from_secs(3);
const RESTART_GRACE: Duration = Duration::from_secs(30);
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

fn end(verdict: Verdict, parting: Parting) -> Order {
    Order::End { verdict, parting }
}

fn formed(restarts: u32) -> Event {
    Event::Formed { restarts, has_peers: false, lost_peers: false }
}

struct Scene(Supervisor);

impl Scene {
    /// Nothing has been done about its first order yet.
    fn new(workers: u32, max_restarts: u32) -> Scene {
        Scene(Supervisor::new(Policy {
            workers,
            max_restarts,
            shutdown_grace: GRACE,
            restart_grace: RESTART_GRACE,
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

    fn orders(&mut self, seconds: u64) -> Vec<Order> {
        std::iter::from_fn(|| self.0.poll_order(at(seconds))).collect()
    }
}

#[test]
fn a_job_that_succeeds_starts_waits_for_the_others_and_closes() {
    let mut scene = Scene::running(2, 0);
    assert_eq!(scene.tell([Event::Exited(rank(1), OK)]), []);
    assert_eq!(scene.tell([Event::Exited(rank(0), OK), Event::Alone]), [Order::Finish]);
    let orders = scene.tell([Event::Finished { all: true }]);
    assert_eq!(orders, [end(Verdict::Succeeded, Parting::Close)]);
    assert!(scene.0.has_ended());
}

#[test]
fn who_has_finished_but_not_all_others_leaves_and_closes_nothing() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::Alone]);
    let orders = scene.tell([Event::Finished { all: false }]);
    assert_eq!(orders, [end(Verdict::Succeeded, Parting::Leave)]);
}

#[test]
fn a_failure_is_told_at_once_and_costs_one_restart() {
    let mut scene = Scene::running(2, 1);
    let orders = scene.tell([Event::Exited(rank(1), BAD)]);
    assert_eq!(orders, [Order::Tell(News::Restart(rank(1))), send(0, Signal::TERM)]);
    let orders = scene.tell([Event::Exited(rank(0), Exit::Signal(Signal::TERM)), Event::Alone]);
    assert_eq!(orders, [Order::Join(Reason::WorkerFailed { worker: rank(1), exit: BAD, left: 0 })]);
    assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 1 }]);
    let orders = scene.tell([Event::Exited(rank(0), BAD)]);
    assert_eq!(orders, [Order::Tell(News::Failure(rank(0))), send(1, Signal::TERM)]);
    let orders = scene.tell([Event::Exited(rank(1), OK), Event::Alone]);
    assert_eq!(orders, [end(Verdict::Failed, Parting::Close)]);
    assert_eq!(scene.0.restarts(), 1);
}

#[test]
fn coming_and_going_of_nodes_restarts_without_cost() {
    for (event, reason) in
        [(Event::NodesWaiting(1), Reason::NodesWaiting(1)), (Event::NodesLeft(2), Reason::NodesLeft(2))]
    {
        let mut scene = Scene::running(1, 0);
        assert_eq!(scene.tell([event]), [send(0, Signal::TERM)], "{event:?}");
        // That a worker fails on the way out is no failure.
        let orders = scene.tell([Event::Exited(rank(0), BAD), Event::Alone]);
        assert_eq!(orders, [Order::Join(reason)]);
        assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 0 }]);
    }
}

#[test]
fn all_nodes_count_a_restart_and_who_comes_later_counts_on() {
    let mut scene = Scene::running(1, 2);
    scene.tell([Event::PeerRestarts]);
    let orders = scene.tell([Event::Exited(rank(0), BAD), Event::Alone]);
    assert_eq!(orders, [Order::Join(Reason::PeerRestarts)]);
    assert_eq!(scene.tell([formed(1)]), [Order::Start { restarts: 1 }]);
    let mut late = Scene::new(1, 2);
    late.orders(0);
    assert_eq!(late.tell([formed(1)]), [Order::Start { restarts: 1 }]);
    late.tell([Event::Exited(rank(0), BAD), Event::Alone]);
    assert_eq!(late.tell([formed(2)]), [Order::Start { restarts: 2 }]);
    assert_eq!(late.tell([Event::Exited(rank(0), BAD)])[0], Order::Tell(News::Failure(rank(0))));
}

#[test]
fn nobody_starts_over_because_somebody_who_has_finished_closes_the_rendezvous() {
    let mut scene = Scene::running(1, 0);
    assert_eq!(scene.tell([Event::NodesLeft(0), Event::Closed { finished: 1 }]), []);
    assert!(scene.0.is_running());
}

#[test]
fn a_final_failure_elsewhere_ends_the_run_in_every_phase_that_has_workers() {
    let elsewhere = end(Verdict::FailedElsewhere, Parting::Close);
    for event in [Event::PeerFailed, Event::Closed { finished: 0 }] {
        let mut scene = Scene::running(1, 3);
        assert_eq!(scene.tell([event]), [send(0, Signal::TERM)]);
        assert_eq!(scene.tell([Event::Exited(rank(0), OK), Event::Alone]), [elsewhere]);
    }
    let mut finishing = Scene::running(1, 3);
    finishing.tell([Event::Exited(rank(0), OK), Event::Alone]);
    assert_eq!(finishing.tell([Event::PeerFailed]), [Order::StopFinishing, elsewhere]);
    let mut stopping = Scene::running(1, 3);
    stopping.tell([Event::PeerRestarts, Event::PeerFailed]);
    assert_eq!(stopping.tell([Event::Exited(rank(0), OK), Event::Alone]), [elsewhere]);
}

#[test]
fn a_node_that_has_finished_starts_over_with_one_that_has_not() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::Alone]);
    let orders = scene.tell([Event::PeerRestarts]);
    assert_eq!(orders, [Order::StopFinishing, Order::Join(Reason::PeerRestarts)]);
}

#[test]
fn a_node_that_has_finished_starts_over_without_one_that_is_gone_and_with_those_who_do() {
    for (event, reason) in
        [(Event::NodesLeft(1), Reason::NodesLeft(1)), (Event::RoundOver, Reason::RoundOver)]
    {
        let mut scene = Scene::running(1, 0);
        scene.tell([Event::Exited(rank(0), OK), Event::Alone]);
        // Who only wants to come in is the others' affair: they may be about to finish.
        assert_eq!(scene.tell([Event::NodesWaiting(1), Event::NodesLeft(0)]), []);
        assert_eq!(scene.tell([event]), [Order::StopFinishing, Order::Join(reason)]);
        assert_eq!(scene.tell([formed(0)]), [Order::Start { restarts: 0 }]);
    }
}

#[test]
fn who_loses_the_store_before_all_have_finished_has_not_succeeded() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::Alone]);
    let orders = scene.tell([Event::StoreLost]);
    assert_eq!(orders, [Order::StopFinishing, end(Verdict::Error, Parting::Nothing)]);
}

#[test]
fn a_rendezvous_closed_by_somebody_who_has_not_finished_is_a_failure_of_the_job() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Exited(rank(0), OK), Event::Alone]);
    assert_eq!(scene.tell([Event::Closed { finished: 2 }]), []);
    let orders = scene.tell([Event::Closed { finished: 1 }]);
    assert_eq!(orders, [Order::StopFinishing, end(Verdict::FailedElsewhere, Parting::Close)]);
}

#[test]
fn each_worker_has_its_own_grace_before_it_is_killed() {
    let mut scene = Scene::running(2, 0);
    assert_eq!(scene.tell_at(10, [Event::Signalled(Signal(2))]), [send(0, Signal(2)), send(1, Signal(2))]);
    assert_eq!(scene.tell_at(12, [Event::Exited(rank(0), BAD)]), []);
    assert_eq!(scene.0.timeout(), Some(at(13)));
    assert_eq!(scene.orders(13), [send(1, Signal::KILL)]);
    let orders = scene.tell_at(13, [Event::Exited(rank(1), Exit::Signal(Signal::KILL)), Event::Alone]);
    let verdict = Verdict::Signalled { signal: Signal(2), started: true };
    assert_eq!(orders, [end(verdict, Parting::Leave)]);
}

#[test]
fn a_second_signal_kills_at_once() {
    let mut scene = Scene::running(2, 0);
    scene.tell([Event::Signalled(Signal::TERM)]);
    let orders = scene.tell_at(1, [Event::Signalled(Signal(2))]);
    assert_eq!(orders, [send(0, Signal::KILL), send(1, Signal::KILL)]);
    scene.tell([Event::Exited(rank(0), BAD)]);
    let orders = scene.tell_at(1, [Event::Exited(rank(1), BAD)]);
    assert_eq!(orders, [Order::Send(Target::Strays, Signal::KILL)], "what they left behind, too");
}

#[test]
fn a_signal_during_a_restart_is_passed_on_and_ends_the_run() {
    let mut scene = Scene::running(2, 3);
    scene.tell([Event::Exited(rank(0), BAD)]);
    assert_eq!(scene.tell_at(5, [Event::Signalled(Signal(2))]), [send(1, Signal(2))]);
    assert_eq!(scene.0.timeout(), Some(at(5).after(GRACE)));
    assert_eq!(scene.tell_at(6, [Event::Signalled(Signal(2))]), [send(1, Signal::KILL)]);
    let verdict = Verdict::Signalled { signal: Signal(2), started: true };
    let orders = scene.tell([Event::Exited(rank(1), BAD), Event::Alone]);
    assert_eq!(orders, [end(verdict, Parting::Leave)]);
}

#[test]
fn a_signal_while_it_waits_for_others_makes_it_leave_and_a_second_one_end() {
    let verdict = Verdict::Signalled { signal: Signal::TERM, started: false };
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    assert_eq!(scene.tell([Event::Signalled(Signal::TERM)]), [Order::StopJoining]);
    let orders = scene.clone().tell([Event::NotFormed(Obstacle::Interrupted)]);
    assert_eq!(orders, [end(verdict, Parting::Nothing)]);
    assert_eq!(scene.clone().tell([formed(0)]), [end(verdict, Parting::Leave)], "it came too late");
    assert_eq!(scene.tell([Event::Signalled(Signal::TERM)]), [end(verdict, Parting::Nothing)]);
}

#[test]
fn what_workers_leave_behind_is_ended_before_they_are_started_again() {
    let mut scene = Scene::running(1, 1);
    let orders = scene.tell([Event::Exited(rank(0), BAD)]);
    let strays = |signal| Order::Send(Target::Strays, signal);
    assert_eq!(orders, [Order::Tell(News::Restart(rank(0))), strays(Signal::TERM)]);
    assert_eq!(scene.orders(29), []);
    assert_eq!(scene.orders(30), [strays(Signal::KILL)]);
    assert!(matches!(scene.tell([Event::Alone])[..], [Order::Join(_)]));
}

#[test]
fn that_nobody_was_there_before_the_start_does_not_count_after_it() {
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    assert_eq!(scene.tell([formed(0), Event::Alone]), [Order::Start { restarts: 0 }]);
    scene.tell([Event::Exited(rank(0), OK)]);
    let orders = scene.tell([Event::Finished { all: true }]);
    assert_eq!(orders, [Order::Send(Target::Strays, Signal::TERM)]);
}

#[test]
fn who_can_not_be_killed_has_no_successor() {
    let mut scene = Scene::running(1, 1);
    scene.tell([Event::PeerRestarts]);
    assert_eq!(scene.orders(30), [send(0, Signal::KILL)]);
    let later = at(30).after(Policy::KILL_PATIENCE);
    assert_eq!(scene.0.timeout(), Some(later));
    assert_eq!(scene.orders(40), [Order::Send(Target::Strays, Signal::TERM)]);
    assert_eq!(scene.orders(70), [Order::Send(Target::Strays, Signal::KILL)]);
    assert_eq!(scene.orders(80), [end(Verdict::Unhealthy, Parting::Close)]);
}

#[test]
fn a_worker_that_can_not_be_started_ends_the_run_without_a_restart() {
    let mut scene = Scene::running(3, 5);
    let orders = scene.tell([Event::NotStarted(rank(1)), Event::NotStarted(rank(2))]);
    assert_eq!(orders, [send(0, Signal::TERM)]);
    let orders = scene.tell([Event::Exited(rank(0), Exit::Signal(Signal::TERM)), Event::Alone]);
    assert_eq!(orders, [end(Verdict::Error, Parting::Close)]);
}

#[test]
fn a_spare_that_was_not_needed_has_not_failed() {
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    let orders = scene.tell([Event::NotFormed(Obstacle::Spare)]);
    assert_eq!(orders, [end(Verdict::Spare, Parting::Nothing)]);
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

fn with_peers(restarts: u32, lost_peers: bool) -> Event {
    Event::Formed { restarts, has_peers: true, lost_peers }
}

/// Runs one worker of one node with peers and no restarts, and lets it fail.
fn failing_beside_peers() -> Scene {
    let mut scene = Scene::new(1, 0);
    scene.orders(0);
    assert_eq!(scene.tell([with_peers(0, false)]), [Order::Start { restarts: 0 }]);
    let orders = scene.tell_at(60, [Event::Exited(rank(0), BAD), Event::Alone]);
    assert_eq!(orders, [Order::CheckPeers(rank(0))]);
    scene
}

#[test]
fn a_worker_that_fails_because_a_peer_was_lost_ends_nothing_even_without_restarts() {
    let mut scene = failing_beside_peers();
    let orders = scene.tell_at(76, [Event::NodesLeft(1)]);
    assert_eq!(orders, [Order::Join(Reason::NodesLeft(1))]);
    let mut scene = failing_beside_peers();
    assert_eq!(scene.tell_at(61, [Event::RoundOver]), [Order::Join(Reason::RoundOver)]);
}

#[test]
fn a_worker_that_fails_while_all_peers_live_ends_the_job() {
    let mut scene = failing_beside_peers();
    let orders = scene.tell_at(61, [Event::PeersAlive]);
    assert_eq!(orders, [Order::Tell(News::Failure(rank(0))), end(Verdict::Failed, Parting::Close)]);
}

#[test]
fn restarts_that_a_lost_peer_is_to_blame_for_are_not_counted() {
    let mut scene = Scene::new(1, 1);
    scene.orders(0);
    scene.tell([with_peers(0, false)]);
    for restart in 1..4 {
        scene.tell_at(60 * restart, [Event::Exited(rank(0), BAD), Event::Alone]);
        let restarts = restart as u32;
        let orders = scene.tell_at(60 * restart, [with_peers(restarts, true)]);
        assert_eq!(orders, [Order::Start { restarts }], "a node was lost each time");
    }
    scene.tell_at(300, [Event::Exited(rank(0), BAD), Event::Alone]);
    scene.tell_at(300, [with_peers(4, false)]);
    let orders = scene.tell_at(360, [Event::Exited(rank(0), BAD), Event::Alone]);
    assert_eq!(orders, [Order::CheckPeers(rank(0))], "this one counted");
}

#[test]
fn restarts_back_off_while_workers_end_soon_after_their_start() {
    let mut scene = Scene::running(1, 100);
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let mut orders = scene.tell_at(now, [Event::Exited(rank(0), BAD), Event::Alone]);
        orders.retain(|order| matches!(order, Order::Join(_)));
        let pause = scene.0.backoff(at(now)).unwrap_or_default();
        assert_eq!(orders.is_empty(), !pause.is_zero());
        pauses.push(pause.as_millis());
        now += 31;
        scene.orders(now);
        scene.tell_at(now, [formed(0)]);
    }
    let expected = [0, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
    assert_eq!(pauses, expected);
    scene.tell_at(now + 11, [Event::Exited(rank(0), BAD), Event::Alone]);
    assert_eq!(scene.0.backoff(at(now + 11)), None, "they ran for long enough");
}

/// The survivors of a lost node are to run again within 5 s, of which the last call takes 3 s.
#[test]
fn nodes_that_come_and_go_delay_a_restart_by_at_most_1_s_and_are_no_failures() {
    let mut scene = Scene::running(1, 100);
    let mut pauses = Vec::new();
    for now in (0..30).step_by(3) {
        scene.tell_at(now, [Event::NodesLeft(1), Event::Exited(rank(0), BAD), Event::Alone]);
        pauses.push(scene.0.backoff(at(now)).unwrap_or_default().as_millis());
        scene.orders(now + 2);
        scene.tell_at(now + 2, [formed(0)]);
    }
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
    let orders = scene.tell_at(30, [Event::Exited(rank(0), BAD), Event::Alone]);
    assert!(
        matches!(orders[..], [.., Order::Join(Reason::WorkerFailed { .. })]),
        "the first is immediate: {orders:?}"
    );
}

#[test]
fn a_node_that_was_dropped_starts_over_and_says_so() {
    let mut scene = Scene::running(1, 0);
    scene.tell([Event::Dropped]);
    let orders = scene.tell([Event::Exited(rank(0), BAD), Event::Alone]);
    assert_eq!(orders, [Order::Join(Reason::Dropped)]);
    assert!(Reason::Dropped.to_string().contains("dropped this one"));
}
