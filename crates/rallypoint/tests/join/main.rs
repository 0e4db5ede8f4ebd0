//! Tests of `rallypoint join`: output, commands, signals and exit codes.

mod faults;
mod native;
mod node;
mod recovery;
mod static_rendezvous;
mod waiting;
mod worker;

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rallypoint_testkit::{eventually, reserve_port};
use rustix::process::Signal;

use node::{Node, command, run, server, text};
use worker::GatedCommand;

#[test]
fn a_joined_node_prints_one_line_and_stays_until_a_signal() {
    let server = server();
    let nodes = [0, 1].map(|_| Node::start(&server, "2", &[]));
    let mut lines: Vec<_> = nodes.iter().map(Node::joined).collect();
    lines.sort_by_key(|line| line["rank"].as_u64());
    for (rank, line) in lines.iter().enumerate() {
        assert_eq!((&line["run_id"], &line["round"]), (&"job".into(), &0.into()));
        assert_eq!((&line["rank"], &line["world_size"]), (&rank.into(), &2.into()));
        assert_eq!(line["master_addr"], "127.0.0.1");
        assert_eq!(line["master_port"], lines[0]["master_port"]);
        assert_eq!(line["participants"].as_array().unwrap().len(), 2);
        assert_eq!(line["participants"][0]["addr"], "127.0.0.1");
    }
    let [first, second] = nodes;
    first.signal(Signal::TERM);
    assert_eq!(first.ended().0, 0);
    second.signal(Signal::INT);
    assert_eq!(second.ended().0, 0);
}

#[test]
fn a_command_gets_the_round_in_its_environment_and_its_exit_code_is_returned() {
    let server = server();
    let script = "echo $GROUP_RANK $GROUP_WORLD_SIZE $MASTER_ADDR $MASTER_PORT; exit $((40 + GROUP_RANK))";
    let nodes = [0, 1].map(|_| Node::start(&server, "2", &["--", "sh", "-c", script]));
    for node in nodes {
        let joined = node.joined();
        let line = node.line();
        let rank = joined["rank"].as_i64().unwrap();
        assert_eq!(line, format!("{rank} 2 127.0.0.1 {}", joined["master_port"]));
        assert_eq!(node.ended().0, 40 + rank as i32);
    }
}

#[test]
fn exit_codes_of_killed_or_missing_commands_are_those_of_a_shell() {
    let server = server();
    for (id, script, code) in [("a", "kill -9 $$", 137), ("b", "kill -TERM $$", 143), ("c", "exit 7", 7)] {
        let node = Node::start(&server, "1", &["--rdzv-id", id, "--", "sh", "-c", script]);
        assert_eq!(node.ended().0, code, "{script}");
    }
    let (code, log) = Node::start(&server, "1", &["--rdzv-id", "d", "--", "/no/such/program"]).ended();
    assert_eq!(code, 127);
    assert!(log.contains("cannot run \"/no/such/program\""), "{log}");
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let server = server();
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let node = Node::start(&server, "1", &["--", "sh", "-c", script]);
    node.joined();
    assert_eq!(node.line(), "ready");
    node.signal(Signal::TERM);
    assert_eq!(node.line(), "caught");
    assert_eq!(node.ended().0, 5);
}

#[test]
fn a_waiting_node_logs_the_participants_the_missing_nodes_and_the_timeout() {
    let server = server();
    let mut first = Node::start(&server, "3", &["--rdzv-conf", "join_timeout=50"]);
    let alone = first.wait_for_log("waiting in the rendezvous 'job'");
    assert!(
        alone.contains("1 of at least 3 nodes have joined, 2 missing; joined: 127.0.0.1 (pid "),
        "{alone}"
    );
    assert!(
        alone.contains("gives up in 50 s (join_timeout)") || alone.contains("gives up in 49 s"),
        "{alone}"
    );
    let _second = Node::start(&server, "3", &[]);
    let both = first.wait_for_log("2 of at least 3 nodes have joined, 1 missing");
    assert_eq!(both.matches("pid ").count(), 2, "{both}");
}

#[test]
fn a_timeout_names_the_expected_hosts_that_did_not_join() {
    let server = server();
    let conf = "join_timeout=1,expected_hosts=127.0.0.1;node[7-8]";
    let (code, log) = Node::start(&server, "3", &["--rdzv-conf", conf]).ended();
    assert_eq!(code, 4);
    assert!(log.contains("1 of at least 3 nodes joined within 1 s (join_timeout): 127.0.0.1 (pid "), "{log}");
    let end = log.lines().find(|line| line.starts_with("rallypoint join:")).unwrap();
    assert!(end.ends_with("; missing hosts: node7, node8"), "{end}");
}

#[test]
fn the_hosts_of_a_slurm_job_are_expected() {
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let output = command(&["--rdzv-endpoint", &endpoint, "--nnodes", "3", "--rdzv-conf", "join_timeout=1"])
        .env("SLURM_JOB_NODELIST", "localhost,gpu[03-04]")
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("missing hosts: gpu03, gpu04"), "{}", text(&output.stderr));
}

#[test]
fn a_signal_makes_a_waiting_node_leave_immediately() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let server = server();
        let mut node = Node::start(&server, "2", &[]);
        node.wait_for_log("1 of at least 2 nodes have joined");
        let start = Instant::now();
        node.signal(signal);
        assert_eq!(node.ended().0, code);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        // The node has left without closing the rendezvous, so two other nodes can form a round.
        let others = [0, 1].map(|_| Node::start(&server, "2", &[]));
        assert!(others.iter().all(|node| node.joined()["world_size"] == 2));
    }
}

#[test]
fn a_signal_ends_a_node_that_has_not_reached_its_store() {
    for more in [&["--rdzv-conf", "is_host=0"][..], &["--rdzv-backend", "static", "--node-rank", "1"]] {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = Node::at(silent.local_addr().unwrap().port(), "2", more);
        let _connection = silent.accept().unwrap();
        let start = Instant::now();
        node.signal(Signal::INT);
        assert_eq!(node.ended().0, 130, "{more:?}");
        assert!(start.elapsed() < Duration::from_secs(3), "{more:?}: {:?}", start.elapsed());
    }
}

#[test]
fn a_stopped_host_does_not_delay_a_node_that_got_a_signal() {
    let port = reserve_port();
    let mut host = Node::at(port, "4", &[]);
    host.wait_for_log("1 of at least 4 nodes have joined");
    let (mut signaled_once, mut signaled_twice) = (Node::at(port, "4", &[]), Node::at(port, "4", &[]));
    signaled_once.wait_for_log("3 of at least 4 nodes have joined");
    signaled_twice.wait_for_log("3 of at least 4 nodes have joined");
    host.signal(Signal::STOP);
    let start = Instant::now();
    signaled_once.signal(Signal::TERM);
    signaled_twice.signal(Signal::TERM);
    signaled_twice.signal(Signal::INT);
    assert!([130, 143].contains(&signaled_twice.ended().0));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!([143, 5].contains(&signaled_once.ended().0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_signal_reaches_all_processes_of_the_command() {
    let server = server();
    let node = Node::start(&server, "1", &["--", "sh", "-c", "sleep 300 & echo $!; wait"]);
    node.joined();
    let started = format!("/proc/{}", node.line());
    node.signal(Signal::TERM);
    assert_eq!(node.ended().0, 143);
    eventually("all processes of the command have ended", || {
        !std::path::Path::new(&started).join("cwd").exists()
    });
}

/// Nodes without a command have no workers, so no other node waits for them at the exit barrier. The host of the
/// store exits only after every other node has read that the job ended.
#[test]
fn nodes_without_a_command_exit_with_0_and_do_not_delay_the_end_of_the_job() {
    let port = reserve_port();
    let mut host = Node::at(port, "3", &[]);
    host.wait_for_log("this node hosts the store at");
    let other = Node::at(port, "3", &[]);
    let working = Node::at(port, "3", &["--", "sh", "-c", "exit $((RANK + WORLD_SIZE - 1))"]);
    for node in [working, other, host] {
        let (code, log) = node.ended();
        assert_eq!(code, 0, "{log}");
        assert!(!log.contains("WARN"), "{log}");
    }
}

#[test]
fn a_failing_command_delays_no_other_node_and_does_not_close_the_rendezvous() {
    let server = server();
    let script = ["--", "sh", "-c", "exit $GROUP_RANK"];
    let nodes = [0, 1].map(|_| Node::start(&server, "2", &script));
    let mut codes = nodes.map(|node| node.ended().0);
    codes.sort();
    assert_eq!(codes, [0, 1]);
    let others = [0, 1].map(|_| Node::start(&server, "2", &["--", "true"]));
    for node in others {
        let (joined, start) = (node.joined(), Instant::now());
        assert_eq!((&joined["round"], &joined["world_size"]), (&1.into(), &2.into()));
        assert_eq!(node.ended().0, 0);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn a_node_that_cannot_print_its_line_leaves() {
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["--rdzv-endpoint", &endpoint, "--rdzv-id", "job"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let start = Instant::now();
    assert_eq!(Node::start(&server, "1", &[]).joined()["round"], 1);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// The heartbeat settings are torch's defaults: a node is dead after 15 s without a heartbeat.
#[test]
fn a_spare_replaces_a_killed_node_within_the_default_times_and_the_log_names_the_reason() {
    let server = server();
    let nodes = [0, 1, 2].map(|_| Node::start(&server, "3", &[]));
    nodes.iter().for_each(|node| drop(node.joined()));
    let mut spare = Node::start(&server, "3", &[]);
    spare.wait_for_log("standing by as a spare");
    let start = Instant::now();
    nodes[0].signal(Signal::KILL);
    let joined = spare.joined();
    let took = start.elapsed();
    assert_eq!(joined["world_size"], 3);
    nodes[1..].iter().for_each(|node| assert_eq!(node.joined()["round"], joined["round"]));
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(25), "{took:?}");
    let pid = nodes[0].child.id();
    [&spare, &nodes[1], &nodes[2]].iter().for_each(|node| node.signal(Signal::TERM));
    let [_, first, second] = nodes;
    let (first, second) = (first.ended().1, second.ended().1);
    for log in [&first, &second] {
        let line = format!("lost from round 0: 127.0.0.1 (pid {pid}): no heartbeat for 15 s");
        assert!(log.contains(&line), "{log}");
    }
    let logs = spare.ended().1 + &first + &second;
    let line = format!("The node 127.0.0.1 (pid {pid}) was removed from the rendezvous 'job' by this node");
    assert!(logs.contains(&line), "{logs}");
    assert!(logs.contains("no heartbeat for 15 s"), "{logs}");
}

#[test]
fn a_node_that_times_out_during_a_round_reports_the_round() {
    let server = server();
    let working = Node::start(&server, "1:2", &["--rdzv-conf", "last_call_timeout=1", "--", "sleep", "60"]);
    working.joined();
    let late = Node::start(&server, "1:2", &["--rdzv-conf", "join_timeout=2"]);
    let (code, log) = late.ended();
    let line = format!(
        "round 0 is under way with 1 node and did not re-form within 2 s (join_timeout): 127.0.0.1 (pid {})",
        working.child.id()
    );
    assert_eq!(code, 4, "{log}");
    assert!(log.contains(&line) && log.contains("restart one of them"), "{log}");
    assert!(!log.contains("at least"), "the error reports missing nodes: {log}");
}

#[test]
fn joining_a_closed_rendezvous_exits_with_3_and_a_spare_of_an_ended_job_exits_with_0() {
    let server = server();
    // The command succeeds, so the job ends and the node closes the rendezvous.
    assert_eq!(Node::start(&server, "1", &["--", "true"]).ended().0, 0);
    let (code, log) = Node::start(&server, "1", &[]).ended();
    assert_eq!(code, 3);
    assert!(log.contains("the rendezvous was closed by 127.0.0.1 (pid "), "{log}");
    // A node that is a spare when the job ends exits with 0.
    let (server, command) = (node::server(), GatedCommand::new(0));
    let working = command.node(&server, "1");
    working.joined();
    let mut spare = Node::start(&server, "1", &[]);
    spare.wait_for_log("standing by as a spare");
    command.release();
    assert_eq!(working.ended().0, 0);
    assert_eq!(spare.ended().0, 0);
}

#[test]
fn all_wrong_arguments_are_reported_together() {
    let output = run(&[
        "--rdzv-endpoint",
        "a b:1",
        "--nnodes",
        "3:2",
        "--rdzv-conf",
        "join_timout=1,last_call_timeout=0",
        "--node-rank",
        "1",
        "--local-addr",
        "192.0.2.1",
    ]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = text(&output.stderr);
    for part in [
        "The maximum number of rendezvous nodes (2) must be greater than or equal",
        "did you mean 'join_timeout'?",
        "The last_call timeout (0:00:00) must be positive.",
        "The hostname of the rendezvous endpoint 'a b:1'",
        "it is for the backends static and rallypoint; c10d assigns ranks",
        "--local-addr 192.0.2.1: this machine does not have that address",
        "--help",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let output = run(&["--nnodes", "many"]);
    assert!(text(&output.stderr).contains("neither a number nor MIN:MAX"), "{}", text(&output.stderr));
    let output = run(&["--rdzv-backend", "etcd"]);
    assert!(text(&output.stderr).contains("is not registered"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("c10d, rallypoint, static"), "{}", text(&output.stderr));
}

#[test]
fn a_node_takes_its_flags_from_the_variables_of_torchrun() {
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let mut node = command(&["--rdzv-id", "job", "--", "sh", "-c", "echo $TORCHELASTIC_RUN_ID $WORLD_SIZE"]);
    let variables = [
        ("PET_RDZV_ENDPOINT", endpoint.as_str()),
        ("PET_RDZV_ID", "other"),
        ("PET_NNODES", "1"),
        ("PET_NODE_RANK", "3"),
    ];
    let output = node.envs(variables).output().unwrap();
    assert!(text(&output.stdout).ends_with("job 1\n"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("PET_NODE_RANK=3 has no effect"), "{}", text(&output.stderr));
}

/// One malformed option must not hide the errors of the other options.
#[test]
fn all_wrong_rdzv_conf_options_are_reported_together() {
    let conf = "jion_timeout=3,is_host=maybe,last_call_timeout=-1,foo,read_timeout=9223372036854775807";
    let output = run(&["--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", conf]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for what in ["did you mean 'join_timeout'", "is_host", "last_call", "'foo' must have", "than a century"] {
        assert!(stderr.contains(what), "{what}: {stderr}");
    }
}

#[test]
fn excessive_values_are_wrong_usage() {
    let (long, max) = ("x".repeat(70_000), u64::MAX.to_string());
    let fixed = ["--rdzv-backend", "static", "--rdzv-endpoint", "127.0.0.1:1", "--node-rank"];
    for (arguments, expected) in [
        (&["--rdzv-conf", "keep_alive_interval=9223372036854775807"][..], "longer than a century"),
        (&["--rdzv-conf", "join_timeout=9223372036854775807"], "longer than a century"),
        (&["--rdzv-id", &long], "the run id has 70000 bytes"),
        (&["--local-addr", "two words"], "\"two words\" is neither a host name nor an address"),
        (&["--local-addr", &long], "more than 255 bytes"),
        (&[&fixed[..], &["0", "--nnodes", &max]].concat(), "the maximum is 1000000"),
        (&[&fixed[..], &[&max, "--nnodes", "2"]].concat(), "it must be from 0 to 1"),
    ] {
        let output = run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected) && stderr.len() < 1000, "{stderr}");
    }
}

#[test]
fn an_unresolvable_and_an_unreachable_endpoint_have_different_errors() {
    let conf = ["--rdzv-conf", "read_timeout=1"];
    let unresolvable = run(&["--rdzv-endpoint", "no-such-host.invalid:29400", conf[0], conf[1]]);
    assert_eq!(unresolvable.status.code(), Some(5));
    let stderr = text(&unresolvable.stderr);
    assert!(stderr.contains("could not resolve host \"no-such-host.invalid\""), "{stderr}");
    // No process listens on the port, and `is_host=0` forbids the node to host the store.
    let port = reserve_port();
    let unreachable =
        run(&["--rdzv-endpoint", &format!("127.0.0.1:{port}"), "--rdzv-conf", "read_timeout=1,is_host=0"]);
    assert_eq!(unreachable.status.code(), Some(5));
    let stderr = text(&unreachable.stderr);
    assert!(stderr.contains(&format!("could not connect to 127.0.0.1:{port}")), "{stderr}");
}

#[test]
fn the_first_node_at_the_endpoint_hosts_the_store() {
    let port = reserve_port();
    let endpoint = format!("127.0.0.1:{port}");
    let arguments = ["--rdzv-endpoint", &endpoint, "--nnodes", "3", "--", "true"];
    let nodes: Vec<_> = (0..3)
        .map(|_| command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    let outputs: Vec<_> = nodes.into_iter().map(|node| node.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let hosts =
        outputs.iter().filter(|output| text(&output.stderr).contains("this node hosts the store at")).count();
    assert_eq!(hosts, 1);
}

#[test]
fn nodes_join_through_a_file_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rendezvous");
    let path = path.to_str().unwrap();
    let arguments = [
        "--rdzv-endpoint",
        path,
        "--nnodes",
        "2",
        "--rdzv-conf",
        "store_type=file",
        "--local-addr",
        "127.0.0.1",
        "--",
        "true",
    ];
    let nodes: Vec<_> = (0..2)
        .map(|_| command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for node in nodes {
        let output = node.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// A shell can pass arguments that are not UTF-8.
#[test]
fn a_command_gets_arguments_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let server = server();
    let endpoint = format!("127.0.0.1:{}", server.port());
    let mut node = command(&["--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--", "printf", "%s"]);
    let output = node.arg(std::ffi::OsStr::from_bytes(b"caf\xe9")).output().unwrap();
    assert!(output.stdout.ends_with(b"caf\xe9"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}
