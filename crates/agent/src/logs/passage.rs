//! A way for a worker's standard error through the agent: a pipe, or, where the agent's own is a terminal, a terminal, so
//! that the worker finds what it would find without us.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// The worker's end and ours.
pub(super) fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let (theirs, ours) = match io::stderr().is_terminal() {
        // A machine may have none left.
        true => terminal().or_else(|_| pipe())?,
        false => pipe()?,
    };
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((theirs, ours))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = io::pipe()?;
    Ok((theirs.into(), ours.into()))
}

fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    // What passes is not changed; the real terminal does what terminals do with it.
    let mut modes = tcgetattr(&theirs)?;
    modes.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &modes)?;
    if let Ok(size) = tcgetwinsize(io::stderr()) {
        tcsetwinsize(&theirs, size)?;
    }
    Ok((theirs, ours))
}
