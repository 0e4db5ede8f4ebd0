//! The disk of the log files or of the event log is full. The job continues, and one warning and the end report name
//! what was lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rallypoint_testkit::eventually;
use serde_json::Value;
use tempfile::TempDir;

use crate::agent_process::{Agent, AgentOutput};

/// A small file system that only the agent and its workers see.
struct Disk {
    dir: TempDir,
    /// The command that mounts the file system and then executes the arguments that follow it.
    mount_command: Vec<String>,
}

impl Disk {
    /// Prepares a tmpfs with these mount options. Returns `None` if this machine does not allow the test to mount it.
    fn new(options: &str) -> Option<Disk> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        let mount = format!("mount -t tmpfs -o {options} none {}/logs && exec \"$@\"", dir.path().display());
        let unshare: [&[&str]; 2] =
            [&["unshare", "--mount"], &["unshare", "--mount", "--user", "--map-root-user"]];
        let found = unshare.into_iter().find_map(|unshare| {
            let words = [unshare, &["sh", "-c", &mount, "sh"]].concat();
            let words: Vec<_> = words.into_iter().map(String::from).collect();
            let can_mount = Command::new(&words[0]).args(&words[1..]).arg("true").output();
            can_mount.is_ok_and(|done| done.status.success()).then_some(words)
        });
        if found.is_none() {
            println!("skipped: this machine does not allow the test to mount a file system");
        }
        Some(Disk { dir, mount_command: found? })
    }

    /// Returns a path outside of the small file system.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts an agent whose log directory is on the small file system. `DIR` in the script stands for the parent of
    /// that directory.
    fn start(&self, flags: &[&str], script: &str) -> Agent {
        let dir = self.dir.path().to_str().unwrap();
        let (logs, report) = (format!("{dir}/logs"), format!("{dir}/report"));
        let script = script.replace("DIR", dir);
        let usual = ["--standalone", "--log-dir", &logs, "--end-report", &report];
        let command = ["--no-python", "sh", "-c", &script];
        let before: Vec<&str> = self.mount_command.iter().map(String::as_str).collect();
        Agent::start_through(&before, &[&usual[..], flags, &command].concat())
    }

    fn report(&self) -> Value {
        read(&self.path("report"))
    }
}

fn read(report: &Path) -> Value {
    serde_json::from_slice(&fs::read(report).unwrap()).unwrap()
}

/// Checks that the job has succeeded, and that exactly one warning and one entry of the end report contain `what`.
fn assert_reported(ended: &AgentOutput, report: &Value, what: &str) {
    assert_eq!(ended.status.code(), Some(0), "{}", ended.err);
    let warnings: Vec<_> =
        ended.err.lines().filter(|line| line.contains(" WARN ") && !is_restart_warning(line)).collect();
    assert!(warnings.len() == 1 && warnings[0].contains(what), "{what:?} in {warnings:?}");
    let errors = report["log_errors"].as_array().unwrap();
    assert!(errors.len() == 1 && errors[0].as_str().unwrap().contains(what), "{what:?} in {report}");
}

/// Returns whether the line is the warning about a restart, which does not count as a report of a full disk.
fn is_restart_warning(line: &str) -> bool {
    line.contains("restarting the workers")
}

#[test]
fn an_event_log_that_cannot_be_written_is_reported_once_and_the_job_continues() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let flags = ["--standalone", "--event-log", "/dev/full", "--end-report", report.to_str().unwrap()];
    let ended =
        Agent::start(&[&flags[..], &["--nproc-per-node", "1", "--no-python", "true"]].concat()).ended();
    assert_reported(
        &ended,
        &read(&report),
        "cannot write the event log \"/dev/full\": No space left on device",
    );
}

#[test]
fn a_disk_that_workers_have_filled_is_reported_while_the_workers_run() {
    let Some(disk) = Disk::new("size=64k") else { return };
    let script = "head -c 200000 /dev/zero; while [ ! -e DIR/go ]; do sleep 0.02; done";
    let agent = disk.start(&["--redirects", "3"], script);
    eventually("the full disk is reported", || agent.err().contains("is full"));
    fs::write(disk.path("go"), "").unwrap();
    assert_reported(&agent.ended(), &disk.report(), "is full; workers lose output that they write there");
}

#[test]
fn workers_that_restart_on_a_full_disk_have_their_output_passed_through() {
    let Some(disk) = Disk::new("size=64k") else { return };
    let script = "echo start $TORCHELASTIC_RESTART_COUNT; echo and on standard error >&2
        if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then head -c 200000 /dev/zero; exit 1; fi";
    for flag in ["--redirects", "--tee"] {
        let ended = disk.start(&[flag, "3", "--max-restarts", "1"], script).ended();
        assert_reported(&ended, &disk.report(), "is full");
        assert!(ended.out.lines().any(|line| line == "start 1"), "{}", ended.out);
        assert!(ended.err.lines().any(|line| line == "and on standard error"), "{}", ended.err);
    }
}

#[test]
fn workers_restart_although_their_log_directory_cannot_be_created() {
    let Some(disk) = Disk::new("size=1m,nr_inodes=20") else { return };
    let script = "echo start $TORCHELASTIC_RESTART_COUNT
        if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then while touch DIR/logs/$((i += 1)); do :; done; exit 1; fi";
    let ended = disk.start(&["--max-restarts", "1"], script).ended();
    assert_reported(&ended, &disk.report(), "attempt_1\": No space left on device");
    assert!(ended.out.lines().any(|line| line == "start 1"), "{}", ended.out);
}

#[test]
fn a_job_starts_on_a_full_disk() {
    let Some(disk) = Disk::new("size=1m,nr_inodes=1") else { return };
    let ended = disk.start(&["--redirects", "3"], "echo it runs").ended();
    assert_reported(&ended, &disk.report(), "No space left on device");
    assert_eq!(ended.out, "it runs\n");
}
