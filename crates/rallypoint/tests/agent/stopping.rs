//! An agent on one node stops and restarts its workers, and handles signals.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rallypoint_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::agent_process::Agent;

fn standalone<'a>(more: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["--standalone"], more, &["--no-python", "sh", "-c", script]].concat()
}

#[test]
fn a_failed_worker_is_restarted_until_the_restart_budget_is_used_up() {
    let script = "echo start $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; exit 3";
    let ended = Agent::start(&standalone(&["--max-restarts", "2"], script)).ended();
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(ended.out.lines().collect::<Vec<_>>(), ["start 0 of 2", "start 1 of 2", "start 2 of 2"]);
    assert!(ended.err.contains("exitcode  : 3"), "{}", ended.err);
}

#[test]
fn all_workers_restart_when_one_fails() {
    let script = r#"echo "$RANK $TORCHELASTIC_RESTART_COUNT"
        [ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ] && kill -9 $$$$
        [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exec sleep 600"#;
    let ended = Agent::start(&standalone(&["--nproc-per-node", "3", "--max-restarts", "1"], script)).ended();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    let mut lines: Vec<_> = ended.out.lines().filter(|line| line.ends_with('1')).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 1", "1 1", "2 1"]);
}

#[test]
fn a_slow_worker_does_not_use_up_the_grace_of_other_workers() {
    // The worker of rank 0 ignores SIGTERM, so the agent kills it after its grace of 5 s. The other two workers need
    // 3 s each to exit. If the agent stopped the workers one after the other within a common grace, it would kill
    // these two as well.
    let script = r#"
        if [ "$RANK" = 0 ]; then trap '' TERM; else trap 'sleep 3; echo "$RANK ended well"; exit 0' TERM; fi
        echo ready; while :; do sleep 0.05; done"#;
    let agent = Agent::start(&standalone(&["--nproc-per-node", "3", "--shutdown-timeout", "5"], script));
    agent.wait_for_lines("ready", 3);
    agent.signal(Signal::TERM);
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(ended.out.contains("1 ended well") && ended.out.contains("2 ended well"), "{}", ended.out);
    assert_eq!(ended.err.matches("via SIGKILL").count(), 1, "{}", ended.err);
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_after_its_grace_and_not_before() {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let agent = Agent::start(&standalone(&["--shutdown-timeout", "2"], script));
    agent.wait_for_lines("ready", 1);
    let start = Instant::now();
    agent.signal(Signal::TERM);
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(ended.err.contains("SIGKILL"), "{}", ended.err);
}

#[test]
fn workers_get_the_signal_that_the_agent_got() {
    for (signal, name) in [(Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")] {
        let script =
            format!("trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.05; done");
        let agent = Agent::start(&standalone(&[], &script));
        agent.wait_for_lines("ready", 1);
        agent.signal(signal);
        let ended = agent.ended();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
        assert!(ended.out.contains(&format!("got {name}")), "{}", ended.out);
    }
}

#[test]
fn a_second_signal_kills_all_workers_immediately() {
    let script = "trap '' TERM INT; echo ready; while :; do sleep 0.05; done";
    let agent = Agent::start(&standalone(&["--shutdown-timeout", "600"], script));
    agent.wait_for_lines("ready", 1);
    agent.signal(Signal::TERM);
    eventually("the agent passes the signal on", || agent.err().contains("closing signal SIGTERM"));
    agent.signal(Signal::INT);
    let mark = agent.mark();
    let ended = agent.ended();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
    assert_eq!(crate::agent_process::process_lines(&mark), [] as [String; 0]);
}

#[test]
fn a_signal_sent_to_both_processes_or_twice_within_a_second_leaves_workers_their_grace() {
    // Systemd and Slurm send SIGTERM to the outer process and to the agent. `timeout` sends it to the outer process
    // twice.
    for to_both in [true, false] {
        let script = r#"trap 'sleep 0.5; echo "$RANK ended well"; exit 0' TERM; echo ready; while :; do sleep 0.05; done"#;
        let agent = Agent::start(&standalone(&["--nproc-per-node", "2"], script));
        agent.wait_for_lines("ready", 2);
        let agent_pid = agent.agent_pid().unwrap();
        agent.signal(Signal::TERM);
        match to_both {
            true => rustix::process::kill_process(agent_pid, Signal::TERM).unwrap(),
            false => {
                let is_handled = || agent.err().contains("closing signal SIGTERM");
                eventually("the agent has handled the first signal", is_handled);
                agent.signal(Signal::TERM);
            }
        }
        let ended = agent.ended();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.err);
        assert!(ended.out.contains("0 ended well") && ended.out.contains("1 ended well"), "{}", ended.out);
        assert!(!ended.err.contains("SIGKILL"), "{}", ended.err);
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_named_and_not_retried() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("script");
    std::fs::write(&path, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = path.to_str().unwrap();
    let arguments = ["--standalone", "--max-restarts", "5", "--nproc-per-node", "3", "--no-python", program];
    let ended = Agent::start(&arguments).ended();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.err.contains(program) && ended.err.contains("No such file"), "{}", ended.err);
    assert!(!ended.err.contains("restarting the workers"), "{}", ended.err);
}

#[test]
fn an_agent_started_by_nohup_ignores_sighup() {
    let script = "echo ready; sleep 1; echo done";
    let mut arguments = vec!["-c", r#"trap '' HUP; exec "$0" run "$@""#, env!("CARGO_BIN_EXE_rallypoint")];
    arguments.extend(standalone(&[], script));
    let mut child = std::process::Command::new("sh")
        .args(arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::HUP).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "done");
    assert!(child.wait().unwrap().success());
}

#[test]
fn signals_to_handle_adds_signals_that_the_agent_passes_on() {
    for signal in [Signal::ABORT, Signal::USR1, Signal::URG] {
        let script =
            r#"trap 'echo ended well; exit 0' ABRT USR1 URG; echo ready; while :; do sleep 0.05; done"#;
        let names = "SIGABRT,SIGUSR1,SIGURG";
        let agent = Agent::start(&standalone(&["--signals-to-handle", names], script));
        agent.wait_for_lines("ready", 1);
        agent.signal(signal);
        let ended = agent.ended();
        assert_eq!(ended.status.code(), Some(1), "{signal:?}: {}", ended.err);
        assert!(ended.out.contains("ended well"), "{signal:?}: {}", ended.err);
    }
}

/// A shell without job control starts background processes with SIGINT and SIGQUIT ignored.
#[test]
fn sigint_ends_an_agent_that_was_started_with_sigint_ignored() {
    let script = "trap '' INT QUIT; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_rallypoint"), "run"]);
    shell.args(standalone(
        &[],
        "trap 'echo ended well; exit 0' INT; echo ready; while :; do sleep 0.05; done",
    ));
    let mut agent = shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(agent.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    kill_process(Pid::from_child(&agent), Signal::INT).unwrap();
    assert_eq!(lines.next().as_deref(), Some("ended well"));
    assert_eq!(agent.wait().unwrap().code(), Some(1));
}

#[test]
fn an_event_log_without_a_reader_does_not_block_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let (unread, mut full) = std::io::pipe().unwrap();
    full.write_all(&[b'x'; 65_536]).unwrap();
    let script = format!("echo start >> {}; exit 3", starts.display());
    let mut agent = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    agent.arg("run").args(standalone(&["--event-log", "-", "--max-restarts", "2"], &script));
    let mut agent = agent.stdout(Stdio::null()).stderr(full).spawn().unwrap();
    eventually("the agent starts its worker three times", || {
        std::fs::read_to_string(&starts).is_ok_and(|text| text.lines().count() == 3)
    });
    drop(unread);
    assert_eq!(agent.wait().unwrap().code(), Some(1));
}
