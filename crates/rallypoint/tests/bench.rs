//! `rallypoint bench` as people call it: what it measures and prints, what it leaves behind, how it ends. How fast
//! anything is, is not tested.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rallypoint_core::wire::{MAGIC, Request};
use rustix::process::{Pid, Signal, kill_process};

/// Only a failure takes that long.
const SOON: Duration = Duration::from_secs(60);

/// A process that is killed when the test is over, however it is.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guarded {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process number");
        kill_process(pid, signal).expect("our own child");
    }
}

/// A server, and where it listens.
fn serve() -> (Guarded, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Guarded(command.spawn().expect("the binary starts"));
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("its output");
    let endpoint = line.trim_end().strip_prefix("listening on ").expect("an address").to_owned();
    (server, endpoint)
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.arg("bench").args(args).env_remove("RALLYPOINT_ENDPOINT").stdin(Stdio::null());
    command
}

fn bench(endpoint: &str, args: &[&str]) -> Output {
    command(&[&["--endpoint", endpoint], args].concat()).output().expect("the binary starts")
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn num_keys(endpoint: &str) -> i64 {
    let mut stream = TcpStream::connect(endpoint).expect("it listens");
    let mut bytes = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut bytes);
    Request::NumKeys.encode(&mut bytes);
    stream.write_all(&bytes).expect("it reads");
    let mut number = [0; 8];
    stream.read_exact(&mut number).expect("it answers");
    i64::from_le_bytes(number)
}

/// Waits until all 64 connections of a run are there, and the first keys.
fn wait_until_under_load(server: &Guarded, endpoint: &str) {
    let files = format!("/proc/{}/fd", server.0.id());
    let connections = || std::fs::read_dir(&files).map_or(0, Iterator::count);
    let start = Instant::now();
    while connections() < 64 || num_keys(endpoint) == 0 {
        assert!(start.elapsed() < SOON, "it has not begun");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const ALL: [&str; 16] = [
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
    let (_server, endpoint) = serve();
    let workloads = ALL.join(",");
    let args = ["--workload", &workloads, "--requests", "500", "--connections", "8", "--json"];
    let output = bench(&endpoint, &args);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let results = report["results"].as_array().expect("a list");
    // The first six with one and with 32 in flight.
    assert_eq!(results.len(), ALL.len() + 6);
    for result in results {
        assert_eq!((&result["errors"], &result["error"]), (&0.into(), &serde_json::Value::Null), "{result}");
        assert!(result["operations"].as_u64() >= Some(20), "{result}");
        assert!(result["operations_per_second"].as_f64() > Some(0.0), "{result}");
        assert!(result["p99_microseconds"].as_f64() >= result["p50_microseconds"].as_f64(), "{result}");
    }
    assert_eq!(num_keys(&endpoint), 0);
}

#[test]
fn people_get_a_table_and_no_bar_where_there_is_no_terminal() {
    let (_server, endpoint) = serve();
    let output = bench(&endpoint, &["--workload", "get", "--in-flight", "4", "--seconds", "0.05"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let table = String::from_utf8(output.stdout).expect("text");
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["workload", "conns", "flight", "ops", "ops/s", "p50", "p99", "errors"]);
    assert_eq!((rows[1][..3].to_vec(), rows.len()), (vec!["get", "64", "4"], 2));
    assert_eq!(String::from_utf8(output.stderr), Ok(String::new()));
}

#[test]
fn nobody_there_is_told_with_what_was_tried_and_what_to_do() {
    let held = rallypoint_store::reserve_port().expect("a port");
    let port = held.port();
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
fn json_is_printed_also_if_nothing_could_be_measured() {
    let held = rallypoint_store::reserve_port().expect("a port");
    let endpoint = format!("127.0.0.1:{}", held.port());
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
fn figures_that_cannot_be_written_are_a_failure() {
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
fn what_is_no_store_is_told_from_a_store() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let output = bench(&endpoint, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(error(&output).contains("does not answer as a TCPStore"), "{}", error(&output));
}

#[test]
fn who_never_answers_is_given_up_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = silent.local_addr().expect("an address").to_string();
    let start = Instant::now();
    let output = bench(&endpoint, &["--timeout", "300ms"]);
    assert_eq!(output.status.code(), Some(4), "{}", error(&output));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_server_that_freezes_is_given_up_in_time() {
    let (server, endpoint) = serve();
    let mut running = Guarded(
        command(&["--endpoint", &endpoint, "--workload", "get", "--seconds", "20", "--timeout", "1s"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts"),
    );
    wait_until_under_load(&server, &endpoint);
    let start = Instant::now();
    server.signal(Signal::STOP);
    let status = running.0.wait().expect("our own child");
    server.signal(Signal::CONT);
    assert_eq!(status.code(), Some(4));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_server_that_dies_is_reported_as_lost() {
    let (mut server, endpoint) = serve();
    let mut running = Guarded(
        command(&["--endpoint", &endpoint, "--workload", "add", "--seconds", "20"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts"),
    );
    wait_until_under_load(&server, &endpoint);
    server.0.kill().expect("our own child");
    let mut error = String::new();
    running.0.stderr.take().expect("a pipe").read_to_string(&mut error).expect("text");
    assert_eq!(running.0.wait().expect("our own child").code(), Some(5), "{error}");
    assert!(error.contains("64 of 64 connections"), "{error}");
}

#[test]
fn an_interrupt_ends_it_and_the_keys_are_deleted_first() {
    let (server, endpoint) = serve();
    let mut running = Guarded(
        command(&["--endpoint", &endpoint, "--workload", "get,set", "--seconds", "20", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts"),
    );
    wait_until_under_load(&server, &endpoint);
    running.signal(Signal::INT);
    let mut report = String::new();
    running.0.stdout.take().expect("a pipe").read_to_string(&mut report).expect("text");
    assert_eq!(running.0.wait().expect("our own child").code(), Some(130));
    assert_eq!(num_keys(&endpoint), 0);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let result = &report["results"][0];
    assert_eq!((&result["errors"], &result["error"]), (&0.into(), &"interrupted".into()), "{report}");
}

#[test]
fn an_interrupt_says_whether_the_keys_are_deleted() {
    for is_frozen in [false, true] {
        let (server, endpoint) = serve();
        let mut running = Guarded(
            command(&["--endpoint", &endpoint, "--workload", "get", "--seconds", "20", "--timeout", "5s"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the binary starts"),
        );
        wait_until_under_load(&server, &endpoint);
        if is_frozen {
            server.signal(Signal::STOP);
        }
        running.signal(Signal::INT);
        let mut error = String::new();
        running.0.stderr.take().expect("a pipe").read_to_string(&mut error).expect("text");
        assert_eq!(running.0.wait().expect("our own child").code(), Some(130), "{error}");
        assert!(error.contains("hint: the last figures are of what was done by then"), "{error}");
        assert_eq!(error.contains("keys that were made have been deleted"), !is_frozen, "{error}");
        assert_eq!(error.contains("may be left"), is_frozen, "{error}");
        assert_eq!(error.contains("did not say that it has deleted the keys"), is_frozen, "{error}");
    }
}

#[test]
fn wrong_usage_says_what_would_be_right() {
    for (args, right) in [
        (&["--workload", "put"][..], "there are add,get,set"),
        (&["--workload", "get-9MiB"], "8MiB"),
        (&["--in-flight", "0"], "in-flight"),
        (&["--seconds", "soon"], "a number of seconds"),
        (&["--timeout", "0s"], "some time"),
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
fn every_workload_there_is_stands_in_the_help() {
    let help = String::from_utf8(command(&["--help"]).output().expect("it runs").stdout).expect("text");
    let wrong = bench("127.0.0.1:1", &["--workload", "put"]);
    let names = error(&wrong);
    let names = names.split_once("there are ").expect("a list").1.split_once(", and").expect("its end").0;
    assert!(names.contains("check-10000"), "{names}");
    for name in names.split(',') {
        assert!(help.contains(name), "{name}: {help}");
    }
}
