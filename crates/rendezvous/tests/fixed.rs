//! Tests of the static rendezvous: every node gets the group rank that the user chose, and nodes that contradict each
//! other fail before their timeout.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::{
    RendezvousError, RendezvousHandler, RendezvousInfo, RendezvousParameters, Result,
    StaticRendezvousHandler, parse_rendezvous_config,
};
use rallypoint_store::{Store, TcpStoreServer};
use rallypoint_testkit::reserve_port;

/// A job whose nodes run in this process.
struct Job {
    port: u16,
}

impl Job {
    fn new() -> Job {
        Job { port: reserve_port() }
    }

    fn parameters(&self, rank: &str, nodes: u64) -> RendezvousParameters {
        let endpoint = format!("127.0.0.1:{}", self.port);
        let config = parse_rendezvous_config(&format!("rank={rank},timeout=10")).unwrap();
        RendezvousParameters::new("static", &endpoint, "job", 1, nodes).unwrap().with_config(config).unwrap()
    }

    fn node(&self, rank: u64, nodes: u64) -> StaticRendezvousHandler {
        StaticRendezvousHandler::create(&self.parameters(&rank.to_string(), nodes)).unwrap()
    }

    fn join(&self, rank: u64, nodes: u64) -> JoinHandle<Result<RendezvousInfo>> {
        let node = self.node(rank, nodes);
        std::thread::spawn(move || {
            let joined = node.next_rendezvous();
            // Dropping the handler of rank 0 would stop the server, which the other nodes still use.
            if joined.is_ok() {
                std::mem::forget(node);
            }
            joined
        })
    }
}

fn joined(node: JoinHandle<Result<RendezvousInfo>>) -> Result<RendezvousInfo> {
    node.join().unwrap()
}

#[test]
fn nodes_get_the_ranks_they_were_given_and_share_a_store() {
    let job = Job::new();
    let nodes = [2, 0, 1].map(|rank| job.join(rank, 3));
    let rounds = nodes.map(|node| joined(node).unwrap());
    assert_eq!(rounds.each_ref().map(|info| (info.rank, info.world_size)), [(2, 3), (0, 3), (1, 3)]);
    rounds[0].store.set("k", b"v").unwrap();
    assert_eq!(rounds[2].store.get("k").unwrap(), b"v");
    assert_eq!(rounds[1].bootstrap_store_info.master_port, job.port);
    assert_eq!(rounds[1].participants.len(), 3);
    assert_eq!(&*rounds[0].participants[0].addr, "127.0.0.1");
}

#[test]
fn the_error_for_a_duplicate_rank_names_both_nodes() {
    let job = Job::new();
    let start = Instant::now();
    let nodes = [0, 1, 1].map(|rank| job.join(rank, 3));
    for node in nodes {
        let error = joined(node).unwrap_err();
        assert!(matches!(error, RendezvousError::Conflict { .. }), "{error}");
        let text = error.to_string();
        let me = format!("127.0.0.1 (pid {})", std::process::id());
        assert!(text.contains("node rank 1 was given twice"), "{text}");
        assert_eq!(text.matches(&me).count(), 2, "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn the_error_for_different_world_sizes_names_both_nodes() {
    let job = Job::new();
    for error in [job.join(0, 3), job.join(1, 2)].map(|node| joined(node).unwrap_err().to_string()) {
        assert!(error.contains(" nodes, but 127.0.0.1 (pid"), "{error}");
        assert!(error.contains('2') && error.contains('3') && error.contains("same --nnodes"), "{error}");
    }
}

/// Runs a node with rank 0 in another process and returns its output.
fn run_rank_0_in_another_process(job: &Job) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "rank_0_in_a_process_of_its_own", "--nocapture"])
        .env("PORT", job.port.to_string())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_second_rank_0_is_distinguished_from_a_port_in_use() {
    let job = Job::new();
    let host = job.join(0, 2);
    // Wait until the first rank 0 has stored its claim.
    let client = rallypoint_store::TcpStore::connect("127.0.0.1", job.port).unwrap();
    client.wait_for(&["rallypoint.static/job/rank/0"], Some(Duration::from_secs(10))).unwrap();
    let output = run_rank_0_in_another_process(&job);
    assert!(output.contains("node rank 0 was given twice"), "{output}");
    assert!(joined(host).unwrap_err().to_string().contains("given twice"));
}

#[test]
#[ignore = "other tests start it in a process of its own"]
fn rank_0_in_a_process_of_its_own() {
    let Some(port) = std::env::var("PORT").ok().and_then(|port| port.parse().ok()) else { return };
    println!("{}", Job { port }.node(0, 2).next_rendezvous().unwrap_err());
}

#[test]
fn a_port_used_by_another_server_is_reported_as_in_use() {
    let job = Job::new();
    let _other = TcpStoreServer::bind("127.0.0.1", job.port).unwrap();
    // The node runs in another process, as a real node does. Nodes in one process share one server per port.
    let output = run_rank_0_in_another_process(&job);
    assert!(output.contains("address already in use"), "{output}");
}

#[test]
fn a_timeout_names_the_missing_ranks() {
    let job = Job::new();
    let mut parameters = job.parameters("0", 4);
    parameters.config.insert("timeout".into(), 1.into());
    let host = StaticRendezvousHandler::create(&parameters).unwrap();
    let host = std::thread::spawn(move || host.next_rendezvous());
    let _second = job.join(2, 4);
    let error = joined(host).unwrap_err().to_string();
    assert!(error.contains("2 of 4 nodes joined within 1 s"), "{error}");
    assert!(error.contains("reported rank 1, 3"), "{error}");
}

#[test]
fn a_node_that_restarts_after_the_rendezvous_gets_its_rank_back() {
    let job = Job::new();
    let host = job.join(0, 2);
    joined(job.join(1, 2)).unwrap();
    joined(host).unwrap();
    let client = rallypoint_store::TcpStore::connect("127.0.0.1", job.port).unwrap();
    client.wait_for(&["rallypoint.static/job/met"], Some(Duration::from_secs(10))).unwrap();
    // Replace the claim of rank 1 by the claim of another process. The node that joins next then looks like a restart
    // of that process.
    client.set("rallypoint.static/job/rank/1", b"0\nelsewhere (pid 1)").unwrap();
    assert_eq!(joined(job.join(1, 2)).unwrap().rank, 1);
}

#[test]
fn a_node_that_joins_later_with_another_world_size_is_refused_and_the_others_are_not() {
    let job = Job::new();
    let host = job.node(0, 1);
    host.next_rendezvous().unwrap();
    let client = rallypoint_store::TcpStore::connect("127.0.0.1", job.port).unwrap();
    client.wait_for(&["rallypoint.static/job/met"], Some(Duration::from_secs(10))).unwrap();
    for _ in 0..2 {
        let error = joined(job.join(1, 2)).err().unwrap().to_string();
        let me = format!("(pid {})", std::process::id());
        assert!(error.contains("for 2 nodes") && error.contains("for 1;"), "{error}");
        assert_eq!(error.matches(&me).count(), 2, "{error}");
    }
    assert!(!client.check(&["rallypoint.static/job/conflict"]).unwrap());
}

#[test]
fn one_error_lists_every_missing_or_invalid_parameter() {
    let job = Job::new();
    let parameters = RendezvousParameters::new("static", "h", "job", 1, 2).unwrap();
    let error = StaticRendezvousHandler::create(&parameters).err().unwrap().to_string();
    assert!(error.contains("rank is absent in RendezvousParameters.Try add --node-rank"), "{error}");
    assert!(error.contains("Port is absent in endpoint: h. Try launching with --master-port"), "{error}");
    let parameters = RendezvousParameters::new("static", " ", "job", 1, 2).unwrap();
    let error = StaticRendezvousHandler::create(&parameters).err().unwrap().to_string();
    assert!(error.contains("endpoint is absent in RendezvousParameters"), "{error}");
    for rank in ["2", "-1"] {
        let error = StaticRendezvousHandler::create(&job.parameters(rank, 2)).err().unwrap().to_string();
        assert!(error.contains("must be from 0 to 1"), "{error}");
    }
    let error = StaticRendezvousHandler::create(&job.parameters("x", 2)).err().unwrap().to_string();
    assert!(error.contains("'rank' does not represent a valid integer"), "{error}");
}
