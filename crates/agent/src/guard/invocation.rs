//! The name under which the user started this program. The agent and the keeper run under other names, so the name is read
//! from the process that the user started.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rustix::process::Pid;

use super::{AGENT, Above, KEEPER};

/// Returns `argv[0]` of the process that the user started; empty if that can't be read.
pub fn invoked_as() -> OsString {
    let mut name = std::env::args_os().next().unwrap_or_default();
    // The agent knows the keeper, and the keeper the outer process.
    for _ in 0..2 {
        match [AGENT, KEEPER].iter().find_map(|kind| Above::read(kind, &name)) {
            Some(above) => name = name_of(above.pid),
            None => break,
        }
    }
    name
}

fn name_of(pid: Pid) -> OsString {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    OsString::from_vec(line.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_guard_has_its_own_name() {
        assert_eq!(invoked_as(), std::env::args_os().next().unwrap());
        assert_eq!(name_of(rustix::process::getpid()), invoked_as());
    }
}
