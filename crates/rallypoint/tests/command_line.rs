//! Tests of the command line as a whole: help, exit codes, and flags that several commands share.

use std::process::{Command, Output, Stdio};

fn rallypoint(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    command.args(arguments).env_remove("RALLYPOINT_LOG").stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_long_help_has_one_table_of_exit_codes() {
    let help = stdout(&rallypoint(&["--help"]));
    let (_, table) = help.split_once("\nExit codes:\n").unwrap();
    for line in [
        "  2      run: wrong usage, except for errors for which torchrun exits with 1",
        "  3      store: the key is absent, or the queue is empty",
        "  3      join: the rendezvous is closed",
        "  128+N  join: signal N ended the node while it waited, or ended the command",
    ] {
        assert!(table.lines().any(|found| found == line), "{line:?} in {table}");
    }
    assert!(!stdout(&rallypoint(&["-h"])).contains("Exit codes:"));
}

#[test]
fn every_command_that_logs_refuses_a_wrong_log_level() {
    for command in [&["run"][..], &["serve"], &["store", "ping"], &["join"], &["bench", "-e", "node0:1"]] {
        let output = rallypoint(&[command, &["--log-level", "loud"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {stderr}");
        assert!(
            stderr.contains("[possible values: off, error, warn, info, debug, trace]"),
            "{command:?}: {stderr}"
        );
    }
}

#[test]
fn the_log_level_flag_wins_over_the_variable() {
    let port = rallypoint_testkit::reserve_port();
    let endpoint = format!("127.0.0.1:{port}");
    for (flag, variable, is_logged) in [("info", "off", true), ("Error", "info", false)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(["store", "-e", &endpoint, "--timeout", "3s", "get", "k", "--log-level", flag]);
        let output = command.env("RALLYPOINT_LOG", variable).stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.contains("INFO connecting to"), is_logged, "{flag}, {variable}: {stderr}");
    }
}

#[test]
fn reference_pages_are_printed_by_a_hidden_command() {
    assert!(!stdout(&rallypoint(&["--help"])).contains("reference"));
    for (page, line) in [
        ("command-line", "## `rallypoint run`"),
        ("environment", "| `PET_NNODES` | `--nnodes` | run, join |"),
        ("exit-codes", "| 2 | run | wrong usage, except for errors for which torchrun exits with 1 |"),
        ("limits", "| limit | default | meaning |"),
        ("rendezvous-options", "| `join_timeout` | `600` | Time that a node tries to join a round. |"),
    ] {
        let text = stdout(&rallypoint(&["reference", page]));
        assert!(text.lines().any(|found| found == line), "{line:?} in {text}");
    }
}
