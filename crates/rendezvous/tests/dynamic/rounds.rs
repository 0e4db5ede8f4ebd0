//! Tests of rounds that form and re-form.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{RendezvousError, RendezvousHandler};
use rallypoint_store::{Store, TcpStore};
use rallypoint_testkit::eventually;

use crate::nodes::{Job, assert_agree, join, join_all};

const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The last call of rounds that do not have the maximum number of nodes. It is long enough for all nodes of a test to
/// join on a busy machine.
const LAST_CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Torch's nodes poll once per second. Our nodes are woken by the node that changes the round.
#[test]
fn a_joining_node_is_woken_by_a_signal() {
    let mut job = Job::new(2, 2);
    job.never_polls = true;
    let nodes = job.nodes(2);
    let first = join(&nodes[0]);
    eventually("the first node waits for the second", || job.state().participants.len() == 1);
    let second = nodes[1].next_rendezvous().unwrap();
    assert_agree(&[first.join().unwrap().unwrap(), second]);
}

#[test]
fn a_round_has_a_store_of_its_own_and_a_store_for_its_workers() {
    let job = Job::new(2, 2);
    let nodes = job.nodes(2);
    let rounds = join_all(&nodes);
    rounds[0].store.set("k", b"v").unwrap();
    assert_eq!(rounds[1].store.get("k").unwrap(), b"v");
    assert!(job.store().check(&["torch.rendezvous.job.0/k"]).unwrap());
    let master = &rounds[1].bootstrap_store_info;
    let worker = TcpStore::connect(&master.master_addr, master.master_port).unwrap();
    worker.set("w", b"1").unwrap();
    assert_eq!(worker.get("w").unwrap(), b"1");
}

#[test]
fn many_nodes_that_join_together_cost_few_compare_and_sets() {
    const N: usize = 64;
    let job = Job::new(N as u64, N as u64);
    let nodes = job.nodes(N);
    assert_agree(&join_all(&nodes));
    let writes = job.counts.writes.load(Ordering::Relaxed);
    assert!(writes <= 3 * N, "{writes} compare-and-sets for {N} nodes");
}

/// All nodes read the same state before any of them writes. Torch's nodes would each retry until they win, which takes
/// O(n²) writes, as the interop tests show.
#[test]
fn many_nodes_with_a_high_latency_cost_few_compare_and_sets() {
    const N: usize = 24;
    let mut job = Job::new(N as u64, N as u64);
    job.latency = Duration::from_millis(50);
    let nodes = job.nodes(N);
    assert_agree(&join_all(&nodes));
    let writes = job.writes();
    assert!(writes <= 3 * N, "{writes} compare-and-sets for {N} nodes");
}

#[test]
fn a_round_accepts_more_nodes_than_the_minimum_until_the_last_call_ends() {
    let mut job = Job::new(1, 4);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    let start = Instant::now();
    assert_agree(&join_all(&job.nodes(3)));
    let took = start.elapsed();
    assert!(took >= LAST_CALL_TIMEOUT && took < LAST_CALL_TIMEOUT + Duration::from_secs(4), "{took:?}");
}

/// With torch, a late node waits for an address of the workers' store that no node publishes, or gets another address
/// than the other nodes.
#[test]
fn a_late_node_gets_the_same_master_as_the_others() {
    let mut job = Job::new(1, 4);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    let mut nodes = job.nodes(2);
    let first = join_all(&nodes);
    assert_eq!(nodes[0].membership().unwrap().num_nodes_waiting(), 0);
    let late = job.node();
    let joining = join(&late);
    // A signal wakes the nodes in the round, so they need not wait for the timeout.
    let start = Instant::now();
    nodes[0].wait_for_change(CHANGE_TIMEOUT);
    nodes[1].wait_for_change(CHANGE_TIMEOUT);
    assert!(start.elapsed() < CHANGE_TIMEOUT / 2, "{:?}", start.elapsed());
    assert!(nodes.iter().all(|node| node.membership().unwrap().num_nodes_waiting() == 1));
    let mut second = join_all(&nodes);
    second.push(joining.join().unwrap().unwrap());
    assert_agree(&second);
    assert_eq!(second[0].round, first[0].round + 1);
    nodes.push(late);
    // Form another round, because rank 0 has to publish the address in each round.
    assert_agree(&join_all(&nodes));
}

/// With torch, the other nodes keep using the old address if a late node becomes rank 0.
#[test]
fn a_late_node_that_becomes_rank_0_is_the_master_of_all() {
    let mut job = Job::new(1, 3);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    let mut nodes = vec![job.node_at("127.0.0.2"), job.node_at("127.0.0.3")];
    let first = join_all(&nodes);
    assert_agree(&first);
    assert_eq!(first[0].bootstrap_store_info.master_addr, "127.0.0.2");
    let late = job.node_at("127.0.0.1");
    let joining = join(&late);
    nodes[0].wait_for_change(CHANGE_TIMEOUT);
    nodes[1].wait_for_change(CHANGE_TIMEOUT);
    assert!(nodes.iter().all(|node| node.membership().unwrap().num_nodes_waiting() == 1));
    let mut second = join_all(&nodes);
    second.insert(0, joining.join().unwrap().unwrap());
    nodes.insert(0, late);
    for rounds in [second, join_all(&nodes)] {
        assert_agree(&rounds);
        assert_eq!([0, 1, 2].map(|n| rounds[n].rank), [0, 1, 2]);
        // The master is the late node, and its server replies.
        let master = &rounds[2].bootstrap_store_info;
        assert_eq!(master.master_addr, "127.0.0.1");
        assert_ne!(*master, first[0].bootstrap_store_info);
        let worker = TcpStore::connect(&master.master_addr, master.master_port).unwrap();
        worker.set("w", b"1").unwrap();
    }
    // When the late node leaves, the previous address is used again.
    nodes.remove(0).leave().unwrap();
    let third = join_all(&nodes);
    assert_agree(&third);
    assert_eq!(third[1].bootstrap_store_info, first[0].bootstrap_store_info);
}

/// A signal notifies the node in the round that another node waits, and another signal notifies the waiting node that
/// the next round is complete.
#[test]
fn rejoining_nodes_are_woken_by_signals() {
    let mut job = Job::new(2, 2);
    job.never_polls = true;
    let nodes = job.nodes(2);
    join_all(&nodes);
    for _ in 0..9 {
        let first = join(&nodes[0]);
        nodes[1].wait_for_change(CHANGE_TIMEOUT);
        let membership = nodes[1].membership().unwrap();
        assert!(membership.is_round_over && membership.num_nodes_waiting() == 1);
        let second = nodes[1].next_rendezvous().unwrap();
        assert_agree(&[first.join().unwrap().unwrap(), second]);
    }
}

#[test]
fn many_nodes_that_rejoin_together_cost_few_compare_and_sets() {
    const N: usize = 64;
    let job = Job::new(N as u64, N as u64);
    let nodes = job.nodes(N);
    join_all(&nodes);
    let before = job.writes();
    assert_agree(&join_all(&nodes));
    let writes = job.writes() - before;
    assert!(writes <= 6 * N, "{writes} compare-and-sets for {N} nodes");
}

#[test]
fn membership_shows_lost_nodes_and_that_a_round_is_over_once_a_member_rejoins() {
    let mut job = Job::new(1, 3);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    let nodes = job.nodes(3);
    let rounds = join_all(&nodes);
    assert_agree(&rounds);
    let seen = || nodes[0].membership().unwrap();
    assert!(seen().is_intact() && !seen().is_round_over);
    nodes[1].leave().unwrap();
    eventually("the other node is lost", || {
        seen().lost.is_some_and(|lost| lost.nodes == [nodes[1].node().clone()])
    });
    // A new node that waits does not end the round.
    let late = job.node();
    let joining = join(&late);
    eventually("the new node waits", || seen().num_nodes_waiting() == 1);
    assert!(!seen().is_round_over);
    let rejoining = join(&nodes[2]);
    eventually("the round is over", || seen().is_round_over);
    nodes[0].leave().unwrap();
    assert_agree(&[joining.join().unwrap().unwrap(), rejoining.join().unwrap().unwrap()]);
}

#[test]
fn a_spare_exits_gracefully_when_the_job_is_closed() {
    let job = Job::new(2, 2);
    let nodes = job.nodes(2);
    join_all(&nodes);
    let spare = job.node();
    let waiting = join(&spare);
    eventually("the spare is on the list", || job.spares() == 1);
    nodes[0].set_closed().unwrap();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, RendezvousError::GracefulExit { .. }), "{error}");
    assert!(nodes[1].membership().unwrap().is_closed);
}

#[test]
fn a_spare_replaces_a_node_that_leaves() {
    let job = Job::new(2, 2);
    let nodes = job.nodes(2);
    join_all(&nodes);
    let spare = job.node();
    let waiting = join(&spare);
    eventually("the spare is on the list", || job.spares() == 1);
    nodes[0].leave().unwrap();
    // The remaining node is notified that the spare waits, and rejoins.
    eventually("the spare waits", || {
        nodes[1].wait_for_change(Duration::from_millis(100));
        nodes[1].membership().unwrap().num_nodes_waiting() > 0
    });
    let remaining = nodes[1].next_rendezvous().unwrap();
    assert_agree(&[remaining, waiting.join().unwrap().unwrap()]);
}

#[test]
fn a_node_that_leaves_does_not_close_the_rendezvous() {
    let mut job = Job::new(1, 2);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    let nodes = job.nodes(2);
    join_all(&nodes);
    nodes[0].leave().unwrap();
    assert!(!nodes[1].membership().unwrap().is_closed);
    let alone = nodes[1].next_rendezvous().unwrap();
    assert_eq!((alone.rank, alone.world_size, alone.round), (0, 1, 1));
}

#[test]
fn the_error_for_a_closed_rendezvous_names_the_node_that_closed_it() {
    let job = Job::new(1, 1);
    let first = job.node();
    first.next_rendezvous().unwrap();
    first.set_closed().unwrap();
    let error = job.node().next_rendezvous().unwrap_err();
    assert!(matches!(error, RendezvousError::Closed { .. }));
    let text = error.to_string();
    let pid = format!("pid {}", std::process::id());
    assert!(text.contains("127.0.0.1") && text.contains(&pid) && text.contains("at 20"), "{text}");
}

#[test]
fn the_error_for_a_timeout_names_the_joined_nodes_the_minimum_and_the_setting() {
    let mut job = Job::new(3, 3);
    let patient = job.node();
    job.settings.join_timeout = Duration::from_secs(3);
    let hasty = job.node();
    let waiting = join(&patient);
    eventually("the patient node has joined", || job.state().participants.contains_key(patient.node()));
    let text = hasty.next_rendezvous().unwrap_err().to_string();
    assert!(text.contains("2 of at least 3 nodes joined within 3 s (join_timeout)"), "{text}");
    assert!(text.contains(&format!("127.0.0.1 (pid {})", std::process::id())), "{text}");
    assert!(text.contains("--rdzv-conf join_timeout=SECONDS"), "{text}");
    let state = job.state();
    assert_eq!(
        state.participants.keys().collect::<Vec<_>>(),
        [patient.node()],
        "the hasty node has withdrawn"
    );
    patient.interrupt();
    assert!(matches!(waiting.join().unwrap(), Err(RendezvousError::Interrupted { .. })));
}

#[test]
fn an_interrupted_node_leaves_within_five_seconds() {
    let job = Job::new(2, 2);
    let node = job.node();
    let waiting = join(&node);
    eventually("the node waits", || job.state().has(node.node()));
    let start = Instant::now();
    node.interrupt();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, RendezvousError::Interrupted { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // The interrupted node is in no list, so two other nodes can complete a round.
    assert_agree(&join_all(&job.nodes(2)));
}

/// The nodes of three jobs wait: two nodes for a third one, a spare of a full round, and a late node on the wait list.
#[test]
fn waiting_nodes_read_the_state_at_most_twice_per_second() {
    const MEASUREMENT_INTERVAL: Duration = Duration::from_secs(4);
    let open = Job::new(3, 3);
    let nodes = open.nodes(2);
    let start_of_waiting = Instant::now();
    let waiting: Vec<_> = nodes.iter().map(join).collect();
    eventually("both wait for a third", || open.state().participants.len() == 2);
    let full = Job::new(1, 1);
    let (in_full, spare) = (full.node(), full.node());
    in_full.next_rendezvous().unwrap();
    let standing_by = join(&spare);
    eventually("the spare is on the redundancy list", || full.state().redundancy_list.contains(spare.node()));
    let mut under_way = Job::new(1, 2);
    under_way.settings.last_call_timeout = Duration::from_millis(100);
    let (in_round, late) = (under_way.node(), under_way.node());
    in_round.next_rendezvous().unwrap();
    let joining_late = join(&late);
    eventually("the late node is on the wait list", || under_way.state().wait_list.contains(late.node()));

    let jobs =
        [("below the minimum", &open, 2.0), ("a spare", &full, 1.0), ("on the wait list", &under_way, 1.0)];
    let before = jobs.map(|(_, job, _)| job.reads());
    let start = Instant::now();
    // Count the reads during this time.
    std::thread::sleep(MEASUREMENT_INTERVAL);
    let reads = jobs.map(|(_, job, _)| job.reads());
    let took = start.elapsed().as_secs_f64();
    for (n, (what, _, count)) in jobs.iter().enumerate() {
        let reads = (reads[n] - before[n]) as f64;
        assert!(reads > 0.0, "{what}: the nodes poll");
        assert!(reads <= 2.0 * count * took, "{what}: {reads} reads of {count} nodes in {took} s");
    }
    [&nodes[0], &nodes[1], &spare, &late].iter().for_each(|node| node.interrupt());
    for node in waiting.into_iter().chain([standing_by, joining_late]) {
        let error = node.join().unwrap().unwrap_err();
        assert!(matches!(error, RendezvousError::Interrupted { .. }), "{error}");
    }
    // Each of the two nodes reads the state at most twice per second, plus a few times to join and to leave.
    let (reads, took) = (open.reads() as f64, start_of_waiting.elapsed().as_secs_f64());
    assert!(reads <= 2.0 * 2.0 * took + 8.0, "{reads} reads in {took} s");
}

#[test]
fn membership_lists_a_node_that_left_as_lost_and_one_that_rejoins_as_rejoining() {
    let mut job = Job::new(1, 3);
    job.settings.last_call_timeout = LAST_CALL_TIMEOUT;
    let nodes = job.nodes(3);
    join_all(&nodes);
    let seen = || nodes[0].membership().unwrap();
    assert!(seen().is_intact() && seen().world_size() == 3);
    let again = join(&nodes[1]);
    eventually("the rejoining node waits", || seen().rejoining == [nodes[1].node().clone()]);
    nodes[2].leave().unwrap();
    eventually("the other node is lost", || seen().lost.is_some());
    let seen = seen();
    assert_eq!(seen.lost.unwrap().nodes, [nodes[2].node().clone()]);
    assert_eq!(
        (seen.waiting, seen.rejoining),
        (vec![nodes[1].node().clone()], vec![nodes[1].node().clone()])
    );
    let rounds = [nodes[0].next_rendezvous().unwrap(), again.join().unwrap().unwrap()];
    assert_agree(&rounds);
}

#[test]
fn the_workers_store_is_empty_in_a_new_round() {
    let job = Job::new(1, 1);
    let node = job.node();
    let master = node.next_rendezvous().unwrap().bootstrap_store_info;
    let worker = TcpStore::connect(&master.master_addr, master.master_port).unwrap();
    worker.set("/worker/attempt_0/rank/0", b"an address").unwrap();
    assert_eq!(
        node.next_rendezvous().unwrap().bootstrap_store_info,
        master,
        "the address changed, but torch's nodes read it only once"
    );
    assert_eq!(worker.num_keys().unwrap(), 0);
}

/// With different `--nnodes`, torch's nodes would leave the round and join again dozens of times per second.
#[test]
fn a_node_with_other_terms_is_refused_and_the_others_continue() {
    let job = Job::new(2, 2);
    let mut more = job.settings.clone();
    (more.min_nodes, more.max_nodes) = (2, 3);
    let (first, other_terms, second) = (job.node(), job.node_with(more), job.node());
    let waiting = join(&first);
    eventually("the first node waits", || job.state().has(first.node()));
    let error = other_terms.next_rendezvous().unwrap_err();
    assert!(matches!(error, RendezvousError::Refused { .. }), "{error}");
    for part in ["--nnodes 2:3", "--nnodes 2:2", &other_terms.node().addr, &first.node().pid.to_string()] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let round = second.next_rendezvous().unwrap();
    assert_agree(&[waiting.join().unwrap().unwrap(), round]);
    // A complete round also continues.
    other_terms.next_rendezvous().unwrap_err();
    assert!(first.membership().unwrap().is_intact());
}

/// Both nodes join at the same time, so one of them is added before it has read the other one's terms.
#[test]
fn one_of_two_nodes_with_different_terms_that_join_together_is_refused() {
    let job = Job::new(1, 2);
    let mut more = job.settings.clone();
    more.max_nodes = 3;
    more.last_call_timeout = Duration::from_secs(1);
    let mut less = job.settings.clone();
    less.last_call_timeout = Duration::from_secs(1);
    for _ in 0..10 {
        let job = Job::new(1, 2);
        let nodes = [job.node_with(less.clone()), job.node_with(more.clone())];
        let ends = nodes.each_ref().map(join).map(|joining| joining.join().unwrap());
        let refused = ends.iter().filter(|end| matches!(end, Err(RendezvousError::Refused { .. }))).count();
        assert_eq!((refused, ends.iter().filter(|end| end.is_ok()).count()), (1, 1), "{ends:?}");
    }
}

/// Torch's agents never remove the keys of old rounds.
#[test]
fn keys_of_old_rounds_are_removed() {
    let job = Job::new(1, 1);
    let node = job.node();
    for round in 0..8 {
        let info = node.next_rendezvous().unwrap();
        assert_eq!(info.round, round);
        info.store.set("of/the/agent", b"1").unwrap();
    }
    let store = job.store();
    let rounds = || -> Vec<u64> {
        let keys = store.list_keys().unwrap();
        keys.iter().filter_map(|key| rallypoint_core::rendezvous::keys::round_of("job", key)).collect()
    };
    eventually("the keys of old rounds are removed", || rounds().iter().all(|round| *round >= 6));
    assert!(rounds().contains(&7) && rounds().contains(&6));
}
