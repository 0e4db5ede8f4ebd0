//! The outer process: starts the agent, forwards signals to it, kills the processes that it leaves behind, and exits
//! with its exit code.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, set_child_subreaper,
    waitpid,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::fence::Fence;
use super::{descendants, kill_all, leave_rendezvous, remove_files};
use crate::signal_name::signal_name;
use crate::signals;

/// The signals that the outer process forwards. The agent decides how to handle them.
const FORWARDED_SIGNALS: [Signal; 16] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::ABORT,
    Signal::URG,
    Signal::WINCH,
];

/// Returns whether the outer process forwards this signal to the agent.
pub fn reaches_agent(signal: i32) -> bool {
    FORWARDED_SIGNALS.iter().any(|forwarded| forwarded.as_raw() == signal)
}

/// Runs the agent until it exits, cleans up after it, and returns its exit code. If a signal killed the agent, this
/// process ends with the same signal. `directory` is the agent's directory for temporary files, and `report` shows an
/// error to the user.
pub(super) fn run(agent: Command, directory: &Path, has_fence: bool, report: impl Fn(&str)) -> ExitCode {
    // A shell that became this process with `exec` may have started children before. They are not part of this job.
    let existing = descendants(getpid());
    match watch(agent, has_fence.then(|| Fence::new(directory))) {
        Ok(status) => {
            if !kill_all(&existing) {
                report("some processes of the workers could not be killed");
            }
            if status.signaled() {
                leave_rendezvous(directory);
            }
            remove_files(directory);
            if let Some(signal) = status.terminating_signal() {
                let signal = signal_name(signal).unwrap_or("a signal");
                report(&format!("the agent was killed by {signal}, so its workers were killed as well"));
            }
            exit_like(status)
        }
        Err(error) => {
            report(&format!("cannot run the agent: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Starts the agent, forwards signals to it, kills its workers at the end of its lease, and returns its exit status.
fn watch(mut agent: Command, mut fence: Option<Fence>) -> std::io::Result<WaitStatus> {
    set_child_subreaper(Some(getpid()))?;
    let mut caught: Vec<(Signal, UnixStream)> = Vec::new();
    for signal in FORWARDED_SIGNALS {
        if let Some(stream) = signals::catch(signal.as_raw())? {
            caught.push((signal, stream));
        }
    }
    // Install a handler for SIGCHLD. The parent of this process may have ignored SIGCHLD, and a process inherits that.
    // The kernel discards the exit codes of children if SIGCHLD is ignored.
    let _child_ended = signals::register(signal_hook::consts::SIGCHLD)?;
    // The agent has its own process group, so the terminal sends signals only to this process, which forwards them.
    let pid = Pid::from_child(&agent.process_group(0).spawn()?);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    // The clock of this timer also counts the time for which the machine is suspended. `poll` waits longer then.
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    loop {
        if let Some(fence) = &mut fence {
            let it_value = Timespec::try_from(fence.check(pid)).unwrap_or_default();
            let time = Itimerspec { it_interval: Timespec::default(), it_value };
            timerfd_settime(&timer, TimerfdTimerFlags::empty(), &time)?;
        }
        let mut watched: Vec<_> = [ended.as_fd(), timer.as_fd()]
            .into_iter()
            .chain(caught.iter().map(|(_, stream)| stream.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (signal, stream) in &mut caught {
            let mut bytes = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                // Ignore errors, because the agent may have exited.
                let _ = (0..count).try_for_each(|_| kill_process(pid, *signal));
            }
        }
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the agent's exit code. If a signal killed the agent, kills this process with the same signal instead.
fn exit_like(status: WaitStatus) -> ExitCode {
    if let Some(signal) = status.terminating_signal() {
        if signal == Signal::KILL.as_raw() {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return ExitCode::from(128u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.exit_status().unwrap_or(1) as u8)
}
