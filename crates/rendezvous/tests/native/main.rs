//! The native rendezvous with real servers and real time: rounds form, re-form and close.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    EndCause, NativeNode, NativeRendezvousHandler, RendezvousHandler, RendezvousInfo, RendezvousParameters,
    Report, free_port, parse_rendezvous_config,
};
use rallypoint_store::Store;

type Handler = Arc<NativeRendezvousHandler>;

/// A job whose nodes are handlers in this process.
struct Job {
    endpoint: String,
    min: u64,
    max: u64,
    config: String,
}

impl Job {
    fn new(min: u64, max: u64, config: &str) -> Job {
        Job { endpoint: format!("127.0.0.1:{}", free_port().unwrap()), min, max, config: config.into() }
    }

    fn node(&self) -> Handler {
        self.try_node(NativeNode::default())
    }

    fn try_node(&self, node: NativeNode) -> Handler {
        let parameters =
            RendezvousParameters::new("rallypoint", &self.endpoint, "job", self.min, self.max).unwrap();
        let parameters = parameters.with_config(parse_rendezvous_config(&self.config).unwrap()).unwrap();
        Arc::new(NativeRendezvousHandler::create(&parameters, node, None, None).unwrap())
    }
}

/// Joins a round with all of these nodes at the same time. Returns what each of them got, in the order of the nodes.
fn join(nodes: &[Handler]) -> Vec<RendezvousInfo> {
    let joins: Vec<_> = nodes
        .iter()
        .cloned()
        .map(|node| std::thread::spawn(move || node.next_rendezvous().unwrap()))
        .collect();
    joins.into_iter().map(|join| join.join().unwrap()).collect()
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
    // Give the replicas time to get the log: with three nodes, there are three voters.
    std::thread::sleep(Duration::from_secs(2));
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
    let joining = std::thread::spawn({
        let second = second.clone();
        move || second.next_rendezvous().unwrap()
    });
    assert_eq!(wait_for_end(&first).0, EndCause::Growth);
    let round = first.next_rendezvous().unwrap();
    assert_eq!((round.rank, round.world_size), (0, 2), "the survivor keeps its rank");
    assert_eq!(joining.join().unwrap().rank, 1);
}

#[test]
fn a_closed_job_names_the_node_that_closed_it() {
    let job = Job::new(2, 2, "");
    let nodes = [job.node(), job.node()];
    join(&nodes);
    nodes[0].set_closed().unwrap();
    nodes[1].wait_for_change(Duration::from_secs(5));
    assert!(nodes[1].membership().unwrap().is_closed);
    let error = nodes[1].next_rendezvous().unwrap_err().to_string();
    assert!(error.contains("closed the job at 20") && error.contains("hint: use a new --rdzv-id"), "{error}");
}

#[test]
fn nodes_with_other_settings_are_refused_by_name_within_a_second() {
    let job = Job::new(2, 2, "");
    let nodes = [job.node(), job.node()];
    join(&nodes);
    let other = Job { min: 1, max: 4, endpoint: job.endpoint.clone(), config: String::new() };
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
    let job = Job::new(2, 2, "join_timeout=3");
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
