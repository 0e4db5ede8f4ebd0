//! The process that becomes a worker. The agent starts its own program with another `argv[0]`. That process sets itself
//! up and then executes the worker's program.
//!
//! The process makes the kernel kill it when the agent dies, and starts its own session if the agent has an outer
//! process. The agent could do both between `fork` and `exec`, but that would need `unsafe`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};

/// The prefix of `argv[0]` of a process that becomes a worker in its own session. The agent's process id and the name
/// of its socket follow.
const WORKER_PREFIX: &str = "rallypoint-worker:";
/// The prefix for a process that stays in the agent's session. The same fields follow.
const WORKER_IN_SESSION_PREFIX: &str = "rallypoint-command:";

/// The exit code of a process that could not execute the worker's program.
pub(crate) const EXEC_FAILED_CODE: i32 = 127;
/// The error of a process that did not execute the worker's program because the lease of its node was over.
const LEASE_OVER: Errno = Errno::TIME;

/// Returns whether a process did not execute the worker's program because the lease of its node was over.
pub(crate) fn is_lease_over(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(LEASE_OVER)
}

/// Determines from `argv[0]` what this process was started for, and returns the command line that the user typed.
///
/// A process that was started as a worker executes the worker's program and does not return. Every program that runs an
/// agent must call this function first in `main`.
///
/// # Errors
///
/// Returns an exit code if the program of a worker can't be executed, or if this process was started to clean up after
/// an outer process that was killed. The caller must exit with that code.
pub fn enter() -> Result<Vec<OsString>, ExitCode> {
    let line: Vec<OsString> = std::env::args_os().collect();
    let name = line.first().map(OsString::as_os_str).unwrap_or_default();
    let own_session = parse_name(WORKER_PREFIX, name);
    let has_own_session = own_session.is_some();
    let Some((agent, errors)) = own_session.or_else(|| parse_name(WORKER_IN_SESSION_PREFIX, name)) else {
        return crate::guard::enter(line);
    };
    if let [_, program, args @ ..] = &line[..] {
        let error = become_worker(agent, has_own_session, program, args);
        // Ignore the error, because the agent may have exited.
        let _ = ExecErrors::report(&errors, &error);
    }
    Err(ExitCode::from(EXEC_FAILED_CODE as u8))
}

fn parse_name(prefix: &str, name: &OsStr) -> Option<(Pid, String)> {
    let (agent, errors) = name.to_str()?.strip_prefix(prefix)?.split_once(':')?;
    Some((agent.parse().ok().and_then(Pid::from_raw)?, errors.to_owned()))
}

fn become_worker(agent: Pid, has_own_session: bool, program: &OsStr, args: &[OsString]) -> io::Error {
    let prepare = || {
        if has_own_session {
            setsid()?;
        }
        set_parent_process_death_signal(Some(Signal::KILL))
    };
    if let Err(error) = prepare() {
        return error.into();
    }
    // If the agent died before the call above, the kernel sends no signal.
    if getppid() != Some(agent) {
        return io::Error::other("the agent has exited");
    }
    if crate::guard::has_passed(agent) {
        return LEASE_OVER.into();
    }
    Command::new(program).args(args).exec()
}

/// Receives the errors of processes that could not execute their worker's program. The processes find the socket by its
/// name. If they had a file descriptor for it, the worker would inherit that.
pub(crate) struct ExecErrors {
    socket: UnixDatagram,
    name: String,
    /// The process id and error number of each error that was received and not taken yet.
    received: Vec<(u32, i32)>,
}

impl ExecErrors {
    pub(crate) fn open() -> io::Result<ExecErrors> {
        use std::hash::{BuildHasher, Hasher, RandomState};
        let random = RandomState::new().build_hasher().finish();
        let name = format!("rallypoint-{}-{random:016x}", getpid().as_raw_nonzero());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok(ExecErrors { socket, name, received: Vec::new() })
    }

    /// Returns a command that starts a process which becomes a worker with this program.
    pub(crate) fn command(&self, program: &OsStr, has_own_session: bool) -> Command {
        let mut command = Command::new("/proc/self/exe");
        let name = if has_own_session { WORKER_PREFIX } else { WORKER_IN_SESSION_PREFIX };
        command.arg0(format!("{name}{}:{}", getpid().as_raw_nonzero(), self.name)).arg(program);
        command
    }

    /// Returns why the process with this id could not execute its program, if it has reported that.
    pub(crate) fn take(&mut self, pid: u32) -> Option<io::Error> {
        let mut bytes = [0; 16];
        while let Ok(8) = self.socket.recv(&mut bytes) {
            let word =
                |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            self.received.push((word(0) as u32, word(4)));
        }
        let index = self.received.iter().position(|(process, _)| *process == pid)?;
        Some(io::Error::from_raw_os_error(self.received.swap_remove(index).1))
    }

    fn report(name: &str, error: &io::Error) -> io::Result<()> {
        let address = SocketAddr::from_abstract_name(name)?;
        let pid = getpid().as_raw_nonzero().get().to_le_bytes();
        let code = error.raw_os_error().unwrap_or(0).to_le_bytes();
        UnixDatagram::unbound()?.send_to_addr(&[pid, code].concat(), &address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_returned_once_for_the_process_that_reported_it() {
        let mut errors = ExecErrors::open().unwrap();
        assert!(errors.take(std::process::id()).is_none());
        let error = io::Error::from(rustix::io::Errno::NOENT);
        ExecErrors::report(&errors.name, &error).unwrap();
        assert!(errors.take(1).is_none(), "another process reported the error");
        let taken = errors.take(std::process::id()).unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::NotFound);
        assert!(errors.take(std::process::id()).is_none());
    }

    #[test]
    fn the_end_of_the_lease_is_told_apart_from_other_errors() {
        let mut errors = ExecErrors::open().unwrap();
        for (error, is_over) in [(LEASE_OVER.into(), true), (io::ErrorKind::NotFound.into(), false)] {
            ExecErrors::report(&errors.name, &error).unwrap();
            assert_eq!(is_lease_over(&errors.take(std::process::id()).unwrap()), is_over, "{error}");
        }
    }

    #[test]
    fn only_names_of_worker_processes_are_parsed() {
        assert_eq!(parse_name(WORKER_PREFIX, OsStr::new("rallypoint-worker:7:x")).unwrap().1, "x");
        for name in ["rallypoint", "rallypoint-worker:", "rallypoint-worker:x:y", "rallypoint-worker:0:y"] {
            assert!(parse_name(WORKER_PREFIX, OsStr::new(name)).is_none(), "{name}");
        }
    }
}
