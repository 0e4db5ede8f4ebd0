//! The events, health checks, logs and worker output of an agent.

use std::io::{Read, Write};

use rallypoint_testkit::{Port, eventually};
use serde_json::Value;

use crate::agent_process::Agent;

#[test]
fn events_have_the_names_and_the_order_of_torch() {
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
fn a_health_check_reports_the_state_of_the_agent() {
    let port = Port::reserve();
    let endpoint = port.endpoint();
    let script = "echo ready; sleep 600";
    let arguments = ["--standalone", "--health-check", &endpoint, "--no-python", "sh", "-c", script];
    let agent = Agent::start(&arguments);
    agent.wait_for_lines("ready", 1);
    let get = || {
        let mut stream = std::net::TcpStream::connect(&endpoint).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        serde_json::from_str::<Value>(text.split_once("\r\n\r\n")?.1).ok()
    };
    eventually("the agent reports that it runs", || get().is_some_and(|state| state["status"] == "running"));
    let state = get().unwrap();
    assert_eq!((&state["workers"], &state["world_size"]), (&1.into(), &1.into()), "{state}");
}

#[test]
fn a_node_of_a_static_job_logs_what_it_waits_for() {
    for (rank, what) in
        [("0", "1 of 2 nodes have joined at 127.0.0.1:"), ("1", "no reply yet from rank 0 at 127.0.0.1:")]
    {
        let port = Port::reserve();
        let agent = Agent::start_with_default_log_level(&[
            "--nnodes",
            "2",
            "--node-rank",
            rank,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            &port.number.to_string(),
            "--no-python",
            "true",
        ]);
        eventually(what, || agent.err().contains(what));
    }
}

/// If the endpoint of a node has an address of that node's machine but a wrong port, the node hosts a store of its own.
/// Only the log lines that this test checks show that.
#[test]
fn each_node_logs_at_the_default_level_where_the_store_is_and_whether_it_hosts_it() {
    let port = Port::reserve();
    let endpoint = port.endpoint();
    let join = || {
        let arguments = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint];
        Agent::start_with_default_log_level(&[&arguments[..], &["--no-python", "true"]].concat())
    };
    let hosts = format!("this node hosts the store at {endpoint}");
    let is_connected = format!("connected to the store at {endpoint}");
    let host = join();
    eventually("the first node hosts the store", || host.err().contains(&hosts));
    let client = join();
    let (host, client) = (host.ended(), client.ended());
    assert!(client.err.contains(&is_connected) && !client.err.contains(&hosts), "{}", client.err);
    assert!(!host.err.contains(&is_connected), "{}", host.err);
    // Both nodes have the same address, so only their process ids tell them apart.
    assert_eq!(host.err.matches("; nodes 127.0.0.1 (pid ").count(), 1, "{}", host.err);
}

#[test]
fn a_node_logs_that_no_store_answers_at_the_endpoint() {
    // The kernel completes connections to this listener, but no process accepts them or sends a reply.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let agent = Agent::start_with_default_log_level(&[
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
    eventually("the node logs the reason", || {
        agent.err().contains(&format!("no reply yet from the store at {endpoint}: accepts connections"))
    });
}

#[test]
fn a_reader_that_pauses_receives_every_teed_line() {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i of many; done";
    let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_rallypoint"))
        .args(["run", "--standalone", "--tee", "1", "--no-python", "sh", "-c", script])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The worker exits during this pause, so the agent must keep its output until the reader continues.
    std::thread::sleep(std::time::Duration::from_secs(7));
    let mut out = String::new();
    agent.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(agent.wait().unwrap().success());
    let expected: Vec<_> = (1..=20000).map(|n| format!("[default0]:line {n} of many")).collect();
    assert!(out.lines().eq(expected.iter()), "{} lines", out.lines().count());
}

#[test]
fn unread_output_lines_are_reported_and_a_signal_ends_the_wait_for_a_reader() {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i of many; done; echo all >&2";
    for is_closed in [true, false] {
        let arguments = ["run", "--standalone", "--tee", "1", "--no-python", "sh", "-c", script];
        let (reader, writer) = std::io::pipe().unwrap();
        let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_rallypoint"))
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .stdout(writer)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let reader = (!is_closed).then_some(reader);
        let mut err = std::io::BufReader::new(agent.stderr.take().unwrap());
        let mut text = String::new();
        while !text.contains("all\n") {
            assert!(std::io::BufRead::read_line(&mut err, &mut text).unwrap() > 0, "{text}");
        }
        if !is_closed {
            rustix::process::kill_process(
                rustix::process::Pid::from_child(&agent),
                rustix::process::Signal::TERM,
            )
            .unwrap();
        }
        err.read_to_string(&mut text).unwrap();
        agent.wait().unwrap();
        drop(reader);
        assert!(
            text.contains(
                "some lines of the workers were not shown, because the output of the agent was not read"
            ),
            "{text}"
        );
    }
}
