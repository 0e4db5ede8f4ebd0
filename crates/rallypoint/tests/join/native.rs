//! `rallypoint join --rdzv-backend rallypoint`: the same output and exit codes as with the other backends.

use rallypoint_testkit::{Port, eventually};
use rustix::process::Signal;

use crate::node::{Node, run, text};

/// Starts a node of the job `job`. The first one founds the job.
fn start(port: &Port, nodes: &str, more: &[&str]) -> Node {
    let backend = ["--rdzv-backend", "rallypoint", "--local-addr", "127.0.0.1"];
    Node::at(port.number, nodes, &[&backend, more].concat())
}

fn wait_for_host(port: &Port) {
    eventually("the first node listens", || std::net::TcpStream::connect(port.endpoint()).is_ok());
}

#[test]
fn joined_nodes_print_one_line_and_stay_until_a_signal() {
    let port = Port::reserve();
    let first = start(&port, "2", &[]);
    wait_for_host(&port);
    let nodes = [first, start(&port, "2", &["--node-rank", "0"])];
    let lines: Vec<_> = nodes.iter().map(Node::joined).collect();
    for (line, rank) in lines.iter().zip([1, 0]) {
        assert_eq!((&line["run_id"], &line["round"]), (&"job".into(), &0.into()));
        assert_eq!((&line["rank"], &line["world_size"]), (&rank.into(), &2.into()));
        assert_eq!(line["master_addr"], "127.0.0.1");
        assert_eq!(line["master_port"], lines[0]["master_port"]);
        let pids: Vec<_> =
            line["participants"].as_array().unwrap().iter().map(|node| node["pid"].clone()).collect();
        assert_eq!(pids, [nodes[1].child.id(), nodes[0].child.id()]);
        assert_eq!(line["participants"][0]["addr"], "127.0.0.1");
    }
    for (node, signal) in nodes.into_iter().zip([Signal::TERM, Signal::INT]) {
        node.signal(signal);
        assert_eq!(node.ended().0, 0);
    }
}

#[test]
fn each_node_returns_the_exit_code_of_its_command_and_a_failure_does_not_end_other_commands() {
    let port = Port::reserve();
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let failing = start(&port, "2", &["--", "sh", "-c", "echo $GROUP_RANK of $GROUP_WORLD_SIZE; exit 7"]);
    wait_for_host(&port);
    let script = format!("trap 'exit 9' TERM; while [ ! -e {} ]; do sleep 0.02; done", go.display());
    let working = start(&port, "2", &["--", "sh", "-c", &script]);
    let rank = failing.joined()["rank"].clone();
    assert_eq!(failing.line(), format!("{rank} of 2"));
    assert_eq!(failing.ended().0, 7);
    std::fs::write(&go, "").unwrap();
    let (code, log) = working.ended();
    assert_eq!(code, 0, "{log}");
}

#[test]
fn a_command_is_stopped_when_a_node_of_its_round_is_lost() {
    let port = Port::reserve();
    let command = ["--rdzv-conf", "last_call_timeout=60", "--", "sh", "-c", "echo runs; exec sleep 600"];
    let first = start(&port, "1:2", &command);
    wait_for_host(&port);
    let second = start(&port, "1:2", &command);
    for node in [&first, &second] {
        assert_eq!(node.joined()["world_size"], 2);
        assert_eq!(node.line(), "runs");
    }
    second.signal(Signal::KILL);
    let (code, log) = first.ended();
    assert_eq!(code, 6, "{log}");
    assert!(log.contains("was killed"), "{log}");
}

#[test]
fn errors_have_the_exit_codes_of_the_other_backends() {
    let port = Port::reserve();
    let endpoint = port.endpoint();
    let job = ["--rdzv-backend", "rallypoint", "--rdzv-endpoint", &endpoint, "--local-addr", "127.0.0.1"];
    let late = run(&[&job[..], &["--nnodes", "2", "--rdzv-conf", "join_timeout=5"]].concat());
    assert_eq!(late.status.code(), Some(4), "{}", text(&late.stderr));
    assert!(text(&late.stderr).contains("1 of 2 nodes have joined"), "{}", text(&late.stderr));
    for (more, error) in [
        (["--nnodes", "2", "--node-rank", "2"], "node_rank is \"2\"; it must be a number from 0 to 1"),
        (["--nnodes", "2", "--rdzv-conf", "node_unit=3"], "node_unit is \"3\""),
        (["--nnodes", "2", "--rdzv-endpoint", ","], "the list of endpoints \",\" has an empty entry"),
    ] {
        let wrong = run(&[&job[..], &more].concat());
        assert!(text(&wrong.stderr).contains(error), "{}", text(&wrong.stderr));
        assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    }
}
