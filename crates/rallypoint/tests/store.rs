//! Tests of `rallypoint store`: arguments, output and exit codes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rallypoint_store::{Store, TcpStore};
use rallypoint_testkit::{ServeProcess, serve_connections};

const BINARY: &str = env!("CARGO_BIN_EXE_rallypoint");

/// A running server, and methods that run `rallypoint store` against it.
struct Server {
    process: ServeProcess,
    endpoint: String,
}

impl Server {
    fn start() -> Server {
        Server::with_limits(&[])
    }

    /// Starts a server with these limits, as `--limit` takes them.
    fn with_limits(limits: &[&str]) -> Server {
        let arguments: Vec<&str> = limits.iter().flat_map(|limit| ["--limit", limit]).collect();
        let process = ServeProcess::start(BINARY, &arguments);
        Server { endpoint: process.endpoint(), process }
    }

    fn client(&self) -> TcpStore {
        TcpStore::connect("127.0.0.1", self.process.address.port()).expect("the server accepts connections")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = store(args);
        command.env("RALLYPOINT_ENDPOINT", &self.endpoint);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary starts")
    }

    /// Runs `rallypoint store` with `input` as its standard input.
    fn run_with_input(&self, input: &[u8], args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        // The write fails if the command exits without reading its standard input. The caller checks the exit code.
        let _ = child.stdin.take().expect("stdin is a pipe").write_all(input);
        child.wait_with_output().expect("the child has ended")
    }

    /// Runs a command that must succeed, and returns its standard output.
    fn stdout_of(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", error(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

fn store(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("store").args(args).env_remove("RALLYPOINT_ENDPOINT").env_remove("RALLYPOINT_LOG");
    command.stdin(Stdio::null());
    command
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

// ---- arguments ----

#[test]
fn a_dash_reads_any_value_from_standard_input() {
    let server = Server::start();
    for (args, input) in [
        (&["set", "k", "-"][..], "one"),
        (&["cas", "k", "one", "-"], "two"),
        (&["cas", "k", "-", "three"], "two"),
        (&["append", "k", "-"], " four"),
        (&["push", "q", "-"], "item"),
    ] {
        let output = server.run_with_input(input.as_bytes(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", error(&output));
    }
    assert_eq!(server.stdout_of(&["get", "k"]), "three four\n");
    assert_eq!(server.stdout_of(&["pop", "q"]), "item\n");
}

#[test]
fn compare_and_set_refuses_to_read_both_values_from_standard_input() {
    let server = Server::start();
    server.stdout_of(&["set", "k", "x"]);
    let output = server.run_with_input(b"x", &["cas", "k", "-", "-"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error(&output).contains("only one of EXPECTED and DESIRED"), "{}", error(&output));
    assert_eq!(server.stdout_of(&["get", "k"]), "x\n");
}

#[test]
fn values_that_start_with_a_dash_are_accepted() {
    let server = Server::start();
    assert_eq!(server.stdout_of(&["add", "n", "-5"]), "-5\n");
    assert_eq!(server.stdout_of(&["add", "n", "-2", "--timeout", "5s"]), "-7\n");
    server.stdout_of(&["set", "k", "-1"]);
    assert_eq!(server.stdout_of(&["get", "k"]), "-1\n");
    server.stdout_of(&["cas", "k", "-1", "--x"]);
    server.stdout_of(&["append", "k", "-y"]);
    assert_eq!(server.stdout_of(&["get", "k"]), "--x-y\n");
    server.stdout_of(&["push", "q", "-3"]);
    assert_eq!(server.stdout_of(&["pop", "q"]), "-3\n");
}

#[test]
fn options_are_accepted_before_and_after_the_operation() {
    let server = Server::start();
    server.stdout_of(&["set", "k", "v"]);
    let endpoint = server.endpoint.as_str();
    for args in [
        &["--endpoint", endpoint, "--json", "--timeout", "5s", "get", "k"][..],
        &["get", "--endpoint", endpoint, "--json", "--timeout", "5s", "k"],
        &["get", "k", "--timeout", "5s", "--json", "-e", endpoint],
    ] {
        let output = store(args).output().expect("the binary starts");
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", error(&output));
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(answer, serde_json::json!({"key": "k", "value": "v"}));
    }
}

#[test]
fn every_argument_is_described_in_the_help() {
    let text = |args: &[&str]| {
        String::from_utf8(store(args).output().expect("the binary starts").stdout).expect("UTF-8")
    };
    let help = text(&["--help"]);
    let commands =
        help.split_once("Commands:").expect("a list").1.split_once("\n\n").expect("the list has an end").0;
    let commands: Vec<_> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() >= 14, "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = text(&[command, "-h"]);
        let Some((_, arguments)) = help.split_once("Arguments:\n") else { continue };
        for line in arguments.split("\n\n").next().expect("a paragraph").lines() {
            let described =
                line.trim_start().split_once("  ").is_some_and(|(_, what)| !what.trim().is_empty());
            assert!(described || !line.trim_start().starts_with(['<', '[']), "{command}: {line}");
        }
    }
}

#[test]
fn a_wrong_log_level_variable_is_reported_in_one_line_and_replaced_by_info() {
    let server = Server::start();
    let mut command = server.command(&["count"]);
    let output = command.env("RALLYPOINT_LOG", "loud").output().expect("the binary starts");
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"0\n"[..]));
    let stderr = error(&output);
    assert!(stderr.contains("loud") && stderr.contains("info") && stderr.lines().count() == 1, "{stderr}");
    let output = command.env("RALLYPOINT_LOG", "Debug").output().expect("the binary starts");
    assert_eq!(error(&output), "");
}

// ---- results ----

#[test]
fn an_empty_queue_is_reported_as_empty() {
    let server = Server::start();
    let output = server.run(&["pop", "q"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(error(&output), "rallypoint store: queue q is empty\n");
    let output = server.run(&["pop", "q", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), answer), (Some(3), serde_json::json!({"key": "q", "empty": true})));
}

#[test]
fn an_append_beyond_the_limit_is_refused_and_changes_nothing() {
    let server = Server::with_limits(&["value_len=1KiB"]);
    server.client().set("k", &[b'x'; 1000]).expect("the value fits");
    let output = server.run_with_input(&[b'x'; 100], &["append", "k", "-"]);
    assert_eq!(output.status.code(), Some(2), "{}", error(&output));
    let stderr = error(&output);
    assert!(stderr.contains("cannot append 100 bytes to k: its value has 1000"), "{stderr}");
    assert!(stderr.contains("1024"), "{stderr}");
    let output = server.run_with_input(&[b'x'; 2000], &["append", "new", "-"]);
    let stderr = error(&output);
    assert!(
        stderr.contains("value of 2000 bytes for new, the limit is 1024; nothing was changed"),
        "{stderr}"
    );
    assert_eq!(server.client().get("k").expect("the key is present").len(), 1000);
    assert_eq!(server.stdout_of(&["count"]), "1\n");
    server.stdout_of(&["append", "k", "and this fits"]);
}

#[test]
fn a_key_list_larger_than_output_pause_arrives_completely() {
    let server = Server::with_limits(&["output_pause=64KiB"]);
    let client = server.client();
    let names: Vec<String> = (0..4000).map(|n| format!("{n:04}{}", "k".repeat(7000))).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    client.multi_set(&pairs).expect("the values fit");
    let listed = server.stdout_of(&["list", "--timeout", "60s"]);
    assert!(listed.lines().eq(&names), "{} of {} names", listed.lines().count(), names.len());
}

// ---- output ----

#[test]
fn a_failure_to_write_the_output_is_reported() {
    let server = Server::start();
    server.stdout_of(&["set", "k", "v"]);
    for args in [&["get", "k"][..], &["list"], &["check", "k", "--json"], &["ping"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a file");
        let output =
            server.command(args).stdout(full).stderr(Stdio::piped()).output().expect("the binary starts");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(error(&output).contains("cannot write to standard output"), "{}", error(&output));
    }
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let server = Server::start();
    // The value is larger than a pipe's buffer, so the command is still writing when the pipe is closed.
    server.client().set("k", &[b'x'; 1 << 20]).expect("the value fits");
    let mut child = server
        .command(&["get", "k"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the child has ended");
    assert_eq!(error(&output), "");
    assert_eq!(output.status.code(), Some(0), "a closed pipe is not an error");
}

/// Creates a pseudoterminal. Returns the side for the test and the side for the command.
fn terminal() -> (File, File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("the terminal can be unlocked");
    let name = ptsname(&ours, Vec::new()).expect("the terminal has a name").into_string().expect("UTF-8");
    let theirs = OpenOptions::new().read(true).write(true).open(name).expect("the terminal has another end");
    (ours.into(), theirs)
}

/// Runs `rallypoint store` with a terminal as standard output, and returns the output.
fn on_terminal(server: &Server, args: &[&str]) -> String {
    let (mut ours, theirs) = terminal();
    let mut command = server.command(args);
    let mut child = command.stdout(theirs).stderr(Stdio::null()).spawn().expect("the binary starts");
    drop(command);
    let mut bytes = Vec::new();
    // Reading fails when the command exits, because that closes the other end of the terminal.
    let _ = ours.read_to_end(&mut bytes);
    child.wait().expect("the child has ended");
    String::from_utf8(bytes).expect("UTF-8").replace("\r\n", "\n")
}

#[test]
fn a_terminal_shows_the_decoded_state_of_a_rendezvous_and_a_pipe_gets_the_value() {
    use rallypoint_core::rendezvous::{NodeDesc, State, WallTime, cell, pickle};
    const KEY: &str = "torch.rendezvous.job";
    let server = Server::start();
    let node = NodeDesc::new("node\u{1b}[31m", 4242, 0);
    let state = State {
        round: 2,
        complete: true,
        participants: [(node.clone(), 0)].into(),
        last_heartbeats: [(node, WallTime::UNIX_EPOCH)].into(),
        ..State::default()
    };
    let value = cell::encode(&pickle::encode(&state, &rallypoint_core::Limits::default()).unwrap());
    server.client().set(KEY, &value).expect("the server accepts a state");
    let shown = on_terminal(&server, &["get", KEY]);
    assert!(shown.starts_with("rendezvous job: round 2, complete\nparticipants: 1\n"), "{shown}");
    assert!(
        shown.contains("  group rank 0: node\\u{1b}[31m (pid 4242, local id 0), heartbeat 1970-"),
        "{shown}"
    );
    assert!(shown.ends_with("wait list: 0\nredundancy list: 0\n"), "{shown}");
    let text = String::from_utf8(value.clone()).unwrap();
    assert_eq!(on_terminal(&server, &["get", "--raw", KEY]), text);
    assert!(on_terminal(&server, &["--json", "get", KEY]).contains(&text));
    assert_eq!(server.run(&["get", KEY]).stdout, [&value[..], b"\n"].concat());
}

#[test]
fn control_characters_are_escaped_on_a_terminal() {
    let server = Server::start();
    let client = server.client();
    let name = "k\u{1b}[31m\u{9b}2J";
    client.set(name, b"a\x1b]0;title\x07\xff\nb").expect("the value fits");
    client.set("plain", "zwei\nZeilen\tüber".as_bytes()).expect("the value fits");
    for (args, expected) in [
        (&["list"][..], "k\\u{1b}[31m\\u{9b}2J"),
        (&["check", name], "present k\\u{1b}[31m\\u{9b}2J"),
        (&["get", name], "a\\u{1b}]0;title\\u{7}\\xff\nb"),
        (&["cas", name, "x", "y"], "a\\u{1b}]0;title\\u{7}\\xff\nb"),
        (&["--json", "list"], "k\\u001b[31m\\u009b2J"),
        (&["get", "plain"], "zwei\nZeilen\tüber"),
    ] {
        let text = on_terminal(&server, args);
        assert!(text.contains(expected), "{args:?}: {text:?}");
        assert!(!text.chars().any(|c| c.is_control() && !"\n\t".contains(c)), "{args:?}: {text:?}");
    }
    // If standard output is not a terminal, control characters are not escaped.
    assert_eq!(server.run(&["get", name]).stdout, b"a\x1b]0;title\x07\xff\nb\n");
    let absent = error(&server.run(&["get", "no\u{1b}[31m"]));
    assert_eq!(absent, "rallypoint store: no\\u{1b}[31m is absent\n");
}

// ---- timeouts ----

/// Starts a relay to the server at `to`, and returns its endpoint. The relay forwards each connection after `delay`.
fn start_delayed_relay(to: SocketAddr, delay: Duration) -> String {
    let relay = serve_connections(move |near| {
        std::thread::sleep(delay);
        let far = TcpStream::connect(to)?;
        let (mut to_far, mut from_near) = (far.try_clone()?, near.try_clone()?);
        std::thread::spawn(move || std::io::copy(&mut from_near, &mut to_far));
        std::io::copy(&mut &far, &mut &near)
    });
    relay.to_string()
}

#[test]
fn the_timeout_covers_connecting_and_the_operation() {
    let server = Server::start();
    let endpoint = start_delayed_relay(server.process.address, Duration::from_millis(1200));
    for args in [&["wait", "absent"][..], &["get", "absent", "--wait"], &["pop", "q", "--wait"]] {
        let start = Instant::now();
        let output =
            store(args).args(["--timeout", "2s", "-e", &endpoint]).output().expect("the binary starts");
        let took = start.elapsed();
        assert_eq!(output.status.code(), Some(4), "{}", error(&output));
        assert!((1.9..3.1).contains(&took.as_secs_f32()), "{args:?} took {took:?}");
    }
}

#[test]
fn a_command_fails_at_its_timeout_if_the_server_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = silent.local_addr().expect("an address").to_string();
    let start = Instant::now();
    let output =
        store(&["get", "k", "--timeout", "500ms", "-e", &endpoint]).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(5), "{}", error(&output));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_malformed_unresolvable_or_refused_endpoint_is_reported_with_the_reason() {
    let reserved = rallypoint_rendezvous::reserve_port().unwrap();
    let refused = format!("127.0.0.1:{}", reserved.port());
    for (endpoint, code, parts) in [
        ("nowhere", 2, &["nowhere", "there is no port"][..]),
        ("::1:29400", 2, &["::1:29400", "brackets"]),
        ("no-such-host.invalid:29400", 5, &["no-such-host.invalid", "hint: check the spelling"]),
        (
            &refused,
            5,
            &[&refused, "refused", "hint: check that the node or server that hosts the store is up"],
        ),
    ] {
        let output = store(&["--endpoint", endpoint, "--timeout", "500ms", "get", "k"]).output().unwrap();
        let error = error(&output);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{endpoint}: {error}");
        assert!(output.stdout.is_empty());
    }
}

// ---- clear ----

#[test]
fn clear_deletes_the_keys_with_a_prefix_and_no_others() {
    let server = Server::start();
    let client = server.client();
    for key in ["job/1", "job/2", "job", "other/job/1"] {
        client.set(key, b"v").unwrap();
    }
    assert_eq!(server.stdout_of(&["clear", "--prefix", "job/"]), "2\n");
    assert_eq!(server.stdout_of(&["list"]), "job\nother/job/1\n");
    // It is not an error if no key has the prefix.
    assert_eq!(server.stdout_of(&["clear", "--prefix", "job/"]), "0\n");
    assert_eq!(server.stdout_of(&["--json", "clear", "--prefix", ""]), "{\"deleted\":2}\n");
    assert_eq!(server.stdout_of(&["count"]), "0\n");
}

#[test]
fn clear_without_a_prefix_is_wrong_usage() {
    let server = Server::start();
    server.client().set("key", b"v").unwrap();
    for args in [&["clear"][..], &["clear", "key"]] {
        let output = server.run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(error(&output).contains("--prefix"), "{}", error(&output));
    }
    assert_eq!(server.stdout_of(&["count"]), "1\n");
}

#[test]
fn a_server_without_list_keys_is_an_error_with_a_hint() {
    // A torch server closes the connection when it receives an operation that it doesn't support.
    let endpoint = serve_connections(serve_without_list_keys).to_string();
    for args in [&["clear", "--prefix", ""][..], &["list"]] {
        let output = store(args).env("RALLYPOINT_ENDPOINT", &endpoint).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", error(&output));
        assert!(
            error(&output).contains("list_keys is not supported by the server")
                && error(&output).contains("\nhint: torch's servers support it from 2.10 on"),
            "{}",
            error(&output)
        );
    }
}

/// Answers the requests that a client sends when it connects, and closes the connection at any other request.
fn serve_without_list_keys(mut stream: TcpStream) -> Option<()> {
    use rallypoint_core::wire::{Reply, Request, RequestDecoder};
    let (mut decoder, mut bytes) = (RequestDecoder::default(), [0; 4096]);
    loop {
        let len = stream.read(&mut bytes).ok().filter(|len| *len > 0)?;
        let mut input = &bytes[..len];
        while let Some(frame) = decoder.next(&mut input, &rallypoint_core::Limits::default()).ok()? {
            let reply = match frame.request() {
                Request::Validate { .. } => continue,
                Request::Ping { nonce } => Reply::Nonce(nonce),
                Request::Check { .. } => Reply::Checked(false),
                Request::Get { .. } => Reply::Value((&b""[..]).into()),
                _ => return None,
            };
            let mut answer = Vec::new();
            reply.encode(&mut answer);
            stream.write_all(&answer).ok()?;
        }
    }
}
