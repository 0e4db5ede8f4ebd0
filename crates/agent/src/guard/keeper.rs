//! The process between the one the user started and the agent. It is there for whoever kills several at once: by name
//! (`pkill -9 rallypoint`) or by what they run (`pkill -9 -f train.py`). So it has neither in its command line, and reads
//! the agent's arguments where its parent has them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use rustix::process::Pid;

use super::{AGENT, Above, KEEPER, below, outer};

/// Is the keeper, if that is what this process was started for; the exit code to end with. Before anything looks at the
/// arguments, of which there are none.
pub(crate) fn keep() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let above = Above::read(KEEPER, &name)?;
    let args = arguments(above.pid);
    // It ends here if those were another's.
    above.watch();
    let mut agent = below(AGENT, &above.letters);
    agent.args(args);
    Some(outer::run(agent, &above.letters))
}

/// What that process was started with.
fn arguments(pid: Pid) -> Vec<OsString> {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    split(&line)
}

/// Each argument ends with a zero; the first is the name.
fn split(line: &[u8]) -> Vec<OsString> {
    let whole = line.strip_suffix(&[0]).unwrap_or(line);
    whole.split(|byte| *byte == 0).skip(1).map(|arg| OsString::from_vec(arg.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_taken_over_as_they_are() {
        let args: Vec<OsString> = std::env::args_os().skip(1).collect();
        assert_eq!(arguments(rustix::process::getpid()), args);
        assert_eq!(split(b"name\0run\0\0a b\n\0\xff\0"), {
            let strange = OsString::from_vec(vec![0xff]);
            ["run".into(), "".into(), "a b\n".into(), strange]
        });
        assert_eq!(split(b"name\0"), [] as [OsString; 0]);
        assert_eq!(split(b""), [] as [OsString; 0]);
    }
}
