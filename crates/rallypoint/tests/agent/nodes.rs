//! Several nodes of ours in one job: they start over together, hear of each other's failures at once, and re-form.

use std::time::{Duration, Instant};

use rallypoint_testkit::{Port, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{Agent, children, kill_at_once};

const CONF: &str = "last_call_timeout=1,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2";

pub(crate) fn node(port: &Port, nodes: &str, more: &[&str], script: &str) -> Agent {
    node_with(port, nodes, CONF, more, script)
}

pub(crate) fn node_with(port: &Port, nodes: &str, conf: &str, more: &[&str], script: &str) -> Agent {
    node_of(port, nodes, conf, more, &["sh", "-c", script])
}

pub(crate) fn node_of(port: &Port, nodes: &str, conf: &str, more: &[&str], command: &[&str]) -> Agent {
    let endpoint = port.endpoint();
    let first =
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", nodes];
    let last = ["--rdzv-conf", conf, "--local-addr", "127.0.0.1", "--no-python"];
    Agent::start(&[&first, more, &last, command].concat())
}

pub(crate) const TELL: &str =
    r#"echo "told $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT";"#;

#[test]
fn two_nodes_with_uneven_workers_form_one_world_and_finish_together() {
    let port = Port::reserve();
    let script = format!("{TELL} exit 0");
    let one = node(&port, "2", &["--nproc-per-node", "1"], &script);
    let other = node(&port, "2", &["--nproc-per-node", "3"], &script);
    let (one, other) = (one.ended(), other.ended());
    assert_eq!((one.status.code(), other.status.code()), (Some(0), Some(0)), "{}\n{}", one.err, other.err);
    let mut ranks: Vec<_> = format!("{}{}", one.out, other.out)
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
    ranks.sort();
    assert_eq!(ranks, ["0/4", "1/4", "2/4", "3/4"]);
}

#[test]
fn when_a_worker_dies_both_nodes_start_over_at_once_and_both_count_it() {
    let port = Port::reserve();
    let script = format!("{TELL} exec sleep 600");
    let one = node(&port, "2", &["--max-restarts", "3"], &script);
    let other = node(&port, "2", &["--max-restarts", "3"], &script);
    one.says("told", 1);
    other.says("told", 1);
    let mut took = Vec::new();
    // Torch's take 1.65 s each time; ours may once or twice, because the machine may be busy.
    while took.iter().all(|took| *took >= Duration::from_millis(1500)) {
        assert!(took.len() < 3, "{took:?}");
        // A worker of one of them dies.
        let worker = worker_of(&one);
        let start = Instant::now();
        kill_process(worker, Signal::KILL).unwrap();
        one.says("told", took.len() + 2);
        other.says("told", took.len() + 2);
        took.push(start.elapsed());
        // Workers of torch meet under that number.
        let count = format!(" {}", took.len());
        for node in [&one, &other] {
            assert!(node.out().lines().last().unwrap().ends_with(&count), "{}", node.out());
        }
    }
    assert!(other.err().contains("restarts its workers"), "{}", other.err());
}

/// The only worker of an agent.
pub(crate) fn worker_of(agent: &Agent) -> Pid {
    children(agent.inner().unwrap())[0]
}

/// The node, agent and workers alike, is gone in one moment.
pub(crate) fn kill_all_of(agent: &Agent) {
    let agents = [agent.pid(), agent.inner().unwrap()];
    kill_at_once(&[&agents[..], &[worker_of(agent)]].concat());
}

/// Waits until somebody listens there: who comes now is a client of the first one's store.
pub(crate) fn has_host(port: &Port) {
    eventually("the store is there", || std::net::TcpStream::connect(port.endpoint()).is_ok());
}

#[test]
fn a_final_failure_ends_the_job_on_all_nodes_at_once_and_all_tell_of_it() {
    for host_fails in [false, true] {
        let port = Port::reserve();
        let script = format!("{TELL} exec sleep 600");
        let host = node(&port, "2", &[], &script);
        has_host(&port);
        let client = node(&port, "2", &[], &script);
        host.says("told", 1);
        client.says("told", 1);
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
fn a_node_that_closes_the_rendezvous_because_it_can_not_start_its_workers_is_named_by_the_others() {
    let dir = tempfile::tempdir().unwrap();
    // It passes for a program until it is executed.
    let program = dir.path().join("program");
    std::fs::write(&program, "#!/nonexistent/interpreter\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let port = Port::reserve();
    let one = node(&port, "2", &[], "exec sleep 600");
    has_host(&port);
    let other = node_of(&port, "2", CONF, &[], &[program.to_str().unwrap()]);
    let (one, other) = (one.ended(), other.ended());
    assert!(other.err.contains("cannot start worker 0"), "{}", other.err);
    assert_eq!(one.status.code(), Some(1), "{}", one.err);
    let culprit = "the job was ended by another node, 127.0.0.1 (pid ";
    assert!(one.err.contains(culprit) && one.err.contains(", which did not report why"), "{}", one.err);
    assert!(!one.err.contains("Root Cause"), "{}", one.err);
}

/// One that hosts the store and works alone first, and another that comes to it; both work.
fn one_and_another(port: &Port, more: &[&str]) -> (Agent, Agent) {
    let script = format!("{TELL} exec sleep 600");
    let first = node(port, "1:2", more, &script);
    first.says("told 0/1", 1);
    let second = node(port, "1:2", more, &script);
    first.says("/2 ", 1);
    second.says("/2 ", 1);
    (first, second)
}

#[test]
fn a_node_that_comes_is_let_in_and_one_that_leaves_is_not_waited_for() {
    let port = Port::reserve();
    let (first, second) = one_and_another(&port, &["--max-restarts", "0"]);
    second.signal(Signal::TERM);
    assert_eq!(second.ended().status.code(), Some(1));
    first.says("told 0/1", 2);
    first.signal(Signal::TERM);
    assert_eq!(first.ended().status.code(), Some(1));
}

#[test]
fn a_node_that_is_killed_with_its_workers_is_noticed_although_no_worker_does() {
    let port = Port::reserve();
    let (first, second) = one_and_another(&port, &[]);
    kill_all_of(&second);
    first.says("told 0/1", 2);
}

#[test]
fn a_node_whose_outer_process_is_killed_is_gone_and_has_not_failed() {
    for _ in 0..2 {
        let port = Port::reserve();
        let (first, second) = one_and_another(&port, &["--max-restarts", "0"]);
        second.signal(Signal::KILL);
        first.says("told 0/1", 2);
    }
}

#[test]
fn a_node_that_dies_after_another_has_finished_is_noticed_by_both_of_the_others() {
    let port = Port::reserve();
    // With three nodes the first finishes at once and the others never; with two all do.
    let done = format!("{TELL} exit 0");
    let works = format!("{TELL} [ $WORLD_SIZE = 2 ] || exec sleep 600");
    let first = node(&port, "2:3", &[], &done);
    has_host(&port);
    let (second, third) = (node(&port, "2:3", &[], &works), node(&port, "2:3", &[], &works));
    second.says("/3 ", 1);
    third.says("/3 ", 1);
    eventually("the first has finished", || first.err().contains("workers of this node have finished"));
    let pid = second.inner().unwrap().as_raw_nonzero();
    kill_all_of(&second);
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
fn a_node_that_has_finished_does_not_succeed_without_one_that_died_but_with_its_successor() {
    let port = Port::reserve();
    let first = node(&port, "2", &[], &format!("{TELL} exit 0"));
    has_host(&port);
    let second = node(&port, "2", &[], &format!("{TELL} exec sleep 600"));
    second.says("told", 1);
    eventually("the first has finished", || first.err().contains("workers of this node have finished"));
    kill_all_of(&second);
    eventually("the first waits again", || {
        first.err().contains("restarting the workers: 1 node left or died")
    });
    let third = node(&port, "2", &[], &format!("{TELL} exit 0"));
    let (first, third) = (first.ended(), third.ended());
    assert_eq!((first.status.code(), third.status.code()), (Some(0), Some(0)), "{}{}", first.err, third.err);
    assert_eq!(first.out.lines().count(), 2, "{}", first.out);
}

#[test]
fn a_node_that_has_finished_and_lost_the_others_for_good_has_failed() {
    for host_dies in [false, true] {
        let port = Port::reserve();
        let (done, works) = (format!("{TELL} exit 0"), format!("{TELL} exec sleep 600"));
        let conf = CONF.replace("join_timeout=60", "join_timeout=10");
        let start = |script: &str| node_with(&port, "2", &conf, &[], script);
        let host = start(if host_dies { &works } else { &done });
        has_host(&port);
        let client = start(if host_dies { &done } else { &works });
        let (dying, finished) = if host_dies { (host, client) } else { (client, host) };
        dying.says("told", 1);
        let has_finished = || finished.err().contains("workers of this node have finished");
        eventually("it has finished", has_finished);
        kill_all_of(&dying);
        let ended = finished.ended();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
        // Where the host died, the node that is left hosts the store itself.
        assert!(ended.err.contains("1 of at least 2 nodes"), "{}", ended.err);
    }
}

/// With torch's times as they are: three heartbeats of 5 s.
#[test]
fn a_killed_node_is_missed_by_all_others_within_the_default_time_and_they_say_who_and_why() {
    let port = Port::reserve();
    let script = format!("{TELL} exec sleep 600");
    let join = || node_with(&port, "2:3", "last_call_timeout=1,join_timeout=60", &[], &script);
    let host = join();
    has_host(&port);
    let (survivor, victim) = (join(), join());
    for node in [&host, &survivor, &victim] {
        node.says("/3 ", 1);
    }
    let dead = victim.inner().unwrap().as_raw_nonzero();
    let start = Instant::now();
    kill_all_of(&victim);
    let before =
        [&host, &survivor].map(|node| node.out().lines().filter(|line| line.contains("/2 ")).count());
    for (node, before) in [&host, &survivor].into_iter().zip(before) {
        node.says("/2 ", before + 1);
    }
    let took = start.elapsed();
    for node in [&host, &survivor] {
        let why = format!("(pid {dead}): no heartbeat for 15 s");
        assert!(node.err().contains(&why), "{why:?} not in:\n{}", node.err());
    }
    // It was last heard of at most 5 s before. The last call takes 1 s.
    assert!(took > Duration::from_secs(9) && took < Duration::from_secs(25), "{took:?}");
}

#[test]
fn a_spare_ends_well_when_the_job_does() {
    let port = Port::reserve();
    let script = format!("{TELL} while [ ! -e \"$GO\" ]; do sleep 0.02; done");
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let endpoint = port.endpoint();
    let arguments =
        ["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint, "--rdzv-id", "job", "--nnodes", "1"];
    let last = ["--rdzv-conf", CONF, "--local-addr", "127.0.0.1", "--no-python", "sh", "-c", &script];
    let arguments = [&arguments[..], &last].concat();
    let working = Agent::start_with(&arguments, &[("GO", &go)]);
    working.says("told", 1);
    let spare = Agent::start_with(&arguments, &[("GO", &go)]);
    eventually("it is a spare", || spare.err().contains("spare"));
    std::fs::write(&go, "").unwrap();
    assert_eq!(working.ended().status.code(), Some(0));
    let ended = spare.ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
}

#[test]
fn a_signal_while_it_waits_for_others_makes_it_leave() {
    let port = Port::reserve();
    let waiting = node(&port, "2", &[], "true");
    eventually("it waits", || waiting.err().contains("waiting"));
    waiting.signal(Signal::TERM);
    let ended = waiting.ended();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.err);
}
