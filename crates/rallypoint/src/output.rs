//! Writes to standard output and standard error without panicking. A closed pipe is not an error, because its reader
//! got what it wanted. Every other failed write to standard output is.

use std::io::{self, Write};
use std::process::ExitCode;

/// Writes to standard output. Returns the exit code as an error if that fails for another reason than a closed pipe.
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

/// Writes a line to standard error. Errors are ignored, because there is no other place to report them.
pub(crate) fn write_stderr(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", escape_control(line.as_bytes(), &[]));
}

/// Writes several lines to standard error, with one write.
pub(crate) fn write_stderr_lines(text: &str) {
    let _ = io::stderr()
        .lock()
        .write_all(format!("{}\n", escape_control(text.as_bytes(), &['\n', '\t'])).as_bytes());
}

/// Returns bytes as text that a terminal prints as it is. Escapes control characters, except those to `keep`, and
/// invalid UTF-8.
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
