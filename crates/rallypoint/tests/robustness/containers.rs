//! A server with little memory: in a control group of 64 MiB, and under `ulimit -v` and `ulimit -d`. Clients fill the
//! store, stall uploads and leave replies unread until the server refuses requests. The server must keep serving, and
//! must use less than four fifths of the memory limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_core::wire::{KeyList, Op, PairList, Reply, Request};

use rallypoint_store::{Listen, ServerOptions, TcpStoreServer};

use crate::harness::{Client, KIB, MIB, Server, eventually, exclusive, message};

/// A function that runs shell commands and then starts a server in the same process.
type Start = fn(&str) -> Server;

/// Number of misbehaving clients of each kind.
const CLIENTS: usize = 12;

/// A control group with a memory limit. It is removed on drop.
struct ControlGroup {
    directory: PathBuf,
    /// The name of the file in which the kernel counts OOM kills.
    kills: &'static str,
}

impl ControlGroup {
    /// Creates a control group with this memory limit in bytes. Prints a line and returns `None` if this process is
    /// not allowed to.
    fn new(limit: usize) -> Option<ControlGroup> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("rallypoint-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        for (tree, file, kills) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
            ("/sys/fs/cgroup", "memory.max", "memory.events"),
        ] {
            let directory = Path::new(tree).join(&name);
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            let group = ControlGroup { directory, kills };
            if fs::write(group.directory.join(file), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        eprintln!("skipped: this process cannot create a control group with a memory limit");
        None
    }

    /// Returns the number of OOM kills in the group.
    fn oom_kills(&self) -> u64 {
        let events = fs::read_to_string(self.directory.join(self.kills)).expect("the group's events");
        let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.map_or(0, |count| count.trim().parse().expect("a number"))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The kernel removes a killed process from the group only after a delay, so removing the group is retried for
        // 2 s.
        for _ in 0..100 {
            match fs::remove_dir(&self.directory) {
                Ok(()) => return,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// The limit `input_stall` of the servers. It is short, so that each stalled upload delays the next one by only 100 ms.
const INPUT_STALL_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs these commands in a shell, and then starts `rallypoint serve` in the same process.
fn server_after(commands: &str) -> Server {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{commands}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_rallypoint"), "serve"]);
    Server::launch(shell, "127.0.0.1:0", &[&format!("input_stall={}ms", INPUT_STALL_TIMEOUT.as_millis())])
}

/// Runs these commands in a shell, and then starts a program with an embedded server in the same process.
fn embedded_server_after(commands: &str) -> Server {
    let this = std::env::current_exe().expect("the path of this test");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{commands}; exec \"$@\""), "sh"]).arg(this);
    shell.args(["--exact", "containers::embedded_server_process", "--ignored", "--nocapture"]);
    Server::spawn(shell)
}

/// The program with an embedded server. It runs until it is killed.
#[test]
#[ignore = "runs inside the tests of embedded servers"]
fn embedded_server_process() {
    let mut limits = TcpStoreServer::default_limits();
    limits.input_stall = INPUT_STALL_TIMEOUT;
    let listen = vec![Listen::at("127.0.0.1", 0)];
    let server = TcpStoreServer::start(ServerOptions::new(listen).limits(limits)).unwrap();
    println!("\nlistening on {}", server.addresses()[0]);
    while server.is_running() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Sends up to `max_requests` requests over one connection, until the server refuses one. Returns whether it has
/// refused one.
fn until_refused(server: &Server, max_requests: usize, mut request: impl FnMut(usize) -> Vec<u8>) -> bool {
    let mut client = server.connect();
    (0..max_requests).any(|n| {
        client.try_send(&request(n)).is_err() || client.try_request(Request::Ping { nonce: 1 }).is_err()
    })
}

/// Deletes all keys of the store.
fn clear(server: &Server) {
    let mut client = server.connect();
    let Reply::Keys(keys) = client.request(Request::ListKeys) else { panic!("no list of keys") };
    for chunk in keys.chunks(1_000) {
        let deletes: Vec<u8> = chunk.iter().flat_map(|key| message(Request::DeleteKey { key })).collect();
        client.send(&deletes);
        client.bytes(8 * chunk.len());
    }
    assert_eq!(client.num_keys(), 0);
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    message(Request::Set { key: key.as_bytes(), value: value.into() })
}

/// Fills the store with small keys, values of three sizes, appended values, long names and awaited keys, one after
/// the other. Deletes keys in between.
fn fill_the_store(server: &Server) {
    let names: Vec<String> = (0..1_000_000).map(|n| format!("/{n}")).collect();
    let small = until_refused(server, names.len() / 1_000, |n| {
        let chunk = names[n * 1_000..][..1_000].iter();
        let pairs: Vec<(&[u8], &[u8])> = chunk.map(|name| (name.as_bytes(), &b""[..])).collect();
        message(Request::MultiSet { pairs: PairList::new(&pairs) })
    });
    assert!(small, "small keys do not fill the store");
    clear(server);
    for (len, what) in [(MIB, "large values"), (100 * KIB, "values"), (3_000, "small values")] {
        let value = vec![7; len];
        assert!(
            until_refused(server, 64 * MIB / len, |n| set(&format!("/{n}"), &value)),
            "{what} do not fill the store"
        );
        // Every other key is deleted, so that free memory is fragmented.
        let mut client = server.connect();
        let deleted = client.num_keys() / 2;
        for n in 0..deleted {
            client.send_request(Request::DeleteKey { key: format!("/{}", 2 * n).as_bytes() });
        }
        client.bytes(8 * deleted as usize);
    }
    clear(server);
    let part = vec![7; 2_000];
    let appended = until_refused(server, 64 * MIB / part.len(), |n| {
        message(Request::Append { key: format!("/{}", n % 1_000).as_bytes(), value: part[..].into() })
    });
    assert!(appended, "appends do not fill the store");
    clear(server);
    let long = "k".repeat(4_000);
    assert!(
        until_refused(server, 20_000, |n| set(&format!("/{n:05}{long}"), b"")),
        "long names do not fill the store"
    );
    // Clients request lists of all keys and don't read them, while the keys are deleted. The first lists exceed the
    // limit `output_hard`, so the server refuses them.
    let mut slow_readers = Vec::new();
    let mut client = server.connect();
    for n in 0.. {
        if client.num_keys() == 0 {
            break;
        }
        if n % 150 == 0 {
            let mut reader = server.connect();
            reader.send_request(Request::ListKeys);
            slow_readers.push(reader);
        }
        client.number(Request::DeleteKey { key: format!("/{n:05}{long}").as_bytes() });
    }
    drop(slow_readers);
    let mut waiters: Vec<Client> = Vec::new();
    eventually(Duration::from_secs(20), "awaited keys fill the store", || {
        let first = waiters.len() * 500;
        let names: Vec<String> = (first..first + 500).map(|n| format!("/{n:05}{long}")).collect();
        let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let mut client = server.connect();
        client.send(&message(Request::Wait { keys: KeyList::new(&keys) }));
        waiters.push(client);
        waiters.iter_mut().any(Client::has_ended)
    });
}

/// Creates stalled uploads, unread replies and deferred requests at the same time, and returns the clients that keep
/// them open.
fn stall_clients(server: &Server) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    let value = vec![7; 4 * MIB];
    let mut writer = server.connect();
    writer.set("/large", &value);
    for n in 0..CLIENTS {
        // This client never sends the last byte of its upload. The server may stop reading the upload even earlier.
        let mut upload = server.connect();
        let bytes = set(&format!("/upload/{n}"), &value);
        let sent = upload.send_nonblocking(&bytes[..bytes.len() - 1]);
        clients.push(upload);
        assert!(sent > 0);
        // This client requests a large value and does not read it. The value is replaced below.
        let mut reader = server.connect();
        reader.send_request(Request::Get { key: b"/large" });
        clients.push(reader);
        // This client pops an item and does not read it, so that only the reply references the item.
        let mut popper = server.connect();
        popper.send_nonblocking(&message(Request::QueuePush { key: b"/q", value: value[..MIB].into() }));
        popper.send_nonblocking(&message(Request::QueuePop { key: b"/q" }));
        clients.push(popper);
        // This client sends small requests behind a wait, so the server defers them.
        let mut waiter = server.connect();
        waiter.start_waiting(&[&format!("/absent/{n}")]);
        waiter.send_nonblocking(&[Op::NumKeys as u8].repeat(MIB));
        clients.push(waiter);
        // This client requests 10,000 values in one reply.
        let mut lister = server.connect();
        lister
            .send_nonblocking(&message(Request::MultiGet { keys: KeyList::new(&[&b"/large"[..]; 10_000]) }));
        clients.push(lister);
    }
    for n in 0..CLIENTS {
        until_refused(server, 1, |_| set("/large", &value[n..]));
    }
    server.wait_until_idle();
    clients
}

/// Fills the store and then stalls clients, twice. Checks that the server still serves.
fn exhaust_memory(server: &mut Server) {
    for _ in 0..2 {
        fill_the_store(server);
        let clients = stall_clients(server);
        // The clients reset their connections. A FIN would reach the server only after the data that the server does
        // not read.
        clients.into_iter().for_each(Client::reset);
        eventually(Duration::from_secs(10), "all connections are closed", || server.connections() == 0);
    }
    clear(server);
    let mut client = server.connect();
    client.set("/after", vec![3; MIB]);
    assert_eq!(client.value("/after"), vec![3; MIB]);
    assert_eq!(client.number(Request::DeleteKey { key: b"/after" }), 1);
}

#[test]
fn a_server_in_a_64_mib_control_group_refuses_excess_requests_and_keeps_serving() {
    let _exclusive = exclusive();
    let limit = 64 * MIB;
    for start in [server_after, embedded_server_after] {
        let Some(group) = ControlGroup::new(limit) else { return };
        let mut server = start(&format!("echo $$ > {}/cgroup.procs", group.directory.display()));
        exhaust_memory(&mut server);
        let peak = server.process().peak_memory();
        println!("at most {} KiB of {} KiB", peak / KIB, limit / KIB);
        assert!(peak < limit / 5 * 4, "{peak} of {limit}");
        assert_eq!(group.oom_kills(), 0);
        drop(server);
    }
}

#[test]
fn a_server_with_limited_address_space_refuses_excess_requests_and_keeps_serving() {
    let _exclusive = exclusive();
    let (standalone, embedded): (Start, Start) = (server_after, embedded_server_after);
    for (start, option, limit) in
        [(standalone, "-v", 64 * MIB), (standalone, "-d", 48 * MIB), (embedded, "-v", 384 * MIB)]
    {
        let mut server = start(&format!("ulimit {option} {}", limit / KIB));
        exhaust_memory(&mut server);
        let peak = server.process().peak_memory();
        println!("ulimit {option}: at most {} KiB of {} KiB", peak / KIB, limit / KIB);
        assert!(peak < limit / 5 * 4, "ulimit {option}: {peak} of {limit}");
    }
}
