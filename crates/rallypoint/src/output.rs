//! Functions that write to standard output and standard error and never panic. A closed pipe at standard output is not
//! an error, because its reader needs no more output. Any other failed write to standard output is an error.

use std::io::{self, Write};
use std::process::ExitCode;

/// Writes bytes to standard output. If that fails for another reason than a closed pipe, prints the reason and
/// returns the exit code as an error.
pub(crate) fn write_stdout(bytes: impl AsRef<[u8]>) -> Result<(), ExitCode> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            write_stderr(&format!("rallypoint: cannot write to standard output: {error}"));
            Err(ExitCode::FAILURE)
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error, with its control characters escaped. Write errors are ignored, because there is
/// no other place to report them.
pub(crate) fn write_stderr(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", escape_control(line.as_bytes(), &[]));
}

/// Writes several lines to standard error with one write, so that no line of another thread is between them. Write
/// errors are ignored.
pub(crate) fn write_stderr_lines(text: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(format!("{}\n", escape_control(text.as_bytes(), &['\n', '\t'])).as_bytes());
}

/// Returns bytes as text that can't control a terminal. Escapes invalid UTF-8, and all control characters except
/// those in `keep`.
pub(crate) fn escape_control(bytes: &[u8], keep: &[char]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() && !keep.contains(&c) {
                true => text.extend(c.escape_default()),
                false => text.push(c),
            }
        }
        text.push_str(&chunk.invalid().escape_ascii().to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_except_those_to_keep() {
        assert_eq!(escape_control("schlüssel 🗝".as_bytes(), &[]), "schlüssel 🗝");
        assert_eq!(escape_control(b"a\x1b[31m\xff\r\n\tb", &[]), "a\\u{1b}[31m\\xff\\r\\n\\tb");
        assert_eq!(escape_control(b"a\x1b\nb\tc\r", &['\n', '\t']), "a\\u{1b}\nb\tc\\r");
        assert_eq!(escape_control("\u{9b}2J".as_bytes(), &[]), "\\u{9b}2J");
        assert_eq!(escape_control(&[b'x'; 1000], &[]).len(), 1000);
    }
}
