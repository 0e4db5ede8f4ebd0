//! Writing to standard output and standard error without panicking: a reader that has gone away has had what it wanted,
//! but what could not be written anywhere is a failure.

use std::io::{self, Write};
use std::process::ExitCode;

/// Writes to standard output. `Err` is the exit code if that failed for another reason than a reader that went away.
pub(crate) fn say(bytes: impl AsRef<[u8]>) -> Result<(), ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("rallypoint: cannot write to standard output: {error}"));
            Err(ExitCode::FAILURE)
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error. If even that fails there is nobody left to tell.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
