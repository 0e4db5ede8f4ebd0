//! What an agent tells while it runs: events, and how it is.

use std::io::{Read, Write};

use serde_json::Value;

use crate::bed::{Agent, Port, until};

#[test]
fn events_have_torchs_names_in_torchs_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("events");
    let arguments = ["--standalone", "--event-log", log.to_str().unwrap(), "--no-python", "true"];
    let ended = Agent::start(&arguments).ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    let events: Vec<Value> = std::fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = events
        .iter()
        .map(|event| {
            let name = event["name"].as_str().unwrap().strip_prefix("torchelastic.worker.status.").unwrap();
            format!("{} {name}", event["source"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        names,
        [
            "AGENT RENDEZVOUS",
            "AGENT ASSIGN_WORKER_RANKS",
            "WORKER START",
            "WORKER SUCCEEDED",
            "AGENT SUCCEEDED"
        ]
    );
}

#[test]
fn a_health_check_says_what_the_agent_does() {
    let port = Port::free();
    let endpoint = port.endpoint();
    let script = "echo ready; sleep 600";
    let arguments = ["--standalone", "--health-check", &endpoint, "--no-python", "sh", "-c", script];
    let agent = Agent::start(&arguments);
    agent.says("ready", 1);
    let ask = || {
        let mut stream = std::net::TcpStream::connect(&endpoint).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str::<Value>(text.split_once("\r\n\r\n")?.1).ok()
    };
    until("it runs", || ask().is_some_and(|state| state["status"] == "running"));
    let state = ask().unwrap();
    assert_eq!((&state["workers"], &state["world_size"]), (&1.into(), &1.into()), "{state}");
}

#[test]
fn a_node_of_a_static_job_says_what_it_waits_for() {
    for (rank, what) in [("0", "1 of 2 nodes are here"), ("1", "no answer yet from rank 0 at 127.0.0.1:")] {
        let port = Port::free().number.to_string();
        let agent = Agent::start_as_usual(&[
            "--nnodes",
            "2",
            "--node-rank",
            rank,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            &port,
            "--no-python",
            "true",
        ]);
        until(what, || agent.err().contains(what));
    }
}

#[test]
fn a_node_says_that_nobody_answers_at_the_endpoint() {
    // It takes connections and says nothing.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = mute.local_addr().unwrap().to_string();
    let agent = Agent::start_as_usual(&[
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        &endpoint,
        "--rdzv-conf",
        "is_host=0",
        "--no-python",
        "true",
    ]);
    until("it says so", || {
        agent.err().contains(&format!("no answer yet from the store of the rendezvous at {endpoint}"))
    });
}
