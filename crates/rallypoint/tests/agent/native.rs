//! Jobs with the backend `rallypoint`: several nodes on one machine, the commands of operators, and wrong input.

use std::process::{Command, Output};

use rallypoint_testkit::{Port, eventually};
use rustix::process::{Signal, kill_process};

use crate::agent_process::Agent;
use crate::nodes::{PRINT_RANKS, kill_node, wait_for_host, worker_of};

/// Starts a node with this name. `more` has further arguments, and `conf` further options.
fn start(port: &Port, name: &str, nodes: &str, conf: &str, more: &[&str], script: &str) -> Agent {
    let endpoint = port.endpoint();
    let conf = format!("node_name={name},last_call_timeout=1,join_timeout=60{conf}");
    let first = ["--rdzv-backend", "rallypoint", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job"];
    let last = ["--nnodes", nodes, "--rdzv-conf", &conf, "--local-addr", "127.0.0.1", "--no-python"];
    Agent::start(&[&first, &last[..], more, &["sh", "-c", script]].concat())
}

/// Starts three nodes, of which the first founds the job, and waits until their workers run.
fn three_nodes(port: &Port, nodes: &str, conf: &str, more: &[&str]) -> [Agent; 3] {
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let start = |name| start(port, name, nodes, conf, more, &script);
    let first = start("a");
    wait_for_host(port);
    let agents = [first, start("b"), start("c")];
    agents.iter().for_each(|agent| agent.wait_for_lines("/3 ", 1));
    agents
}

/// Runs a command of an operator.
fn operate(port: &Port, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(arguments).args(["--endpoint", &port.endpoint(), "--rdzv-id", "job"]);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the number of replicas that vote, according to the coordinator.
fn voters(port: &Port) -> usize {
    use rallypoint_rendezvous::{OperatorCommand, OperatorReply, send_command};
    let endpoint = port.endpoint().parse().unwrap();
    match send_command(&[endpoint], "job", &OperatorCommand::Roster, std::time::Duration::from_secs(10)) {
        Ok(OperatorReply::Roster(roster)) => roster.voters.len(),
        _ => 0,
    }
}

#[test]
fn three_nodes_form_a_round_and_finish_and_the_workers_know_the_round() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} echo round $RALLYPOINT_ROUND");
    let first = start(&port, "a", "3", "", &["--nproc-per-node", "2"], &script);
    wait_for_host(&port);
    let nodes = [
        first,
        start(&port, "b", "3", "", &[], &script),
        start(&port, "c", "3", "", &["--node-rank", "0"], &script),
    ];
    let ended = nodes.map(Agent::ended);
    for node in &ended {
        assert_eq!(node.status.code(), Some(0), "{}", node.err);
        assert!(node.out.contains("round 0"), "{}", node.out);
    }
    let mut ranks: Vec<&str> = ended
        .iter()
        .flat_map(|node| node.out.lines())
        .filter(|line| line.starts_with("ranks"))
        .map(|line| line.split_whitespace().nth(2).unwrap())
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0/4", "1/4", "2/4", "3/4"]);
    assert!(ended[2].out.contains("ranks 0/3"), "the third node pins rank 0: {}", ended[2].out);
}

#[test]
fn the_survivors_of_the_founder_restart_without_it_and_name_it() {
    let port = Port::reserve();
    let [first, second, third] = three_nodes(&port, "2:3", "", &["--max-restarts", "0"]);
    eventually("all nodes vote", || voters(&port) == 3);
    let pid = first.agent_pid().unwrap().as_raw_nonzero();
    kill_node(&first);
    for node in [&second, &third] {
        node.wait_for_lines("/2 ", 1);
        let why = format!("round 0 of the rendezvous 'job' ended: a (pid {pid}) ");
        assert!(node.err().contains(&why), "{}", node.err());
    }
}

#[test]
fn a_final_failure_tells_every_node_which_node_closed_the_job_when_and_why() {
    let port = Port::reserve();
    let nodes = three_nodes(&port, "3", "", &[]);
    kill_process(worker_of(&nodes[1]), Signal::SEGV).unwrap();
    let pid = nodes[1].agent_pid().unwrap().as_raw_nonzero();
    for node in nodes.map(Agent::ended) {
        assert_eq!(node.status.code(), Some(1), "{}", node.err);
        let last = node.err.trim_end().lines().next_back().unwrap();
        let (start, end) =
            (format!("the job has ended: b (pid {pid}) closed the job at 20"), "was killed by SIGSEGV");
        assert!(last.contains(&start) && last.ends_with(end), "{}", node.err);
    }
}

#[test]
fn workers_do_not_run_on_in_a_closed_job_whose_rank_0_is_lost() {
    let port = Port::reserve();
    // Without the fence, only the closing ends the workers.
    let [first, second, third] = three_nodes(&port, "2:3", ",fence=off,job_max_restarts=0", &[]);
    eventually("all nodes vote", || voters(&port) == 3);
    let nodes = [first, second, third];
    let rank_0 = nodes.iter().position(|node| node.out().contains("ranks 0/3")).unwrap();
    kill_node(&nodes[rank_0]);
    for (index, node) in nodes.into_iter().enumerate().filter(|(index, _)| *index != rank_0) {
        let node = node.ended();
        assert_eq!(node.status.code(), Some(1), "{index}: {}", node.err);
        assert!(node.err.contains("--job-max-restarts is used up"), "{}", node.err);
    }
}

#[test]
fn a_drained_node_leaves_with_success_and_the_job_goes_on_without_it() {
    for by_signal in [false, true] {
        let port = Port::reserve();
        let [first, second, third] = three_nodes(&port, "2:3", "", &["--max-restarts", "1"]);
        if by_signal {
            third.signal(Signal::USR2);
            eventually("the signal is handled", || third.err().contains("received SIGUSR2"));
            // The node stays until the round ends for another reason.
            kill_process(worker_of(&first), Signal::ABORT).unwrap();
        } else {
            let drained = operate(&port, &["drain", "c", "--within", "0s"]);
            assert_eq!(drained.status.code(), Some(0), "{}", text(&drained.stderr));
            assert_eq!(text(&drained.stdout), "c leaves at the next restart, at the latest in 0 s\n");
        }
        for node in [&first, &second] {
            node.wait_for_lines("/2 ", 1);
        }
        let third = third.ended();
        assert_eq!(third.status.code(), Some(0), "{}", third.err);
        assert!(
            third.err.contains("this node has left the job: an operator has drained this node"),
            "{}",
            third.err
        );
    }
}

#[test]
fn a_drain_during_an_election_is_not_lost() {
    let port = Port::reserve();
    let [first, second, third] = three_nodes(&port, "1:3", "", &[]);
    eventually("all nodes vote", || voters(&port) == 3);
    // The leader is gone when the signal arrives.
    kill_node(&first);
    third.signal(Signal::USR2);
    let third = third.ended();
    assert_eq!(third.status.code(), Some(0), "{}", third.err);
    second.wait_for_lines("ranks 0/1", 1);
}

#[test]
fn an_excluded_node_waits_outside_until_the_exclusion_is_removed() {
    let port = Port::reserve();
    let [first, second, third] = three_nodes(&port, "2:3", ",scale_up=now", &[]);
    let excluded = operate(&port, &["exclude", "c", "--for", "2h", "--reason", "ECC errors"]);
    assert_eq!(text(&excluded.stdout), "c is excluded for 7200 s\n", "{}", text(&excluded.stderr));
    for node in [&first, &second] {
        node.wait_for_lines("/2 ", 1);
    }
    eventually("the node says why it waits", || third.err().contains("this node is excluded: ECC errors"));
    let listed = operate(&port, &["exclude", "--list"]);
    assert!(text(&listed.stdout).starts_with("c\t") && text(&listed.stdout).ends_with(" s\tECC errors\n"));
    let listed = operate(&port, &["exclude", "--list", "--json"]);
    let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((&rows[0]["node"], &rows[0]["reason"]), (&"c".into(), &"ECC errors".into()));
    let removed = operate(&port, &["exclude", "--remove", "c", "--json"]);
    let reply: serde_json::Value = serde_json::from_slice(&removed.stdout).unwrap();
    assert_eq!(reply["result"], "c is neither excluded nor drained any more");
    third.wait_for_lines("/3 ", 2);
    assert_eq!(text(&operate(&port, &["exclude", "--list"]).stdout), "no node is excluded\n");
}

#[test]
fn commands_of_operators_fail_with_the_reason_and_documented_exit_codes() {
    let port = Port::reserve();
    let unreachable = operate(&port, &["exclude", "--list"]);
    assert_eq!(unreachable.status.code(), Some(5), "{}", text(&unreachable.stderr));
    let agent = start(&port, "a", "1", "", &[], "exec sleep 600");
    wait_for_host(&port);
    eventually("the job is founded", || voters(&port) == 1);
    let refused = operate(&port, &["force-quorum"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).starts_with("rallypoint force-quorum: "), "{}", text(&refused.stderr));
    let other = Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .args(["drain", "a", "--endpoint", &port.endpoint(), "--rdzv-id", "other"])
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(1));
    let error = text(&other.stderr);
    assert!(
        error.contains("another job runs there: its run id is \"job\"") && error.contains("\nhint: "),
        "{error}"
    );
    for arguments in [
        &["exclude"][..],
        &["exclude", "--list", "c"],
        &["exclude", "c", "--for", "0s"],
        &["exclude", "c", "--for", "soon"],
        &["exclude", "--remove", "c", "--reason", "x"],
        &["drain"],
        &["drain", "c", "--within", "-1s"],
        &["force-quorum", "c"],
    ] {
        let wrong = operate(&port, arguments);
        assert_eq!(wrong.status.code(), Some(2), "{arguments:?}: {}", text(&wrong.stderr));
    }
    drop(agent);
}

#[test]
fn input_that_does_not_fit_the_job_ends_the_node_with_one_error_before_workers_start() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let more = ["--topology", "rack=r1", "--node-rank", "0"];
    let first = start(&port, "a", "2:4", "", &more, &script);
    wait_for_host(&port);
    eventually("the job is founded", || voters(&port) == 1);
    for (nodes, conf, more, parts) in [
        ("2:4", "", &["--topology", "switch=s1"][..], ["topology keys \"rack\"", "\"switch\""]),
        ("2:4", ",node_unit=2", &["--topology", "rack=r2"], ["node_unit=1", "node_unit=2"]),
        ("2", "", &["--topology", "rack=r2"], ["--nnodes 2:4", "--nnodes 2"]),
        ("2:4", "", &["--topology", "rack=r2", "--node-rank", "0"], ["pin rank 0", "a (pid "]),
        ("2:4", "", &["--topology", "rack=r2", "--rdzv-id", "other"], ["its run id is \"job\"", "\"other\""]),
    ] {
        let node = start(&port, "b", nodes, conf, more, &script).ended();
        assert_eq!(node.status.code(), Some(1), "{more:?}: {}", node.err);
        let errors: Vec<&str> =
            node.err.lines().filter(|line| line.starts_with("rallypoint run: ")).collect();
        assert_eq!(errors.len(), 1, "{}", node.err);
        assert!(parts.iter().all(|part| errors[0].contains(part)), "{parts:?}: {}", node.err);
        assert!(node.err.trim_end().lines().next_back().unwrap().starts_with("hint: "), "{}", node.err);
        assert!(!node.out.contains("ranks"), "{}", node.out);
    }
    drop(first);
}

#[test]
fn a_node_whose_pre_join_check_fails_joins_when_it_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("healthy");
    let check = format!("test -e {} || {{ echo 'GPU 3 is broken'; exit 9; }}", file.display());
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exit 0");
    let first = start(&port, "a", "2", "", &[], &script);
    wait_for_host(&port);
    let second = start(&port, "b", "2", "", &["--pre-join-check", &check], &script);
    let reason = "the pre-join check of this node failed: exit code 9: GPU 3 is broken; next check in 1 s";
    eventually("the check fails", || second.err().contains(reason));
    std::fs::write(&file, "").unwrap();
    for node in [first, second].map(Agent::ended) {
        assert_eq!(node.status.code(), Some(0), "{}", node.err);
        assert!(node.out.contains("/2 "), "{}", node.out);
    }
}

#[test]
fn a_spare_takes_the_place_of_a_lost_node_and_ends_with_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let script = format!("{PRINT_RANKS} while [ ! -e {} ]; do sleep 0.02; done", go.display());
    let port = Port::reserve();
    let start = |name| start(&port, name, "2", "", &[], &script);
    let first = start("a");
    wait_for_host(&port);
    let second = start("b");
    [&first, &second].iter().for_each(|node| node.wait_for_lines("/2 ", 1));
    let spare = start("c");
    eventually("the node is a spare", || spare.err().contains("this node is a spare"));
    let last = start("d");
    eventually("the node is a spare", || last.err().contains("this node is a spare"));
    kill_node(&second);
    spare.wait_for_lines("/2 ", 1);
    first.wait_for_lines("/2 ", 2);
    std::fs::write(&go, "").unwrap();
    for node in [first, spare, last].map(Agent::ended) {
        assert_eq!(node.status.code(), Some(0), "{}", node.err);
    }
}

#[test]
fn a_job_on_one_machine_has_no_variable_of_the_native_rendezvous() {
    for arguments in [&["--standalone"][..], &[]] {
        let script = ["--no-python", "sh", "-c", "env"];
        let ended = Agent::start(&[arguments, &script].concat()).ended();
        assert!(
            ended.out.contains("TORCHELASTIC_RUN_ID=") && !ended.out.contains("RALLYPOINT_ROUND"),
            "{}",
            ended.out
        );
    }
}
