//! The last lines of a stream, for the failure report. The agent buffers the lines of a stream that passes through it,
//! and reads those of other streams from their files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::lines::Lines;

/// The largest number of lines in a report. Enough for the end of a traceback with its message.
const MAX_LINES: usize = 20;
/// The largest number of characters of a line.
const MAX_LINE_CHARS: usize = 500;
/// The number of bytes at the end of a stream that are searched for lines.
const MAX_BYTES: usize = 32 << 10;

/// The last lines of a stream.
#[derive(Debug, Clone)]
pub(super) enum LastLines {
    /// The last bytes that have passed through the agent.
    Kept(Arc<Mutex<Vec<u8>>>),
    InFile(PathBuf),
}

impl Default for LastLines {
    fn default() -> LastLines {
        LastLines::Kept(Arc::default())
    }
}

impl LastLines {
    /// Buffers bytes that pass through the agent.
    pub(super) fn keep(&self, bytes: &[u8]) {
        if let LastLines::Kept(kept) = self {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(bytes);
            if kept.len() > 2 * MAX_BYTES {
                let old = kept.len() - MAX_BYTES - 1;
                kept.drain(..old);
            }
        }
    }

    /// Returns the last lines up to now.
    pub(super) fn lines(&self) -> Vec<String> {
        let bytes = match self {
            LastLines::Kept(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            // If the file can't be read, the report lacks these lines.
            LastLines::InFile(path) => read_end(path).unwrap_or_default(),
        };
        let start = bytes.len().saturating_sub(MAX_BYTES);
        let (mut lines, mut last) = (Lines::default(), Vec::new());
        lines.take(&bytes[start..], |line| last.push(shorten(line)));
        lines.finish(|line| last.push(shorten(line)));
        if start > 0 && !last.is_empty() {
            // The first line may be incomplete: it may have started before these bytes.
            last.remove(0);
        }
        while last.last().is_some_and(|line| line.trim().is_empty()) {
            last.pop();
        }
        last.split_off(last.len().saturating_sub(MAX_LINES))
    }
}

/// Returns the last `MAX_BYTES + 1` bytes of a file, or the whole file if it is shorter.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_BYTES as u64 + 1)))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn shorten(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(MAX_LINE_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_include_an_unterminated_one() {
        let kept = LastLines::default();
        for n in 0..50_000 {
            kept.keep(format!("line {n}\n").as_bytes());
        }
        kept.keep(b"no end");
        let lines = kept.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[19].as_str()), (20, "line 49981", "no end"));
    }

    #[test]
    fn the_last_lines_of_a_long_file_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stderr.log");
        std::fs::write(&path, format!("{}\nlast one\n\n", "x".repeat(100_000))).unwrap();
        assert_eq!(LastLines::InFile(path.clone()).lines(), ["last one"]);
        std::fs::write(&path, "a\nb").unwrap();
        assert_eq!(LastLines::InFile(path).lines(), ["a", "b"]);
        assert!(LastLines::InFile(dir.path().join("absent")).lines().is_empty());
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let kept = LastLines::default();
        kept.keep("ü".repeat(MAX_LINE_CHARS + 3).as_bytes());
        assert_eq!(kept.lines()[0].chars().count(), MAX_LINE_CHARS + 1);
    }
}
