//! Nobody is left behind: whoever is killed, and whenever, workers and all that they have started are gone soon after.

use std::path::Path;
use std::time::Duration;

use rallypoint_testkit::{eventually_or, scaled};
use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{Agent, family, kill_at_once, random, relatives};

/// Workers with children: one in the same session, one in a session of its own, one that nobody waits for.
const FAMILY: &str = "sleep 600 & setsid sleep 600 & (setsid sleep 600 &) ; echo ready; wait";

/// What is left behind would stay for 600 s.
pub(crate) const GONE: Duration = Duration::from_secs(10);

fn start(workers: &str, script: &str) -> Agent {
    let arguments = ["--standalone", "--nproc-per-node", workers, "--no-python", "sh", "-c", script];
    Agent::start_with(&arguments, &[("RALLYPOINT_LOG", Path::new("error"))])
}

pub(crate) fn assert_gone(mark: &str, what: &str) {
    eventually_or(GONE, || format!("{what}: still there: {:#?}", family(mark)), || family(mark).is_empty());
}

/// The outer process and the agent; both are there.
fn both(agent: &Agent) -> [Pid; 2] {
    [agent.pid(), agent.inner().unwrap()]
}

#[test]
fn whichever_of_the_two_processes_is_killed_and_whenever_nothing_is_left() {
    for round in 0..scaled(24, 200) {
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
        // Part of the fault: it may come at any moment.
        std::thread::sleep(Duration::from_micros(pause));
        let (victim, who) = match random() % 2 {
            0 => (agent.inner(), "the agent"),
            _ => (None, "the outer process"),
        };
        let _ = kill_process(victim.unwrap_or(agent.pid()), Signal::KILL);
        let mark = agent.mark();
        agent.wait();
        assert_gone(&mark, &format!("round {round}: {who} was killed after {pause} µs"));
    }
}

/// The name that `pkill` and `killall` compare.
fn name(pid: Pid) -> String {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Kills all processes of a job that are chosen by id and command line, the agent not being among them.
fn kill_chosen(what: &str, is_victim: impl Fn(Pid, &str) -> bool) {
    let agent = start("2", &format!(": a_word_of_the_script; {FAMILY}"));
    agent.says("ready", 2);
    let relatives = relatives(&agent.mark()).into_iter();
    let victims: Vec<Pid> =
        relatives.filter(|(pid, line)| is_victim(*pid, line)).map(|(pid, _)| pid).collect();
    let [outer, inner] = both(&agent);
    assert!(victims.contains(&outer), "{what}: {:#?}", family(&agent.mark()));
    assert!(!victims.contains(&inner), "{what}: {:#?}", family(&agent.mark()));
    kill_at_once(&victims);
    assert_gone(&agent.mark(), what);
}

/// What `pkill -9 -f train.py`, `pkill -9 -f rallypoint` and `pkill -9 rallypoint` do.
#[test]
fn killing_all_processes_with_a_word_in_their_command_lines_or_names_leaves_nothing() {
    kill_chosen("the script in the command line", |_, line| line.contains("a_word_of_the_script"));
    kill_chosen("the program in the command line", |_, line| line.contains("rallypoint"));
    kill_chosen("the program's name", |pid, _| name(pid).contains("rallypoint"));
}

#[test]
fn if_both_processes_are_killed_at_once_the_workers_die_with_them() {
    let agent = start("3", "echo ready; exec sleep 600");
    agent.says("ready", 3);
    kill_at_once(&both(&agent));
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
fn whoever_ignores_its_childrens_end_hears_of_the_agents_all_the_same() {
    let script = r#"trap '' CHLD; exec "$0" run --standalone --no-python sh -c 'exit 3'"#;
    let ended = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_rallypoint")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && told.contains("exitcode  : 3"), "{told}");
    assert!(!told.contains("cannot start"), "{told}");
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
