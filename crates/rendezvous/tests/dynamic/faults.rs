//! Nodes that die, stores that forget.

use std::time::Duration;

use rallypoint_rendezvous::{RendezvousError, RendezvousHandler};
use rallypoint_store::Store;

use crate::nodes::{Job, assert_agree, eventually, join, join_all};

fn quick(min_nodes: u64, max_nodes: u64) -> Job {
    let mut job = Job::new(min_nodes, max_nodes);
    job.settings.keep_alive_interval = Duration::from_millis(300);
    job.settings.last_call_timeout = Duration::from_millis(300);
    job
}

#[test]
fn a_node_that_dies_is_dropped_and_a_spare_is_let_in() {
    let job = quick(2, 2);
    let mut nodes = job.nodes(2);
    join_all(&nodes);
    let spare = job.node();
    let waiting = join(&spare);
    // It is gone without a word: only its heartbeats end.
    drop(nodes.remove(0));
    eventually("the spare waits", Duration::from_secs(10), || nodes[0].num_nodes_waiting().unwrap() > 0);
    let left = nodes[0].next_rendezvous().unwrap();
    assert_agree(&[left, waiting.join().unwrap().unwrap()]);
}

/// Trap T2: a torch node that was dropped goes on and never finds out.
#[test]
fn a_node_that_was_dropped_finds_out_and_comes_back() {
    let job = quick(1, 2);
    let nodes = job.nodes(2);
    let before = join_all(&nodes);
    // Somebody takes the first for dead, as one with a wrong clock might.
    let store = job.store();
    let state = rallypoint_core::rendezvous::cell::read(
        &store.get("torch.rendezvous.job").unwrap(),
        &rallypoint_store::Limits::default(),
    );
    let mut state = state.unwrap().unwrap();
    state.participants.remove(nodes[0].node());
    state.last_heartbeats.remove(nodes[0].node());
    let value =
        rallypoint_core::rendezvous::cell::write(&state, &rallypoint_store::Limits::default()).unwrap();
    store.set("torch.rendezvous.job", &value).unwrap();
    eventually("it finds out", Duration::from_secs(5), || nodes[0].num_nodes_waiting().unwrap() > 0);
    let first = join(&nodes[0]);
    eventually("the other hears of it", Duration::from_secs(5), || nodes[1].num_nodes_waiting().unwrap() > 0);
    let second = nodes[1].next_rendezvous().unwrap();
    let after = [first.join().unwrap().unwrap(), second];
    assert_agree(&after);
    assert!(after[0].round > before[0].round);
}

#[test]
fn a_state_that_was_deleted_is_put_back() {
    let job = quick(2, 2);
    let nodes = job.nodes(2);
    join_all(&nodes);
    job.store().delete_key("torch.rendezvous.job").unwrap();
    assert_eq!(nodes[0].num_nodes_waiting().unwrap(), 0);
    assert!(!nodes[1].is_closed().unwrap());
    let first = join(&nodes[0]);
    eventually("it is heard", Duration::from_secs(5), || nodes[1].num_nodes_waiting().unwrap() > 0);
    let second = nodes[1].next_rendezvous().unwrap();
    let after = [first.join().unwrap().unwrap(), second];
    assert_agree(&after);
    assert_eq!(after[0].round, 1);
}

#[test]
fn a_store_that_is_gone_is_an_error_that_names_it() {
    let job = quick(1, 1);
    let node = {
        let store = job.store();
        store.set_timeout(Duration::from_millis(500));
        let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(store);
        let backend = rallypoint_rendezvous::C10dBackend::new(std::sync::Arc::clone(&store), "job").unwrap();
        rallypoint_rendezvous::DynamicRendezvousHandler::new(
            std::sync::Arc::new(backend),
            store,
            "127.0.0.1",
            job.settings.clone(),
        )
        .unwrap()
    };
    node.next_rendezvous().unwrap();
    let port = job.server.port();
    drop(job);
    // What was just read is believed for a second.
    eventually("it is noticed", Duration::from_secs(5), || node.num_nodes_waiting().is_err());
    let error = node.num_nodes_waiting().unwrap_err();
    assert!(matches!(error, RendezvousError::Connection { .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(!node.shutdown());
}

#[test]
fn the_state_comes_back_and_a_node_goes_on() {
    let job = quick(2, 2);
    let store = job.store();
    let node = job.node();
    store.set("torch.rendezvous.job", b"!!!").unwrap();
    let waiting = join(&node);
    std::thread::sleep(Duration::from_millis(700));
    // Somebody puts it right.
    store.set("torch.rendezvous.job", rallypoint_core::rendezvous::cell::NULL).unwrap();
    let other = job.node().next_rendezvous().unwrap();
    assert_agree(&[waiting.join().unwrap().unwrap(), other]);
}
