//! Static jobs, most of them with two nodes and two workers per node: ranks, restarts, exit codes, signals, and
//! contradictory settings.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rallypoint_testkit::{Port, eventually};
use rustix::process::Signal;

use crate::agent_process::{Agent, AgentOutput, kill_together};

/// A shell command that prints the environment of a worker in one line.
const PRINT_RANKS: &str = r#"echo "ranks $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE \
$ROLE_RANK/$ROLE_WORLD_SIZE $ROLE_NAME $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE \
$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS";"#;

fn start_node(port: &Port, rank: u32, nodes: &str, more: &[&str], script: &str) -> Agent {
    start_node_with(port, rank, nodes, more, script, &[])
}

/// Starts a node with two workers. The node of group rank 0 gets `--master-addr` and `--master-port`. Other nodes get
/// `--rdzv-backend` and `--rdzv-endpoint`, which mean the same.
fn start_node_with(
    port: &Port,
    rank: u32,
    nodes: &str,
    more: &[&str],
    script: &str,
    variables: &[(&str, &Path)],
) -> Agent {
    let (number, endpoint, rank) = (port.number.to_string(), port.endpoint(), rank.to_string());
    let endpoint_flags: &[&str] = match rank.as_str() {
        "0" => &["--master-addr", "127.0.0.1", "--master-port", &number],
        _ => &["--rdzv-backend", "static", "--rdzv-endpoint", &endpoint],
    };
    let first = ["--nnodes", nodes, "--node-rank", &rank, "--nproc-per-node", "2", "--rdzv-id", "fixed"];
    Agent::start_with(
        &[&first, endpoint_flags, more, &["--no-python", "sh", "-c", script]].concat(),
        variables,
    )
}

/// Returns the lines that the workers printed after this number of restarts, sorted by rank.
fn ranks_after(nodes: [&AgentOutput; 2], restarts: u32) -> Vec<String> {
    let mut lines: Vec<_> = nodes
        .iter()
        .flat_map(|node| node.out.lines())
        .filter_map(|line| Some(line.strip_prefix("ranks ")?.to_owned()))
        .filter(|line| line.ends_with(&format!(" {restarts}/1")))
        .collect();
    lines.sort();
    lines
}

#[test]
fn two_static_nodes_keep_their_ranks_restart_together_and_finish() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let port = Port::reserve();
    let script = format!(
        r#"{PRINT_RANKS} [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
        while [ ! -e "$GO" ]; do sleep 0.02; done
        [ "$RANK" = 3 ] && exit 7
        exec sleep 600"#
    );
    let start =
        |rank| start_node_with(&port, rank, "2", &["--max-restarts", "1"], &script, &[("GO", go.as_path())]);
    // The node of group rank 1 starts first and waits for the node of group rank 0.
    let (second, first) = (start(1), start(0));
    first.wait_for_lines("ranks", 2);
    second.wait_for_lines("ranks", 2);
    std::fs::write(&go, "").unwrap();
    let (first, second) = (first.ended(), second.ended());
    for node in [&first, &second] {
        assert_eq!(node.status.code(), Some(0), "{}", node.err);
    }
    let endpoint = port.endpoint();
    for restarts in [0, 1] {
        let expected: Vec<_> = (0..4)
            .map(|rank| {
                let (local, group) = (rank % 2, rank / 2);
                format!("{rank}/4 {local}/2 {group}/2 {rank}/4 default {endpoint} fixed True {restarts}/1")
            })
            .collect();
        assert_eq!(ranks_after([&first, &second], restarts), expected);
    }
    assert!(first.out.lines().all(|line| line.contains(" 0/2 ") && line.contains("/4 ")), "{}", first.out);
    // The node whose worker failed and its peer both log the reason of the restart.
    assert!(second.err.contains("worker 1 of this node failed (exit code 7)"), "{}", second.err);
    assert!(first.err.contains("restarts its workers: its worker 1 (rank 3) ended with 7"), "{}", first.err);
}

#[test]
fn a_final_failure_on_either_node_ends_both_nodes_and_both_report_it() {
    for failing in [0, 1] {
        let port = Port::reserve();
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        let script = format!(
            r#"{PRINT_RANKS} while [ ! -e "$GO" ]; do sleep 0.02; done
            [ "$GROUP_RANK$LOCAL_RANK" = {failing}0 ] && kill -SEGV $$$$
            exec sleep 600"#
        );
        let nodes =
            [0, 1].map(|rank| start_node_with(&port, rank, "2", &[], &script, &[("GO", go.as_path())]));
        nodes.iter().for_each(|node| node.wait_for_lines("ranks", 2));
        let start = Instant::now();
        std::fs::write(&go, "").unwrap();
        for ended in nodes.map(Agent::ended) {
            assert_eq!(ended.status.code(), Some(1), "node {failing} fails: {}", ended.err);
            assert!(ended.err.contains("SIGSEGV"), "node {failing} fails: {}", ended.err);
            let rank = format!("  rank      : {} (local_rank: 0)", failing * 2);
            assert!(ended.err.contains(&rank), "node {failing} fails: {}", ended.err);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[test]
fn a_duplicate_node_rank_is_named_on_every_node() {
    for duplicate in [0, 1] {
        let port = Port::reserve();
        let nodes = [(0, "127.0.0.2"), (1, "127.0.0.3"), (duplicate, "127.0.0.4")].map(|(rank, address)| {
            let node = start_node(&port, rank, "3", &["--local-addr", address], "echo it ran");
            // A node that waits has registered its rank. The third node starts after the first two wait, so its rank
            // is already taken.
            if address != "127.0.0.4" {
                eventually("the node waits", || node.err().contains(" of 3 nodes have joined"));
            }
            node
        });
        let index = duplicate as usize;
        let (first, address) = (&nodes[index], ["127.0.0.2", "127.0.0.3"][index]);
        let first = format!("to {address} (pid {})", first.agent_pid().unwrap().as_raw_nonzero());
        let ended = nodes.map(Agent::ended);
        let what = format!("node rank {duplicate} was given twice: {first} and to 127.0.0.4 (pid ");
        for node in &ended {
            assert_eq!((node.status.code(), node.out.as_str()), (Some(1), ""), "{}", node.err);
            assert!(node.err.contains(&what) && node.err.contains("--node-rank"), "{}", node.err);
            // The error names two different processes.
            let pids: BTreeSet<_> =
                node.err.split("(pid ").skip(1).map(|pid| pid.split_once(')').unwrap().0).collect();
            assert_eq!(pids.len(), 2, "{}", node.err);
        }
    }
}

#[test]
fn different_numbers_of_nodes_are_named_on_every_node() {
    let port = Port::reserve();
    let nodes = [(0, "2", "127.0.0.2"), (1, "3", "127.0.0.3")].map(|(rank, nodes, address)| {
        start_node(&port, rank, nodes, &["--local-addr", address], "echo it ran")
    });
    for node in nodes.map(Agent::ended) {
        assert_eq!((node.status.code(), node.out.as_str()), (Some(1), ""), "{}", node.err);
        let names_both = ["for 2", "for 3"].iter().all(|nodes| node.err.contains(nodes));
        assert!(names_both && node.err.contains("the same --nnodes"), "{}", node.err);
        let names_both = ["127.0.0.2 (pid ", "127.0.0.3 (pid "].iter().all(|name| node.err.contains(name));
        assert!(names_both, "{}", node.err);
    }
}

#[test]
fn a_node_rank_out_of_range_is_refused_before_any_process_starts() {
    let ended = start_node(&Port::reserve(), 2, "2", &[], "echo it ran").ended();
    assert_eq!((ended.status.code(), ended.out.as_str()), (Some(1), ""));
    assert!(ended.err.contains("the node rank 2 is out of range for 2 nodes"), "{}", ended.err);
}

#[test]
fn a_signal_ends_a_node_that_waits_for_other_nodes() {
    for rank in [0, 1] {
        let waiting = start_node(&Port::reserve(), rank, "2", &[], "true");
        eventually("the agent has started", || waiting.agent_pid().is_some());
        if rank == 0 {
            eventually("the node waits", || waiting.err().contains("waiting"));
        }
        waiting.signal(Signal::TERM);
        let ended = waiting.ended();
        // If the signal arrives before its handler is installed, it kills the process, and there is no exit code.
        let code = std::os::unix::process::ExitStatusExt::signal(&ended.status).map(|signal| 128 + signal);
        assert_eq!(ended.status.code().or(code), Some(143), "{}", ended.err);
    }
}

#[test]
fn a_node_fails_when_the_node_of_group_rank_0_and_its_store_are_killed() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let [first, second] = [0, 1].map(|rank| start_node(&port, rank, "2", &[], &script));
    first.wait_for_lines("ranks", 2);
    second.wait_for_lines("ranks", 2);
    kill_together(&[first.outer_pid(), first.agent_pid().unwrap()]);
    let ended = second.ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(ended.err.contains(&port.endpoint()), "{}", ended.err);
}
