//! Nodes with a command: whether the command keeps running or ends when nodes join, leave or are killed.

use std::path::Path;

use rallypoint_rendezvous::{
    RendezvousHandler, RendezvousInfo, RendezvousParameters, RoleInfo, assign_ranks,
    rendezvous_handler_registry,
};
use rallypoint_store::TcpStoreServer;
use rallypoint_testkit::eventually;
use rustix::process::Signal;

use crate::node::{Node, server};

/// Returns a rendezvous handler with which this process acts as another node of the job.
fn peer(server: &TcpStoreServer) -> Box<dyn RendezvousHandler> {
    let endpoint = format!("127.0.0.1:{}", server.port());
    let mut parameters = RendezvousParameters::new("c10d", &endpoint, "job", 1, 2).unwrap();
    for (key, value) in [("is_host", 0i64), ("last_call_timeout", 1), ("join_timeout", 60)] {
        parameters.config.insert(key.into(), value.into());
    }
    rendezvous_handler_registry()
        .create_handler(&parameters.with_local_addr(Some("127.0.0.1".into())))
        .unwrap()
}

/// Publishes that the node of this process has one worker. The other nodes of the round wait for that.
fn assign_peer_ranks(round: &RendezvousInfo) {
    let mine = RoleInfo { role: "default".into(), rank: round.rank, local_world_size: 1 };
    assign_ranks(&*round.store, &mine, round.world_size).unwrap();
}

fn is_running(pid: &str) -> bool {
    // A zombie has an entry in `/proc`, but no working directory.
    Path::new("/proc").join(pid).join("cwd").exists()
}

/// The peer joins the next round while the command of the other node still runs. Torch's agents do that when a worker
/// fails. Neither node may wait for the other one until a timeout expires.
#[test]
fn a_command_ends_when_other_nodes_reform_the_round_without_this_node() {
    let server = server();
    let mut node = Node::start(&server, "1:2", &["--", "sh", "-c", "echo ready; exec sleep 300"]);
    node.wait_for_log("1 of at most 2 nodes have joined");
    let peer = peer(&server);
    let round = peer.next_rendezvous().unwrap();
    assert_eq!(round.world_size, 2);
    assign_peer_ranks(&round);
    node.joined();
    assert_eq!(node.line(), "ready");
    let next = peer.next_rendezvous().unwrap();
    assert_eq!((next.round, next.world_size), (1, 1));
    let (code, log) = node.ended();
    assert_eq!(code, 6, "{log}");
    assert!(log.contains("other nodes have left round 0"), "{log}");
}

#[test]
fn a_command_that_exits_with_0_after_sigterm_is_a_success() {
    let server = server();
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut node = Node::start(&server, "1:2", &["--", "sh", "-c", script]);
    node.wait_for_log("1 of at most 2 nodes have joined");
    let peer = peer(&server);
    let round = peer.next_rendezvous().unwrap();
    assign_peer_ranks(&round);
    node.joined();
    assert_eq!(node.line(), "ready");
    assert_eq!(peer.next_rendezvous().unwrap().world_size, 1);
    assert_eq!(node.ended().0, 0);
}

/// A command that runs until it is released, and then exits with a given code.
pub(crate) struct GatedCommand {
    directory: tempfile::TempDir,
    script: String,
}

impl GatedCommand {
    pub(crate) fn new(code: u8) -> GatedCommand {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let script = format!("echo ready; while [ ! -e {} ]; do sleep 0.02; done; exit {code}", go.display());
        GatedCommand { directory, script }
    }

    /// Starts a node of the job that runs the command.
    pub(crate) fn node(&self, server: &TcpStoreServer, nodes: &str) -> Node {
        Node::start(server, nodes, &[&SHORT_LAST_CALL[..], &["--", "sh", "-c", &self.script]].concat())
    }

    pub(crate) fn release(&self) {
        std::fs::write(self.directory.path().join("go"), "").unwrap();
    }
}

const SHORT_LAST_CALL: [&str; 2] = ["--rdzv-conf", "last_call_timeout=1"];

/// A node that waits for the next round does not end the command, because no node has left the current round.
#[test]
fn a_command_keeps_running_while_a_node_waits_for_the_next_round() {
    let (server, command) = (server(), GatedCommand::new(0));
    let mut node = command.node(&server, "1:2");
    node.joined();
    assert_eq!(node.line(), "ready");
    let late = Node::start(&server, "1:2", &[]);
    node.wait_for_log("nodes wait for the next round (1 now); this node stays until its command has exited");
    command.release();
    assert_eq!(node.ended().0, 0);
    assert_eq!(late.ended().0, 3, "the job ended before the node could join");
}

/// Starts a round of two nodes, one with this command and one without a command, and a third node that waits for the
/// next round.
fn start_three_nodes(server: &TcpStoreServer, command: &GatedCommand) -> [Node; 3] {
    let working = command.node(server, "2:3");
    let mut plain = Node::start(server, "2:3", &SHORT_LAST_CALL);
    assert_eq!(plain.joined()["world_size"], 2);
    working.joined();
    assert_eq!(working.line(), "ready");
    let late = Node::start(server, "2:3", &SHORT_LAST_CALL);
    plain.wait_for_log("the next round begins when the nodes with a command exit or rejoin");
    [working, plain, late]
}

/// A node without a command rejoins when another node waits, but not while a node of its round runs a command.
#[test]
fn a_command_keeps_running_while_a_node_waits_and_another_has_no_command() {
    let (server, command) = (server(), GatedCommand::new(0));
    let [working, plain, late] = start_three_nodes(&server, &command);
    command.release();
    assert_eq!(working.ended().0, 0);
    assert_eq!(plain.ended().0, 0);
    assert_eq!(late.ended().0, 3, "the job ended before the node could join");
}

/// The command fails, so the job does not end, and the remaining nodes can join the next round.
#[test]
fn nodes_without_a_command_rejoin_when_the_last_command_has_ended() {
    let (server, command) = (server(), GatedCommand::new(7));
    let [working, plain, late] = start_three_nodes(&server, &command);
    command.release();
    assert_eq!(working.ended().0, 7);
    assert_eq!(late.joined()["world_size"], 2);
    assert_eq!(plain.joined()["world_size"], 2);
}

#[test]
fn a_finished_node_does_not_wait_for_a_killed_node() {
    let server = server();
    let conf = ["--rdzv-conf", "keep_alive_interval=1", "--", "sh", "-c"];
    let script = "echo running; [ $GROUP_RANK = 0 ] || exec sleep 300";
    let mut nodes = [0, 1].map(|_| Node::start(&server, "2", &[&conf[..], &[script]].concat()));
    if nodes[0].joined()["rank"] == 1 {
        nodes.swap(0, 1);
        nodes[0].joined();
    } else {
        nodes[1].joined();
    }
    assert_eq!([nodes[0].line(), nodes[1].line()], ["running", "running"]);
    nodes[1].signal(Signal::KILL);
    let [finished, _killed] = nodes;
    let (code, log) = finished.ended();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("lost from round 0: 127.0.0.1 (pid "), "{log}");
}

#[test]
fn a_killed_node_leaves_no_command_running() {
    let server = server();
    let node = Node::start(&server, "1", &["--", "sh", "-c", "echo $$; exec sleep 300"]);
    node.joined();
    let pid = node.line();
    assert!(is_running(&pid));
    node.signal(Signal::KILL);
    eventually("the command has ended", || !is_running(&pid));
}
