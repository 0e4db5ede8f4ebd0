//! Tests of the reasons that `rallypoint run`, `join` and `store` log if they can't reach a store at the endpoint, both
//! while they retry and when they fail.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};

use rallypoint_testkit::{reserve_port, serve_connections};

/// Timeout of the commands.
const TIMEOUT_SECONDS: u64 = 6;

/// A reason why a store can't be reached at an endpoint, with the texts that the log must contain.
struct Cause {
    endpoint: String,
    fault: &'static str,
    hint: &'static str,
    /// Whether a later attempt may succeed, so that the command logs the reason and retries until its timeout.
    is_transient: bool,
}

/// Starts a server that handles every connection with this function, and returns its endpoint.
fn serve(handler: fn(TcpStream) -> std::io::Result<()>) -> String {
    serve_connections(handler).to_string()
}

/// Reads a request up to its blank line, as an HTTP server does, and sends this reply.
fn reply_after_blank_line(mut stream: TcpStream, reply: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut buffer = [0; 1024];
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            len => request.extend_from_slice(&buffer[..len]),
        }
    }
    reply_and_close(stream, reply)
}

/// Sends a reply and closes the connection without resetting it.
fn reply_and_close(mut stream: TcpStream, reply: &[u8]) -> std::io::Result<()> {
    stream.write_all(reply)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

fn causes() -> Vec<Cause> {
    let another_program = "hint: another program has that port";
    vec![
        Cause {
            endpoint: "no-such-host.invalid:29400".into(),
            fault: "could not resolve host \"no-such-host.invalid\"",
            hint: "hint: check the spelling of the host name",
            is_transient: true,
        },
        Cause {
            endpoint: format!("127.0.0.1:{}", reserve_port()),
            fault: "connection refused (nothing listens there)",
            hint: "hint: check that the node or server that hosts the store is up",
            is_transient: true,
        },
        // A TLS server that uses OpenSSL closes the connection without a reply.
        Cause {
            endpoint: serve(|stream| stream.shutdown(Shutdown::Both)),
            fault: "the server closed the connection",
            hint: "a TLS server closes the connection like this",
            is_transient: true,
        },
        Cause {
            endpoint: serve(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop)),
            fault: "accepts connections but does not answer as a store does",
            hint: "hint: check that the server is a TCPStore, and that it is not stopped",
            is_transient: true,
        },
        Cause {
            endpoint: serve(|stream| reply_after_blank_line(stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            fault: "answered like an HTTP server",
            hint: another_program,
            is_transient: false,
        },
        // Python's `http.server` takes the handshake for a request of HTTP/0.9 and sends a page without a status line.
        Cause {
            endpoint: serve(|stream| reply_after_blank_line(stream, b"<!DOCTYPE HTML>\n<html></html>")),
            fault: "answered like an HTTP server",
            hint: another_program,
            is_transient: false,
        },
        Cause {
            endpoint: serve(|stream| reply_and_close(stream, b"\x15\x03\x03\x00\x02\x02\x46")),
            fault: "answered like a TLS server",
            hint: another_program,
            is_transient: false,
        },
    ]
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(arguments).env_remove("RALLYPOINT_LOG").env_remove("LOGLEVEL");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts a command for each cause and checks its log. `waiting` is a part of each line that the command logs while it
/// retries, and `arguments` returns the arguments of the command for an endpoint.
fn assert_reason_is_logged(waiting: &str, arguments: impl Fn(&str) -> Vec<String>) {
    let started = causes().into_iter().map(|cause| {
        let arguments = arguments(&cause.endpoint);
        (start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()), cause)
    });
    for (child, cause) in started.collect::<Vec<_>>() {
        let output = child.wait_with_output().unwrap();
        // Append each hint to the line that it belongs to.
        let log = String::from_utf8_lossy(&output.stderr).replace("\nhint: ", " hint: ");
        let (progress_lines, final_lines): (Vec<_>, Vec<_>) =
            log.lines().partition(|line| line.contains(waiting));
        let final_lines = final_lines.join("\n");
        assert!(!output.status.success() && final_lines.contains(cause.fault), "{}: {log}", cause.fault);
        assert!(final_lines.contains(cause.hint), "{}: {log}", cause.fault);
        if !cause.is_transient {
            assert!(progress_lines.is_empty(), "the command has retried after a final error: {log}");
            continue;
        }
        // Each reason is logged once. If the name server is slow, there are two reasons, one after the other.
        let reason = |line: &&'_ str| {
            line.split_once(waiting)?.1.split_once("; gives up").map(|(why, _)| why.to_owned())
        };
        let reasons: BTreeSet<_> = progress_lines.iter().filter_map(reason).collect();
        assert_eq!(reasons.len(), progress_lines.len(), "a reason is repeated: {log}");
        let Some(line) = progress_lines.first() else { panic!("no reason was logged before the end: {log}") };
        for part in [&cause.endpoint, cause.fault, cause.hint] {
            assert!(line.contains(part), "{part}: {log}");
        }
        // The line was logged less than 5 s after the first attempt.
        if let Some((_, left)) = line.split_once("gives up in ") {
            let left: u64 = left.split(' ').next().unwrap().parse().unwrap();
            assert!(left > TIMEOUT_SECONDS - 5, "{log}");
        }
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| argument.to_string()).collect()
}

#[test]
fn run_logs_why_it_cannot_reach_the_store_while_it_retries_and_when_it_fails() {
    let conf = format!("is_host=0,read_timeout={TIMEOUT_SECONDS}");
    assert_reason_is_logged("no reply yet from the store at ", |endpoint| {
        let c10d = ["run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint];
        owned(&[&c10d[..], &["--rdzv-conf", &conf, "--no-python", "true"]].concat())
    });
}

#[test]
fn a_static_run_logs_why_it_cannot_reach_rank_0_while_it_retries_and_when_it_fails() {
    let conf = format!("timeout={TIMEOUT_SECONDS}");
    assert_reason_is_logged("no reply yet from rank 0 at ", |endpoint| {
        let (host, port) = endpoint.rsplit_once(':').unwrap();
        let fixed =
            ["run", "--nnodes", "2", "--node-rank", "1", "--master-addr", host, "--master-port", port];
        owned(&[&fixed[..], &["--rdzv-conf", &conf, "--no-python", "true"]].concat())
    });
}

#[test]
fn join_logs_why_it_cannot_reach_the_store_while_it_retries_and_when_it_fails() {
    let conf = format!("is_host=0,read_timeout={TIMEOUT_SECONDS}");
    assert_reason_is_logged("no reply yet from the store at ", |endpoint| {
        owned(&["join", "--nnodes", "2", "--rdzv-endpoint", endpoint, "--rdzv-conf", &conf])
    });
}

#[test]
fn a_store_command_logs_why_it_cannot_reach_the_store_while_it_retries() {
    let port = reserve_port();
    let endpoint = format!("127.0.0.1:{port}");
    let output =
        start(&["store", "-e", &endpoint, "--timeout", "4s", "get", "k"]).wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = log.lines().filter(|line| line.contains("connecting to ")).collect();
    assert_eq!(lines.len(), 1, "not exactly one line was logged during the retries: {log}");
    let reason =
        format!("connecting to {endpoint}: connection refused (nothing listens there)\nhint: check that ");
    assert!(log.contains(&reason), "{log}");
}
