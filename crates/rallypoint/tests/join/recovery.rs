//! The join timeout of a node after its store was lost, and a node whose log no process reads.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rallypoint_testkit::{ChildGuard, reserve_port};
use rustix::process::Signal;

use crate::node::{Node, command, server};

#[test]
fn the_next_round_after_a_lost_store_has_the_full_join_timeout() {
    let port = reserve_port();
    let mut host = Node::at(port, "3", &[]);
    host.wait_for_log("1 of at least 3 nodes have joined");
    let mut waiting = Node::at(port, "3", &["--rdzv-conf", "join_timeout=60,read_timeout=2"]);
    waiting.wait_for_log("2 of at least 3 nodes have joined");
    let start = Instant::now();
    // Part of the join timeout passes before the store is lost.
    std::thread::sleep(Duration::from_secs(4));
    host.signal(Signal::KILL);
    let after_loss = waiting.wait_for_log("gives up in");
    let left = 60 - start.elapsed().as_secs();
    // The log has the remaining time rounded up to whole seconds.
    assert!(
        (30..=left + 1).any(|seconds| after_loss.contains(&format!("gives up in {seconds} s"))),
        "{after_loss}"
    );
    let others = [0, 1].map(|_| Node::at(port, "3", &[]));
    assert_eq!(waiting.joined()["world_size"], 3);
    for other in others {
        other.signal(Signal::TERM);
        other.ended();
    }
    // The node rejoins only when another node waits, and then has the full join timeout again.
    let _newcomer = Node::at(port, "3", &[]);
    let after_rejoin = waiting.wait_for_log("gives up in");
    assert!(
        after_rejoin.contains("gives up in 60 s") || after_rejoin.contains("gives up in 59 s"),
        "{after_rejoin}"
    );
}

#[test]
fn a_node_whose_log_has_no_reader_stays_in_its_round_and_leaves_on_a_signal() {
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let (unread, mut full) = std::io::pipe().unwrap();
    full.write_all(&[b'x'; 65_536]).unwrap();
    let conf = "keep_alive_interval=1,keep_alive_max_attempt=3";
    let arguments = ["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", "2", "--rdzv-conf", conf];
    let mut unread_node = ChildGuard::spawn(command(&arguments).stdout(Stdio::piped()).stderr(full));
    // The pause is longer than the 3 s after which a node without heartbeats is dropped.
    std::thread::sleep(Duration::from_secs(5));
    let other = Node::start(&server, "2", &["--rdzv-conf", conf]);
    assert_eq!(other.joined()["world_size"], 2);
    let mut joined = String::new();
    BufReader::new(unread_node.stdout.take().unwrap()).read_line(&mut joined).unwrap();
    assert!(joined.contains("\"round\":0"), "{joined}");
    unread_node.signal(Signal::TERM);
    let newcomer = Node::start(&server, "2", &["--rdzv-conf", conf]);
    assert_eq!(newcomer.joined()["round"], 1, "the new node did not replace the one that left");
    assert_eq!(unread_node.ended().code(), Some(0));
    drop(unread);
}
