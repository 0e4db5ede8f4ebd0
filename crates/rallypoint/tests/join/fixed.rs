//! Nodes of a static rendezvous that contradict each other, each a process of its own: every one of them says which two.

use crate::node::Node;

/// A static job at a port of its own.
struct Job {
    port: u16,
}

impl Job {
    fn new() -> Job {
        Job { port: rallypoint_store::free_port().unwrap() }
    }

    /// A node whose address nobody else has.
    fn node(&self, address: &str, rank: &str, nodes: &str) -> Node {
        let fixed = ["--rdzv-backend", "static", "--node-rank", rank, "--local-addr", address];
        Node::at(self.port, nodes, &fixed)
    }

    /// One that waits with so many others, itself counted in.
    fn waiting(&self, address: &str, rank: &str, nodes: &str, here: u64) -> Node {
        let mut node = self.node(address, rank, nodes);
        node.logs(&format!("{here} of {nodes} nodes are here"));
        node
    }
}

fn name(address: &str, node: &Node) -> String {
    format!("{address} (pid {})", node.child.id())
}

/// All of them fail, for one reason, and name both of those who contradict each other and nobody else.
fn assert_all_name(nodes: [Node; 3], both: [String; 2], what: &str) {
    for node in nodes {
        let (code, log) = node.ended();
        assert_eq!(code, 1, "{log}");
        let said = log.lines().find(|line| line.starts_with("rallypoint join:")).expect("it says why");
        assert!(said.contains(what), "{what}: {said}");
        assert!(both.iter().all(|name| said.contains(name)), "{both:?}: {said}");
        assert_eq!(said.matches("(pid ").count(), 2, "{said}");
    }
}

#[test]
fn a_rank_that_was_given_twice_names_both_processes_on_every_node() {
    for twice in ["0", "1"] {
        let job = Job::new();
        let nodes = [
            job.waiting("127.0.0.2", "0", "3", 1),
            job.waiting("127.0.0.3", "1", "3", 2),
            job.node("127.0.0.4", twice, "3"),
        ];
        let first = if twice == "0" { name("127.0.0.2", &nodes[0]) } else { name("127.0.0.3", &nodes[1]) };
        let both = [first, name("127.0.0.4", &nodes[2])];
        assert_all_name(nodes, both, &format!("node rank {twice} was given twice"));
    }
}

#[test]
fn numbers_of_nodes_that_differ_name_both_processes_on_every_node() {
    for differing in ["4", "5"] {
        let job = Job::new();
        let nodes = [
            job.waiting("127.0.0.2", "0", "3", 1),
            job.waiting("127.0.0.3", "1", "3", 2),
            job.node("127.0.0.4", "2", differing),
        ];
        // The first has said for how many, and the second the same.
        let both = [name("127.0.0.2", &nodes[0]), name("127.0.0.4", &nodes[2])];
        let what = format!("started for {differing} nodes, but {} for 3", both[0]);
        assert_all_name(nodes, both, &what);
    }
}
