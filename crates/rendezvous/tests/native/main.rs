//! The native rendezvous with real servers and real time: rounds form, re-form and close.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    EndCause, NativeNode, NativeRendezvousHandler, OperatorCommand, OperatorReply, RendezvousError,
    RendezvousHandler, RendezvousInfo, RendezvousParameters, Report, Roster, parse_rendezvous_config,
    send_command,
};
use rallypoint_store::{Store, TcpStoreServer};
use rallypoint_testkit::{Port, eventually};

type Handler = Arc<NativeRendezvousHandler>;

/// A job whose nodes are handlers in this process.
struct Job {
    port: Port,
    run_id: &'static str,
    min: u64,
    max: u64,
    config: String,
}

impl Job {
    fn new(min: u64, max: u64, config: &str) -> Job {
        Job { port: Port::reserve(), run_id: "job", min, max, config: config.into() }
    }

    fn node(&self) -> Handler {
        self.node_with("", NativeNode::default())
    }

    /// Creates a node with further options.
    fn node_with(&self, config: &str, node: NativeNode) -> Handler {
        let endpoint = self.port.endpoint();
        let parameters =
            RendezvousParameters::new("rallypoint", &endpoint, self.run_id, self.min, self.max).unwrap();
        let config: Vec<&str> = [&self.config, config].into_iter().filter(|part| !part.is_empty()).collect();
        let config = parse_rendezvous_config(&config.join(",")).unwrap();
        let parameters = parameters.with_config(config).unwrap();
        Arc::new(NativeRendezvousHandler::create(&parameters, node, None, None).unwrap())
    }

    fn roster(&self) -> Option<Roster> {
        let endpoint = self.port.endpoint().parse().unwrap();
        let timeout = Duration::from_secs(10);
        match send_command(&[endpoint], self.run_id, &OperatorCommand::Roster, timeout) {
            Ok(OperatorReply::Roster(roster)) => Some(*roster),
            _ => None,
        }
    }
}

/// Joins a round in the background.
fn start_joining(node: &Handler) -> JoinHandle<Result<RendezvousInfo, RendezvousError>> {
    let node = node.clone();
    std::thread::spawn(move || node.next_rendezvous())
}

/// Joins a round with all of these nodes at the same time. Returns what each of them got, in the order of the nodes.
fn join(nodes: &[Handler]) -> Vec<RendezvousInfo> {
    let joins: Vec<_> = nodes.iter().map(start_joining).collect();
    joins.into_iter().map(|join| join.join().unwrap().unwrap()).collect()
}

fn ranks(rounds: &[RendezvousInfo]) -> Vec<u64> {
    let mut ranks: Vec<u64> = rounds.iter().map(|round| round.rank).collect();
    ranks.sort_unstable();
    ranks
}

/// Waits until the node's round has ended, and returns why and how long that took.
fn wait_for_end(node: &Handler) -> (EndCause, Duration) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if let Some(end) = node.membership().unwrap().end {
            return (end, start.elapsed());
        }
        node.wait_for_change(Duration::from_secs(1));
    }
    panic!("the round has not ended");
}

#[test]
fn a_full_world_forms_without_a_last_call_and_shares_a_store() {
    let job = Job::new(3, 3, "");
    let nodes = [job.node(), job.node(), job.node()];
    let start = Instant::now();
    let rounds = join(&nodes);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(ranks(&rounds), [0, 1, 2]);
    rounds[0].store.set("key", b"value").unwrap();
    assert_eq!(rounds[2].store.get("key").unwrap(), b"value");
    assert!(rounds.iter().all(|round| round.bootstrap_store_info == rounds[0].bootstrap_store_info));
    assert!(rounds.iter().all(|round| (round.round, round.world_size) == (0, 3)));
    assert!(nodes[0].membership().unwrap().is_intact());
}

#[test]
fn a_node_that_is_gone_is_noticed_within_a_second_and_survivors_keep_their_ranks() {
    let job = Job::new(2, 3, "");
    let mut nodes = vec![job.node(), job.node(), job.node()];
    let before = join(&nodes);
    // The last node ends without a word. Its sockets are closed, as those of a killed process.
    let lost = before[2].rank;
    drop(nodes.pop());
    let (end, took) = wait_for_end(&nodes[0]);
    assert_eq!(end, EndCause::NodeLost);
    assert!(took < Duration::from_secs(1), "{took:?}");
    wait_for_end(&nodes[1]);
    let after = join(&nodes);
    assert_eq!((after[0].round, after[0].world_size), (1, 2));
    assert_eq!(ranks(&after), [0, 1]);
    if lost == 2 {
        assert_eq!((after[0].rank, after[1].rank), (before[0].rank, before[1].rank));
    }
}

#[test]
fn the_loss_of_the_first_endpoint_does_not_end_the_job() {
    let job = Job::new(2, 3, "");
    let mut nodes = vec![job.node(), job.node(), job.node()];
    join(&nodes);
    eventually("all nodes vote", || job.roster().is_some_and(|roster| roster.voters.len() == 3));
    drop(nodes.remove(0));
    let (end, took) = wait_for_end(&nodes[0]);
    assert_eq!(end, EndCause::NodeLost);
    assert!(took < Duration::from_secs(2), "{took:?}");
    wait_for_end(&nodes[1]);
    assert_eq!(ranks(&join(&nodes)), [0, 1]);
}

#[test]
fn a_failed_worker_ends_the_round_on_all_nodes() {
    let job = Job::new(2, 2, "");
    let nodes = [job.node(), job.node()];
    join(&nodes);
    nodes[0].report(Report::WorkerFailed { local_rank: 0, exit: "exit code 1".into() });
    assert_eq!(wait_for_end(&nodes[0]).0, EndCause::WorkerFailed);
    assert_eq!(wait_for_end(&nodes[1]).0, EndCause::WorkerFailed);
    assert_eq!(join(&nodes)[0].round, 1);
}

#[test]
fn a_newcomer_is_included_after_the_delay() {
    let job = Job::new(1, 2, "last_call_timeout=0.1,scale_up_delay=0.5");
    let first = job.node();
    join(std::slice::from_ref(&first));
    let second = job.node();
    let joining = start_joining(&second);
    assert_eq!(wait_for_end(&first).0, EndCause::Growth);
    let round = first.next_rendezvous().unwrap();
    assert_eq!((round.rank, round.world_size), (0, 2), "the survivor keeps its rank");
    assert_eq!(joining.join().unwrap().unwrap().rank, 1);
}

#[test]
fn a_closed_job_names_the_node_that_closed_it() {
    let job = Job::new(2, 2, "");
    let nodes = [job.node(), job.node()];
    join(&nodes);
    nodes[0].set_closed().unwrap();
    eventually("the other node knows", || nodes[1].membership().unwrap().is_closed);
    let error = nodes[1].next_rendezvous().unwrap_err().to_string();
    assert!(error.contains("closed the job at 20") && error.contains("hint: use a new --rdzv-id"), "{error}");
}

#[test]
fn nodes_with_other_settings_are_refused_by_name_within_a_second() {
    let job = Job::new(2, 2, "");
    let nodes = [job.node(), job.node()];
    join(&nodes);
    let other = Job { min: 1, max: 4, ..job };
    let start = Instant::now();
    let error = other.node().next_rendezvous().unwrap_err().to_string();
    assert!(
        error.contains("--nnodes 2") && error.contains("--nnodes 1:4") && error.contains("(pid "),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn a_node_that_waits_alone_says_what_it_waits_for() {
    let job = Job::new(2, 2, "join_timeout=5");
    let error = job.node().next_rendezvous().unwrap_err().to_string();
    assert!(error.contains("1 of 2 nodes have joined") && error.contains("join_timeout"), "{error}");
}

#[test]
fn a_node_that_leaves_does_not_close_the_job() {
    let job = Job::new(1, 2, "last_call_timeout=0.5");
    let nodes = [job.node(), job.node()];
    join(&nodes);
    nodes[1].leave().unwrap();
    assert_eq!(wait_for_end(&nodes[0]).0, EndCause::NodeLost);
    let round = nodes[0].next_rendezvous().unwrap();
    assert_eq!((round.rank, round.world_size), (0, 1));
}

#[test]
fn a_node_of_another_job_is_refused_with_both_run_ids() {
    let job = Job::new(2, 2, "");
    let waiting = job.node();
    let join = start_joining(&waiting);
    eventually("the job is founded", || job.roster().is_some());
    let other = Job { run_id: "other", ..job };
    let error = other.node().next_rendezvous().unwrap_err().to_string();
    assert!(error.contains("\"job\"") && error.contains("\"other\""), "{error}");
    assert!(error.contains("\nhint: use the same --rdzv-id on all nodes of a job"), "{error}");
    waiting.interrupt();
    assert!(matches!(join.join().unwrap(), Err(RendezvousError::Interrupted { .. })));
}

#[test]
fn the_store_of_a_round_stays_until_every_node_has_shut_down() {
    let job = Job::new(3, 3, "");
    let nodes = [job.node(), job.node(), job.node()];
    let rounds = join(&nodes);
    let mut ended: Vec<_> = nodes.into_iter().zip(rounds).collect();
    ended.sort_by_key(|(_, round)| round.rank);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut ended = ended.into_iter();
        let (master, round) = ended.next().unwrap();
        drop(round);
        let master = scope.spawn(move || master.shut_down().unwrap());
        let others: Vec<_> = ended.collect();
        eventually("the job is closed", || {
            others.iter().all(|(node, _)| node.membership().unwrap().is_closed)
        });
        for (node, round) in others {
            assert!(!master.is_finished(), "the store is still needed");
            round.store.set("key", b"value").unwrap();
            node.shut_down().unwrap();
        }
        master.join().unwrap();
    });
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_node_that_finds_no_coordinator_says_what_it_has_tried() {
    let store_server = TcpStoreServer::bind("127.0.0.1", 0).unwrap();
    let port = Port::reserve();
    let endpoint = format!("127.0.0.1:{},192.0.2.1:{}", store_server.port(), port.number);
    let parameters = RendezvousParameters::new("rallypoint", &endpoint, "job", 2, 2).unwrap();
    let parameters = parameters.with_config(parse_rendezvous_config("join_timeout=3").unwrap()).unwrap();
    let parameters = parameters.with_local_addr(Some("127.0.0.1".into()));
    let node = NativeRendezvousHandler::create(&parameters, NativeNode::default(), None, None).unwrap();
    let error = node.next_rendezvous().unwrap_err().to_string();
    let at = format!(
        "no coordinator found at 127.0.0.1:{} (a store server without a coordinator",
        store_server.port()
    );
    assert!(error.contains(&at) && error.contains("join_timeout"), "{error}");
}

#[test]
fn a_spare_waits_longer_than_the_join_timeout_and_then_takes_the_place_of_a_lost_node() {
    let job = Job::new(1, 1, "join_timeout=5");
    let mut first = Some(job.node());
    join(std::slice::from_ref(first.as_ref().unwrap()));
    let spare = job.node();
    let start = Instant::now();
    let joining = start_joining(&spare);
    eventually("the spare has waited for longer than the timeout", || {
        start.elapsed() > Duration::from_secs(7) || joining.is_finished()
    });
    assert!(!joining.is_finished(), "{:?}", joining.join().map(|round| round.map(|round| round.rank)));
    first.take().unwrap().leave().unwrap();
    let round = joining.join().unwrap().unwrap();
    assert_eq!((round.round, round.rank), (1, 0));
}

#[test]
fn a_spare_of_a_job_that_finishes_was_not_needed_and_a_late_node_is_refused() {
    let job = Job::new(1, 1, "");
    let workers = NativeNode { workers: Some(1), ..NativeNode::default() };
    let first = job.node_with("", workers);
    join(std::slice::from_ref(&first));
    let spare = job.node();
    let joining = start_joining(&spare);
    eventually("the spare waits", || job.roster().is_some_and(|roster| roster.nodes.len() == 2));
    first.report(Report::Finished);
    assert!(matches!(joining.join().unwrap(), Err(RendezvousError::GracefulExit { .. })));
    let error = job.node().next_rendezvous().unwrap_err().to_string();
    assert!(error.contains("have finished round 0\nhint: use a new --rdzv-id"), "{error}");
}

#[test]
fn a_round_with_only_idle_nodes_does_not_finish_and_one_with_an_idle_node_does() {
    let job = Job::new(2, 2, "");
    let idle = || NativeNode { workers: Some(0), ..NativeNode::default() };
    let nodes = [job.node_with("", idle()), job.node_with("", NativeNode { workers: Some(1), ..idle() })];
    join(&nodes);
    nodes[1].report(Report::Finished);
    eventually("the job has finished", || nodes[0].membership().unwrap().has_finished);

    let job = Job::new(1, 1, "");
    let node = job.node_with("", idle());
    join(std::slice::from_ref(&node));
    let heartbeats = || job.roster().and_then(|roster| roster.nodes[0].heartbeat_age);
    eventually("the node is served", || heartbeats().is_some());
    assert!(!node.membership().unwrap().is_closed);
}

#[test]
fn a_node_whose_pre_join_check_fails_waits_outside_with_the_reason_and_tries_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("healthy");
    let job = Job::new(2, 2, "");
    let healthy = job.node();
    let check = format!("pre_join_check=test -e {} || {{ echo broken GPU; exit 7; }}", file.display());
    let sick = job.node_with(&check, NativeNode::default());
    let joins = [start_joining(&healthy), start_joining(&sick)];
    let is_outside = |roster: Roster| {
        let reasons = roster.nodes.iter().filter_map(|node| node.waits_for.as_ref().map(ToString::to_string));
        reasons.into_iter().any(|reason| reason == "its pre-join check failed: exit code 7: broken GPU")
    };
    eventually("the node is outside", || job.roster().is_some_and(is_outside));
    std::fs::write(file, "").unwrap();
    let rounds = joins.map(|join| join.join().unwrap().unwrap());
    assert_eq!(ranks(&rounds), [0, 1]);
}

#[test]
fn a_node_whose_pre_join_check_keeps_failing_gives_up_with_the_reason() {
    let job = Job::new(1, 1, "join_timeout=1,pre_join_check=false");
    let error = job.node().next_rendezvous().unwrap_err().to_string();
    let reason = "this node is outside: its pre-join check failed: exit code 1";
    assert!(error.contains(reason) && error.contains("join_timeout"), "{error}");
}

#[test]
fn a_node_gets_the_participants_if_it_wants_them() {
    let job = Job::new(2, 2, "");
    let wants = NativeNode { wants_participants: true, ..NativeNode::default() };
    let nodes = [job.node_with("", wants), job.node()];
    let rounds = join(&nodes);
    let own = i64::from(std::process::id());
    let names: Vec<_> = rounds[0].participants.iter().map(|node| (&*node.addr, node.pid)).collect();
    assert_eq!(names, [("127.0.0.1", own), ("127.0.0.1", own)]);
    assert!(rounds[1].participants.is_empty());
}
