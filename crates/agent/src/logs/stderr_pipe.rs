//! A pipe through which a worker's standard error passes to the agent. If the agent's own standard error is a terminal,
//! a pseudoterminal takes the place of the pipe, so that the worker behaves as on a terminal.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// Opens the pipe or pseudoterminal. Returns the worker's end and the agent's end.
pub(super) fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let (worker_end, agent_end) = match io::stderr().is_terminal() {
        // The system may have no pseudoterminal left.
        true => open_terminal().or_else(|_| open_pipe())?,
        false => open_pipe()?,
    };
    rustix::io::ioctl_fionbio(&agent_end, true)?;
    Ok((worker_end, agent_end))
}

fn open_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (agent_end, worker_end) = io::pipe()?;
    Ok((worker_end.into(), agent_end.into()))
}

fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let agent_end = openpt(flags)?;
    grantpt(&agent_end)?;
    unlockpt(&agent_end)?;
    let worker_end = ioctl_tiocgptpeer(&agent_end, flags)?;
    // In raw mode, bytes pass unchanged. The real terminal interprets them.
    let mut modes = tcgetattr(&worker_end)?;
    modes.make_raw();
    tcsetattr(&worker_end, OptionalActions::Now, &modes)?;
    if let Ok(size) = tcgetwinsize(io::stderr()) {
        tcsetwinsize(&worker_end, size)?;
    }
    Ok((worker_end, agent_end))
}
