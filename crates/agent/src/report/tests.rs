//! Tests of the reports, which are compared with torch's line by line.

use std::time::Duration;

use super::*;
use crate::environment::tests::config;

pub(crate) fn failure(rank: u64, exit: Exit) -> Failure {
    Failure {
        host: "localhost".into(),
        group_rank: 0,
        role: "default".into(),
        rank,
        local_rank: rank as u32,
        pid: 100 + rank as u32,
        exit,
        timestamp: 1000 + rank as i64,
        ran: 1.25,
        restart: 1,
        error_file: None,
        message: exit.message(100 + rank as u32),
        last_lines: vec![],
        shown: false,
    }
}

/// Returns the lines of the report that torch's report has, too.
fn torch_lines(report: &str) -> Vec<&str> {
    let ours = ["  node  ", "  ran  ", "  restart ", "  stderr ", "    "];
    report.lines().filter(|line| !ours.iter().any(|start| line.starts_with(start))).collect()
}

#[test]
fn one_failure_is_reported_in_torchs_format() {
    let report = failure_report("fail.py", &[failure(0, Exit::Code(3))], None, 0);
    let time = local_time(1000);
    let expected = format!(
        "
============================================================
fail.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : {time}
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 3 (pid: 100) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"
    );
    assert_eq!(torch_lines(&report), expected.lines().collect::<Vec<_>>());
}

#[test]
fn the_earliest_failure_is_the_root_cause_and_signals_have_names() {
    let mut failures = vec![failure(1, Exit::Signal(15)), failure(0, Exit::Signal(9))];
    failures[1].message = "Trace\nline".into();
    let report = failure_report("x", &failures, None, 2);
    let lines = torch_lines(&report);
    let cause = lines.iter().position(|line| line.starts_with("Root Cause")).unwrap();
    assert_eq!(lines[5], "[0]:");
    assert_eq!(lines[9], "  exitcode  : -15 (pid: 101)  (SIGTERM)");
    assert_eq!(lines[11], "  traceback : Signal 15 (SIGTERM) received by PID 101");
    assert_eq!(lines[cause + 1], "[1]:");
    assert_eq!(lines[cause + 5], "  exitcode  : -9 (pid: 100)  (SIGKILL)");
    assert_eq!(lines[cause + 7..cause + 9], ["  traceback : Trace", "  line"]);
    // The border is as wide as the widest line, which names the signal.
    assert_eq!(lines[1], "=".repeat(lines[11].len()));
}

#[test]
fn the_report_has_extra_fields_and_escapes_control_characters() {
    let mut failed = failure(0, Exit::Code(1));
    failed.last_lines = vec!["ValueError: \u{1b}[31mx".into(), "\tend".into()];
    let report = failure_report("x", &[failed], None, 3);
    for line in [
        "  node      : 0 (role: default)",
        "  ran       : 1.250 s",
        "  restart   : 1 of 3",
        "    ValueError: \\u{1b}[31mx",
        "    \tend",
    ] {
        assert!(report.lines().any(|found| found == line), "{line:?} in {report}");
    }
}

#[test]
fn a_traceback_is_reported_once_and_not_at_all_if_the_console_has_shown_it() {
    let trace = "Traceback (most recent call last):\n  File \"x\"\nValueError: boom";
    let mut failed = failure(0, Exit::Code(1));
    failed.last_lines = trace.lines().map(String::from).collect();
    let report = |failed: &Failure| failure_report("x", std::slice::from_ref(failed), None, 0);
    let count = |text: &str, what: &str| text.matches(what).count();

    // Only standard error contains the traceback.
    let in_a_file = report(&failed);
    assert_eq!((count(&in_a_file, "boom"), count(&in_a_file, "its last lines")), (1, 1), "{in_a_file}");
    failed.shown = true;
    let on_the_console = report(&failed);
    assert_eq!(
        (count(&on_the_console, "boom"), count(&on_the_console, "last lines")),
        (0, 0),
        "{on_the_console}"
    );

    // The error file also contains the traceback.
    (failed.message, failed.shown) = (trace.into(), false);
    let recorded = report(&failed);
    assert_eq!((count(&recorded, "Traceback (most"), count(&recorded, "boom")), (1, 1), "{recorded}");
    failed.shown = true;
    let recorded = report(&failed);
    assert!(
        recorded.contains("  traceback : ValueError: boom (the traceback is in the output above)\n"),
        "{recorded}"
    );
    assert!(!recorded.contains("Traceback (most"), "{recorded}");

    // Standard error contains other lines, so the report has both.
    (failed.last_lines, failed.shown) = (vec!["other words".into()], false);
    let recorded = report(&failed);
    assert!(recorded.contains("Traceback (most") && recorded.contains("    other words"), "{recorded}");

    // A line that was cut is recognized by its start.
    failed.message = format!("Traceback\nOutOfMemoryError: {}", "x".repeat(1000));
    (failed.last_lines, failed.shown) = (vec![format!("OutOfMemoryError: {}…", "x".repeat(100))], true);
    assert!(report(&failed).contains("(the traceback is in the output above)"));
}

#[test]
fn a_job_that_another_node_ended_without_a_reason_names_the_suspects() {
    let node = |n: u32| format!("node {n} (10.0.0.{n}, pid 7)");
    for (suspects, text) in [
        (vec![], "the job was ended by another node which did not report why"),
        (
            vec![node(1)],
            "the job was ended by another node, node 1 (10.0.0.1, pid 7), which did not report why",
        ),
        (
            vec![node(1), node(2)],
            "the job was ended by another node, one of node 1 (10.0.0.1, pid 7), node 2 (10.0.0.2, pid 7), which did not \
             report why",
        ),
    ] {
        let outcome = Outcome {
            verdict: Verdict::FailedElsewhere,
            error: None,
            // This worker failed while the job was ending, so it is not the cause.
            failures: vec![failure(0, Exit::Code(1))],
            first_failure: None,
            suspects,
            closing: None,
            last_exit: None,
            restarts: 0,
            starts: 1,
            group: Some((0, 2)),
            world: Some((0, 2)),
            log_errors: vec![],
            ran: Duration::from_secs(1),
        };
        let report = end_report(&config(1), &outcome);
        assert_eq!((&report["result"], &report["cause"]), (&"failed_elsewhere".into(), &text.into()));
        assert_eq!(report["first_failure"], Value::Null);
        let closing = "n0 (pid 7) closed the job at noon: worker 0 (rank 3) exited with code 1";
        let outcome = Outcome { closing: Some(closing.into()), ..outcome };
        assert_eq!(ended_elsewhere(&outcome), format!("the job has ended: {closing}"));
    }
}

#[test]
fn the_cause_of_an_unhealthy_node_names_the_timeouts() {
    let mut config = config(1);
    assert_eq!(unhealthy_cause(&config), "a process did not exit within 10 s of SIGKILL");
    config.watch.uninterruptible_timeout = Some(Duration::from_millis(2500));
    assert_eq!(
        unhealthy_cause(&config),
        "a worker was in uninterruptible sleep for 2.5 s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT), or a process did \
         not exit within 10 s of SIGKILL"
    );
}

#[test]
fn a_first_failure_on_another_node_is_the_root_cause() {
    let mut first = failure(7, Exit::Code(2));
    first.host = "node9".into();
    let report = failure_report("x", &[failure(0, Exit::Signal(15))], Some(&first), 0);
    let (others, cause) = report.split_once("Root Cause").unwrap();
    assert!(others.contains("SIGTERM") && !others.contains("node9"), "{report}");
    assert!(cause.contains("node9") && cause.contains("exitcode  : 2"), "{report}");
}

#[test]
fn the_end_report_describes_the_outcome() {
    let outcome = Outcome {
        verdict: Verdict::Failed,
        error: None,
        failures: vec![failure(0, Exit::Signal(11))],
        first_failure: Some(failure(0, Exit::Signal(11))),
        last_exit: None,
        suspects: vec![],
        closing: None,
        restarts: 2,
        starts: 3,
        group: Some((0, 1)),
        world: Some((0, 2)),
        log_errors: vec![],
        ran: Duration::from_millis(1500),
    };
    let report = end_report(&config(2), &outcome);
    assert_eq!(report["result"], "failed");
    assert_eq!(report["cause"], "rank 0 on localhost was killed by SIGSEGV");
    assert_eq!(report["first_failure"]["exit"]["signal_name"], "SIGSEGV");
    assert_eq!(report["seconds"], 1.5);
    assert_eq!(
        (&report["exit_code"], &report["restarts"], &report["world_size"]),
        (&1.into(), &2.into(), &2.into())
    );
}
