//! Several nodes of ours in one job restart together, report failures of other nodes, and re-form their round when
//! nodes join or are lost.

use std::time::{Duration, Instant};

use rallypoint_testkit::{Client, Port, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::agent_process::{Agent, children, kill_together};

pub(crate) const CONF: &str =
    "last_call_timeout=1,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2";

pub(crate) fn start_node(port: &Port, nodes: &str, more: &[&str], script: &str) -> Agent {
    start_node_with(port, nodes, CONF, more, script)
}

pub(crate) fn start_node_with(port: &Port, nodes: &str, conf: &str, more: &[&str], script: &str) -> Agent {
    start_node_with_command(port, nodes, conf, more, &["sh", "-c", script])
}

pub(crate) fn start_node_with_command(
    port: &Port,
    nodes: &str,
    conf: &str,
    more: &[&str],
    command: &[&str],
) -> Agent {
    let endpoint = port.endpoint();
    let first =
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", nodes];
    let last = ["--rdzv-conf", conf, "--local-addr", "127.0.0.1", "--no-python"];
    Agent::start(&[&first, more, &last, command].concat())
}

pub(crate) const PRINT_RANKS: &str =
    r#"echo "ranks $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT";"#;

#[test]
fn two_nodes_with_different_numbers_of_workers_form_one_round_and_finish_together() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exit 0");
    let first_node = start_node(&port, "2", &["--nproc-per-node", "1"], &script);
    let second_node = start_node(&port, "2", &["--nproc-per-node", "3"], &script);
    let (first_node, second_node) = (first_node.ended(), second_node.ended());
    assert_eq!(
        (first_node.status.code(), second_node.status.code()),
        (Some(0), Some(0)),
        "{}\n{}",
        first_node.err,
        second_node.err
    );
    let mut ranks: Vec<_> = format!("{}{}", first_node.out, second_node.out)
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
    ranks.sort();
    assert_eq!(ranks, ["0/4", "1/4", "2/4", "3/4"]);
}

#[test]
fn both_nodes_restart_immediately_and_count_the_restart_when_a_worker_dies() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let first_node = start_node(&port, "2", &["--max-restarts", "3"], &script);
    let second_node = start_node(&port, "2", &["--max-restarts", "3"], &script);
    first_node.wait_for_lines("ranks", 1);
    second_node.wait_for_lines("ranks", 1);
    let mut took = Vec::new();
    // Torch's nodes take 1.65 s for a restart. Our nodes must take less than 1.5 s. A busy machine may delay them, so
    // one of three attempts has to succeed.
    while took.iter().all(|took| *took >= Duration::from_millis(1500)) {
        assert!(took.len() < 3, "{took:?}");
        let worker = worker_of(&first_node);
        let start = Instant::now();
        kill_process(worker, Signal::ABORT).unwrap();
        first_node.wait_for_lines("ranks", took.len() + 2);
        second_node.wait_for_lines("ranks", took.len() + 2);
        took.push(start.elapsed());
        // Torch's workers use the restart count in the names of their keys, so it must be the same on both nodes.
        let count = format!(" {}", took.len());
        for node in [&first_node, &second_node] {
            assert!(node.out().lines().last().unwrap().ends_with(&count), "{}", node.out());
        }
    }
    // The second node reads the announcement of the restart, or first notices that the other node rejoins.
    let reasons = ["restarts its workers", "restarting the workers: the other nodes rejoin"];
    assert!(reasons.iter().any(|reason| second_node.err().contains(reason)), "{}", second_node.err());
    // No node was lost here, but the node can't know that when its worker fails.
    let own = "worker 0 of this node failed (signal 6); restarts left: 2\nhint: the loss of another node may have \
               caused this; if that node is not in the next round, this restart does not count toward --max-restarts";
    assert!(first_node.err().contains(own), "{}", first_node.err());
    assert!(!second_node.err().contains("hint: the loss"), "{}", second_node.err());
}

/// Returns the process id of the only worker of an agent.
pub(crate) fn worker_of(agent: &Agent) -> Pid {
    children(agent.agent_pid().unwrap())[0]
}

/// Kills the outer process, the agent and the worker of a node together.
pub(crate) fn kill_node(agent: &Agent) {
    let processes = [agent.outer_pid(), agent.agent_pid().unwrap()];
    kill_together(&[&processes[..], &[worker_of(agent)]].concat());
}

/// Waits until the first node hosts the store at the port, so that the next node becomes a client of it.
pub(crate) fn wait_for_host(port: &Port) {
    eventually("the store listens", || std::net::TcpStream::connect(port.endpoint()).is_ok());
}

#[test]
fn a_final_failure_ends_the_job_on_all_nodes_and_all_report_it() {
    for host_fails in [false, true] {
        let port = Port::reserve();
        let script = format!("{PRINT_RANKS} exec sleep 600");
        let host = start_node(&port, "2", &[], &script);
        wait_for_host(&port);
        let client = start_node(&port, "2", &[], &script);
        host.wait_for_lines("ranks", 1);
        client.wait_for_lines("ranks", 1);
        let failing = if host_fails { &host } else { &client };
        let start = Instant::now();
        kill_process(worker_of(failing), Signal::SEGV).unwrap();
        let (host, client) = (host.ended(), client.ended());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        for node in [&host, &client] {
            assert_eq!(node.status.code(), Some(1), "{}", node.err);
            assert!(node.err.contains("SIGSEGV"), "host fails: {host_fails}\n{}", node.err);
        }
    }
}

#[test]
fn a_node_that_closes_the_rendezvous_because_its_workers_cannot_start_is_named_by_its_peers() {
    let dir = tempfile::tempdir().unwrap();
    // The check before the start passes, because the file is executable. Its interpreter does not exist, so workers
    // can't start.
    let program = dir.path().join("program");
    std::fs::write(&program, "#!/nonexistent/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let port = Port::reserve();
    let first_node = start_node(&port, "2", &[], "exec sleep 600");
    wait_for_host(&port);
    let second_node = start_node_with_command(&port, "2", CONF, &[], &[program.to_str().unwrap()]);
    let (first_node, second_node) = (first_node.ended(), second_node.ended());
    assert!(second_node.err.contains("cannot start worker 0"), "{}", second_node.err);
    assert_eq!(first_node.status.code(), Some(1), "{}", first_node.err);
    let culprit = "the job was ended by another node, 127.0.0.1 (pid ";
    assert!(
        first_node.err.contains(culprit) && first_node.err.contains(", which did not report why"),
        "{}",
        first_node.err
    );
    assert!(!first_node.err.contains("Root Cause"), "{}", first_node.err);
}

/// Starts a node, which hosts the store and forms a round alone. Then starts a second node, and waits until both are in
/// one round.
fn two_elastic_nodes(port: &Port, more: &[&str]) -> (Agent, Agent) {
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let first = start_node(port, "1:2", more, &script);
    first.wait_for_lines("ranks 0/1", 1);
    let second = start_node(port, "1:2", more, &script);
    first.wait_for_lines("/2 ", 1);
    second.wait_for_lines("/2 ", 1);
    (first, second)
}

#[test]
fn a_new_node_joins_and_a_node_that_leaves_is_not_waited_for() {
    let port = Port::reserve();
    let (first, second) = two_elastic_nodes(&port, &["--max-restarts", "0"]);
    second.signal(Signal::TERM);
    let second = second.ended();
    assert_eq!(second.status.code(), Some(1));
    assert!(second.err.trim_end().ends_with("this node was stopped by SIGTERM"), "{}", second.err);
    first.wait_for_lines("ranks 0/1", 2);
    first.signal(Signal::TERM);
    assert_eq!(first.ended().status.code(), Some(1));
}

#[test]
fn a_node_killed_with_its_workers_is_detected_without_a_failing_worker() {
    let port = Port::reserve();
    let (first, second) = two_elastic_nodes(&port, &[]);
    kill_node(&second);
    first.wait_for_lines("ranks 0/1", 2);
}

#[test]
fn a_node_whose_outer_process_is_killed_is_lost_and_does_not_count_as_failed() {
    for _ in 0..2 {
        let port = Port::reserve();
        let (first, second) = two_elastic_nodes(&port, &["--max-restarts", "0"]);
        second.signal(Signal::KILL);
        first.wait_for_lines("ranks 0/1", 2);
    }
}

#[test]
fn both_remaining_nodes_detect_a_node_that_dies_after_one_of_them_has_finished() {
    let port = Port::reserve();
    // In the round of three nodes, only the worker of the first node exits. In the next round, of two nodes, both
    // workers do.
    let done = format!("{PRINT_RANKS} exit 0");
    let works = format!("{PRINT_RANKS} [ $WORLD_SIZE = 2 ] || exec sleep 600");
    let first = start_node(&port, "2:3", &[], &done);
    wait_for_host(&port);
    let (second, third) = (start_node(&port, "2:3", &[], &works), start_node(&port, "2:3", &[], &works));
    second.wait_for_lines("/3 ", 1);
    third.wait_for_lines("/3 ", 1);
    eventually("the first node has finished", || first.err().contains("workers of this node have finished"));
    let pid = second.agent_pid().unwrap().as_raw_nonzero();
    kill_node(&second);
    let (first, third) = (first.ended(), third.ended());
    for node in [&first, &third] {
        assert_eq!(node.status.code(), Some(0), "{}", node.err);
        assert_eq!(
            node.out.lines().filter(|line| line.contains("/2 ")).count(),
            1,
            "{}{}",
            node.out,
            node.err
        );
    }
    let named = format!("(pid {pid})");
    assert!(first.err.contains(&named) || third.err.contains(&named), "{}\n{}", first.err, third.err);
}

#[test]
fn a_finished_node_succeeds_only_after_a_dead_node_was_replaced() {
    let port = Port::reserve();
    let first = start_node(&port, "2", &[], &format!("{PRINT_RANKS} exit 0"));
    wait_for_host(&port);
    let second = start_node(&port, "2", &[], &format!("{PRINT_RANKS} exec sleep 600"));
    second.wait_for_lines("ranks", 1);
    eventually("the first node has finished", || first.err().contains("workers of this node have finished"));
    kill_node(&second);
    eventually("the first node waits again", || {
        let reason = "1 node left or died; a lost node does not count toward --max-restarts";
        first.err().contains(&format!("restarting the workers: {reason}"))
    });
    let third = start_node(&port, "2", &[], &format!("{PRINT_RANKS} exit 0"));
    let (first, third) = (first.ended(), third.ended());
    assert_eq!((first.status.code(), third.status.code()), (Some(0), Some(0)), "{}{}", first.err, third.err);
    assert_eq!(first.out.lines().count(), 2, "{}", first.out);
}

/// The key under which nodes of the first round are counted at the exit barrier.
pub(crate) const ENDED_COUNT: &str = "/torch.rendezvous.job.0/torchelastic/agent/terminal_state/num_members";

#[test]
fn a_finished_node_fails_if_lost_nodes_are_not_replaced() {
    for host_dies in [false, true] {
        let port = Port::reserve();
        let (done, works) = (format!("{PRINT_RANKS} exit 0"), format!("{PRINT_RANKS} exec sleep 600"));
        let conf = CONF.replace("join_timeout=60", "join_timeout=10");
        let start = |script: &str| start_node_with(&port, "2", &conf, &[], script);
        let host = start(if host_dies { &works } else { &done });
        wait_for_host(&port);
        let client = start(if host_dies { &done } else { &works });
        let (dying, finished) = if host_dies { (host, client) } else { (client, host) };
        dying.wait_for_lines("ranks", 1);
        // If the store died before it replied to the count, the finished node could not know whether it was counted.
        // Then it exits immediately instead of waiting for a second node.
        let mut store = Client::connect(port.endpoint().parse().unwrap());
        eventually("the node is counted", || store.is_present(ENDED_COUNT));
        kill_node(&dying);
        let ended = finished.ended();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
        // The remaining node waits for a second node until the join timeout. If the host was killed, the remaining
        // node hosts the store itself.
        assert!(ended.err.contains("1 of at least 2 nodes"), "{}", ended.err);
    }
}

/// The heartbeat settings are torch's defaults: a node is dead after three intervals of 5 s without a heartbeat.
#[test]
fn all_nodes_detect_a_killed_node_within_the_default_times_and_log_which_node_and_why() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let join = || start_node_with(&port, "2:3", "last_call_timeout=1,join_timeout=60", &[], &script);
    let host = join();
    wait_for_host(&port);
    let (survivor, victim) = (join(), join());
    for node in [&host, &survivor, &victim] {
        node.wait_for_lines("/3 ", 1);
    }
    let dead = victim.agent_pid().unwrap().as_raw_nonzero();
    let start = Instant::now();
    kill_node(&victim);
    let before =
        [&host, &survivor].map(|node| node.out().lines().filter(|line| line.contains("/2 ")).count());
    for (node, before) in [&host, &survivor].into_iter().zip(before) {
        node.wait_for_lines("/2 ", before + 1);
    }
    let took = start.elapsed();
    for node in [&host, &survivor] {
        let why = format!("(pid {dead}): no heartbeat for 15 s");
        assert!(node.err().contains(&why), "{why:?} not in:\n{}", node.err());
    }
    // The last heartbeat was at most 5 s before the kill, so the node counts as dead 10 to 15 s after the kill. The
    // last call adds 1 s.
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(25), "{took:?}");
}

#[test]
fn a_spare_exits_with_0_when_the_job_succeeds() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} while [ ! -e \"$GO\" ]; do sleep 0.02; done");
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let endpoint = port.endpoint();
    let arguments =
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", "1"];
    let last = ["--rdzv-conf", CONF, "--local-addr", "127.0.0.1", "--no-python", "sh", "-c", &script];
    let arguments = [&arguments[..], &last].concat();
    let working = Agent::start_with(&arguments, &[("GO", &go)]);
    working.wait_for_lines("ranks", 1);
    let spare = Agent::start_with(&arguments, &[("GO", &go)]);
    eventually("the node is a spare", || spare.err().contains("spare"));
    std::fs::write(&go, "").unwrap();
    assert_eq!(working.ended().status.code(), Some(0));
    let ended = spare.ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
}

#[test]
fn a_signal_makes_a_waiting_node_leave() {
    let port = Port::reserve();
    let waiting = start_node(&port, "2", &[], "true");
    eventually("the node waits", || waiting.err().contains("waiting"));
    waiting.signal(Signal::TERM);
    let ended = waiting.ended();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.err);
    assert!(ended.err.trim_end().ends_with("this node was stopped by SIGTERM"), "{}", ended.err);
}
