//! The command of `rallypoint join`: its environment, its start and its end.
//!
//! It is started by way of this same program, which asks the kernel to end it with its parent and then becomes it: so a
//! node that is killed leaves no command behind. What the command has started itself is the command's business.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};

use rallypoint_rendezvous::{AssignedRanks, RendezvousHandler, RendezvousInfo};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::output;

/// What the command is told.
pub(super) fn environment(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    ranks: &AssignedRanks,
) -> Vec<(&'static str, String)> {
    let place = &round.bootstrap_store_info;
    let shares = if round.use_agent_store { "True" } else { "False" };
    vec![
        ("GROUP_RANK", round.rank.to_string()),
        ("GROUP_WORLD_SIZE", round.world_size.to_string()),
        ("RANK", ranks.first.to_string()),
        ("WORLD_SIZE", ranks.world_size.to_string()),
        ("LOCAL_RANK", "0".into()),
        ("LOCAL_WORLD_SIZE", "1".into()),
        ("MASTER_ADDR", place.master_addr.clone()),
        ("MASTER_PORT", place.master_port.to_string()),
        ("TORCHELASTIC_RUN_ID", handler.run_id().into()),
        ("TORCHELASTIC_USE_AGENT_STORE", shares.into()),
    ]
}

/// The first argument of this program when it is to become a command.
pub(crate) const BECOME: &str = "__become_command";

/// A command that runs.
pub(super) struct Started {
    child: Child,
    handle: Handle,
}

/// What signals are sent to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pid: Option<Pid>,
    has_group: bool,
}

/// Starts it, in a process group of its own, so that a signal reaches all that it has started. On a terminal it stays in
/// ours: only the group in front may read what is typed, and a Ctrl-C reaches all of it anyway.
pub(super) fn start(
    program: &OsStr,
    arguments: &[OsString],
    environment: &[(&str, String)],
) -> io::Result<Started> {
    // This name is right even if the file was replaced meanwhile.
    let itself = Path::new("/proc/self/exe");
    let mut command = match itself.exists() {
        true => Command::new(itself),
        false => Command::new(std::env::current_exe()?),
    };
    command.arg(BECOME).arg(std::process::id().to_string()).arg(program).args(arguments);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let has_group = !io::stdin().is_terminal();
    if has_group {
        command.process_group(0);
    }
    let child = command.spawn()?;
    let handle = Handle { pid: Pid::from_raw(child.id() as i32), has_group };
    Ok(Started { child, handle })
}

/// Becomes the command: `PARENT PROGRAM ARGUMENTS…`. Returns only if it can't.
pub(crate) fn become_command(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = arguments.next().and_then(|parent| parent.to_str()?.parse::<i32>().ok());
    let (Some(parent), Some(program)) = (parent, arguments.next()) else { return ExitCode::from(2) };
    if !ends_with(parent) {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&program).args(arguments).exec();
    output::complain(&format!("rallypoint join: cannot run {program:?}: {error}"));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Has this process, whatever it becomes, end with its parent. `false` if the parent has ended already.
#[cfg(target_os = "linux")]
fn ends_with(parent: i32) -> bool {
    use rustix::process::{getppid, set_parent_process_death_signal};

    // Where it can't be had, the command runs all the same.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    getppid() == Pid::from_raw(parent)
}

#[cfg(not(target_os = "linux"))]
fn ends_with(_parent: i32) -> bool {
    true
}

impl Started {
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Handle {
    /// Sends it a signal, and, where it has a group, to all that it has started: a shell passes nothing on.
    pub(super) fn send(self, signal: Signal) {
        if let Some(pid) = self.pid {
            // It may be gone already.
            let _ = match self.has_group {
                true => kill_process_group(pid, signal),
                false => kill_process(pid, signal),
            };
        }
    }

    /// Passes on a signal that this node got; what comes from the keyboard has reached all in front already.
    pub(super) fn pass_on(self, signal: i32) {
        let signal = Signal::from_named_raw(signal);
        let typed = [Some(Signal::INT), Some(Signal::QUIT)].contains(&signal);
        if let Some(signal) = signal.filter(|_| self.has_group || !typed) {
            self.send(signal);
        }
    }
}

/// As a shell tells it: its own code, or 128 and the signal that ended it.
pub(super) fn exit_code(status: io::Result<ExitStatus>) -> u8 {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => (128 + signal) as u8,
            (None, None) => 1,
        },
        Err(_) => 1,
    }
}
