//! The last lines of a stream, for the failure report: kept while they pass, or read again from the file they are in.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::lines::Lines;

/// So many lines tell what went wrong: the end of a traceback with its message.
const KEPT: usize = 20;
/// Of a line so many characters.
const LONGEST: usize = 500;
/// Of a file so much is read.
const BYTES: u64 = 32 << 10;

/// The last lines of a stream.
#[derive(Debug, Clone)]
pub(super) enum LastLines {
    Kept(Arc<Mutex<Kept>>),
    InFile(PathBuf),
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    lines: VecDeque<String>,
    pending: Lines,
}

impl Default for LastLines {
    fn default() -> LastLines {
        LastLines::Kept(Arc::default())
    }
}

impl LastLines {
    /// Those of a stream that goes to this file.
    pub(super) fn in_file(path: PathBuf) -> LastLines {
        LastLines::InFile(path)
    }

    /// These bytes have passed.
    pub(super) fn pass(&self, bytes: &[u8]) {
        let LastLines::Kept(kept) = self else { return };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Kept { lines, pending } = &mut *kept;
        pending.take(bytes, |line| {
            if lines.len() == KEPT {
                lines.pop_front();
            }
            lines.push_back(shorten(line));
        });
    }

    /// What they are now.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            LastLines::Kept(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let rest = Some(kept.pending.rest()).filter(|rest| !rest.is_empty()).map(shorten);
                last(kept.lines.iter().cloned().chain(rest).collect())
            }
            LastLines::InFile(path) => {
                let mut bytes = Vec::new();
                let mut read = || {
                    let mut file = File::open(path)?;
                    let length = file.metadata()?.len();
                    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
                    file.take(BYTES).read_to_end(&mut bytes)
                };
                // Lines that can't be read are only missing from a report.
                if read().is_err() {
                    return Vec::new();
                }
                let (mut lines, mut all) = (Lines::default(), Vec::new());
                lines.take(&bytes, |line| all.push(shorten(line)));
                lines.finish(|line| all.push(shorten(line)));
                if bytes.len() as u64 == BYTES && !all.is_empty() {
                    // The first began before what was read.
                    all.remove(0);
                }
                last(all)
            }
        }
    }
}

/// The last of them, without empty ones at the end.
fn last(mut lines: Vec<String>) -> Vec<String> {
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    lines.split_off(lines.len().saturating_sub(KEPT))
}

fn shorten(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_with_one_that_has_no_end() {
        let kept = LastLines::default();
        for n in 0..50 {
            kept.pass(format!("line {n}\n").as_bytes());
        }
        kept.pass(b"no end");
        let lines = kept.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[19].as_str()), (20, "line 31", "no end"));
    }

    #[test]
    fn a_files_last_lines_are_found_however_long_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stderr.log");
        std::fs::write(&path, format!("{}\nlast one\n\n", "x".repeat(100_000))).unwrap();
        assert_eq!(LastLines::in_file(path.clone()).lines(), ["last one"]);
        std::fs::write(&path, "a\nb").unwrap();
        assert_eq!(LastLines::in_file(path).lines(), ["a", "b"]);
        assert!(LastLines::in_file(dir.path().join("absent")).lines().is_empty());
    }

    #[test]
    fn a_long_line_is_cut_between_letters() {
        let kept = LastLines::default();
        kept.pass("ü".repeat(LONGEST + 3).as_bytes());
        assert_eq!(kept.lines()[0].chars().count(), LONGEST + 1);
    }
}
