//! The two processes of a node. They make sure that no process of a worker is left behind, however the agent dies.
//!
//! | process | purpose |
//! |---|---|
//! | the outer process | The command that the user started. It forwards signals and the exit code. |
//! | the agent | Its child, which joins the rendezvous and runs the workers. |
//!
//! Both processes are child subreapers (`PR_SET_CHILD_SUBREAPER`), so every process that a worker starts stays below
//! them, whatever sessions and parents it has. If one of the two processes is killed, the other one kills all of its
//! own descendants and removes the node from its rendezvous. The other nodes then re-form without waiting for missing
//! heartbeats.
//!
//! Users end jobs with `pkill -9 rallypoint` or `pkill -9 -f train.py`. The agent survives that: its command line is
//! `agent-of:PID:…`, which contains neither the name of the program nor the user's arguments. The agent reads the
//! arguments from the command line of its parent. If both processes are killed at the same moment, the workers still
//! die with the thread that started them (`PR_SET_PDEATHSIG`). Only processes that the workers have started are left
//! behind, because the kernel can't kill them as well.

mod descendants;
mod fence;
mod outer;

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rallypoint_rendezvous::Departure;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, set_child_subreaper, wait,
};

use descendants::{Process, descendants_except};
pub(crate) use descendants::{descendants, send};
pub(crate) use fence::{FenceFile, has_passed};
pub use outer::reaches_agent;

use crate::logs::{random_suffix, remove_unused};

/// The prefix of the agent's `argv[0]`. The process id of the outer process and the suffix of the temporary directory
/// follow.
const AGENT_PREFIX: &str = "agent-of:";
/// The prefix of `argv[0]` of an agent whose outer process has exited, so that the agent cleans up. The process id of
/// the agent and the same suffix follow.
const CLEANUP_PREFIX: &str = "cleanup-of:";
/// How long killed processes may take to exit.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Interval between two searches for remaining processes.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);

/// The agent's directory for temporary files, whose name the outer process knows. Set in the agent only.
static TEMPORARY_DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Starts the agent and returns its exit code after it has exited. In the agent, returns `None`. `report` is called
/// with errors, for example if the agent was killed. It must not panic, and its own errors must not change the exit
/// code.
///
/// The agent runs the same program with the same arguments, so it calls this function, too. Call it while the process
/// has only one thread.
///
/// `has_fence` says that the agent may have a lease, so that this process kills the workers at the end of the lease.
pub fn start_agent(has_fence: bool, report: impl Fn(&str)) -> Option<ExitCode> {
    if is_agent() {
        return None;
    }
    let suffix = random_suffix().unwrap_or_default();
    let agent = this_program(AGENT_PREFIX, &suffix);
    Some(outer::run(agent, &directory_path(&suffix), has_fence, report))
}

/// Returns whether this process is an agent that [`start_agent`] has started.
pub fn is_agent() -> bool {
    TEMPORARY_DIRECTORY.get().is_some()
}

/// Returns the command line that the user typed. If this process is an agent, first starts the thread that watches the
/// outer process. If this process was started to clean up, cleans up and returns its exit code as an error.
pub(crate) fn enter(line: Vec<OsString>) -> Result<Vec<OsString>, ExitCode> {
    let name = line.first().map(OsString::as_os_str).unwrap_or_default();
    if let Some((_, suffix)) = parse_name(CLEANUP_PREFIX, name) {
        clean_up(&directory_path(&suffix));
        return Err(ExitCode::FAILURE);
    }
    let Some((outer, suffix)) = parse_name(AGENT_PREFIX, name) else { return Ok(line) };
    let line = command_line(outer);
    watch_outer(outer, suffix);
    Ok(line)
}

/// Returns a command that starts this program again. Its `argv[0]` consists of `prefix`, the id of this process and
/// `suffix`.
fn this_program(prefix: &str, suffix: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(format!("{prefix}{}:{suffix}", getpid().as_raw_nonzero()));
    command
}

fn parse_name(prefix: &str, name: &OsStr) -> Option<(Pid, String)> {
    let (pid, suffix) = name.to_str()?.strip_prefix(prefix)?.split_once(':')?;
    Some((pid.parse().ok().and_then(Pid::from_raw)?, suffix.to_owned()))
}

/// Returns the command line of a process.
fn command_line(pid: Pid) -> Vec<OsString> {
    split_arguments(&std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default())
}

/// Splits a command line, in which each argument ends with a zero byte.
fn split_arguments(line: &[u8]) -> Vec<OsString> {
    let line = line.strip_suffix(&[0]).unwrap_or(line);
    line.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect()
}

/// Makes the agent clean up and exit when the outer process exits.
fn watch_outer(pid: Pid, suffix: String) {
    let _ = TEMPORARY_DIRECTORY.set(directory_path(&suffix));
    let opened = pidfd_open(pid, PidfdFlags::empty());
    // While the outer process is the parent, its id can't have been reused, so the handle belongs to the outer process.
    let (Ok(outer), true) = (opened, getppid() == Some(pid)) else { std::process::exit(1) };
    // If this call fails, processes that detach themselves from their parents are left behind. All other
    // descendants are still found and killed.
    let _ = set_child_subreaper(Some(getpid()));
    let watch = std::thread::Builder::new().name("guard".into());
    if watch.spawn(move || clean_up_after(&outer, &suffix)).is_err() {
        std::process::exit(1);
    }
}

/// Waits until the outer process exits, and then replaces this process by one that cleans up. That ends all threads of
/// the agent, so none of them starts a process, renews a heartbeat or reports the killed workers as failures.
fn clean_up_after(outer: &OwnedFd, suffix: &str) -> ! {
    while !matches!(poll(&mut [PollFd::new(outer, PollFlags::IN)], None), Ok(1..)) {}
    let _ = this_program(CLEANUP_PREFIX, suffix).exec();
    clean_up(&directory_path(suffix));
    std::process::exit(1)
}

/// Kills all descendants of this process, removes the node from its rendezvous and deletes the agent's files.
fn clean_up(directory: &Path) {
    kill_all(&[]);
    leave_rendezvous(directory);
    remove_files(directory);
}

/// Deletes the files that an agent with this temporary directory may have left.
fn remove_files(directory: &Path) {
    remove_unused(directory);
    let _ = std::fs::remove_file(timer_pipe_path(directory));
    let _ = std::fs::remove_file(departure_path(directory));
    let _ = std::fs::remove_file(fence::fence_path(directory));
}

fn timer_pipe_path(directory: &Path) -> PathBuf {
    sibling_path(directory, "watchdog_timer_")
}

/// Returns the path of the file with the [`Departure`] of this node.
fn departure_path(directory: &Path) -> PathBuf {
    sibling_path(directory, "rallypoint_departure_")
}

fn sibling_path(directory: &Path, prefix: &str) -> PathBuf {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    directory.with_file_name(name.replacen("torchelastic_", prefix, 1))
}

/// Writes the file with which another process can remove the node from its rendezvous.
pub(crate) fn prepare_departure(departure: &Departure) {
    let Some(path) = temporary_directory().map(departure_path) else { return };
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(serde_json::to_string(departure)?.as_bytes())
    };
    if let Err(error) = write() {
        // Without the file, the other nodes notice the loss of a killed agent only by its missing heartbeats.
        tracing::debug!("cannot write {}: {error}", path.display());
    }
}

/// Removes the node of the agent with this temporary directory from its rendezvous, if it is in one. All descendants of
/// the agent must have exited.
fn leave_rendezvous(directory: &Path) {
    let Ok(text) = std::fs::read_to_string(departure_path(directory)) else { return };
    if let Ok(departure) = serde_json::from_str::<Departure>(&text) {
        // Ignore errors: the store may have been lost with the agent, and this process has no log. The other nodes then
        // remove the node when they receive no heartbeats from it.
        let _ = departure.leave();
    }
}

/// Returns the path of the agent's pipe for timers, which is deleted however the agent ends.
pub(crate) fn timer_pipe() -> Option<PathBuf> {
    temporary_directory().map(timer_pipe_path)
}

/// Returns the path of the temporary directory with this suffix. The name is torch's.
fn directory_path(suffix: &str) -> PathBuf {
    std::env::temp_dir().join(format!("torchelastic_{suffix}"))
}

/// Returns the agent's directory for temporary files. If it is empty, it is deleted however the agent ends.
pub(crate) fn temporary_directory() -> Option<&'static Path> {
    TEMPORARY_DIRECTORY.get().map(PathBuf::as_path)
}

/// Kills all descendants of this process except `excluded` and their descendants, until none is left or `KILL_GRACE`
/// has passed. Returns whether none is left.
fn kill_all(excluded: &[Process]) -> bool {
    let start = Instant::now();
    let mut was_empty = false;
    loop {
        let has_no_child = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break false,
                Err(error) => break error == rustix::io::Errno::CHILD,
            }
        };
        let found = descendants_except(getpid(), excluded);
        // If children are excluded, `wait` can't report that no other child is left. Then two consecutive searches
        // must find nothing.
        let is_empty = found.is_empty() && !excluded.is_empty();
        if has_no_child || (was_empty && is_empty) {
            return true;
        }
        was_empty = is_empty;
        if start.elapsed() > KILL_GRACE {
            return false;
        }
        found.iter().for_each(|process| send(process, Signal::KILL));
        std::thread::sleep(SEARCH_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_a_process_is_read_unchanged() {
        let line: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(command_line(getpid()), line);
        let expected =
            ["name".into(), "run".into(), "".into(), "a b\n".into(), OsString::from_vec(vec![0xff])];
        assert_eq!(split_arguments(b"name\0run\0\0a b\n\0\xff\0"), expected);
    }

    #[test]
    fn a_process_that_the_user_started_keeps_its_command_line() {
        let line: Vec<OsString> = ["rallypoint", "run", "agent-of:7:x"].map(OsString::from).into();
        assert_eq!(enter(line.clone()).unwrap(), line);
        for name in ["rallypoint", "agent-of:", "agent-of:x:y", "agent-of:0:y"] {
            assert!(parse_name(AGENT_PREFIX, OsStr::new(name)).is_none(), "{name}");
        }
    }
}
