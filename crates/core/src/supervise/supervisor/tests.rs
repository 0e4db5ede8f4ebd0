//! Tests single events and the orders that follow. `tests/supervise.rs` tests random sequences of events.

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

fn publish_failure(worker: u32, is_final: bool) -> Order {
    Order::PublishFailure { worker: rank(worker), is_final }
}

fn joined(restarts: u32) -> Event {
    Event::Joined { restarts, nodes: nodes(1), world_size: 1, lost: 0, are_all_ours: true }
}

struct Fixture(Supervisor);

impl Fixture {
    /// Creates a supervisor that has returned no order yet.
    fn new(workers: u32, max_restarts: u32) -> Fixture {
        Fixture(Supervisor::new(Policy {
            workers,
            max_restarts,
            shutdown_grace: GRACE,
            max_restart_backoff: Duration::from_secs(30),
            is_elastic: true,
            runs_once: false,
        }))
    }

    fn running(workers: u32, max_restarts: u32) -> Fixture {
        let mut fixture = Fixture::new(workers, max_restarts);
        assert_eq!(fixture.orders(0), [Order::Join(Reason::FirstStart)]);
        assert_eq!(fixture.handle([joined(0)]), [Order::Start { restarts: 0 }]);
        fixture
    }

    fn handle(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Order> {
        self.handle_at(0, events)
    }

    fn handle_at(&mut self, seconds: u64, events: impl IntoIterator<Item = Event>) -> Vec<Order> {
        events.into_iter().for_each(|event| self.0.handle_event(event));
        self.orders(seconds)
    }

    /// Makes the supervisor rejoin because of a change on other nodes.
    fn reform(&mut self, seconds: u64, reason: Reason) -> Vec<Order> {
        self.0.reform(reason);
        self.orders(seconds)
    }

    /// Reports that the rendezvous is closed, and that `finished` nodes have finished.
    fn close(&mut self, finished: u64) -> Vec<Order> {
        self.0.handle_closed(Some(&Reports { finished, ..Reports::default() }));
        self.orders(0)
    }

    fn orders(&mut self, seconds: u64) -> Vec<Order> {
        std::iter::from_fn(|| self.0.poll_order(at(seconds))).collect()
    }
}

#[test]
fn a_successful_job_waits_for_all_nodes_and_then_closes_the_rendezvous() {
    let mut fixture = Fixture::running(2, 0);
    assert_eq!(fixture.handle([Event::Exited(rank(1), OK)]), []);
    assert_eq!(fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [Order::Finish]);
    let orders = fixture.handle([Event::Finished { all: true }]);
    assert_eq!(orders, [end(Verdict::Succeeded, OnEnd::Close)]);
    assert!(fixture.0.has_ended());
}

#[test]
fn a_finished_node_does_not_close_the_rendezvous_if_other_nodes_have_not_finished() {
    let mut fixture = Fixture::running(1, 0);
    fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    let orders = fixture.handle([Event::Finished { all: false }]);
    assert_eq!(orders, [end(Verdict::Succeeded, OnEnd::Leave)]);
}

#[test]
fn a_worker_failure_is_published_immediately_and_uses_one_restart() {
    let mut fixture = Fixture::running(2, 1);
    let orders = fixture.handle([Event::Exited(rank(1), BAD)]);
    assert_eq!(orders, [publish_failure(1, false), send(0, Signal::TERM)]);
    let orders =
        fixture.handle([Event::Exited(rank(0), Exit::Signal(Signal::TERM)), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::WorkerFailed { worker: rank(1), exit: BAD, left: 0 })]);
    assert_eq!(fixture.handle([joined(0)]), [Order::Start { restarts: 1 }]);
    let orders = fixture.handle([Event::Exited(rank(0), BAD)]);
    assert_eq!(orders, [publish_failure(0, true), send(1, Signal::TERM)]);
    let orders = fixture.handle([Event::Exited(rank(1), OK), Event::AllProcessesExited]);
    assert_eq!(orders, [end(Verdict::Failed, OnEnd::Close)]);
    assert_eq!(fixture.0.restarts(), 1);
}

#[test]
fn a_change_of_membership_restarts_the_workers_and_uses_no_restart() {
    for reason in [Reason::NodesWaiting(1), Reason::NodesLeft(2), Reason::RoundOver] {
        let mut fixture = Fixture::running(1, 0);
        assert_eq!(fixture.reform(0, reason), [send(0, Signal::TERM)], "{reason:?}");
        // A worker that fails while it is being stopped does not use the restart budget.
        let orders = fixture.handle([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
        assert_eq!(orders, [Order::Join(reason)]);
        assert_eq!(fixture.handle([joined(0)]), [Order::Start { restarts: 0 }]);
    }
}

#[test]
fn all_nodes_count_a_restart_and_a_node_that_joins_later_continues_the_count() {
    let mut fixture = Fixture::running(1, 2);
    fixture.handle([Event::PeerRestarts]);
    let orders = fixture.handle([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::PeerRestarts)]);
    assert_eq!(fixture.handle([joined(1)]), [Order::Start { restarts: 1 }]);
    let mut late = Fixture::new(1, 2);
    late.orders(0);
    assert_eq!(late.handle([joined(1)]), [Order::Start { restarts: 1 }]);
    late.handle([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(late.handle([joined(2)]), [Order::Start { restarts: 2 }]);
    assert_eq!(late.handle([Event::Exited(rank(0), BAD)])[0], publish_failure(0, true));
}

#[test]
fn a_running_node_continues_when_a_finished_node_closes_the_rendezvous() {
    let mut fixture = Fixture::running(1, 0);
    assert_eq!(fixture.close(1), []);
    assert!(fixture.0.is_running());
}

#[test]
fn a_final_failure_of_a_peer_ends_the_run_of_a_running_stopping_or_finishing_node() {
    let elsewhere = end(Verdict::FailedElsewhere, OnEnd::Close);
    let by_event = |fixture: &mut Fixture| fixture.handle([Event::PeerFailed]);
    let by_close = |fixture: &mut Fixture| fixture.close(0);
    for report_failure in [by_event as fn(&mut Fixture) -> Vec<Order>, by_close] {
        let mut fixture = Fixture::running(1, 3);
        assert_eq!(report_failure(&mut fixture), [send(0, Signal::TERM)]);
        assert_eq!(fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [elsewhere]);
        let mut stopping = Fixture::running(1, 3);
        stopping.handle([Event::PeerRestarts]);
        assert_eq!(report_failure(&mut stopping), []);
        assert_eq!(stopping.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [elsewhere]);
    }
    let mut finishing = Fixture::running(1, 3);
    finishing.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    assert_eq!(finishing.handle([Event::PeerFailed]), [elsewhere]);
}

#[test]
fn a_finished_node_rejoins_when_a_peer_restarts() {
    let mut fixture = Fixture::running(1, 0);
    fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    let orders = fixture.handle([Event::PeerRestarts]);
    assert_eq!(orders, [Order::Join(Reason::PeerRestarts)]);
}

#[test]
fn a_finished_node_rejoins_when_a_peer_is_lost_or_the_round_is_over() {
    for reason in [Reason::NodesLeft(1), Reason::RoundOver] {
        let mut fixture = Fixture::running(1, 0);
        fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
        // A waiting node is no reason to rejoin, because the other nodes may be about to finish.
        assert_eq!(fixture.reform(0, Reason::NodesWaiting(1)), []);
        assert_eq!(fixture.reform(0, reason), [Order::Join(reason)]);
        assert_eq!(fixture.handle([joined(0)]), [Order::Start { restarts: 0 }]);
    }
}

#[test]
fn a_node_that_loses_the_store_before_all_nodes_finish_has_not_succeeded() {
    let mut fixture = Fixture::running(1, 0);
    fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    let orders = fixture.handle([Event::StoreLost]);
    assert_eq!(orders, [end(Verdict::Error, OnEnd::Nothing)]);
}

#[test]
fn a_rendezvous_closed_by_an_unfinished_node_is_a_failure_of_the_job() {
    let mut fixture = Fixture::running(1, 0);
    fixture.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]);
    assert_eq!(fixture.close(2), []);
    assert_eq!(fixture.close(1), [end(Verdict::FailedElsewhere, OnEnd::Close)]);
}

#[test]
fn each_worker_has_its_own_grace_before_it_is_killed() {
    let mut fixture = Fixture::running(2, 0);
    assert_eq!(fixture.handle_at(10, [Event::Signaled(Signal(2))]), [send(0, Signal(2)), send(1, Signal(2))]);
    assert_eq!(fixture.handle_at(12, [Event::Exited(rank(0), BAD)]), []);
    assert_eq!(fixture.0.timeout(), Some(at(13)));
    assert_eq!(fixture.orders(13), [send(1, Signal::KILL)]);
    let orders = fixture
        .handle_at(13, [Event::Exited(rank(1), Exit::Signal(Signal::KILL)), Event::AllProcessesExited]);
    let verdict = Verdict::Signaled(Signal(2));
    assert_eq!(orders, [end(verdict, OnEnd::Leave)]);
}

#[test]
fn a_second_signal_kills_immediately() {
    let mut fixture = Fixture::running(2, 0);
    fixture.handle([Event::Signaled(Signal::TERM)]);
    let orders = fixture.handle_at(1, [Event::Signaled(Signal(2))]);
    assert_eq!(orders, [send(0, Signal::KILL), send(1, Signal::KILL)]);
    fixture.handle([Event::Exited(rank(0), BAD)]);
    let orders = fixture.handle_at(1, [Event::Exited(rank(1), BAD)]);
    assert_eq!(orders, [Order::Send(Target::Orphans, Signal::KILL)], "orphans are killed, too");
}

#[test]
fn a_signal_during_a_restart_is_passed_to_the_workers_and_ends_the_run() {
    let mut fixture = Fixture::running(2, 3);
    fixture.handle([Event::Exited(rank(0), BAD)]);
    assert_eq!(fixture.handle_at(5, [Event::Signaled(Signal(2))]), [send(1, Signal(2))]);
    assert_eq!(fixture.0.timeout(), Some(at(5).after(GRACE)));
    assert_eq!(fixture.handle_at(6, [Event::Signaled(Signal(2))]), [send(1, Signal::KILL)]);
    let verdict = Verdict::Signaled(Signal(2));
    let orders = fixture.handle([Event::Exited(rank(1), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [end(verdict, OnEnd::Leave)]);
}

#[test]
fn a_signal_makes_a_joining_node_leave_and_a_second_signal_ends_it() {
    let verdict = Verdict::Signaled(Signal::TERM);
    let mut fixture = Fixture::new(1, 0);
    fixture.orders(0);
    assert_eq!(fixture.handle([Event::Signaled(Signal::TERM)]), [Order::StopJoining]);
    let orders = fixture.clone().handle([Event::JoinFailed { is_spare: false }]);
    assert_eq!(orders, [end(verdict, OnEnd::Nothing)]);
    assert_eq!(fixture.clone().handle([joined(0)]), [end(verdict, OnEnd::Leave)], "joined after the signal");
    assert_eq!(fixture.handle([Event::Signaled(Signal::TERM)]), [end(verdict, OnEnd::Nothing)]);
}

#[test]
fn orphans_are_stopped_before_the_workers_are_restarted() {
    let mut fixture = Fixture::running(1, 1);
    let orders = fixture.handle([Event::Exited(rank(0), BAD)]);
    let orphans = |signal| Order::Send(Target::Orphans, signal);
    assert_eq!(orders, [publish_failure(0, false), orphans(Signal::TERM)]);
    assert_eq!(fixture.orders(2), []);
    assert_eq!(fixture.orders(3), [orphans(Signal::KILL)]);
    assert!(matches!(fixture.handle([Event::AllProcessesExited])[..], [Order::Join(_)]));
}

#[test]
fn an_exit_report_from_before_the_start_does_not_count_after_it() {
    let mut fixture = Fixture::new(1, 0);
    fixture.orders(0);
    assert_eq!(fixture.handle([joined(0), Event::AllProcessesExited]), [Order::Start { restarts: 0 }]);
    fixture.handle([Event::Exited(rank(0), OK)]);
    let orders = fixture.handle([Event::Finished { all: true }]);
    assert_eq!(orders, [Order::Send(Target::Orphans, Signal::TERM)]);
}

#[test]
fn a_worker_that_cannot_be_killed_is_not_restarted() {
    let mut fixture = Fixture::running(1, 1);
    fixture.handle([Event::PeerRestarts]);
    assert_eq!(fixture.orders(3), [send(0, Signal::KILL)]);
    let later = at(3).after(Policy::KILL_GRACE);
    assert_eq!(fixture.0.timeout(), Some(later));
    assert_eq!(fixture.orders(13), [Order::Send(Target::Orphans, Signal::TERM)]);
    assert_eq!(fixture.orders(16), [Order::Send(Target::Orphans, Signal::KILL)]);
    assert_eq!(fixture.orders(26), [end(Verdict::Unhealthy, OnEnd::Close)]);
}

#[test]
fn a_worker_that_cannot_be_started_ends_the_run_without_a_restart() {
    let mut fixture = Fixture::running(3, 5);
    let orders = fixture.handle([Event::NotStarted(rank(1)), Event::NotStarted(rank(2))]);
    assert_eq!(orders, [send(0, Signal::TERM)]);
    let orders =
        fixture.handle([Event::Exited(rank(0), Exit::Signal(Signal::TERM)), Event::AllProcessesExited]);
    assert_eq!(orders, [end(Verdict::Error, OnEnd::Close)]);
}

#[test]
fn the_workers_of_a_fenced_node_are_killed_without_a_grace_and_the_node_rejoins() {
    let mut fixture = Fixture::running(2, 0);
    let fenced = Membership { is_round_over: true, end: Some(EndCause::Fenced), ..Membership::default() };
    fixture.0.handle_membership(&fenced, None, at(0));
    assert_eq!(fixture.orders(0), [send(0, Signal::KILL), send(1, Signal::KILL)]);
    let killed = |worker| Event::Exited(rank(worker), Exit::Signal(Signal::KILL));
    let orders = fixture.handle([killed(0), killed(1)]);
    assert_eq!(orders, [Order::Send(Target::Orphans, Signal::KILL)]);
    let orders = fixture.handle([Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::RoundEnded(EndCause::Fenced))]);
}

#[test]
fn a_worker_that_the_end_of_the_lease_keeps_from_starting_does_not_end_the_job() {
    let mut fixture = Fixture::running(2, 0);
    assert_eq!(fixture.handle([Event::Fenced(rank(1))]), [send(0, Signal::KILL)]);
    let killed = Event::Exited(rank(0), Exit::Signal(Signal::KILL));
    let orders = fixture.handle([killed, Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::RoundEnded(EndCause::Fenced))]);
}

#[test]
fn a_job_that_a_coordinator_has_closed_ends_even_if_the_store_of_the_round_is_lost() {
    let closed = Membership { is_closed: true, has_failed: true, ..Membership::default() };
    let mut running = Fixture::running(1, 0);
    running.0.handle_membership(&closed, None, at(0));
    assert_eq!(running.orders(0), [send(0, Signal::TERM)]);
    let orders = running.handle([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [end(Verdict::FailedElsewhere, OnEnd::Close)]);

    let mut finishing = Fixture::running(1, 0);
    assert_eq!(finishing.handle([Event::Exited(rank(0), OK), Event::AllProcessesExited]), [Order::Finish]);
    finishing.0.handle_membership(&closed, None, at(0));
    assert_eq!(finishing.orders(0), [end(Verdict::FailedElsewhere, OnEnd::Close)]);
}

#[test]
fn a_spare_that_was_not_needed_has_not_failed() {
    let mut fixture = Fixture::new(1, 0);
    fixture.orders(0);
    let orders = fixture.handle([Event::JoinFailed { is_spare: true }]);
    assert_eq!(orders, [end(Verdict::Spare, OnEnd::Nothing)]);
}

#[test]
fn each_reason_names_what_happened() {
    for (reason, text) in [
        (
            Reason::WorkerFailed { worker: rank(3), exit: Exit::Signal(Signal(9)), left: 2 },
            "worker 3 of this node failed (signal 9); restarts left: 2",
        ),
        (Reason::NodesWaiting(1), "1 node waits to join"),
        (Reason::NodesLeft(2), "2 nodes left or died; a lost node does not count toward --max-restarts"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}

impl Clone for Fixture {
    fn clone(&self) -> Fixture {
        Fixture(self.0.clone())
    }
}

fn with_peers(restarts: u32, nodes: Vec<NodeDesc>) -> Event {
    Event::Joined { restarts, world_size: nodes.len() as u64, lost: 0, nodes, are_all_ours: true }
}

/// Returns the supervisor of a node with one worker and one peer, after the worker has failed and no restart is left.
fn failing_with_peers() -> Fixture {
    let mut fixture = Fixture::new(1, 0);
    fixture.orders(0);
    assert_eq!(fixture.handle([with_peers(0, nodes(2))]), [Order::Start { restarts: 0 }]);
    let orders = fixture.handle_at(60, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::CheckPeers(rank(0))]);
    fixture
}

#[test]
fn a_worker_failure_caused_by_a_lost_peer_does_not_end_the_job_even_without_restarts() {
    let mut fixture = failing_with_peers();
    let orders = fixture.reform(76, Reason::NodesLeft(1));
    assert_eq!(orders, [Order::Join(Reason::NodesLeft(1))]);
    let mut fixture = failing_with_peers();
    assert_eq!(fixture.reform(61, Reason::RoundOver), [Order::Join(Reason::RoundOver)]);
}

#[test]
fn a_worker_failure_ends_the_job_if_all_peers_are_alive() {
    let mut fixture = failing_with_peers();
    let orders = fixture.handle_at(61, [Event::PeersAlive]);
    assert_eq!(orders, [publish_failure(0, true), end(Verdict::Failed, OnEnd::Close)]);
}

#[test]
fn restarts_caused_by_a_lost_peer_do_not_use_the_restart_budget() {
    let mut fixture = Fixture::new(1, 1);
    fixture.orders(0);
    fixture.handle([with_peers(0, nodes(6))]);
    for restart in 1..4 {
        fixture.handle_at(60 * restart, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
        let restarts = restart as u32;
        let orders = fixture.handle_at(60 * restart, [with_peers(restarts, nodes(6 - i64::from(restarts)))]);
        assert_eq!(orders, [Order::Start { restarts }], "a node was lost each time");
    }
    fixture.handle_at(300, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    fixture.handle_at(300, [with_peers(4, nodes(3))]);
    let orders = fixture.handle_at(360, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::CheckPeers(rank(0))], "the last restart used the budget");
}

/// Returns the delay of the next join in milliseconds.
fn pause(orders: &[Order]) -> u128 {
    match orders.last() {
        Some(Order::ReportRestartDelay(pause)) => pause.as_millis(),
        Some(Order::Join(_)) => 0,
        _ => panic!("{orders:?}"),
    }
}

#[test]
fn restarts_back_off_while_runs_are_shorter_than_10_s() {
    let mut fixture = Fixture::running(1, 100);
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..12 {
        pauses.push(pause(&fixture.handle_at(now, [Event::Exited(rank(0), BAD), Event::AllProcessesExited])));
        now += 31;
        fixture.orders(now);
        fixture.handle_at(now, [joined(0)]);
    }
    let expected = [0, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000];
    assert_eq!(pauses, expected);
    let orders = fixture.handle_at(now + 11, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(pause(&orders), 0, "the workers ran for more than 10 s");
}

/// After a node was lost, the workers of the surviving nodes must run again within 5 s. The last call of the new round
/// takes 3 of these 5 s.
#[test]
fn changes_of_membership_delay_a_restart_by_at_most_1_s_and_are_no_failures() {
    let mut fixture = Fixture::running(1, 100);
    let mut pauses = Vec::new();
    for now in (0..30).step_by(3) {
        fixture.reform(now, Reason::NodesLeft(1));
        pauses.push(pause(&fixture.handle_at(now, [Event::Exited(rank(0), BAD), Event::AllProcessesExited])));
        fixture.orders(now + 2);
        fixture.handle_at(now + 2, [joined(0)]);
    }
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]);
    let orders = fixture.handle_at(30, [Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert!(
        matches!(orders[..], [.., Order::Join(Reason::WorkerFailed { .. })]),
        "the first restart after a failure is immediate: {orders:?}"
    );
}

#[test]
fn a_dropped_node_rejoins_and_reports_the_reason() {
    let mut fixture = Fixture::running(1, 0);
    fixture.reform(0, Reason::Dropped);
    let orders = fixture.handle([Event::Exited(rank(0), BAD), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::Join(Reason::Dropped)]);
    assert_eq!(Reason::Dropped.to_string(), "the other nodes continue without this one");
}

#[test]
fn torch_nodes_get_5_s_to_notice_that_their_workers_have_failed() {
    let mixed = |fixture: &mut Fixture| {
        fixture.orders(0);
        fixture.handle([Event::Joined {
            restarts: 0,
            nodes: nodes(2),
            world_size: 2,
            lost: 0,
            are_all_ours: false,
        }]);
        fixture.handle_at(60, [Event::Exited(rank(0), BAD), Event::AllProcessesExited])
    };
    let mut fixture = Fixture::new(1, 1);
    assert_eq!(mixed(&mut fixture), [publish_failure(0, false)]);
    assert_eq!(fixture.0.timeout(), Some(at(65)));
    assert!(matches!(fixture.orders(65)[..], [Order::Join(_)]), "5 s have passed");
    let mut fixture = Fixture::new(1, 1);
    mixed(&mut fixture);
    let seen = Membership { waiting: nodes(1), ..Membership::default() };
    fixture.0.handle_membership(&seen, None, at(61));
    assert!(matches!(fixture.orders(61)[..], [Order::Join(_)]), "a torch node waits, so it has noticed");
}
