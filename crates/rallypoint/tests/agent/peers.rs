//! The behavior of a node when a peer is lost or has other settings, and the behavior of a spare.

use std::time::{Duration, Instant};

use rallypoint_store::TcpStoreServer;
use rallypoint_testkit::{Client, Port, eventually};
use rustix::process::{Signal, kill_process};

use crate::agent_process::{Agent, children, kill_together};
use crate::nodes::{
    CONF, ENDED_COUNT, PRINT_RANKS, kill_node, start_node, start_node_with, start_node_with_command,
    wait_for_host, worker_of,
};

/// A configuration with torch's default heartbeats. A killed node sent its last heartbeat up to 5 s before the kill. It
/// is dead 15 s after that heartbeat, so its peers detect the loss 10 to 15 s after the kill. Then the last call delays
/// the next round by at least 1 s, unless that round is full. A next round within 12 s therefore shows, in most cases,
/// that the remaining process of the node has removed the node.
const DEFAULT_HEARTBEATS: &str = "last_call_timeout=2,reform_last_call_timeout=1,join_timeout=60";

/// Returns the lines that the workers of a node printed, one for each start.
fn starts(node: &Agent) -> Vec<String> {
    node.out().lines().filter(|line| line.starts_with("ranks")).map(String::from).collect()
}

/// The remaining process of the node removes the node from the rendezvous. Otherwise its peers would detect the loss
/// only after 15 s without a heartbeat.
#[test]
fn a_node_with_one_killed_process_is_removed_by_its_other_process() {
    for process in ["outer", "agent"] {
        let port = Port::reserve();
        let script = format!("{PRINT_RANKS} exec sleep 600");
        let join = || start_node_with(&port, "2:3", DEFAULT_HEARTBEATS, &[], &script);
        let host = join();
        wait_for_host(&port);
        let (survivor, victim) = (join(), join());
        [&host, &survivor, &victim].into_iter().for_each(|node| node.wait_for_lines("/3 ", 1));
        let killed = match process {
            "outer" => victim.outer_pid(),
            _ => victim.agent_pid().unwrap(),
        };
        let start = Instant::now();
        kill_process(killed, Signal::KILL).unwrap();
        for node in [&host, &survivor] {
            node.wait_for_lines("/2 ", 1);
            assert_eq!(starts(node).len(), 2, "{process}: {}", node.err());
        }
        assert!(start.elapsed() < Duration::from_secs(12), "{process}: {:?}", start.elapsed());
    }
}

#[test]
fn a_waiting_node_with_one_killed_process_is_not_in_the_round() {
    for process in ["outer", "agent", "outer", "agent"] {
        let port = Port::reserve();
        let join =
            || start_node_with(&port, "3", DEFAULT_HEARTBEATS, &[], &format!("{PRINT_RANKS} exec sleep 600"));
        let host = join();
        wait_for_host(&port);
        let victim = join();
        eventually("the node waits", || victim.err().contains("2 of at least 3"));
        let killed = if process == "outer" { victim.outer_pid() } else { victim.agent_pid().unwrap() };
        let start = Instant::now();
        kill_process(killed, Signal::KILL).unwrap();
        let others = [join(), join()];
        [&host, &others[0], &others[1]].into_iter().for_each(|node| node.wait_for_lines("/3 ", 1));
        assert!(
            start.elapsed() < Duration::from_secs(12),
            "{process}: {:?}\n{}",
            start.elapsed(),
            host.err()
        );
    }
}

#[test]
fn a_waiting_node_takes_over_when_the_host_is_killed() {
    let port = Port::reserve();
    let conf = "last_call_timeout=1,join_timeout=60,read_timeout=2";
    let join = || start_node_with(&port, "3", conf, &[], &format!("{PRINT_RANKS} exec sleep 600"));
    let host = join();
    wait_for_host(&port);
    let waiting = join();
    eventually("the node waits", || waiting.err().contains("2 of at least 3"));
    kill_together(&[host.outer_pid(), host.agent_pid().unwrap()]);
    eventually("the node takes over", || waiting.err().contains("hosts it now at"));
    let others = [join(), join()];
    [&waiting, &others[0], &others[1]].into_iter().for_each(|node| node.wait_for_lines("/3 ", 1));
}

/// Workers in a training job fail as soon as their connection to a lost node breaks. The missing heartbeats of that
/// node are detected only later. So if a worker fails and no restart is left, its agent first waits until the other
/// nodes have reported that they are alive.
#[test]
fn workers_that_fail_because_a_peer_was_lost_do_not_use_the_restart_budget() {
    let port = Port::reserve();
    let dir = tempfile::tempdir().unwrap();
    let lost = dir.path().join("lost");
    // The workers fail as in a collective operation: when the peer is lost, and only in the round of three nodes.
    let script = format!(
        r#"{PRINT_RANKS} while [ "$WORLD_SIZE" != 3 ] || [ ! -e {} ]; do sleep 0.05; done; exit 1"#,
        lost.display()
    );
    let join = || start_node(&port, "2:3", &["--max-restarts", "0"], &script);
    let host = join();
    wait_for_host(&port);
    let (survivor, victim) = (join(), join());
    [&host, &survivor, &victim].into_iter().for_each(|node| node.wait_for_lines("/3 ", 1));
    kill_node(&victim);
    std::fs::write(&lost, "").unwrap();
    for node in [&host, &survivor] {
        node.wait_for_lines("/2 ", 1);
        assert!(node.err().contains("checking whether another node was lost"), "{}", node.err());
    }
}

#[test]
fn a_worker_failure_with_live_peers_ends_the_job_immediately() {
    let port = Port::reserve();
    let join =
        || start_node_with(&port, "2", DEFAULT_HEARTBEATS, &[], &format!("{PRINT_RANKS} exec sleep 600"));
    let (first_node, second_node) = (join(), join());
    first_node.wait_for_lines("ranks", 1);
    second_node.wait_for_lines("ranks", 1);
    let start = Instant::now();
    kill_process(worker_of(&first_node), Signal::KILL).unwrap();
    for ended in [first_node.ended(), second_node.ended()] {
        assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
        assert!(ended.err.contains("SIGKILL"), "{}", ended.err);
    }
    // The agents must not wait for 15 s, after which they would detect a lost peer.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// In an earlier version, a node with another maximum made the job restart 35 to 67 times per second.
#[test]
fn a_node_with_another_maximum_is_refused_and_the_job_goes_on() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let first_node = start_node(&port, "2:2", &[], &script);
    wait_for_host(&port);
    let second_node = start_node(&port, "2:2", &[], &script);
    first_node.wait_for_lines("/2 ", 1);
    second_node.wait_for_lines("/2 ", 1);
    let refused = start_node(&port, "2:3", &[], &script).ended();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.err);
    for part in ["--nnodes 2:3", "--nnodes 2:2", "hint: start all nodes with the same --nnodes"] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    assert_eq!((starts(&first_node).len(), starts(&second_node).len()), (1, 1), "{}", first_node.err());
}

#[test]
fn a_different_command_or_restart_budget_causes_a_warning() {
    let port = Port::reserve();
    let first_node = start_node(&port, "2", &["--max-restarts", "1"], &format!("{PRINT_RANKS} exit 0"));
    wait_for_host(&port);
    eventually("the node waits", || first_node.err().contains("1 of at least 2"));
    let second_node =
        start_node(&port, "2", &["--max-restarts", "0"], &format!("{PRINT_RANKS} true; exit 0"));
    let (first_node, second_node) = (first_node.ended(), second_node.ended());
    assert_eq!(
        (first_node.status.code(), second_node.status.code()),
        (Some(0), Some(0)),
        "{}\n{}",
        first_node.err,
        second_node.err
    );
    for part in ["--max-restarts is 0 here and 1 there", "the commands differ"] {
        assert!(second_node.err.contains(part), "{part}: {}", second_node.err);
        assert!(!first_node.err.contains(part), "{part}: {}", first_node.err);
    }
}

/// The warnings are for a user whose second job has the same run id by mistake, so that its node becomes a spare of
/// the first job.
#[test]
fn a_spare_that_was_never_used_warns_twice_and_exits_with_0() {
    let port = Port::reserve();
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    let script = format!("{PRINT_RANKS} until [ -e {} ]; do sleep 0.05; done", done.display());
    let working = start_node_with_command(&port, "1", "join_timeout=60", &[], &["sh", "-c", &script]);
    wait_for_host(&port);
    working.wait_for_lines("ranks", 1);
    let spare = start_node(&port, "1", &[], &script);
    eventually("the node warns", || spare.err().contains("is a spare of the rendezvous"));
    std::fs::write(&done, "").unwrap();
    let (working, spare) = (working.ended(), spare.ended());
    assert_eq!((working.status.code(), spare.status.code()), (Some(0), Some(0)), "{}", spare.err);
    let warnings: Vec<_> = spare.err.lines().filter(|line| line.contains("WARN")).collect();
    assert!(warnings.iter().any(|line| line.contains("this node ran no workers")), "{warnings:?}");
    assert!(
        spare.err.contains("\nhint: if it is not meant as a spare, give its job a --rdzv-id"),
        "{}",
        spare.err
    );
}

/// SIGSTOP stops the agent of a node. While it is stopped, a spare replaces the node. If the workers of the node kept
/// running after SIGCONT, both nodes would train and write the same checkpoints.
#[test]
fn a_resumed_node_ends_its_workers_if_a_spare_has_replaced_it() {
    let port = Port::reserve();
    let server = TcpStoreServer::bind("127.0.0.1", port.number).unwrap();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let stopped = start_node(&port, "1", &[], &script);
    stopped.wait_for_lines("ranks", 1);
    let spare = start_node(&port, "1", &[], &script);
    eventually("the node is a spare", || spare.err().contains("is a spare of the rendezvous"));
    let agent = stopped.agent_pid().unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    spare.wait_for_lines("ranks", 1);
    kill_process(agent, Signal::CONT).unwrap();
    eventually("the workers have ended", || children(agent).is_empty());
    eventually("the stopped node is a spare", || stopped.err().contains("is a spare of the rendezvous"));
    drop(server);
}

#[test]
fn restarts_back_off_while_workers_fail_immediately() {
    let command = ["--max-restarts", "3", "--no-python", "sh", "-c", "exit 1"];
    let start = Instant::now();
    let ended = Agent::start(&[&["--standalone"][..], &command].concat()).ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    let waits = |seconds| ended.err.matches(&format!("the next start is delayed by {seconds} s")).count();
    assert_eq!((waits("0.1"), waits("0.2")), (1, 1), "{}", ended.err);
}

#[test]
fn a_dropped_node_does_not_count_itself_as_waiting() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let join = || start_node(&port, "1:2", &[], &script);
    let host = join();
    wait_for_host(&port);
    let stopped = join();
    host.wait_for_lines("/2 ", 1);
    stopped.wait_for_lines("/2 ", 1);
    let agent = stopped.agent_pid().unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    host.wait_for_lines("/1 ", 1);
    kill_process(agent, Signal::CONT).unwrap();
    stopped.wait_for_lines("/2 ", 2);
    for line in [
        "In the rendezvous 'job', the other nodes dropped this one: they saw no heartbeat from it.",
        "restarting the workers: the other nodes continue without this one",
    ] {
        assert!(stopped.err().contains(line), "{line}: {}", stopped.err());
    }
    assert!(!stopped.err().contains("1 node waits to join"), "{}", stopped.err());
    kill_together(&[agent]);
}

/// While the node is stopped, its store is replaced by an empty one, in which another node forms a round. No node has
/// dropped the stopped node.
#[test]
fn a_node_whose_store_was_replaced_reports_that_and_rejoins() {
    let port = Port::reserve();
    let server = TcpStoreServer::bind("127.0.0.1", port.number).unwrap();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let stopped = start_node(&port, "1:2", &[], &script);
    stopped.wait_for_lines("ranks 0/1", 1);
    let agent = stopped.agent_pid().unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    drop(server);
    let server = port.listen(|port| TcpStoreServer::bind("127.0.0.1", port));
    let other = start_node(&port, "1:2", &[], &script);
    other.wait_for_lines("ranks 0/1", 1);
    kill_process(agent, Signal::CONT).unwrap();
    [&stopped, &other].into_iter().for_each(|node| node.wait_for_lines("/2 ", 1));
    let line = "In the rendezvous 'job', the store has lost the round that this node is in.";
    assert!(stopped.err().contains(line), "{}", stopped.err());
    assert!(!stopped.err().contains("dropped this one"), "{}", stopped.err());
    drop(server);
}

#[test]
fn a_finished_node_gives_up_when_the_store_is_lost_for_store_outage_timeout() {
    let port = Port::reserve();
    let server = TcpStoreServer::bind("127.0.0.1", port.number).unwrap();
    let conf = format!("{CONF},is_host=0,store_outage_timeout=3");
    let start = |script: &str| start_node_with(&port, "2", &conf, &[], &format!("{PRINT_RANKS} {script}"));
    let (finished, working) = (start("exit 0"), start("exec sleep 600"));
    working.wait_for_lines("ranks", 1);
    let mut store = Client::connect(port.endpoint().parse().unwrap());
    eventually("the node is counted", || store.is_present(ENDED_COUNT));
    drop(server);
    let ended = finished.ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(ended.err.contains("(store_outage_timeout)"), "{}", ended.err);
}

#[test]
fn a_spare_takes_over_from_a_lost_host() {
    let port = Port::reserve();
    let script = format!("{PRINT_RANKS} exec sleep 600");
    let host = start_node(&port, "1", &[], &script);
    host.wait_for_lines("ranks", 1);
    let spare = start_node(&port, "1", &[], &script);
    eventually("the node is a spare", || spare.err().contains("is a spare of the rendezvous"));
    kill_node(&host);
    spare.wait_for_lines("ranks 0/1", 1);
    assert!(spare.err().contains("hosts it now"), "{}", spare.err());
}
