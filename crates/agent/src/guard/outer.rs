//! What the outer process and the keeper do: start the next one, hand on signals to it and its exit code from it, and kill
//! what it leaves.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, set_child_subreaper,
    waitpid,
};

use super::{PATIENCE, clear_up, depart, descendants, folder, kill_all, starting};
use crate::signals;

/// What would end this process and can be caught, and a little more: the agent is to decide about it.
const HANDED_ON: [Signal; 16] = [
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

/// Whether the agent gets this signal if it is sent to the process that the user has started.
pub fn reaches_agent(signal: i32) -> bool {
    HANDED_ON.iter().any(|handed_on| handed_on.as_raw() == signal)
}

/// Runs the next one to its end. `letters` are those of the folder for temporary files.
pub(super) fn run(next: Command, letters: &str) -> ExitCode {
    // A shell that has become this process (`exec`) may have started something before: that is not ours to kill.
    let others = descendants(getpid());
    match watch(next) {
        Ok(status) => {
            // All else that is below this process is what the next one has left: without one, nothing is.
            if !kill_all(PATIENCE, &others) {
                complain("some processes of the workers could not be killed");
            }
            if status.is_none_or(|status| status.signaled()) {
                depart(&folder(letters));
            }
            clear_up(&folder(letters));
            status.map_or(ExitCode::FAILURE, end_as)
        }
        Err(error) => {
            complain(&format!("cannot start the agent: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Says it on standard error. If that can't be written there is nobody to tell, and no reason to end otherwise.
fn complain(what: &str) {
    let _ = writeln!(std::io::stderr(), "rallypoint: {what}");
}

/// Its end; `None` if another thread, which clears up, has seen that first.
fn watch(mut next: Command) -> std::io::Result<Option<WaitStatus>> {
    set_child_subreaper(Some(getpid()))?;
    let mut caught: Vec<(Signal, UnixStream)> = Vec::new();
    for signal in HANDED_ON {
        if let Some(stream) = signals::catch(signal.as_raw())? {
            caught.push((signal, stream));
        }
    }
    // Where whoever started this ignores it, the kernel would bury children without a word.
    let _child_ended = signals::register(signal_hook::consts::SIGCHLD)?;
    let next = {
        let _starting = starting();
        // In a process group of its own, so that what a terminal sends comes once, from here.
        next.process_group(0).spawn()?
    };
    let pid = Pid::from_child(&next);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut watched: Vec<_> = [ended.as_fd()]
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
                // It may be gone.
                let _ = (0..count).try_for_each(|_| kill_process(pid, *signal));
            }
        }
        match waitpid(Some(pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return Ok(Some(status)),
            Err(Errno::CHILD) => return Ok(None),
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends as the next one has ended.
fn end_as(status: WaitStatus) -> ExitCode {
    if let Some(signal) = status.terminating_signal() {
        if signal == Signal::KILL.as_raw() {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return ExitCode::from(128u8.saturating_add(signal as u8));
    }
    ExitCode::from(status.exit_status().unwrap_or(1) as u8)
}
