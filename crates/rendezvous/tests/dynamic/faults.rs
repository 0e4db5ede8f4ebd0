//! Tests with dead nodes, lost states and frozen stores.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{State, cell, pickle};
use rallypoint_rendezvous::{
    C10dBackend, DynamicRendezvousHandler, NodeDesc, RendezvousError, RendezvousHandler,
};
use rallypoint_store::{Endpoint, HashStore, Store, TcpStore, TcpStoreOptions};
use rallypoint_testkit::{Relay, eventually, eventually_within};

use crate::nodes::{Job, assert_agree, join, join_all};

pub(crate) fn job_with_short_timeouts(min_nodes: u64, max_nodes: u64) -> Job {
    let mut job = Job::new(min_nodes, max_nodes);
    // A node without heartbeats is dead after 3 s.
    job.settings.keep_alive_interval = Duration::from_secs(1);
    job.settings.last_call_timeout = Duration::from_secs(3);
    job
}

#[test]
fn a_dead_node_is_removed_and_a_spare_replaces_it() {
    let job = job_with_short_timeouts(2, 2);
    let mut nodes = job.nodes(2);
    join_all(&nodes);
    let spare = job.node();
    let waiting = join(&spare);
    // Dropping the handler ends the heartbeats without leaving the rendezvous, as if the process had died.
    drop(nodes.remove(0));
    eventually_within(Duration::from_secs(10), "the spare waits", || {
        nodes[0].membership().unwrap().num_nodes_waiting() > 0
    });
    let remaining = nodes[0].next_rendezvous().unwrap();
    assert_agree(&[remaining, waiting.join().unwrap().unwrap()]);
}

/// A torch node that was dropped continues and never notices it.
#[test]
fn a_dropped_node_notices_it_and_rejoins() {
    let job = job_with_short_timeouts(1, 2);
    let nodes = job.nodes(2);
    let before = join_all(&nodes);
    // Remove the first node as dead, as a node with a wrong clock might do.
    let store = job.store();
    let mut state = state(&store);
    state.participants.remove(nodes[0].node());
    state.last_heartbeats.remove(nodes[0].node());
    put_state(&store, &state);
    eventually_within(Duration::from_secs(5), "the node notices that it was dropped", || {
        nodes[0].membership().unwrap().num_nodes_waiting() > 0
    });
    let first = join(&nodes[0]);
    eventually_within(Duration::from_secs(5), "the second node sees that the first one waits", || {
        nodes[1].membership().unwrap().num_nodes_waiting() > 0
    });
    let second = nodes[1].next_rendezvous().unwrap();
    let after = [first.join().unwrap().unwrap(), second];
    assert_agree(&after);
    assert!(after[0].round > before[0].round);
}

/// A node that waits is in no round that it could restore, so it joins again.
#[test]
fn a_waiting_node_joins_again_after_the_state_was_deleted() {
    for has_first_joined_again in [true, false] {
        let job = job_with_short_timeouts(2, 2);
        let (node, store) = (job.node(), job.store());
        let joining = join(&node);
        eventually_within(Duration::from_secs(10), "the node waits", || {
            job.state().participants.contains_key(node.node())
        });
        assert!(store.delete_key("torch.rendezvous.job").unwrap());
        if has_first_joined_again {
            eventually_within(Duration::from_secs(10), "the node has joined again", || {
                store.check(&["torch.rendezvous.job"]).unwrap()
                    && job.state().participants.contains_key(node.node())
            });
        }
        // The second node finds the first one in the state, or no state at all.
        let second = job.node().next_rendezvous().unwrap();
        assert_agree(&[joining.join().unwrap().unwrap(), second]);
    }
}

#[test]
fn a_deleted_state_is_restored() {
    let job = job_with_short_timeouts(2, 2);
    let nodes = job.nodes(2);
    join_all(&nodes);
    job.store().delete_key("torch.rendezvous.job").unwrap();
    assert_eq!(nodes[0].membership().unwrap().num_nodes_waiting(), 0);
    assert!(!nodes[1].membership().unwrap().is_closed);
    let first = join(&nodes[0]);
    eventually_within(Duration::from_secs(5), "the second node sees that the first one waits", || {
        nodes[1].membership().unwrap().num_nodes_waiting() > 0
    });
    let second = nodes[1].next_rendezvous().unwrap();
    let after = [first.join().unwrap().unwrap(), second];
    assert_agree(&after);
    assert_eq!(after[0].round, 1);
}

#[test]
fn the_error_for_an_outage_names_the_store_and_the_timeout() {
    let mut job = job_with_short_timeouts(1, 1);
    job.settings.store_outage_timeout = Duration::from_secs(2);
    let store = job.store();
    store.set_timeout(Some(Duration::from_millis(500)));
    let node = job.node_over(&(Arc::new(store) as Arc<dyn Store>));
    node.next_rendezvous().unwrap();
    let port = job.server.port();
    drop(job);
    assert_eq!(node.membership().unwrap().num_nodes_waiting(), 0, "an outage changes nothing at first");
    eventually("the outage is an error", || node.membership().is_err());
    let error = node.membership().unwrap_err();
    assert!(matches!(error, RendezvousError::Outage { .. }), "{error}");
    assert!(error.to_string().contains("store_outage_timeout"), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    node.set_closed().unwrap_err();
}

#[test]
fn a_node_joins_after_a_corrupt_state_was_repaired() {
    let job = job_with_short_timeouts(2, 2);
    // The state is in a `HashStore`, because our server would refuse the value.
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let nodes = [0, 1].map(|_| job.node_over(&store));
    store.set("torch.rendezvous.job", b"!!!").unwrap();
    let waiting = join(&nodes[0]);
    eventually_within(Duration::from_secs(9), "the node has read the state twice", || {
        job.counts.reads.load(Ordering::Relaxed) >= 2
    });
    // Repair the state.
    store.set("torch.rendezvous.job", cell::NULL).unwrap();
    let other = nodes[1].next_rendezvous().unwrap();
    assert_agree(&[waiting.join().unwrap().unwrap(), other]);
}

/// With a frozen store, a torch node hangs until the timeout of its client, which may be minutes.
#[test]
fn a_frozen_store_is_an_error_after_the_outage_timeout() {
    let mut job = job_with_short_timeouts(1, 1);
    job.settings.store_outage_timeout = Duration::from_secs(3);
    let proxy = Relay::to(job.server.port());
    let endpoint = Endpoint::new("127.0.0.1", proxy.port());
    let timeout = Duration::from_secs(2);
    let max_call_duration = Duration::from_secs(4);
    let store = TcpStore::open(TcpStoreOptions::new(endpoint).timeout(timeout)).unwrap();
    let node = job.node_over(&(Arc::new(store) as Arc<dyn Store>));
    node.next_rendezvous().unwrap();
    proxy.block();
    eventually_within(Duration::from_secs(20), "the outage has lasted too long", || {
        let start = Instant::now();
        let failed = node.membership().is_err();
        assert!(start.elapsed() < max_call_duration, "{:?}", start.elapsed());
        failed
    });
    let start = Instant::now();
    node.leave().unwrap_err();
    // Leaving may take 5 s.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// Completes the round with a rank 0 that does not publish the address of the workers' store, like a node that died
/// after it joined, or a torch node that has published the address in an earlier round. Returns when `node` has joined.
fn add_silent_rank_0(job: &Job, node: &DynamicRendezvousHandler) {
    add_silent_rank_0_to_round(0, job, node);
}

fn add_silent_rank_0_to_round(round: u64, job: &Job, node: &DynamicRendezvousHandler) {
    let store = job.store();
    eventually("the node is in the state", || state(&store).has(node.node()));
    let mut new_state = state(&store);
    let silent = NodeDesc::new("0", 1, 0);
    new_state.last_heartbeats.insert(silent.clone(), new_state.last_heartbeats[node.node()]);
    new_state.participants.insert(silent, 0);
    new_state.participants.insert(node.node().clone(), 1);
    (new_state.round, new_state.complete, new_state.deadline) = (round, true, None);
    new_state.wait_list.clear();
    put_state(&store, &new_state);
    // A node sends heartbeats once it has joined, while it waits for the address.
    let before = new_state.last_heartbeats[node.node()];
    eventually("the node sends heartbeats", || {
        state(&store).last_heartbeats.get(node.node()).is_some_and(|beat| *beat != before)
    });
}

fn put_state(store: &dyn Store, state: &State) {
    let bytes = pickle::encode(state, &rallypoint_store::Limits::default()).unwrap();
    store.set("torch.rendezvous.job", &cell::encode(&bytes)).unwrap();
}

fn state(store: &dyn Store) -> State {
    let value = store.get("torch.rendezvous.job").unwrap();
    cell::read(&value, &rallypoint_store::Limits::default()).unwrap().unwrap_or_default()
}

#[test]
fn a_node_that_waits_for_rank_0_to_publish_the_master_can_be_interrupted() {
    let job = job_with_short_timeouts(2, 2);
    let node = job.node();
    let joining = join(&node);
    add_silent_rank_0(&job, &node);
    let start = Instant::now();
    node.interrupt();
    assert!(matches!(joining.join().unwrap(), Err(RendezvousError::Interrupted { .. })));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(!state(&job.store()).has(node.node()), "the node has left");
}

/// If the node did not notice that rank 0 was lost, it would fail after the timeout of its store (20 s), although a
/// spare waits.
#[test]
fn a_round_whose_rank_0_dies_before_it_publishes_the_master_re_forms_with_a_spare() {
    let job = job_with_short_timeouts(2, 2);
    let node = job.node();
    let joining = join(&node);
    add_silent_rank_0(&job, &node);
    let spare = job.node();
    let waiting = join(&spare);
    let start = Instant::now();
    let after = [joining.join().unwrap().unwrap(), waiting.join().unwrap().unwrap()];
    assert_agree(&after);
    assert_eq!(after[0].round, 1);
    // The dead node is removed after 3 s, and nodes poll once per second.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}

#[test]
fn a_node_that_waits_for_rank_0_notices_that_the_rendezvous_is_closed() {
    let job = job_with_short_timeouts(2, 2);
    let node = job.node();
    let joining = join(&node);
    add_silent_rank_0(&job, &node);
    job.node().set_closed().unwrap();
    assert!(matches!(joining.join().unwrap(), Err(RendezvousError::Closed { .. })));
}

#[test]
fn a_handler_with_an_invalid_address_is_refused() {
    for addr in ["", "two words", &"x".repeat(256)] {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").unwrap());
        let created = DynamicRendezvousHandler::new(backend, store, addr, Job::new(1, 1).settings);
        let error = created.err().expect("the address is refused").to_string();
        assert!(error.contains("neither a host name nor an address"), "{error}");
    }
}

/// A torch node publishes the address of the workers' store in its first round only. Our node has read it in that round
/// and publishes it again for nodes that join later.
#[test]
fn a_node_that_knows_the_master_of_a_silent_rank_0_publishes_it_again() {
    let mut job = Job::new(2, 2);
    job.settings.keep_alive_interval = Duration::from_secs(2);
    let (node, store) = (job.node(), job.store());
    store.set("torch.rendezvous.job.0/MASTER_ADDR", b"127.0.0.9").unwrap();
    store.set("torch.rendezvous.job.0/MASTER_PORT", b"29999").unwrap();
    let joining = join(&node);
    add_silent_rank_0_to_round(0, &job, &node);
    let before = joining.join().unwrap().unwrap();
    let joining = join(&node);
    eventually("the node waits for the next round", || state(&store).wait_list.contains(node.node()));
    add_silent_rank_0_to_round(1, &job, &node);
    let after = joining.join().unwrap().unwrap();
    assert_eq!((after.round, &after.bootstrap_store_info), (1, &before.bootstrap_store_info));
    assert_eq!(store.get("torch.rendezvous.job.1/MASTER_ADDR").unwrap(), b"127.0.0.9");
    assert_eq!(store.get("torch.rendezvous.job.1/MASTER_PORT").unwrap(), b"29999");
}

/// If nothing limited the node's calls to the store, the node would wait for the store's own timeout of 60 s.
#[test]
fn a_frozen_store_does_not_delay_a_waiting_node_beyond_its_join_timeout() {
    let mut job = job_with_short_timeouts(2, 2);
    job.settings.join_timeout = Duration::from_secs(2);
    let proxy = Relay::to(job.server.port());
    let endpoint = Endpoint::new("127.0.0.1", proxy.port());
    let timeout = Duration::from_secs(60);
    let store = TcpStore::open(TcpStoreOptions::new(endpoint).timeout(timeout)).unwrap();
    let node = job.node_over(&(Arc::new(store) as Arc<dyn Store>));
    let start = Instant::now();
    let joining = join(&node);
    eventually("the node waits", || state(&job.store()).has(node.node()));
    proxy.block();
    let error = joining.join().unwrap().unwrap_err();
    assert!(matches!(error, RendezvousError::Connection { .. }), "{error}");
    // The join timeout is 2 s, and withdrawing may take 5 s more.
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
}
