//! Tests with outages of the store, after which the store is empty.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{DynamicRendezvousHandler, ExitBarrier, RendezvousHandler, RoundEnd};
use rallypoint_store::{Endpoint, OnReset, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rallypoint_testkit::eventually;

use crate::faults::job_with_short_timeouts;
use crate::nodes::{Job, assert_agree, join};

pub(crate) const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a node whose client continues after its store was restarted empty, as the stores of [`create_store`] do.
///
/// [`create_store`]: rallypoint_rendezvous::create_store
fn node(job: &Job) -> Arc<DynamicRendezvousHandler> {
    let endpoint = Endpoint::new("127.0.0.1", job.server.port());
    let timeout = Duration::from_secs(2);
    let options = TcpStoreOptions::new(endpoint).timeout(timeout).on_reset(OnReset::Continue);
    job.node_over(&(Arc::new(TcpStore::open(options).unwrap()) as Arc<dyn Store>))
}

/// Stops the server of a job and starts an empty one at the same port. The server at another port in between only
/// replaces the old one, which frees the port.
fn restart(job: &mut Job) {
    let port = job.server.port();
    job.server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    job.server = TcpStoreServer::bind("127.0.0.1", port).unwrap();
}

/// Torch's agents exit when their store is restarted.
#[test]
fn a_round_survives_a_store_that_restarts_empty() {
    let mut job = job_with_short_timeouts(2, 2);
    let nodes = [node(&job), node(&job)];
    let first = join(&nodes[0]);
    let rounds = [nodes[1].next_rendezvous().unwrap(), first.join().unwrap().unwrap()];
    assert_agree(&rounds);
    restart(&mut job);
    eventually("the round is restored", || {
        nodes.iter().for_each(|node| assert_eq!(node.membership().unwrap().num_nodes_waiting(), 0));
        job.store().check(&["torch.rendezvous.job"]).unwrap() && {
            let state = job.state();
            state.complete && state.round == 0 && state.participants.len() == 2
        }
    });
    // Rank 0 publishes the address of the workers' store again.
    eventually("the master is published", || {
        nodes.iter().for_each(|node| drop(node.membership()));
        job.store().check(&["torch.rendezvous.job.0/MASTER_PORT"]).unwrap()
    });
    for node in &nodes {
        let seen = node.membership().unwrap();
        assert!(seen.is_intact() && !seen.is_closed);
    }
}

/// The outage is longer than the timeout of a call. It starts before or after the first node is counted as ended.
#[test]
fn nodes_that_finish_during_an_outage_wait_until_it_is_over() {
    for is_counted in [true, false] {
        let mut job = job_with_short_timeouts(2, 2);
        let nodes = [node(&job), node(&job)];
        let first = join(&nodes[0]);
        let rounds = [nodes[1].next_rendezvous().unwrap(), first.join().unwrap().unwrap()];
        let port = job.server.port();
        // Assigning the new server to `job.server` stops the old one.
        let server_elsewhere = || TcpStoreServer::bind("127.0.0.1", 0).unwrap();
        if !is_counted {
            job.server = server_elsewhere();
        }
        let mut outage_start = None;
        let job = &mut job;
        std::thread::scope(|scope| {
            let barrier_of = |n: usize| ExitBarrier::of(&rounds[n]).with_outage_timeout(FINISH_TIMEOUT);
            // `rounds` starts with the round of the second node.
            let (barrier, other_barrier) = (barrier_of(0), barrier_of(1));
            let (node, other) = (&nodes[1], &nodes[0]);
            // The exit barrier repeatedly calls a function that decides whether to keep waiting. The function of this
            // node also stops and restarts the store.
            let waiting = scope.spawn(move || {
                barrier.finish(&**node, FINISH_TIMEOUT, true, || {
                    let outage_start: Instant = *outage_start.get_or_insert_with(|| {
                        job.server = server_elsewhere();
                        Instant::now()
                    });
                    if outage_start.elapsed() > Duration::from_secs(5) && job.server.port() != port {
                        job.server = TcpStoreServer::bind("127.0.0.1", port).unwrap();
                    }
                    true
                })
            });
            assert_eq!(other_barrier.finish(&**other, FINISH_TIMEOUT, true, || true), RoundEnd::Finished);
            assert_eq!(
                waiting.join().unwrap(),
                RoundEnd::Finished,
                "counted before the outage: {is_counted}"
            );
        });
    }
}

#[test]
fn a_waiting_node_joins_again_after_the_store_restarts_empty() {
    let mut job = job_with_short_timeouts(2, 2);
    let (early, late) = (node(&job), node(&job));
    let waiting = join(&early);
    eventually("the node waits", || job.state().has(early.node()));
    restart(&mut job);
    let round = late.next_rendezvous().unwrap();
    assert_agree(&[round, waiting.join().unwrap().unwrap()]);
}

/// A node that has never seen the round is the first one to find the empty store.
#[test]
fn a_new_node_at_an_empty_store_waits_for_the_restored_round() {
    let mut job = job_with_short_timeouts(1, 2);
    job.settings.last_call_timeout = Duration::from_millis(500);
    let (member, new_node) = (node(&job), node(&job));
    let before = member.next_rendezvous().unwrap();
    assert_eq!((before.round, before.world_size), (0, 1));
    restart(&mut job);
    let joining = join(&new_node);
    eventually("the new node waits", || member.membership().unwrap().num_nodes_waiting() == 1);
    assert!(!member.membership().unwrap().is_dropped, "the member is still in its round");
    let after = [member.next_rendezvous().unwrap(), joining.join().unwrap().unwrap()];
    assert_agree(&after);
    assert_eq!(after[0].round, 1);
}
