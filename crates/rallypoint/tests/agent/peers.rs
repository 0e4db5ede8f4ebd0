//! What a node does about the others: one is lost, is started with other settings, or is one too many.

use std::time::{Duration, Instant};

use rallypoint_store::TcpStoreServer;
use rallypoint_testkit::{Port, eventually};
use rustix::process::{Signal, kill_process};

use crate::bed::{Agent, children, kill_at_once};
use crate::nodes::{TELL, has_host, kill_all_of, node, node_of, node_with, worker_of};

/// Torch's heartbeats, so that only a departure can be quick.
const SLOW_HEARTBEATS: &str = "last_call_timeout=2,reform_last_call_timeout=1,join_timeout=60";

/// The line of every start of a node.
fn starts(node: &Agent) -> Vec<String> {
    node.out().lines().filter(|line| line.starts_with("told")).map(String::from).collect()
}

/// Torch's nodes, and ours before, notice it after 15 s without heartbeats.
#[test]
fn a_node_of_which_one_process_was_killed_is_taken_out_by_the_other() {
    for process in ["outer", "agent"] {
        let port = Port::reserve();
        let script = format!("{TELL} exec sleep 600");
        let join = || node_with(&port, "2:3", SLOW_HEARTBEATS, &[], &script);
        let host = join();
        has_host(&port);
        let (survivor, victim) = (join(), join());
        [&host, &survivor, &victim].into_iter().for_each(|node| node.says("/3 ", 1));
        let killed = match process {
            "outer" => victim.pid(),
            _ => victim.inner().unwrap(),
        };
        let start = Instant::now();
        kill_process(killed, Signal::KILL).unwrap();
        for node in [&host, &survivor] {
            node.says("/2 ", 1);
            assert_eq!(starts(node).len(), 2, "{process}: {}", node.err());
        }
        assert!(start.elapsed() < Duration::from_secs(12), "{process}: {:?}", start.elapsed());
    }
}

#[test]
fn a_node_of_which_one_process_was_killed_while_it_waits_is_not_in_the_round() {
    for process in ["outer", "agent", "outer", "agent"] {
        let port = Port::reserve();
        let join = || node_with(&port, "3", SLOW_HEARTBEATS, &[], &format!("{TELL} exec sleep 600"));
        let host = join();
        has_host(&port);
        let victim = join();
        eventually("it waits", || victim.err().contains("2 of at least 3"));
        let killed = if process == "outer" { victim.pid() } else { victim.inner().unwrap() };
        let start = Instant::now();
        kill_process(killed, Signal::KILL).unwrap();
        let others = [join(), join()];
        [&host, &others[0], &others[1]].into_iter().for_each(|node| node.says("/3 ", 1));
        assert!(
            start.elapsed() < Duration::from_secs(12),
            "{process}: {:?}\n{}",
            start.elapsed(),
            host.err()
        );
    }
}

#[test]
fn a_node_that_waits_takes_over_when_the_host_of_the_store_is_killed() {
    let port = Port::reserve();
    let conf = "last_call_timeout=1,join_timeout=60,read_timeout=2";
    let join = || node_with(&port, "3", conf, &[], &format!("{TELL} exec sleep 600"));
    let host = join();
    has_host(&port);
    let waiting = join();
    eventually("it waits", || waiting.err().contains("2 of at least 3"));
    kill_at_once(&[host.pid(), host.inner().unwrap()]);
    eventually("it takes over", || waiting.err().contains("hosts it now at"));
    let others = [join(), join()];
    [&waiting, &others[0], &others[1]].into_iter().for_each(|node| node.says("/3 ", 1));
}

/// Training processes fail at once when the connection to a peer breaks, long before the peer is known to be lost.
#[test]
fn workers_that_fail_because_a_peer_was_lost_cost_no_restart() {
    let port = Port::reserve();
    let dir = tempfile::tempdir().unwrap();
    let lost = dir.path().join("lost");
    // As a collective operation would fail: when the peer is gone, in the first round only.
    let script = format!(
        r#"{TELL} while [ "$WORLD_SIZE" != 3 ] || [ ! -e {} ]; do sleep 0.05; done; exit 1"#,
        lost.display()
    );
    let join = || node(&port, "2:3", &["--max-restarts", "0"], &script);
    let host = join();
    has_host(&port);
    let (survivor, victim) = (join(), join());
    [&host, &survivor, &victim].into_iter().for_each(|node| node.says("/3 ", 1));
    kill_all_of(&victim);
    std::fs::write(&lost, "").unwrap();
    for node in [&host, &survivor] {
        node.says("/2 ", 1);
        assert!(node.err().contains("asking the other nodes whether one was lost"), "{}", node.err());
    }
}

#[test]
fn a_worker_that_fails_beside_living_peers_still_ends_the_job_at_once() {
    let port = Port::reserve();
    let join = || node_with(&port, "2", SLOW_HEARTBEATS, &[], &format!("{TELL} exec sleep 600"));
    let (one, other) = (join(), join());
    one.says("told", 1);
    other.says("told", 1);
    let start = Instant::now();
    kill_process(worker_of(&one), Signal::KILL).unwrap();
    for ended in [one.ended(), other.ended()] {
        assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
        assert!(ended.err.contains("SIGKILL"), "{}", ended.err);
    }
    // A lost peer would be waited for for 15 s.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Before, it made the job restart 35 to 67 times a second.
#[test]
fn a_node_with_another_maximum_is_refused_and_the_job_goes_on() {
    let port = Port::reserve();
    let script = format!("{TELL} exec sleep 600");
    let one = node(&port, "2:2", &[], &script);
    has_host(&port);
    let other = node(&port, "2:2", &[], &script);
    one.says("/2 ", 1);
    other.says("/2 ", 1);
    let refused = node(&port, "2:3", &[], &script).ended();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.err);
    for part in ["--nnodes 2:3", "--nnodes 2:2", "hint: start all nodes with the same --nnodes"] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    assert_eq!((starts(&one).len(), starts(&other).len()), (1, 1), "{}", one.err());
}

#[test]
fn another_command_or_restart_limit_is_warned_about() {
    let port = Port::reserve();
    let one = node(&port, "2", &["--max-restarts", "1"], &format!("{TELL} exit 0"));
    has_host(&port);
    eventually("it waits", || one.err().contains("1 of at least 2"));
    let other = node(&port, "2", &["--max-restarts", "0"], &format!("{TELL} true; exit 0"));
    let (one, other) = (one.ended(), other.ended());
    assert_eq!((one.status.code(), other.status.code()), (Some(0), Some(0)), "{}\n{}", one.err, other.err);
    for part in ["--max-restarts is 0 here and 1 there", "the commands differ"] {
        assert!(other.err.contains(part), "{part}: {}", other.err);
        assert!(!one.err.contains(part), "{part}: {}", one.err);
    }
}

/// It may be another job that has the same id by mistake.
#[test]
fn a_spare_that_was_never_used_warns_twice_and_ends_with_0() {
    let port = Port::reserve();
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    let script = format!("{TELL} until [ -e {} ]; do sleep 0.05; done", done.display());
    let worker = node_of(&port, "1", "join_timeout=60", &[], &["sh", "-c", &script]);
    has_host(&port);
    worker.says("told", 1);
    let spare = node(&port, "1", &[], &script);
    eventually("it warns", || spare.err().contains("is a spare of the rendezvous"));
    std::fs::write(&done, "").unwrap();
    let (worker, spare) = (worker.ended(), spare.ended());
    assert_eq!((worker.status.code(), spare.status.code()), (Some(0), Some(0)), "{}", spare.err);
    let warnings: Vec<_> = spare.err.lines().filter(|line| line.contains("WARN")).collect();
    assert!(warnings.iter().any(|line| line.contains("this node ran no workers")), "{warnings:?}");
    assert!(
        spare.err.contains("\nhint: if it is not meant as a spare, give its job a --rdzv-id"),
        "{}",
        spare.err
    );
}

/// Both would train, and write the same checkpoints.
#[test]
fn a_job_of_one_node_that_was_stuck_ends_its_workers_when_a_spare_has_taken_its_place() {
    let port = Port::reserve();
    let server = TcpStoreServer::bind("127.0.0.1", port.number).unwrap();
    let script = format!("{TELL} exec sleep 600");
    let stuck = node(&port, "1", &[], &script);
    stuck.says("told", 1);
    let spare = node(&port, "1", &[], &script);
    eventually("it stands by", || spare.err().contains("is a spare of the rendezvous"));
    let agent = stuck.inner().unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    spare.says("told", 1);
    kill_process(agent, Signal::CONT).unwrap();
    eventually("its workers have ended", || children(agent).is_empty());
    eventually("it stands by", || stuck.err().contains("is a spare of the rendezvous"));
    drop(server);
}

#[test]
fn restarts_back_off_while_workers_end_at_once() {
    let command = ["--max-restarts", "3", "--no-python", "sh", "-c", "exit 1"];
    let start = Instant::now();
    let ended = Agent::start(&[&["--standalone"][..], &command].concat()).ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    let waits = |seconds| ended.err.matches(&format!("the next start is delayed by {seconds} s")).count();
    assert_eq!((waits("0.1"), waits("0.2")), (1, 1), "{}", ended.err);
}

#[test]
fn a_node_that_was_dropped_does_not_count_itself_among_those_who_wait() {
    let port = Port::reserve();
    let script = format!("{TELL} exec sleep 600");
    let join = || node(&port, "1:2", &[], &script);
    let host = join();
    has_host(&port);
    let stopped = join();
    host.says("/2 ", 1);
    stopped.says("/2 ", 1);
    let agent = stopped.inner().unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    host.says("/1 ", 1);
    kill_process(agent, Signal::CONT).unwrap();
    stopped.says("/2 ", 2);
    assert!(stopped.err().contains("the other nodes have dropped this one"), "{}", stopped.err());
    assert!(!stopped.err().contains("1 node waits to join"), "{}", stopped.err());
    kill_at_once(&[agent]);
}

#[test]
fn a_spare_survives_the_loss_of_the_stores_host_and_takes_its_place() {
    let port = Port::reserve();
    let script = format!("{TELL} exec sleep 600");
    let host = node(&port, "1", &[], &script);
    host.says("told", 1);
    let spare = node(&port, "1", &[], &script);
    eventually("it stands by", || spare.err().contains("is a spare of the rendezvous"));
    kill_all_of(&host);
    spare.says("told 0/1", 1);
    assert!(spare.err().contains("hosts it now"), "{}", spare.err());
}
