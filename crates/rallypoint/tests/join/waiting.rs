//! Nodes that wait: for more nodes, for the next round, or as a spare. Their log, and their exit after a signal.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{NodeDesc, State, cell};
use rallypoint_store::{Limits, Store, TcpStore, TcpStoreServer};
use rallypoint_testkit::eventually;
use rustix::process::Signal;

use crate::node::{Node, server};

/// Returns the state of the rendezvous. Waits until a node has stored one.
fn state(server: &TcpStoreServer) -> State {
    let store = TcpStore::connect("127.0.0.1", server.port()).unwrap();
    cell::read(&store.get("torch.rendezvous.job").unwrap(), &Limits::default()).unwrap().unwrap_or_default()
}

/// Returns whether the list contains exactly this node.
fn contains_only(list: &BTreeSet<NodeDesc>, node: &Node) -> bool {
    list.iter().map(|node| node.pid).eq([i64::from(node.child.id())])
}

/// Starts a node and waits until it has formed a round alone. The node has a command, so it does not rejoin when
/// another node waits.
fn running(server: &TcpStoreServer, nodes: &str, more: &[&str]) -> Node {
    let command = ["--rdzv-conf", "last_call_timeout=1", "--", "sleep", "600"];
    let node = Node::start(server, nodes, &[more, &command].concat());
    assert_eq!(node.joined()["world_size"], 1);
    node
}

/// A further node becomes a spare if the round has the maximum number of nodes. Otherwise it is on the wait list.
#[test]
fn a_signal_removes_a_spare_or_a_waiting_node_from_its_list() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        for (nodes, expected_line) in
            [("1", "standing by as a spare"), ("1:2", "round 0 is under way with 1 node")]
        {
            let server = server();
            let mut working = running(&server, nodes, &[]);
            let mut node = Node::start(&server, nodes, &[]);
            node.wait_for_log(expected_line);
            let before = state(&server);
            let (list, other_list) = match nodes {
                "1" => (&before.redundancy_list, &before.wait_list),
                _ => (&before.wait_list, &before.redundancy_list),
            };
            assert!(contains_only(list, &node) && other_list.is_empty(), "{before:?}");
            let start = Instant::now();
            node.signal(signal);
            let (ended, log) = node.ended();
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            assert_eq!(ended, code, "{log}");
            assert!(log.contains("left the rendezvous on a signal"), "{log}");
            // The round continues unchanged.
            let after = state(&server);
            assert!(after.wait_list.is_empty() && after.redundancy_list.is_empty(), "{after:?}");
            assert!(after.last_heartbeats.keys().eq(before.participants.keys()), "{after:?}");
            assert_eq!(
                (after.closed, after.complete, after.round, after.participants),
                (false, true, 0, before.participants)
            );
            assert!(working.child.try_wait().unwrap().is_none());
        }
    }
}

/// Ends a node with SIGTERM, and returns its log lines about waiting that were not read before.
fn waiting_lines_of(node: Node) -> Vec<String> {
    node.signal(Signal::TERM);
    let (_, log) = node.ended();
    log.lines().filter(|line| line.contains("waiting in the rendezvous")).map(str::to_owned).collect()
}

/// `wait` lets 3 s pass, in which each waiting node reads the state several times without a change.
#[test]
fn an_unchanged_reason_to_wait_is_logged_once() {
    let server = server();
    let wait = || {
        let conf = ["--rdzv-id", "incomplete", "--rdzv-conf", "join_timeout=3"];
        assert_eq!(Node::start(&server, "2", &conf).ended().0, 4);
    };
    let mut others = Vec::new();
    let mut waiting = Vec::new();
    for (id, nodes, expected_line) in
        [("full", "1", "standing by as a spare"), ("not-full", "1:2", "round 0 is under way with 1 node")]
    {
        others.push(running(&server, nodes, &["--rdzv-id", id]));
        waiting.push((Node::start(&server, nodes, &["--rdzv-id", id]), expected_line));
    }
    let first = Node::start(&server, "3", &[]);
    eventually("the first node waits", || state(&server).participants.len() == 1);
    wait();
    let second = Node::start(&server, "3", &[]);
    eventually("both nodes wait", || state(&server).participants.len() == 2);
    wait();
    let lines = waiting_lines_of(first);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    for (line, what) in
        lines.iter().zip(["1 of at least 3 nodes have joined", "2 of at least 3 nodes have joined"])
    {
        assert!(line.contains(what), "{lines:#?}");
    }
    for (node, expected_line) in waiting {
        let lines = waiting_lines_of(node);
        assert!(lines.len() == 1 && lines[0].contains(expected_line), "{lines:#?}");
    }
    drop((others, second));
}

#[test]
fn a_node_in_the_last_call_logs_the_time_until_the_round_starts() {
    let server = server();
    let mut node = Node::start(&server, "1:2", &["--rdzv-conf", "last_call_timeout=3"]);
    let line = node.wait_for_log("waiting in the rendezvous 'job'");
    let start = Instant::now();
    let node_name = format!("127.0.0.1 (pid {})", node.child.id());
    let what =
        format!("1 of at most 2 nodes have joined, last call for more; joined: {node_name}; starts in ");
    let (_, rest) = line.split_once(&what).unwrap_or_else(|| panic!("{line}"));
    let seconds = rest.strip_suffix(" s (last_call_timeout)").and_then(|seconds| seconds.parse().ok());
    let seconds: u64 = seconds.unwrap_or_else(|| panic!("{line}"));
    assert!([2, 3].contains(&seconds), "{line}");
    assert_eq!(node.joined()["world_size"], 1);
    // The round starts at the time in the log, which was rounded up to whole seconds.
    let usual = Duration::from_secs(seconds - 1)..Duration::from_secs(seconds + 2);
    assert!(usual.contains(&start.elapsed()), "{:?}: {line}", start.elapsed());
    // The node has logged no further line about waiting.
    let lines = waiting_lines_of(node);
    assert!(lines.is_empty(), "{lines:#?}");
}
