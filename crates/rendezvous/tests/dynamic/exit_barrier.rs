//! Tests of the exit barrier, at which nodes wait for each other when their workers have ended.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    ExitBarrier, Membership, RendezvousError, RendezvousHandler, RendezvousInfo, RoundEnd,
};
use rallypoint_store::PrefixStore;

use crate::nodes::{Job, join_all};

const BARRIER_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn all_nodes_wait_for_the_last_one_which_closes_the_rendezvous() {
    let job = Job::new(3, 3);
    let nodes = job.nodes(3);
    let rounds = join_all(&nodes);
    let ends: Vec<_> = std::thread::scope(|scope| {
        let finishing: Vec<_> = nodes
            .iter()
            .zip(&rounds)
            .map(|(node, round)| {
                scope.spawn(|| ExitBarrier::of(round).finish(&**node, BARRIER_TIMEOUT, true, || true))
            })
            .collect();
        finishing.into_iter().map(|node| node.join().unwrap()).collect()
    });
    assert_eq!(ends, [RoundEnd::Finished; 3]);
    assert_eq!(ExitBarrier::of(&rounds[0]).count_ended().unwrap(), 3);
    assert!(job.node().membership().unwrap().is_closed);
}

#[test]
fn no_node_waits_for_a_failed_node_and_the_rendezvous_stays_open() {
    for fails_last in [false, true] {
        let job = Job::new(2, 2);
        let nodes = job.nodes(2);
        let rounds = join_all(&nodes);
        let (failing, finishing) = (ExitBarrier::of(&rounds[0]), ExitBarrier::of(&rounds[1]));
        if !fails_last {
            failing.fail().unwrap();
        }
        // The barrier calls `is_wanted` only while the node waits. If the other node has already failed, the node does
        // not wait.
        let mut is_called = false;
        let is_wanted = || {
            assert!(fails_last);
            if !std::mem::replace(&mut is_called, true) {
                failing.fail().unwrap();
            }
            true
        };
        assert_eq!(finishing.finish(&*nodes[1], BARRIER_TIMEOUT, false, is_wanted), RoundEnd::Failed);
        assert!(!nodes[1].membership().unwrap().is_closed);
    }
}

#[test]
fn a_node_that_gives_up_can_retract_that_it_has_ended() {
    let job = Job::new(2, 2);
    let nodes = job.nodes(2);
    let rounds = join_all(&nodes);
    let barrier = ExitBarrier::of(&rounds[0]);
    assert_eq!(barrier.finish(&*nodes[0], BARRIER_TIMEOUT, true, || false), RoundEnd::Incomplete);
    let short_timeout = Duration::from_millis(10);
    assert_eq!(barrier.count_ended().unwrap(), 1);
    barrier.retract().unwrap();
    assert_eq!(barrier.count_ended().unwrap(), 0);
    // Only one of the two nodes has ended, so no node is the last one.
    assert_eq!(barrier.finish(&*nodes[0], short_timeout, true, || true), RoundEnd::Incomplete);
    assert!(!nodes[0].membership().unwrap().is_closed);
}

#[test]
fn a_node_that_loses_the_store_reports_that() {
    let mut job = Job::new(2, 2);
    job.settings.keep_alive_interval = Duration::from_secs(60);
    let nodes = job.nodes(2);
    let rounds = join_all(&nodes);
    let server = std::cell::RefCell::new(Some(job.server));
    let stop_server = || {
        drop(server.take());
        true
    };
    let barrier = ExitBarrier::of(&rounds[0]).with_timeout(Duration::from_secs(2));
    assert_eq!(barrier.finish(&*nodes[0], BARRIER_TIMEOUT, true, stop_server), RoundEnd::StoreLost);
}

/// A handler that stops the server of its job when the rendezvous is closed, as if the host of the store had left.
struct HostThatLeaves(Mutex<Option<Job>>);

impl RendezvousHandler for HostThatLeaves {
    fn backend(&self) -> &str {
        "test"
    }
    fn run_id(&self) -> &str {
        "job"
    }
    fn next_rendezvous(&self) -> Result<RendezvousInfo, RendezvousError> {
        unreachable!("the node has finished")
    }
    fn set_closed(&self) -> Result<(), RendezvousError> {
        drop(self.0.lock().unwrap().take());
        Ok(())
    }
    fn membership(&self) -> Result<Membership, RendezvousError> {
        Ok(Membership::default())
    }
}

/// A torch node that hosts the store exits as soon as it knows that all nodes have finished.
#[test]
fn the_last_node_ends_in_time_although_the_host_of_the_store_has_left() {
    let job = Job::new(1, 1);
    let mut round = join_all(&job.nodes(1)).remove(0);
    let slow = round.store.underlying_store().with_timeout(Some(5 * BARRIER_TIMEOUT));
    round.store = Arc::new(PrefixStore::new(round.store.prefix(), Arc::from(slow)));
    let started = Instant::now();
    let end = ExitBarrier::of(&round).finish(
        &HostThatLeaves(Mutex::new(Some(job))),
        BARRIER_TIMEOUT,
        false,
        || true,
    );
    assert_eq!(end, RoundEnd::Finished);
    assert!(started.elapsed() < BARRIER_TIMEOUT, "{:?}", started.elapsed());
}
