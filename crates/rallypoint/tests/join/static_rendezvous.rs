//! Nodes of a static rendezvous with contradictory settings. The error of every node names the two nodes whose
//! settings contradict each other.

use rallypoint_store::{Store, TcpStore};
use rallypoint_testkit::{eventually, reserve_port};
use rustix::process::Signal;

use crate::node::Node;

/// A static job whose store is at a reserved port.
struct Job {
    port: u16,
}

impl Job {
    fn new() -> Job {
        Job { port: reserve_port() }
    }

    /// Starts a node with this local address, group rank and number of nodes.
    fn node(&self, address: &str, rank: &str, nodes: &str) -> Node {
        let fixed = ["--rdzv-backend", "static", "--node-rank", rank, "--local-addr", address];
        Node::at(self.port, nodes, &fixed)
    }

    /// Like `node`, but waits until the node logs that `joined` nodes have joined.
    fn waiting(&self, address: &str, rank: &str, nodes: &str, joined: u64) -> Node {
        let mut node = self.node(address, rank, nodes);
        node.wait_for_log(&format!("{joined} of {nodes} nodes have joined"));
        node
    }
}

fn name(address: &str, node: &Node) -> String {
    format!("{address} (pid {})", node.child.id())
}

/// Checks that all nodes fail with an error that contains `what` and names exactly the two nodes in `both`.
fn assert_all_name(nodes: [Node; 3], both: [String; 2], what: &str) {
    for node in nodes {
        let (code, log) = node.ended();
        assert_eq!(code, 1, "{log}");
        let error_line =
            log.lines().find(|line| line.starts_with("rallypoint join:")).expect("the node prints an error");
        assert!(error_line.contains(what), "{what}: {error_line}");
        assert!(both.iter().all(|name| error_line.contains(name)), "{both:?}: {error_line}");
        assert_eq!(error_line.matches("(pid ").count(), 2, "{error_line}");
    }
}

#[test]
fn if_a_node_rank_is_given_twice_every_node_names_both_processes() {
    for duplicate in ["0", "1"] {
        let job = Job::new();
        let nodes = [
            job.waiting("127.0.0.2", "0", "3", 1),
            job.waiting("127.0.0.3", "1", "3", 2),
            job.node("127.0.0.4", duplicate, "3"),
        ];
        let first =
            if duplicate == "0" { name("127.0.0.2", &nodes[0]) } else { name("127.0.0.3", &nodes[1]) };
        let both = [first, name("127.0.0.4", &nodes[2])];
        assert_all_name(nodes, both, &format!("node rank {duplicate} was given twice"));
    }
}

#[test]
fn if_the_numbers_of_nodes_differ_every_node_names_both_processes() {
    for differing in ["4", "5"] {
        let job = Job::new();
        let nodes = [
            job.waiting("127.0.0.2", "0", "3", 1),
            job.waiting("127.0.0.3", "1", "3", 2),
            job.node("127.0.0.4", "2", differing),
        ];
        // The first two nodes agree on the number of nodes. The error compares the third node with the first one.
        let both = [name("127.0.0.2", &nodes[0]), name("127.0.0.4", &nodes[2])];
        let what = format!("started for {differing} nodes, but {} for 3", both[0]);
        assert_all_name(nodes, both, &what);
    }
}

/// The round of the two other nodes is complete. The late node must fail, and their round must continue.
#[test]
fn a_late_node_with_another_number_of_nodes_is_refused() {
    let job = Job::new();
    let nodes = ["0", "1"].map(|rank| job.node("127.0.0.2", rank, "2"));
    nodes.iter().for_each(|node| assert_eq!(node.joined()["world_size"], 2));
    let store = TcpStore::connect("127.0.0.1", job.port).unwrap();
    eventually("all nodes have joined", || store.check(&["rallypoint.static/job/met"]).unwrap());
    let late = job.node("127.0.0.4", "2", "3");
    let late_name = name("127.0.0.4", &late);
    let (code, log) = late.ended();
    assert_eq!(code, 1, "{log}");
    let names = nodes.each_ref().map(|node| name("127.0.0.2", node));
    assert!(log.contains(&format!("{late_name} was started for 3 nodes, but ")), "{log}");
    assert!(names.iter().any(|name| log.contains(name)), "{log}");
    // The refused node has not affected the job: a new process with the right number of nodes can still replace a
    // killed node.
    nodes[1].signal(Signal::KILL);
    assert_eq!(job.node("127.0.0.2", "1", "2").joined()["world_size"], 2);
}
