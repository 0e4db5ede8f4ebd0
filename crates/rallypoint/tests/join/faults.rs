//! What a node does when its store, its folder or its terminal is not there, or not there any more.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::node::{Node, command, run, server, text};

/// It is in no round, so it has nothing to lose; and its machine has the endpoint's address, so it can host.
#[test]
fn who_was_only_waiting_starts_over_when_the_host_of_the_store_is_killed() {
    let port = rallypoint_store::free_port().unwrap();
    let mut host = Node::at(port, "3", &[]);
    host.logs("1 of at least 3 nodes are here");
    let mut waiting = Node::at(port, "3", &["--rdzv-conf", "read_timeout=2"]);
    waiting.logs("2 of at least 3 nodes are here");
    host.signal(Signal::KILL);
    waiting.logs("this node was only waiting for others, so it starts over");
    waiting.logs("hosts the TCP store");
    let others = [0, 1].map(|_| Node::at(port, "3", &[]));
    for node in others.iter().chain([&waiting]) {
        assert_eq!(node.joined()["world_size"], 3);
    }
}

#[test]
fn who_starts_over_gives_up_when_its_time_to_join_is_up() {
    let port = rallypoint_store::free_port().unwrap();
    let mut host = Node::at(port, "3", &[]);
    host.logs("1 of at least 3 nodes are here");
    let conf = ["--rdzv-conf", "is_host=0,join_timeout=6,read_timeout=2"];
    let mut waiting = Node::at(port, "3", &conf);
    waiting.logs("2 of at least 3 nodes are here");
    let start = Instant::now();
    host.signal(Signal::KILL);
    let (code, log) = waiting.ended();
    assert_eq!(code, 5, "{log}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(log.contains(&format!("127.0.0.1:{port}")), "{log}");
}

/// Whose round is gone is told so: what it had is lost.
#[test]
fn who_is_in_a_round_does_not_start_over_at_another_store() {
    let port = rallypoint_store::free_port().unwrap();
    let mut host = Node::at(port, "2", &[]);
    host.logs("1 of at least 2 nodes are here");
    let other = Node::at(port, "2", &["--rdzv-conf", "read_timeout=2"]);
    assert_eq!((host.joined()["world_size"].as_u64(), other.joined()["rank"].as_u64()), (Some(2), Some(1)));
    host.signal(Signal::KILL);
    assert_eq!(other.ended().0, 5);
}

#[test]
fn a_signal_ends_a_node_at_once_that_looks_for_its_store_again() {
    let port = rallypoint_store::free_port().unwrap();
    let mut host = Node::at(port, "3", &[]);
    host.logs("1 of at least 3 nodes are here");
    let mut waiting = Node::at(port, "3", &["--rdzv-conf", "is_host=0,read_timeout=2"]);
    waiting.logs("2 of at least 3 nodes are here");
    host.signal(Signal::KILL);
    waiting.logs("so it starts over");
    let start = Instant::now();
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.ended().0, 143);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_file_in_a_folder_that_is_not_there_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/meeting");
    let start = Instant::now();
    let output = run(&["--rdzv-endpoint", path.to_str().unwrap(), "--rdzv-conf", "store_type=file"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no folder") && said.contains("missing\""), "{said}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_file_that_another_keeps_locked_is_given_up_after_the_read_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meeting");
    let held = File::create(&path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let start = Instant::now();
    let conf = "store_type=file,read_timeout=1";
    let output = run(&["--rdzv-endpoint", path.to_str().unwrap(), "--rdzv-conf", conf]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("hint: can all nodes read, write and lock that file"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn an_endpoint_that_stands_for_every_address_is_refused_and_says_why() {
    for backend in [&["--rdzv-backend", "c10d"][..], &["--rdzv-backend", "static", "--node-rank", "0"]] {
        for endpoint in ["0.0.0.0:29400", "[::]:29400"] {
            let output = run(&[backend, &["--rdzv-endpoint", endpoint]].concat());
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("stands for all addresses of a machine"), "{said}");
        }
    }
}

/// As `nohup` starts it: the terminal may go.
#[test]
fn a_hang_up_that_was_ignored_when_the_node_started_is_ignored() {
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let plain = command(&["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", "2"]);
    let mut nohup = Command::new("nohup");
    nohup.arg(plain.get_program()).args(plain.get_args()).env_remove("RALLYPOINT_LOG");
    let mut node = Node::run(nohup);
    node.logs("1 of at least 2 nodes are here");
    node.signal(Signal::HUP);
    node.signal(Signal::TERM);
    assert_eq!(node.ended().0, 143);
    let mut node = Node::run(plain);
    node.logs("1 of at least 2 nodes are here");
    node.signal(Signal::HUP);
    assert_eq!(node.ended().0, 129);
}

#[test]
fn a_static_node_says_that_rank_0_has_not_answered_and_who_is_here() {
    let port = rallypoint_store::free_port().unwrap();
    let fixed = |rank: &'static str| Node::at(port, "3", &["--rdzv-backend", "static", "--node-rank", rank]);
    let mut second = fixed("1");
    second.logs(&format!(
        "waiting in the static rendezvous 'job': no answer yet from rank 0 at 127.0.0.1:{port}"
    ));
    let mut first = fixed("0");
    first.logs("2 of 3 nodes are here; gives up in ");
    second.logs("2 of 3 nodes are here; gives up in ");
    let third = fixed("2");
    assert_eq!(third.joined()["world_size"], 3);
}
