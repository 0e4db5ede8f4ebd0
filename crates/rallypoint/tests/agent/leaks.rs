//! Killed agents leave no file, process, port or shared memory behind. The memory, threads and file descriptors of an
//! agent do not grow with the number of restarts.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use rallypoint_testkit::{Port, eventually_or, scaled};
use rustix::process::{Signal, kill_process};

use crate::agent_process::{Agent, marked_processes, random};
use crate::cleanup::{CLEANUP_TIMEOUT, assert_no_process_left};

#[test]
fn killed_agents_leave_no_file_process_port_or_shared_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (store, health) = (Port::unassigned(), Port::unassigned());
    let (endpoint, health_endpoint) = (store.endpoint(), health.endpoint());
    let fixed = ["--rdzv-backend", "c10d", "--rdzv-endpoint", &endpoint, "--health-check", &health_endpoint];
    let mut processes = BTreeSet::new();
    for round in 0..scaled(30, 1000) {
        // Even rounds use a port that the system chooses. Odd rounds use ports that the test checks below.
        let endpoint_flags: &[&str] = if round % 2 == 0 { &["--standalone"] } else { &fixed };
        let workers = ["--nproc-per-node", "2", "--no-python", "sh", "-c", "sleep 600"];
        let environment = [("TMPDIR", dir.path()), ("TORCHELASTIC_ENABLE_FILE_TIMER", Path::new("1"))];
        let mut agent = Agent::start_with(&[endpoint_flags, &workers].concat(), &environment);
        std::thread::sleep(Duration::from_micros(random() % 20_000));
        processes
            .extend(marked_processes(&agent.mark()).iter().map(|(pid, _)| pid.as_raw_nonzero().to_string()));
        let signal = if round % 4 < 2 { Signal::TERM } else { Signal::KILL };
        let victim = match random() % 2 {
            0 => agent.agent_pid(),
            _ => None,
        };
        let _ = kill_process(victim.unwrap_or(agent.outer_pid()), signal);
        agent.wait();
        assert_no_process_left(&agent.mark(), "killed while it started");
        for port in [&endpoint, &health_endpoint] {
            // The test finds processes by their environment. A dying process loses its environment before the kernel
            // closes its sockets, so a port may still be in use for a moment.
            let bind = || TcpListener::bind(port);
            eventually_or(
                CLEANUP_TIMEOUT,
                || format!("round {round}: {port}: {:?}", bind()),
                || bind().is_ok(),
            );
        }
    }
    let left = || fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let start = Instant::now();
    while !left().is_empty() {
        assert!(start.elapsed() < CLEANUP_TIMEOUT, "left in the directory for temporary files: {:?}", left());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(shared_memory(&processes), [] as [String; 0]);
}

/// Returns the shared memory that is left: System V segments that one of `processes` created, and files in `/dev/shm`
/// whose names contain `rallypoint` or `torchelastic`.
fn shared_memory(processes: &BTreeSet<String>) -> Vec<String> {
    // The fields of a line are key, id, permissions, size, and the process id of the creator.
    let is_of_job = |line: &&str| line.split_whitespace().nth(4).is_some_and(|pid| processes.contains(pid));
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_ours = |name: &String| ["rallypoint", "torchelastic"].iter().any(|word| name.contains(word));
    table.lines().skip(1).filter(is_of_job).map(String::from).chain(names.filter(is_ours)).collect()
}

/// Timeout for many restarts on a busy machine.
const RESTARTS_TIMEOUT: Duration = Duration::from_secs(600);

/// The number of threads that an agent may have more after the last restart than after an early one. The count varies
/// by a few threads. A leak would add one thread for each restart.
const MAX_MORE_THREADS: usize = 3;
/// The same bound for open file descriptors. Each node's client keeps up to 8 idle connections to the store, and the
/// host of the store has both ends of its own connections. On a busy machine, more connections are open at a time.
const MAX_MORE_FILES: usize = 24;

/// Returns a shell script with which a worker prints the memory of the agent in KiB and its numbers of threads and
/// file descriptors, after `early` and after `last` restarts. The agent frees the resources of the previous workers
/// in the background, so the last worker waits up to 60 s for that.
fn print_resources(early: usize, last: usize) -> String {
    format!(
        r#"measure() {{
            echo $(grep -E '^(VmRSS|Threads):' /proc/$PPID/status | tr -dc '0-9\n') $(ls /proc/$PPID/fd | wc -l)
        }}
        case $TORCHELASTIC_RESTART_COUNT in
        {early}) sleep 2; measure >"$TMPDIR/early.$PPID"; echo resources $(cat "$TMPDIR/early.$PPID");;
        {last})
            read -r _ threads files <"$TMPDIR/early.$PPID"
            for _ in $(seq 300); do
                set -- $(measure)
                if [ $2 -le $((threads + {MAX_MORE_THREADS})) ] && [ $3 -le $((files + {MAX_MORE_FILES})) ]; then break; fi
                sleep 0.2
            done
            echo resources $*;;
        esac;"#
    )
}

/// Checks the output of `print_resources`: the resources of the agent did not grow between the early and the last
/// restart. `restarts` is the number of restarts between them.
fn assert_no_growth(what: &str, out: &str, restarts: usize) {
    let numbers = |line: &str| -> Option<Vec<usize>> {
        line.strip_prefix("resources ")?.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let resources: Vec<_> = out.lines().filter_map(numbers).collect();
    let [early, late] = &resources[..] else { panic!("{what}: {out}") };
    println!("{what}: KiB, threads, files: {early:?}, after {restarts} more restarts {late:?}");
    assert!(restarts >= 30);
    let has_leak = late[1] > early[1] + MAX_MORE_THREADS || late[2] > early[2] + MAX_MORE_FILES;
    assert!(!has_leak, "{what}: {early:?} {late:?}");
    // The bound is 1 MiB for memory that is allocated once and reused, and 8 KiB for each restart, which may leave a
    // few keys in the store.
    assert!(late[0] <= early[0] + 1024 + 8 * restarts, "{what}: {early:?} {late:?}");
}

/// Returns the arguments for workers that run `script` in a shell and are restarted up to `restarts` times without a
/// pause.
fn restarting<'a>(restarts: &'a str, script: &'a str) -> [&'a str; 8] {
    ["--max-restart-backoff", "0", "--max-restarts", restarts, "--no-python", "sh", "-c", script]
}

#[test]
fn an_agent_does_not_grow_with_the_number_of_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (early, last) = (20, scaled(100, 1000));
    let restarts = last.to_string();
    let script = format!("{} exit 1", print_resources(early, last));
    let arguments = [&["--standalone"][..], &restarting(&restarts, &script)].concat();
    let quiet = [("TMPDIR", dir.path()), ("RALLYPOINT_LOG", Path::new("off"))];
    let ended = Agent::start_with(&arguments, &quiet).ended_within(RESTARTS_TIMEOUT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert_no_growth("one node", &ended.out, last - early);
}

#[test]
fn two_nodes_do_not_grow_with_the_number_of_restarts() {
    let (early, last) = (10, scaled(40, 400));
    let restarts = last.to_string();
    for backend in ["c10d", "static"] {
        let (dir, port) = (tempfile::tempdir().unwrap(), Port::reserve());
        let endpoint = port.endpoint();
        // The worker of rank 0 fails as soon as the worker of rank 1 has started.
        let script = format!(
            r#"{} [ "$RANK" = 1 ] && {{ : >"$TMPDIR/$TORCHELASTIC_RESTART_COUNT"; exec sleep 600; }}
            while [ ! -e "$TMPDIR/$TORCHELASTIC_RESTART_COUNT" ]; do sleep 0.01; done; exit 1"#,
            print_resources(early, last)
        );
        let nodes = ["0", "1"].map(|rank| {
            let first = ["--nnodes", "2", "--node-rank", rank, "--rdzv-backend", backend, "--rdzv-id", "job"];
            let more = ["--rdzv-endpoint", &endpoint, "--local-addr", "127.0.0.1", "--log-dir", "/dev/null"];
            let last = restarting(&restarts, &script);
            let quiet = [("TMPDIR", dir.path()), ("RALLYPOINT_LOG", Path::new("off"))];
            Agent::start_with(&[&first[..], &more, &last].concat(), &quiet)
        });
        for ended in nodes.map(|node| node.ended_within(RESTARTS_TIMEOUT)) {
            assert_eq!(ended.status.code(), Some(1), "{backend}: {}", ended.err);
            assert_no_growth(backend, &ended.out, last - early);
        }
    }
}
