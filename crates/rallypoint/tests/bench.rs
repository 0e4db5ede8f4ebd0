//! Tests of `rallypoint bench`: results, cleanup and exit codes. The measured times are not checked.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rallypoint_testkit::{ChildGuard, Client, Lines, ServeProcess, eventually, serve_connections};
use rustix::process::Signal;

const BINARY: &str = env!("CARGO_BIN_EXE_rallypoint");

/// Starts a server and returns its endpoint.
fn serve() -> (ServeProcess, String) {
    let server = ServeProcess::start(BINARY, &[]);
    let endpoint = server.endpoint();
    (server, endpoint)
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("bench").args(args).env_remove("RALLYPOINT_ENDPOINT").stdin(Stdio::null());
    command
}

fn bench(endpoint: &str, args: &[&str]) -> Output {
    command(&[&["--endpoint", endpoint], args].concat()).output().expect("the binary starts")
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Starts a run of 20 s, and returns its process, its standard output and its standard error.
fn start(endpoint: &str, args: &[&str]) -> (ChildGuard, Lines, Lines) {
    let mut command = command(&[&["--endpoint", endpoint, "--seconds", "20"], args].concat());
    let mut running = ChildGuard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let (stdout, stderr) = (running.stdout.take().unwrap(), running.stderr.take().unwrap());
    (running, Lines::read(stdout), Lines::read(stderr))
}

fn num_keys(server: &ServeProcess) -> i64 {
    Client::connect(server.address).num_keys()
}

/// Waits until the 64 connections of a run are open and the first keys are stored.
fn wait_until_under_load(server: &ServeProcess) {
    let files = format!("/proc/{}/fd", server.process.id());
    let connections = || std::fs::read_dir(&files).map_or(0, Iterator::count);
    eventually("the load has started", || connections() >= 64 && num_keys(server) > 0);
}

/// The workloads that the help lists, with smaller sizes.
const WORKLOADS: [&str; 16] = [
    "add",
    "get",
    "set",
    "check",
    "wait",
    "compare_set",
    "get-64KiB",
    "set-64KiB",
    "check-50",
    "wait-50",
    "multi_get-50",
    "multi_set-50",
    "cancel-20",
    "connect-20",
    "bootstrap-20",
    "barrier-20",
];

#[test]
fn every_workload_is_measured_without_errors_and_leaves_no_key() {
    let (server, endpoint) = serve();
    let workloads = WORKLOADS.join(",");
    let args = ["--workload", &workloads, "--requests", "500", "--connections", "8", "--json"];
    let output = bench(&endpoint, &args);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let results = report["results"].as_array().expect("a list");
    // Each of the first six workloads has two results: with 1 and with 32 requests in flight.
    assert_eq!(results.len(), WORKLOADS.len() + 6);
    for result in results {
        assert_eq!((&result["errors"], &result["error"]), (&0.into(), &serde_json::Value::Null), "{result}");
        assert!(result["operations"].as_u64() >= Some(20), "{result}");
        assert!(result["operations_per_second"].as_f64() > Some(0.0), "{result}");
        assert!(result["p99_microseconds"].as_f64() >= result["p50_microseconds"].as_f64(), "{result}");
    }
    assert_eq!(num_keys(&server), 0);
}

#[test]
fn output_without_a_terminal_is_a_table_without_a_progress_bar() {
    let (_server, endpoint) = serve();
    let output = bench(&endpoint, &["--workload", "get", "--in-flight", "4", "--seconds", "0.05"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["workload", "conns", "flight", "ops", "ops/s", "p50", "p99", "errors"]);
    assert_eq!((rows[1][..3].to_vec(), rows.len()), (vec!["get", "64", "4"], 2));
    assert_eq!(String::from_utf8(output.stderr), Ok(String::new()));
}

#[test]
fn an_unreachable_server_is_reported_with_the_address_and_a_hint() {
    let reserved = rallypoint_rendezvous::reserve_port().expect("a port");
    let port = reserved.port();
    let output = bench(&format!("127.0.0.1:{port}"), &[]);
    assert_eq!(output.status.code(), Some(5));
    let error = error(&output);
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("refused"), "{error}");
    assert!(error.contains("hint: ") && !error.contains("0 ms"), "{error}");
    let output = bench("no-such-host.invalid:29400", &[]);
    assert_eq!(output.status.code(), Some(5));
    assert!(self::error(&output).contains("hint: check the spelling"), "{}", self::error(&output));
}

#[test]
fn json_is_printed_even_if_nothing_was_measured() {
    let reserved = rallypoint_rendezvous::reserve_port().expect("a port");
    let endpoint = format!("127.0.0.1:{}", reserved.port());
    for (endpoint, args, code) in [
        (&*endpoint, &["--json"][..], 5),
        ("127.0.0.1:0", &["--json"], 2),
        (&endpoint, &["--json", "--workload", "put"], 2),
    ] {
        let output = bench(endpoint, args);
        assert_eq!(output.status.code(), Some(code), "{}", error(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&report["endpoint"], &report["results"]), (&endpoint.into(), &serde_json::json!([])));
        let why = report["error"].as_str().expect("a text");
        assert!(error(&output).contains(why), "{why}");
    }
}

#[test]
fn a_failure_to_write_the_results_exits_with_1() {
    let (_server, endpoint) = serve();
    for json in [&[][..], &["--json"]] {
        let args = [&["--endpoint", &endpoint, "--workload", "get", "--requests", "10"], json].concat();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a file");
        let output = command(&args).stdout(full).stderr(Stdio::piped()).output().expect("the binary starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(error(&output).contains("cannot write to standard output"), "{}", error(&output));
        assert_eq!(error(&output).lines().count(), 1, "{}", error(&output));
    }
}

#[test]
fn a_server_that_is_not_a_store_is_reported() {
    let other = serve_connections(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let output = bench(&other.to_string(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(error(&output).contains("does not answer as a TCPStore"), "{}", error(&output));
}

#[test]
fn a_silent_server_is_given_up_after_the_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = silent.local_addr().expect("an address").to_string();
    let start = Instant::now();
    let output = bench(&endpoint, &["--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(4), "{}", error(&output));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_timeout_of_zero_is_no_timeout() {
    let (_server, endpoint) = serve();
    let output = bench(&endpoint, &["--workload", "get,connect-10", "--requests", "10", "--timeout", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
}

#[test]
fn a_server_that_stops_answering_is_given_up_after_the_timeout() {
    let (server, endpoint) = serve();
    let (mut running, ..) = start(&endpoint, &["--workload", "get", "--timeout", "1s"]);
    wait_until_under_load(&server);
    let start = Instant::now();
    server.process.signal(Signal::STOP);
    let status = running.ended();
    server.process.signal(Signal::CONT);
    assert_eq!(status.code(), Some(4));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_server_that_dies_is_reported_as_lost_connections() {
    let (mut server, endpoint) = serve();
    let (mut running, _, stderr) = start(&endpoint, &["--workload", "add"]);
    wait_until_under_load(&server);
    server.process.kill().expect("the server can be killed");
    let error = stderr.all();
    assert_eq!(running.ended().code(), Some(5), "{error}");
    assert!(error.contains("64 of 64 connections"), "{error}");
}

#[test]
fn an_interrupt_deletes_the_keys_and_ends_the_run() {
    let (server, endpoint) = serve();
    let (mut running, stdout, _) = start(&endpoint, &["--workload", "get,set", "--json"]);
    wait_until_under_load(&server);
    running.signal(Signal::INT);
    let report = stdout.all();
    assert_eq!(running.ended().code(), Some(130));
    assert_eq!(num_keys(&server), 0);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let result = &report["results"][0];
    assert_eq!((&result["errors"], &result["error"]), (&0.into(), &"interrupted".into()), "{report}");
}

#[test]
fn an_interrupted_run_reports_whether_the_keys_were_deleted() {
    for is_frozen in [false, true] {
        let (server, endpoint) = serve();
        let (mut running, _, stderr) = start(&endpoint, &["--workload", "get", "--timeout", "5s"]);
        wait_until_under_load(&server);
        if is_frozen {
            server.process.signal(Signal::STOP);
        }
        running.signal(Signal::INT);
        let error = stderr.all();
        assert_eq!(running.ended().code(), Some(130), "{error}");
        assert!(error.contains("hint: the last result is incomplete"), "{error}");
        assert_eq!(error.contains("keys of the run have been deleted"), !is_frozen, "{error}");
        assert_eq!(error.contains("may be left"), is_frozen, "{error}");
        assert_eq!(
            error.contains("did not confirm that the keys of the run were deleted"),
            is_frozen,
            "{error}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2_and_names_valid_values() {
    for (args, right) in [
        (&["--workload", "put"][..], "the workloads are add,get,set"),
        (&["--workload", "get-9MiB"], "8MiB"),
        (&["--in-flight", "0"], "in-flight"),
        (&["--seconds", "soon"], "a number of seconds"),
        (&["--timeout", "soon"], "10s"),
        (&["--requests", "0"], "a whole number, 1 or more"),
        (&["--seconds", "1", "--requests", "5"], "cannot be used with"),
    ] {
        let output = bench("127.0.0.1:1", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(error(&output).contains(right), "{args:?}: {}", error(&output));
    }
    let output = bench("127.0.0.1:0", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("port 0"), "{}", error(&output));
    assert_eq!(command(&[]).output().expect("the binary starts").status.code(), Some(2));
}

#[test]
fn the_help_names_every_workload() {
    let help =
        String::from_utf8(command(&["--help"]).output().expect("the binary starts").stdout).expect("UTF-8");
    let wrong = bench("127.0.0.1:1", &["--workload", "put"]);
    let names = error(&wrong);
    let names = names
        .split_once("the workloads are ")
        .expect("a list")
        .1
        .split_once(", and")
        .expect("the list has an end")
        .0;
    assert!(names.contains("check-10000"), "{names}");
    for name in names.split(',') {
        assert!(help.contains(name), "{name}: {help}");
    }
}
