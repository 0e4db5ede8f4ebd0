//! Nodes of `rallypoint join` under faults: a store that is lost, corrupt, locked or unreachable, signals, and a log
//! that can't be written.

use std::fs::File;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use rallypoint_core::rendezvous::{NodeDesc, cell, pickle};
use rallypoint_store::{Limits, Listen, ServerOptions, Store, TcpStore, TcpStoreServer};
use rallypoint_testkit::{eventually, reserve_port};
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::node::{Node, command, run, server, text};

/// The waiting node can take over, because its machine has the address of the endpoint. It is not in a round yet, so
/// the loss of the state does no harm.
#[test]
fn a_waiting_node_takes_over_when_the_host_is_killed() {
    let port = reserve_port();
    let mut host = Node::at(port, "3", &[]);
    host.wait_for_log("1 of at least 3 nodes have joined");
    let mut waiting = Node::at(port, "3", &["--rdzv-conf", "read_timeout=2"]);
    waiting.wait_for_log("2 of at least 3 nodes have joined");
    host.signal(Signal::KILL);
    waiting.wait_for_log("hosts it now at");
    let others = [0, 1].map(|_| Node::at(port, "3", &[]));
    for node in others.iter().chain([&waiting]) {
        assert_eq!(node.joined()["world_size"], 3);
    }
}

/// The node could take over, because its machine has the address of the endpoint. But then the server could not start
/// again.
#[test]
fn a_waiting_node_does_not_take_over_from_a_standalone_server() {
    let port = reserve_port();
    let options = || ServerOptions::new(vec![Listen::at("127.0.0.1", port)]).is_standalone(true);
    let server = TcpStoreServer::start(options()).unwrap();
    let mut waiting = Node::at(port, "2", &["--rdzv-conf", "read_timeout=2"]);
    waiting.wait_for_log("1 of at least 2 nodes have joined");
    drop(server);
    // A node that can take over does so after 5 s. The second warning is logged after 10 s or later.
    for _ in 0..2 {
        waiting.wait_for_log("has not answered for");
    }
    let _server = TcpStoreServer::start(options()).unwrap();
    let other = Node::at(port, "2", &[]);
    for node in [&waiting, &other] {
        assert_eq!(node.joined()["world_size"], 2);
    }
}

#[test]
fn a_waiting_node_whose_store_was_lost_fails_after_the_join_timeout() {
    let port = reserve_port();
    let mut host = Node::at(port, "3", &[]);
    host.wait_for_log("1 of at least 3 nodes have joined");
    let conf = ["--rdzv-conf", "is_host=0,join_timeout=6,read_timeout=2"];
    let mut waiting = Node::at(port, "3", &conf);
    waiting.wait_for_log("2 of at least 3 nodes have joined");
    let start = Instant::now();
    host.signal(Signal::KILL);
    let (code, log) = waiting.ended();
    assert_eq!(code, 5, "{log}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(log.contains(&format!("127.0.0.1:{port}")), "{log}");
}

/// The state of the round is lost with the store, so the node can't continue. The error names the endpoint and the
/// job.
#[test]
fn a_node_in_a_round_fails_after_the_store_outage_timeout() {
    let port = reserve_port();
    let mut host = Node::at(port, "2", &[]);
    host.wait_for_log("1 of at least 2 nodes have joined");
    let conf = ["--rdzv-conf", "is_host=0,read_timeout=2,store_outage_timeout=3"];
    let other = Node::at(port, "2", &conf);
    for node in [&host, &other] {
        assert_eq!(node.joined()["world_size"], 2);
    }
    host.signal(Signal::KILL);
    let start = Instant::now();
    let (code, log) = other.ended();
    assert_eq!(code, 5, "{log}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let line = log.lines().find(|line| line.starts_with("rallypoint join: ")).unwrap_or(&log);
    assert!(line.contains(&format!("127.0.0.1:{port}")) && line.contains("job"), "{log}");
    assert!(log.contains("store_outage_timeout") && log.contains("hint: "), "{log}");
}

#[test]
fn a_node_tolerates_a_corrupt_state_for_10_s_and_then_fails_with_the_reason() {
    // The server refuses a corrupt value under the key of a state, but does not check values under keys with a slash.
    // So this run id contains a slash.
    const KEY: &str = "torch.rendezvous.job/1";
    let server = server();
    let store = TcpStore::connect("127.0.0.1", server.port()).unwrap();
    let mut node = Node::start(&server, "1", &["--rdzv-id", "job/1"]);
    node.joined();
    let good = store.get(KEY).unwrap();
    store.set(KEY, b"!!!").unwrap();
    node.wait_for_log("waiting until it is repaired");
    store.set(KEY, &good).unwrap();
    // A changed value is the next heartbeat of the node, which shows that the node has read the repaired state.
    eventually("the node sends heartbeats", || store.get(KEY).unwrap() != good);
    assert!(node.child.try_wait().unwrap().is_none(), "the node has ended");
    let start = Instant::now();
    store.set(KEY, b"!!!").unwrap();
    let (code, log) = node.ended();
    assert_eq!(code, 1, "{log}");
    assert!(start.elapsed() > Duration::from_secs(9) && start.elapsed() < Duration::from_secs(20), "{log}");
    assert!(log.contains("rallypoint join: the state of the rendezvous \"job/1\" is corrupt: "), "{log}");
}

#[test]
fn a_signal_ends_a_node_that_reconnects_to_its_store() {
    let port = reserve_port();
    let mut host = Node::at(port, "3", &[]);
    host.wait_for_log("1 of at least 3 nodes have joined");
    let mut waiting = Node::at(port, "3", &["--rdzv-conf", "is_host=0,read_timeout=2"]);
    waiting.wait_for_log("2 of at least 3 nodes have joined");
    host.signal(Signal::KILL);
    waiting.wait_for_log("has not answered for");
    let start = Instant::now();
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.ended().0, 143);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_file_store_in_a_missing_directory_is_refused_immediately() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("missing/rendezvous");
    let start = Instant::now();
    let output = run(&["--rdzv-endpoint", path.to_str().unwrap(), "--rdzv-conf", "store_type=file"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("there is no directory") && stderr.contains("missing\""), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_locked_file_store_is_given_up_after_the_read_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rendezvous");
    let locked = File::create(&path).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    let start = Instant::now();
    let conf = "store_type=file,read_timeout=1";
    let output = run(&["--rdzv-endpoint", path.to_str().unwrap(), "--rdzv-conf", conf]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains("hint: check that all nodes use the same file"), "{stderr}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn an_unspecified_endpoint_address_is_refused_with_the_reason() {
    for backend in [&["--rdzv-backend", "c10d"][..], &["--rdzv-backend", "static", "--node-rank", "0"]] {
        for endpoint in ["0.0.0.0:29400", "[::]:29400"] {
            let output = run(&[backend, &["--rdzv-endpoint", endpoint]].concat());
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            assert!(stderr.contains("stands for all addresses of a machine"), "{stderr}");
        }
    }
}

/// `nohup` starts a node with SIGHUP ignored.
#[test]
fn a_node_started_by_nohup_ignores_sighup() {
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let plain = command(&["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", "2"]);
    let mut nohup = Command::new("nohup");
    nohup.arg(plain.get_program()).args(plain.get_args()).env_remove("RALLYPOINT_LOG");
    let mut node = Node::run(nohup);
    node.wait_for_log("1 of at least 2 nodes have joined");
    node.signal(Signal::HUP);
    node.signal(Signal::TERM);
    assert_eq!(node.ended().0, 143);
    // The tests themselves may run under `nohup`, so `env` resets SIGHUP.
    let mut usual = Command::new("env");
    usual
        .arg("--default-signal=HUP")
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_remove("RALLYPOINT_LOG");
    let mut node = Node::run(usual);
    node.wait_for_log("1 of at least 2 nodes have joined");
    node.signal(Signal::HUP);
    assert_eq!(node.ended().0, 129);
}

#[test]
fn a_static_node_logs_that_rank_0_does_not_answer_and_how_many_nodes_are_present() {
    let port = reserve_port();
    let node = |rank: &'static str| Node::at(port, "3", &["--rdzv-backend", "static", "--node-rank", rank]);
    let mut second = node("1");
    second.wait_for_log(&format!(
        "waiting in the rendezvous 'job': no reply yet from rank 0 at 127.0.0.1:{port}: connection refused"
    ));
    let mut first = node("0");
    let joined = format!("2 of 3 nodes have joined at 127.0.0.1:{port}; gives up in ");
    first.wait_for_log(&joined);
    second.wait_for_log(&joined);
    let third = node("2");
    assert_eq!(third.joined()["world_size"], 3);
}

/// The node with group rank 0 is killed before the round is complete. So it can't publish the master address and
/// port, and the other node can't start in that round.
#[test]
fn a_spare_replaces_a_node_of_group_rank_0_that_was_killed_before_the_round_was_complete() {
    let server = server();
    let at = |address| Node::start(&server, "2", &["--local-addr", address]);
    let mut first = at("127.0.0.1");
    first.wait_for_log("1 of at least 2 nodes have joined");
    first.signal(Signal::KILL);
    let start = Instant::now();
    let mut second = at("127.0.0.2");
    second.wait_for_log("has joined round 0");
    let mut spare = at("127.0.0.3");
    spare.wait_for_log("standing by as a spare");
    let rounds = [second.joined(), spare.joined()];
    let took = start.elapsed();
    for round in &rounds {
        assert_eq!((&round["round"], &round["world_size"]), (&1.into(), &2.into()), "{round}");
        assert_eq!(round["master_addr"], "127.0.0.2");
    }
    assert!(took < Duration::from_secs(25), "{took:?}");
}

/// Each write to `/dev/full` fails like a write to a full disk. That must not prevent the command from running.
#[test]
fn a_command_runs_although_the_log_cannot_be_written() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let mut node = command(&["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--", "echo", "it ran"]);
    let output = node.stderr(full()).output().unwrap();
    assert!(text(&output.stdout).contains("it ran"), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(0));
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    agent.args(["run", "--nnodes", "1", "--no-python", "echo", "it ran"]);
    let output = agent.stderr(full()).output().unwrap();
    assert!(text(&output.stdout).contains("it ran"), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(0));
}

/// Another program uses the port when the node starts, and frees it later.
#[test]
fn a_node_that_could_not_host_the_store_retries() {
    let port = reserve_port();
    let other_program = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut node = Node::at(port, "1", &[]);
    // The node could not bind the port, so it connects to the other program as a client.
    drop(other_program.accept().unwrap());
    drop(other_program);
    node.wait_for_log("this node hosts the store at");
    assert_eq!(node.joined()["world_size"], 1);
}

/// Each state is valid and has more than three quarters of the maximum size. A node that kept all states that it has
/// read would exceed the memory bound.
#[test]
fn large_states_that_change_often_use_bounded_memory() {
    const KEY: &str = "torch.rendezvous.job";
    let (server, limits) = (server(), Limits::default());
    let store = TcpStore::connect("127.0.0.1", server.port()).unwrap();
    let mut node = Node::start(&server, "3", &["--rdzv-conf", "is_host=0,join_timeout=300"]);
    node.wait_for_log("1 of at least 3 nodes have joined");
    let (start, mut peak_mib) = (Instant::now(), 0);
    for turn in 0.. {
        let mut state = cell::read(&store.get(KEY).unwrap(), &limits).unwrap().unwrap();
        let beat = *state.last_heartbeats.values().next().unwrap();
        let node_named =
            |n: usize| NodeDesc::new(format!("{turn:03}-{n:04}-{}", "h".repeat(100)), n as i64, 0);
        state.last_heartbeats.retain(|node, _| state.participants.contains_key(node));
        // The wait list and the participant together are the maximum number of nodes. The names are long.
        let count = limits.state_nodes - 1;
        state.wait_list = (0..count).map(node_named).collect();
        state.last_heartbeats.extend((0..count).map(|n| (node_named(n), beat)));
        let value = cell::encode(&pickle::encode(&state, &limits).unwrap());
        assert!(value.len() * 3 / 4 > limits.state_bytes * 3 / 4, "{} bytes", value.len());
        store.set(KEY, &value).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak_mib = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024;
        assert!(peak_mib <= 64, "{peak_mib} MiB after {turn} states");
        if start.elapsed() > Duration::from_secs(17) {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    println!("{peak_mib} MiB at most");
    assert!(node.child.try_wait().unwrap().is_none(), "the node has ended");
}
