//! When the agent or its outer process exits or is killed, at any time, no process of the job remains on the node.

use std::path::Path;
use std::time::Duration;

use rallypoint_testkit::{eventually_or, scaled};
use rustix::process::{Pid, Signal, kill_process};

use crate::agent_process::{Agent, kill_together, marked_processes, process_lines, random};

/// A shell script with which a worker starts three processes: one in its session, one in another session, and an
/// orphan.
const SPAWN_CHILDREN: &str = "sleep 600 & setsid sleep 600 & (setsid sleep 600 &) ; echo ready; wait";

/// Time within which all processes of a job must have exited. Without cleanup they would run for 600 s.
pub(crate) const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

fn start(workers: &str, script: &str) -> Agent {
    let arguments = ["--standalone", "--nproc-per-node", workers, "--no-python", "sh", "-c", script];
    Agent::start_with(&arguments, &[("RALLYPOINT_LOG", Path::new("error"))])
}

pub(crate) fn assert_no_process_left(mark: &str, what: &str) {
    eventually_or(
        CLEANUP_TIMEOUT,
        || format!("{what}: these processes still run: {:#?}", process_lines(mark)),
        || process_lines(mark).is_empty(),
    );
}

/// Returns the process ids of the outer process and of the agent.
fn both_pids(agent: &Agent) -> [Pid; 2] {
    [agent.outer_pid(), agent.agent_pid().unwrap()]
}

#[test]
fn no_process_remains_whenever_the_outer_process_or_the_agent_is_killed() {
    for round in 0..scaled(24, 200) {
        let mut agent = start("2", SPAWN_CHILDREN);
        let pause = match round % 4 {
            // In one of four rounds, all workers have started before the kill.
            0 => {
                agent.wait_for_lines("ready", 2);
                0
            }
            // In the other rounds, the kill happens up to 30 ms after the start of the outer process.
            _ => random() % 30_000,
        };
        // The random pause varies how much of the node has started.
        std::thread::sleep(Duration::from_micros(pause));
        let (victim, process) = match random() % 2 {
            0 => (agent.agent_pid(), "the agent"),
            _ => (None, "the outer process"),
        };
        let _ = kill_process(victim.unwrap_or(agent.outer_pid()), Signal::KILL);
        let mark = agent.mark();
        agent.wait();
        assert_no_process_left(&mark, &format!("round {round}: {process} was killed after {pause} µs"));
    }
}

/// Returns the name of a process. `pkill` and `killall` compare this name with their argument.
fn process_name(pid: Pid) -> String {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Kills the processes of a job that `is_victim` selects, and checks that no process remains. The outer process must
/// be among the victims, and the agent must not.
fn kill_matching(what: &str, is_victim: impl Fn(Pid, &str) -> bool) {
    let agent = start("2", &format!(": a_word_of_the_script; {SPAWN_CHILDREN}"));
    agent.wait_for_lines("ready", 2);
    let marked_processes = marked_processes(&agent.mark()).into_iter();
    let victims: Vec<Pid> =
        marked_processes.filter(|(pid, line)| is_victim(*pid, line)).map(|(pid, _)| pid).collect();
    let [outer, agent_pid] = both_pids(&agent);
    assert!(victims.contains(&outer), "{what}: {:#?}", process_lines(&agent.mark()));
    assert!(!victims.contains(&agent_pid), "{what}: {:#?}", process_lines(&agent.mark()));
    kill_together(&victims);
    assert_no_process_left(&agent.mark(), what);
}

/// Kills the processes that `pkill -9 -f train.py`, `pkill -9 -f rallypoint` and `pkill -9 rallypoint` would kill. A
/// word of the workers' shell script stands for `train.py`.
#[test]
fn no_process_remains_after_pkill_by_name_or_command_line() {
    kill_matching("the script in the command line", |_, line| line.contains("a_word_of_the_script"));
    kill_matching("the program in the command line", |_, line| line.contains("rallypoint"));
    kill_matching("the program's name", |pid, _| process_name(pid).contains("rallypoint"));
}

#[test]
fn workers_die_when_the_outer_process_and_the_agent_are_killed_together() {
    let agent = start("3", "echo ready; exec sleep 600");
    agent.wait_for_lines("ready", 3);
    kill_together(&both_pids(&agent));
    assert_no_process_left(&agent.mark(), "the outer process and the agent were killed");
}

#[test]
fn an_unhandled_signal_ends_the_agent_and_all_of_its_processes() {
    let agent = start("2", SPAWN_CHILDREN);
    agent.wait_for_lines("ready", 2);
    agent.signal(Signal::USR1);
    let mark = agent.mark();
    let ended = agent.ended();
    let status = std::os::unix::process::ExitStatusExt::signal(&ended.status);
    assert_eq!(status, Some(Signal::USR1.as_raw()));
    assert_eq!(
        ended.err,
        "rallypoint run: the agent was killed by SIGUSR1, so its workers were killed as well\n"
    );
    assert_no_process_left(&mark, "SIGUSR1");
}

#[test]
fn an_agent_started_with_sigchld_ignored_still_gets_the_exit_code_of_its_worker() {
    let script = r#"trap '' CHLD; exec "$0" run --standalone --no-python sh -c 'exit 3'"#;
    let ended = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_rallypoint")])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && stderr.contains("exitcode  : 3"), "{stderr}");
    assert!(!stderr.contains("cannot start"), "{stderr}");
}

#[test]
fn processes_that_a_worker_started_end_with_a_successful_job() {
    let agent = start("2", "(setsid sleep 600 &) ; sleep 600 & exit 0");
    let mark = agent.mark();
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    assert_eq!(process_lines(&mark), [] as [String; 0]);
}

#[test]
fn processes_that_a_failed_worker_started_end_before_the_restart() {
    let script = r#"
        [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && { cat "$PIDFILE" | xargs -n 1 ps -o pid= -p; exit 0; }
        setsid sleep 600 & echo $! > "$PIDFILE"; exit 1
    "#;
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--standalone", "--max-restarts", "1", "--no-python", "sh", "-c", script];
    let agent = Agent::start_with(&arguments, &[("PIDFILE", &dir.path().join("pid"))]);
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    assert_eq!(ended.out.trim(), "", "a process of the first start still runs");
}

#[test]
fn processes_that_a_shell_started_before_it_executed_the_agent_are_not_killed() {
    let script = r#"sleep 600 >/dev/null 2>&1 & echo $!; exec "$0" run --standalone --no-python sh -c '(setsid sleep 600 &); exit 0'"#;
    let mark = format!("{:016x}", random());
    let shell = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_rallypoint")])
        .env(crate::agent_process::MARK, &mark)
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&shell.stderr);
    assert!(shell.status.success(), "{err}");
    let pid = String::from_utf8(shell.stdout).unwrap().trim().parse().unwrap();
    let lines = process_lines(&mark);
    let shell_child = rustix::process::Pid::from_raw(pid).unwrap();
    let lives = kill_process(shell_child, Signal::KILL).is_ok();
    assert!(lives, "the background process of the shell was killed: {err}");
    assert_eq!(lines.len(), 1, "only the background process of the shell may be left: {lines:?}");
}
