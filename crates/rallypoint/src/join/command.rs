//! The command of `rallypoint join`: its environment, its start and its end.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rallypoint_rendezvous::{AssignedRanks, RendezvousHandler, RendezvousInfo};
use rustix::process::{Pid, Signal, kill_process_group};

/// What the command is told.
pub(super) fn environment(
    handler: &dyn RendezvousHandler,
    round: &RendezvousInfo,
    ranks: &AssignedRanks,
) -> Vec<(&'static str, String)> {
    let place = &round.bootstrap_store_info;
    let shares = if handler.use_agent_store() { "True" } else { "False" };
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

/// Starts it, in a process group of its own: a Ctrl-C at the terminal reaches it through us, once.
pub(super) fn start(
    program: &str,
    arguments: &[String],
    environment: &[(&str, String)],
) -> io::Result<Child> {
    let environment = environment.iter().map(|(name, value)| (name, value));
    Command::new(program).args(arguments).envs(environment).process_group(0).spawn()
}

/// To it and to all that it has started, as a terminal would: a shell passes nothing on.
pub(super) fn send_signal(pid: u32, signal: i32) {
    let (pid, signal) = (Pid::from_raw(pid as i32), Signal::from_named_raw(signal));
    if let (Some(pid), Some(signal)) = (pid, signal) {
        // It may be gone already.
        let _ = kill_process_group(pid, signal);
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
