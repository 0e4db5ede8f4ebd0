//! Tests of `rallypoint serve`: output, addresses, limits and exit codes. A prefix such as `r12` names a row of
//! docs/internals/robustness.md.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rallypoint_store::{Store, TcpStore};
use rallypoint_testkit::{ChildGuard, Client, End, Lines, eventually, reserve_port};
use rustix::process::Signal;

/// A running `rallypoint serve`. Its standard output is read line by line.
struct Serve {
    child: ChildGuard,
    stdout: Option<BufReader<ChildStdout>>,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.arg("serve").args(args).env_remove("RALLYPOINT_LOG").stdin(Stdio::null());
    command
}

/// Runs `rallypoint serve` and waits until it exits. `args` must make it exit by itself.
fn run(args: &[&str]) -> Output {
    command(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

impl Serve {
    fn start(args: &[&str]) -> Serve {
        Serve::spawn(command(args))
    }

    fn spawn(mut command: Command) -> Serve {
        let mut child = ChildGuard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let stdout = child.stdout.take().map(BufReader::new);
        Serve { child, stdout }
    }

    /// Reads the next line of standard output, and returns the address in it.
    fn address(&mut self) -> SocketAddr {
        let mut line = String::new();
        self.stdout.as_mut().expect("stdout is a pipe").read_line(&mut line).expect("the output can be read");
        let address = line.strip_prefix("listening on ").expect(&line).trim_end();
        address.parse().expect("an address")
    }

    /// Waits until the server exits. Returns its exit code, the rest of its standard output, and its log.
    fn end(mut self) -> (Option<i32>, String, String) {
        let status = self.child.ended();
        let (mut rest, mut log) = (String::new(), String::new());
        if let Some(stdout) = &mut self.stdout {
            stdout.read_to_string(&mut rest).expect("the output can be read");
        }
        self.child
            .stderr
            .take()
            .expect("stderr is a pipe")
            .read_to_string(&mut log)
            .expect("the log can be read");
        (status.code(), rest, log)
    }

    /// Returns the addresses on which the process listens, according to the kernel's socket tables.
    fn listening(&self) -> BTreeSet<SocketAddr> {
        let own: BTreeSet<String> = fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .expect("the server runs")
            .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
            .filter_map(|link| {
                Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
            })
            .collect();
        const LISTEN: &str = "0A";
        let mut addresses = BTreeSet::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let table = fs::read_to_string(table).unwrap_or_default();
            for fields in table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
                if fields.get(3) == Some(&LISTEN) && own.contains(fields[9]) {
                    addresses.insert(address_in_table(fields[1]));
                }
            }
        }
        addresses
    }
}

/// Parses an address in `/proc/net/tcp` or `/proc/net/tcp6`: words of 4 bytes in native byte order, and the port, all
/// in hexadecimal.
fn address_in_table(text: &str) -> SocketAddr {
    let (ip, port) = text.split_once(':').expect("an address and a port");
    let words: Vec<u8> = ip
        .as_bytes()
        .chunks(8)
        .map(|word| {
            u32::from_str_radix(std::str::from_utf8(word).expect("hexadecimal digits"), 16)
                .expect("hexadecimal digits")
        })
        .flat_map(u32::to_ne_bytes)
        .collect();
    let ip: IpAddr = match <[u8; 4]>::try_from(&words[..]) {
        Ok(four) => four.into(),
        Err(_) => <[u8; 16]>::try_from(&words[..]).expect("sixteen bytes").into(),
    };
    (ip, u16::from_str_radix(port, 16).expect("hexadecimal digits")).into()
}

/// Returns a client that has completed the handshake, or `None` if the server can't be reached.
fn try_connect(address: SocketAddr) -> Option<Client> {
    Client::try_connect(address).ok()
}

fn is_served(address: SocketAddr) -> bool {
    try_connect(address).is_some()
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

#[test]
fn the_server_prints_its_address_and_exits_with_0_on_sigterm_and_sigint() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut serve = Serve::start(&["--listen", "127.0.0.1:0"]);
        let address = serve.address();
        let client = try_connect(address).unwrap();
        serve.child.signal(signal);
        let (code, rest, log) = serve.end();
        assert_eq!((code, &*rest), (Some(0), ""), "{log}");
        assert!(log.contains(name), "{log}");
        assert!(log.contains("--listen 0.0.0.0"), "no hint how to listen on all addresses: {log}");
        assert_eq!(
            client.end(),
            End { received: vec![], is_reset: false },
            "the server closes its connections"
        );
    }
}

#[test]
fn the_server_exits_with_1_and_names_the_process_if_its_port_is_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, port) = (taken.local_addr().unwrap().to_string(), taken.local_addr().unwrap().port());
    let output = run(&["--listen", &address]);
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert_eq!(text(&output.stdout), "");
    assert!(log.contains(&address) && log.contains("in use"), "{log}");
    assert!(
        log.contains(&format!(
            "hint: port {} of this machine is in use by process {}",
            port,
            std::process::id()
        )),
        "{log}"
    );
    assert!(log.contains("hint: choose another address"), "{log}");
    assert_eq!(log.lines().count(), 3, "{log}");
}

#[test]
fn a_health_check_port_in_use_is_named_and_the_server_does_not_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for at in [address.to_string(), address.port().to_string()] {
        let output = run(&["--listen", "127.0.0.1:0", "--health-check", &at]);
        let log = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{log}");
        assert!(log.contains(&address.to_string()) && log.contains("--health-check"), "{log}");
    }
}

#[test]
fn the_server_does_not_start_if_one_of_several_addresses_is_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["--listen", "127.0.0.1:0", "--listen", &address]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "", "no address was printed");
}

#[test]
fn r12_the_server_listens_on_exactly_the_given_addresses() {
    let mut serve = Serve::start(&["--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"]);
    let printed = BTreeSet::from([serve.address(), serve.address()]);
    assert_eq!(serve.listening(), printed);
    assert_eq!(
        printed.iter().map(SocketAddr::ip).collect::<Vec<_>>(),
        [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)]
    );
    assert!(printed.iter().all(|address| is_served(*address)));
}

#[test]
fn r12_a_loopback_name_listens_on_loopback_only() {
    let mut serve = Serve::start(&["--listen", "localhost:0"]);
    let first = serve.address();
    assert!(is_served(first));
    let listening = serve.listening();
    assert!(listening.contains(&first));
    assert!(listening.iter().all(|address| address.ip().is_loopback()), "{listening:?}");
    // The server uses one port for all addresses of the name.
    assert!(listening.iter().all(|address| address.port() == first.port()), "{listening:?}");
}

#[test]
fn r12_an_ipv6_address_listens_on_ipv6_only() {
    if !has_ipv6() {
        return eprintln!("this machine has no IPv6");
    }
    let mut serve = Serve::start(&["--listen", "[::1]:0"]);
    let address = serve.address();
    assert_eq!(address.ip(), Ipv6Addr::LOCALHOST);
    assert_eq!(serve.listening(), BTreeSet::from([address]));
    assert!(is_served(address));
    assert!(!is_served((Ipv4Addr::LOCALHOST, address.port()).into()));
}

#[test]
fn r12_an_empty_host_listens_on_all_ipv4_and_ipv6_addresses() {
    for host in [":0", "*:0"] {
        let mut serve = Serve::start(&["--listen", host]);
        let address = serve.address();
        assert!(address.ip().is_unspecified(), "{address}");
        assert!(is_served((Ipv4Addr::LOCALHOST, address.port()).into()));
        if has_ipv6() {
            assert!(is_served((Ipv6Addr::LOCALHOST, address.port()).into()));
        }
        serve.child.signal(Signal::TERM);
        let (_, _, log) = serve.end();
        assert!(!log.contains("this machine only"), "{log}");
    }
}

#[test]
fn r12_the_unspecified_ipv4_address_listens_on_ipv4_only() {
    let mut serve = Serve::start(&["--listen", "0.0.0.0:0"]);
    let address = serve.address();
    assert_eq!(address.ip(), Ipv4Addr::UNSPECIFIED);
    assert_eq!(serve.listening(), BTreeSet::from([address]));
    assert!(is_served((Ipv4Addr::LOCALHOST, address.port()).into()));
    assert!(!is_served((Ipv6Addr::LOCALHOST, address.port()).into()));
}

#[test]
fn the_default_address_is_loopback() {
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("[default: 127.0.0.1:29400]"), "{help}");
}

#[test]
fn a_server_can_restart_immediately_on_the_same_port() {
    let mut serve = Serve::start(&["--listen", "127.0.0.1:0"]);
    let address = serve.address();
    let client = try_connect(address).unwrap();
    serve.child.signal(Signal::TERM);
    assert_eq!(serve.end().0, Some(0));
    let mut again = Serve::start(&["--listen", &address.to_string()]);
    assert_eq!(again.address(), address);
    assert!(is_served(address));
    drop(client);
}

#[test]
fn a_server_keeps_running_when_its_standard_output_is_closed() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, reserve_port()));
    let mut serve = Serve::start(&["--listen", &address.to_string()]);
    serve.stdout = None;
    eventually("the server answers", || is_served(address));
    serve.child.signal(Signal::TERM);
    assert_eq!(serve.end().0, Some(0));
}

#[test]
fn wrong_usage_exits_with_2_and_names_valid_values() {
    for (args, expected) in [
        (&["--listen", "nowhere"][..], "there is no port"),
        (&["--listen", "::1:29400"], "brackets"),
        (&["--limit", "value_len"], "NAME=VALUE"),
        (&["--limit", "valuelen=1"], "value_len"),
        (&["--limit", "value_len=much"], "8MiB"),
        (&["--limit", "handshake=soon"], "10s"),
        (&["--limit", "state_nodes=5"], "there is no limit"),
        (&["--health-check", "somewhere"], "0.0.0.0:8080"),
        (&["--health-check", "70000"], "is not PORT, :PORT or ADDRESS:PORT"),
    ] {
        let output = run(args);
        let log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {log}");
        assert!(log.contains(expected), "{args:?}: {log}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn the_server_exits_with_1_if_its_host_does_not_resolve_or_is_another_machine() {
    for listen in ["no-such-host.invalid:0", "203.0.113.7:0"] {
        let output = run(&["--listen", listen]);
        let log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains(listen.split(':').next().unwrap()), "{log}");
        assert!(log.contains("hint:"), "{log}");
    }
}

#[test]
fn every_listed_limit_can_be_set_to_its_listed_value() {
    let listed = text(&run(&["--list-limits"]).stdout);
    let changes: Vec<String> = listed
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            format!("{}={}", words.next().expect("a name"), words.next().expect("a value"))
        })
        .collect();
    assert!(changes.iter().any(|change| change == "value_len=8MiB"), "{changes:?}");
    let mut args = vec!["--listen", "127.0.0.1:0"];
    for change in &changes {
        args.extend(["--limit", change]);
    }
    let mut serve = Serve::start(&args);
    assert!(is_served(serve.address()));
}

#[test]
fn limits_are_listed_as_json_too() {
    let listed: serde_json::Value =
        serde_json::from_slice(&run(&["--list-limits", "--json"]).stdout).unwrap();
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|limit| limit["name"].as_str().unwrap()).collect();
    let table = text(&run(&["--list-limits"]).stdout);
    assert!(table.lines().map(|line| line.split_whitespace().next().unwrap()).eq(names), "{table}");
    assert_eq!(run(&["--json"]).status.code(), Some(2));
}

#[test]
fn the_listed_limits_have_the_defaults_of_this_machine_and_meanings_without_markup() {
    let listed = text(&run(&["--list-limits"]).stdout);
    let line = |name: &str| {
        let found = listed.lines().find(|line| line.split_whitespace().next() == Some(name));
        found.unwrap_or_else(|| panic!("{name} is not there:\n{listed}")).to_owned()
    };
    for (name, value) in [("connections", "65536"), ("queue_items", "1000000"), ("value_len", "8MiB")] {
        assert_eq!(line(name).split_whitespace().nth(1), Some(value));
    }
    let most = rallypoint_store::TcpStoreServer::default_limits().store_bytes;
    let mut limits = rallypoint_store::Limits::default();
    let value = line("store_bytes").split_whitespace().nth(1).expect("a value").to_owned();
    limits.set("store_bytes", &value).unwrap();
    assert_eq!(limits.store_bytes, most, "the default of this machine");
    assert!(line("store_bytes").contains("a quarter of the memory budget"));
    for wrong in ["[`", "`]", "reply_len", "record_", "state_", "host_len"] {
        assert!(!listed.contains(wrong), "{wrong}:\n{listed}");
    }
}

#[test]
fn a_wrong_log_level_variable_is_reported_once_and_replaced_by_info() {
    let mut command = command(&["--listen", "127.0.0.1:0"]);
    command.env("RALLYPOINT_LOG", "loud");
    let mut serve = Serve::spawn(command);
    serve.address();
    serve.child.signal(Signal::TERM);
    let (code, _, log) = serve.end();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(log.lines().filter(|line| line.contains("loud")).count(), 1, "{log}");
    assert!(log.contains("SIGTERM"), "{log}");
}

#[test]
fn a_log_without_a_reader_does_not_stop_the_server() {
    let mut serve = Serve::start(&["--listen", "127.0.0.1:0", "--limit", "log_lines_per_second=1000000"]);
    let address = serve.address();
    // Each connection causes one log line. 5,000 lines are more than the pipe and the log queue can hold.
    for _ in 0..5000 {
        let mut stranger = TcpStream::connect(address).expect("the server listens");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("the server accepts bytes");
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    assert!(is_served(address));
    // A late reader finds a line with the number of dropped lines in the log, and receives all later lines.
    let log = Lines::read(serve.child.stderr.take().expect("stderr is a pipe"));
    let missed = log.find("were dropped");
    let missed: u32 =
        missed.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number of lines");
    assert!((1..5000).contains(&missed), "{missed}");
    serve.child.signal(Signal::TERM);
    log.find("SIGTERM");
}

#[test]
fn a_log_without_a_reader_does_not_delay_the_exit() {
    let mut serve = Serve::start(&["--listen", "127.0.0.1:0", "--limit", "log_lines_per_second=1000000"]);
    let address = serve.address();
    for _ in 0..2000 {
        let mut stranger = TcpStream::connect(address).expect("the server listens");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("the server accepts bytes");
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    serve.child.signal(Signal::TERM);
    assert_eq!(serve.end().0, Some(0));
}

#[test]
fn the_command_exits_with_1_if_it_cannot_print_the_limits() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a file");
    let output =
        command(&["--list-limits"]).stdout(full).stderr(Stdio::piped()).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write"), "{}", text(&output.stderr));
}

// ---- idle jobs ----

#[test]
fn the_keys_of_an_idle_job_expire_and_other_keys_stay() {
    let mut serve = Serve::start(&["--listen", "127.0.0.1:0", "--expire-idle-jobs", "1s"]);
    let port = serve.address().port();
    let open = || TcpStore::connect("127.0.0.1", port).expect("the server accepts connections");
    let (gone, stays, plain) = ("torch.rendezvous.gone.0/k", "torch.rendezvous.stays.0/k", "my-job/k");
    let watcher = open();
    let job = open();
    for key in ["rallypoint.rendezvous/gone/announced/0", gone] {
        job.set(key, b"v").unwrap();
    }
    let live = open();
    live.set(stays, b"v").unwrap();
    watcher.set(plain, b"v").unwrap();
    drop(job);
    let start = Instant::now();
    // LIST_KEYS names no key, so these requests do not count as use of the job.
    eventually("the job has expired", || !watcher.list_keys().unwrap().iter().any(|key| key == gone));
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    // The job `stays` still has a connection, and a key that belongs to no job never expires.
    let mut left = watcher.list_keys().unwrap();
    left.sort();
    assert_eq!(left, [plain, stays]);
    drop(live);
    eventually("the other job has expired", || watcher.num_keys().unwrap() == 1);
    serve.child.signal(Signal::TERM);
    let (_, _, log) = serve.end();
    assert!(log.contains("job gone expired after 1."), "{log}");
    assert!(log.contains(" s without a client: deleted 2 keys"), "{log}");
    assert!(log.contains("job stays expired after ") && log.contains("deleted 1 key\n"), "{log}");
}

#[test]
fn an_expiry_time_of_zero_is_wrong_usage() {
    let output = run(&["--expire-idle-jobs", "0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("must be more than 0"), "{}", text(&output.stderr));
}
