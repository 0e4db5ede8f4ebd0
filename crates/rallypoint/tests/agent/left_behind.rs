//! Nobody is left behind: whoever is killed, and whenever, workers and all that they have started are gone soon after.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::bed::{Agent, family, random};

/// Workers with children: one in the same session, one in a session of its own, one that nobody waits for.
const FAMILY: &str = "sleep 600 & setsid sleep 600 & (setsid sleep 600 &) ; echo ready; wait";

const GONE: Duration = Duration::from_secs(2);

fn start(workers: &str, script: &str) -> Agent {
    let arguments = ["--standalone", "--nproc-per-node", workers, "--no-python", "sh", "-c", script];
    Agent::start_with(&arguments, &[("RALLYPOINT_LOG", Path::new("error"))])
}

fn assert_gone(mark: &str, what: &str) {
    let start = Instant::now();
    while !family(mark).is_empty() {
        assert!(start.elapsed() < GONE, "{what}: still there: {:#?}", family(mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The full number with `RALLYPOINT_SOAK=1`.
fn rounds(few: usize, all: usize) -> usize {
    if std::env::var_os("RALLYPOINT_SOAK").is_some_and(|value| value == "1") { all } else { few }
}

#[test]
fn whoever_of_the_two_processes_is_killed_and_whenever_nobody_is_left() {
    for round in 0..rounds(24, 200) {
        let mut agent = start("2", FAMILY);
        let pause = match round % 4 {
            // When all are there.
            0 => {
                agent.says("ready", 2);
                0
            }
            // While it starts.
            _ => random() % 30_000,
        };
        std::thread::sleep(Duration::from_micros(pause));
        let inner = agent.inner();
        let (victim, who) = match (inner, random() % 2) {
            (Some(inner), 0) => (inner, "the agent"),
            _ => (agent.pid(), "the outer process"),
        };
        let _ = kill_process(victim, Signal::KILL);
        let mark = agent.mark();
        agent.wait();
        assert_gone(&mark, &format!("round {round}: {who} was killed after {pause} µs"));
    }
}

#[test]
fn if_both_are_killed_at_once_the_workers_die_with_them() {
    let agent = start("3", "echo ready; exec sleep 600");
    agent.says("ready", 3);
    for pid in [agent.inner().unwrap(), agent.pid()] {
        kill_process(pid, Signal::KILL).unwrap();
    }
    assert_gone(&agent.mark(), "both were killed");
}

#[test]
fn a_signal_that_nobody_handles_ends_the_agent_and_all_of_its_own() {
    let mut agent = start("2", FAMILY);
    agent.says("ready", 2);
    agent.signal(Signal::USR1);
    let status = std::os::unix::process::ExitStatusExt::signal(&agent.wait());
    assert_eq!(status, Some(Signal::USR1.as_raw()));
    assert_gone(&agent.mark(), "SIGUSR1");
}

#[test]
fn what_a_worker_leaves_behind_ends_with_a_job_that_succeeds() {
    let agent = start("2", "(setsid sleep 600 &) ; sleep 600 & exit 0");
    let mark = agent.mark();
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    assert_eq!(family(&mark), [] as [String; 0]);
}

#[test]
fn what_a_failed_worker_leaves_behind_is_gone_before_it_is_started_again() {
    let script = r#"
        [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && { cat "$PIDFILE" | xargs -n 1 ps -o pid= -p; exit 0; }
        setsid sleep 600 & echo $! > "$PIDFILE"; exit 1
    "#;
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--standalone", "--max-restarts", "1", "--no-python", "sh", "-c", script];
    let agent = Agent::start_with(&arguments, &[("PIDFILE", &dir.path().join("pid"))]);
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    assert_eq!(ended.out.trim(), "", "the process of the first start was still there");
}

#[test]
fn starting_and_killing_leaves_no_file_and_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut marks = Vec::new();
    for round in 0..rounds(30, 1000) {
        let arguments = ["--standalone", "--nproc-per-node", "2", "--no-python", "sh", "-c", "sleep 600"];
        let mut agent = Agent::start_with(&arguments, &[("TMPDIR", dir.path())]);
        std::thread::sleep(Duration::from_micros(random() % 20_000));
        let signal = if round % 2 == 0 { Signal::TERM } else { Signal::KILL };
        // Either of the two.
        let victim = agent.inner().filter(|_| random().is_multiple_of(2)).unwrap_or(agent.pid());
        let _ = kill_process(victim, signal);
        agent.wait();
        marks.push(agent.mark());
    }
    marks.iter().for_each(|mark| assert_gone(mark, "killed while it started"));
    let left =
        || std::fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let start = Instant::now();
    while !left().is_empty() {
        assert!(start.elapsed() < GONE, "left in the folder for temporary files: {:?}", left());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_shell_started_before_it_became_the_agent_is_not_killed() {
    let script = r#"sleep 600 >/dev/null 2>&1 & echo $!; exec "$0" run --standalone --no-python sh -c '(setsid sleep 600 &); exit 0'"#;
    let mark = format!("{:016x}", random());
    let shell = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_rallypoint")])
        .env(crate::bed::MARK, &mark)
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&shell.stderr);
    assert!(shell.status.success(), "{err}");
    let others = String::from_utf8(shell.stdout).unwrap().trim().parse().unwrap();
    let left = family(&mark);
    let other = rustix::process::Pid::from_raw(others).unwrap();
    let lives = kill_process(other, Signal::KILL).is_ok();
    assert!(lives, "it was killed: {err}");
    assert_eq!(left.len(), 1, "and nothing else is left: {left:?}");
}
