//! Tests the orders for nodes whose workers run in one round only, and for nodes without workers.

use std::time::Duration;

use super::*;
use crate::rendezvous::{LossCause, Lost, NodeDesc};
use crate::supervise::event::{Exit, Signal};

const GRACE: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> MonoTime {
    MonoTime::from_start(Duration::from_secs(seconds))
}

fn node(number: i64) -> NodeDesc {
    NodeDesc::new("host", number, 0)
}

/// Returns the supervisor of a node with this number of workers, in a round of three nodes.
fn running(workers: u32) -> Supervisor {
    let mut supervisor = Supervisor::new(Policy {
        workers,
        max_restarts: 0,
        shutdown_grace: GRACE,
        max_restart_backoff: GRACE,
        is_elastic: true,
        runs_once: true,
    });
    let nodes: Vec<_> = (0..3).map(node).collect();
    supervisor.handle_event(Event::Joined {
        restarts: 0,
        world_size: nodes.len() as u64,
        lost: 0,
        nodes,
        are_all_ours: true,
    });
    let orders = orders(&mut supervisor, 0);
    assert_eq!(orders, [Order::Join(Reason::FirstStart), Order::Start { restarts: 0 }]);
    supervisor
}

fn orders(supervisor: &mut Supervisor, seconds: u64) -> Vec<Order> {
    std::iter::from_fn(|| supervisor.poll_order(at(seconds))).collect()
}

fn handle(supervisor: &mut Supervisor, events: &[Event]) -> Vec<Order> {
    events.iter().for_each(|event| supervisor.handle_event(event.clone()));
    orders(supervisor, 0)
}

fn observe(supervisor: &mut Supervisor, seconds: u64, seen: &Membership, reports: Reports) -> Vec<Order> {
    supervisor.handle_membership(seen, Some(&reports), at(seconds));
    orders(supervisor, seconds)
}

/// Returns a membership in which all three nodes are in the round, and a fourth node waits.
fn with_new_node() -> Membership {
    let members = vec![node(0), node(1), node(2)];
    Membership { round: Some(0), members, waiting: vec![node(3)], ..Membership::default() }
}

fn with_lost_node() -> Membership {
    let lost = Lost { nodes: vec![node(2)], cause: LossCause::Left };
    Membership { members: vec![node(0), node(1)], waiting: vec![], lost: Some(lost), ..with_new_node() }
}

fn end(verdict: Verdict, on_end: OnEnd) -> Order {
    Order::End { verdict, on_end }
}

const WORKER: Target = Target::Worker(LocalRank(0));

#[test]
fn a_worker_gets_every_signal_and_its_failure_does_not_close_the_rendezvous() {
    let mut node = running(1);
    for signal in [Signal::TERM, Signal(1), Signal::TERM] {
        assert_eq!(handle(&mut node, &[Event::Signaled(signal)]), [Order::Send(WORKER, signal)]);
    }
    let killed = Event::Exited(LocalRank(0), Exit::Signal(Signal::TERM));
    let expected = [Order::PublishNodeFailed, end(Verdict::Failed, OnEnd::Leave)];
    assert_eq!(handle(&mut node, &[killed, Event::AllProcessesExited]), expected);
}

#[test]
fn a_worker_continues_despite_new_nodes_lost_nodes_failed_peers_and_a_lost_store() {
    let mut node = running(1);
    assert_eq!(observe(&mut node, 1, &with_new_node(), Reports::default()), [Order::ReportWaiting(1)]);
    assert_eq!(observe(&mut node, 2, &with_new_node(), Reports::default()), []);
    assert_eq!(observe(&mut node, 3, &with_lost_node(), Reports::default()), [Order::ReportLost]);
    assert_eq!(observe(&mut node, 4, &with_lost_node(), Reports::default()), []);
    assert_eq!(handle(&mut node, &[Event::PeerRestarts, Event::PeerFailed, Event::StoreLost]), []);
    let closed = Membership { is_closed: true, ..with_lost_node() };
    assert_eq!(observe(&mut node, 5, &closed, Reports::default()), []);
    assert!(node.is_running());
}

#[test]
fn a_node_leaves_a_round_that_is_over_while_its_worker_stops() {
    let mut node = running(1);
    let over = Membership { is_round_over: true, ..with_new_node() };
    let expected = [Order::PublishNodeFailed, Order::Leave, Order::Send(WORKER, Signal::TERM)];
    assert_eq!(observe(&mut node, 0, &over, Reports::default()), expected);
    let ended = [Event::Exited(LocalRank(0), Exit::Code(0)), Event::AllProcessesExited];
    assert_eq!(handle(&mut node, &ended), [end(Verdict::RoundOver, OnEnd::Nothing)]);
}

#[test]
fn a_finished_node_waits_for_all_nodes_that_are_not_lost() {
    let mut node = running(1);
    let finished = [Event::Exited(LocalRank(0), Exit::Code(0)), Event::AllProcessesExited];
    assert_eq!(handle(&mut node, &finished), [Order::Finish]);
    let one_finished = Reports { finished: 1, ours_finished: 1, lost_finished: 0 };
    assert_eq!(observe(&mut node, 1, &with_lost_node(), one_finished), [Order::ReportLost]);
    assert_eq!(
        observe(&mut node, 2, &with_lost_node(), one_finished),
        [],
        "the workers of the other node run"
    );
    let two_finished = Reports { finished: 2, ours_finished: 2, ..one_finished };
    let expected = [end(Verdict::Succeeded, OnEnd::Leave)];
    assert_eq!(observe(&mut node, 3, &with_lost_node(), two_finished), expected);
}

#[test]
fn a_finished_node_ends_when_the_coordinator_has_closed_the_job() {
    for has_finished in [false, true] {
        let mut supervisor = running(1);
        let done = [Event::Exited(LocalRank(0), Exit::Code(0)), Event::AllProcessesExited];
        assert_eq!(handle(&mut supervisor, &done), [Order::Finish]);
        let closed =
            Membership { is_closed: true, has_finished, has_failed: !has_finished, ..Membership::default() };
        supervisor.handle_membership(&closed, None, at(1));
        assert_eq!(orders(&mut supervisor, 1), [end(Verdict::Succeeded, OnEnd::Nothing)]);
    }
}

#[test]
fn a_node_whose_lease_ends_before_its_command_starts_leaves_the_round() {
    let mut supervisor = running(1);
    let orders = handle(&mut supervisor, &[Event::Fenced(LocalRank(0)), Event::AllProcessesExited]);
    assert_eq!(orders, [Order::PublishNodeFailed, end(Verdict::RoundOver, OnEnd::Leave)]);
}

#[test]
fn a_node_without_workers_rejoins_unless_another_node_would_lose_its_workers() {
    let mut idle = running(0);
    assert_eq!(
        observe(&mut idle, 1, &with_new_node(), Reports::default()),
        [],
        "other nodes may be about to report their workers"
    );
    idle.handle_event(Event::WorkingNodes(vec![node(2)]));
    assert_eq!(observe(&mut idle, 4, &with_new_node(), Reports::default()), [Order::ReportWaiting(1)]);
    let lost = Membership { waiting: vec![node(3)], ..with_lost_node() };
    let expected = [Order::ReportLost, Order::Join(Reason::NodesWaiting(1))];
    assert_eq!(observe(&mut idle, 5, &lost, Reports::default()), expected);

    let mut idle = running(0);
    let expected = [Order::Join(Reason::NodesWaiting(1))];
    assert_eq!(
        observe(&mut idle, 3, &with_new_node(), Reports::default()),
        expected,
        "no node has reported workers"
    );
    let mut idle = running(0);
    let dropped = Membership { is_dropped: true, ..with_new_node() };
    assert_eq!(observe(&mut idle, 0, &dropped, Reports::default()), [Order::Join(Reason::Dropped)]);
}

#[test]
fn a_node_without_workers_stays_until_a_signal_or_until_the_job_ends() {
    let signaled = Verdict::Signaled(Signal::TERM);
    assert_eq!(handle(&mut running(0), &[Event::Signaled(Signal::TERM)]), [end(signaled, OnEnd::Leave)]);
    let closed = Membership { is_closed: true, ..with_new_node() };
    let expected = [end(Verdict::Spare, OnEnd::Nothing)];
    assert_eq!(observe(&mut running(0), 0, &closed, Reports::default()), expected);
    assert_eq!(handle(&mut running(0), &[Event::StoreLost]), [end(Verdict::Error, OnEnd::Nothing)]);
}
