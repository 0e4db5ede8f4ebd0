//! The directories of a run, with torch's names:
//!
//! ```text
//! DIR or $TMPDIR/torchelastic_XXXXXXXX/
//!   RUN_ID_XXXXXXXX/           once per agent
//!     attempt_N/               the start after N restarts
//!     attempt_N.1/             an earlier start after N restarts, ended because the membership changed
//!       LOCAL_RANK/            stdout.log, stderr.log, error.json
//! ```
//!
//! If the membership changes, torch deletes the earlier `attempt_N`. This module renames it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::config::LogDir;
use crate::error::{AgentError, Result};

/// The directory of a run, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    run: Option<PathBuf>,
    /// The temporary directory that was created for this run. It is removed at the end if it contains no files.
    temporary: Option<PathBuf>,
}

impl Directory {
    /// Creates the directory.
    pub(super) fn create(dir: &LogDir, run_id: &str) -> Result<Directory> {
        let (base, temporary) = match dir {
            LogDir::Nowhere => return Ok(Directory::default()),
            LogDir::At(dir) => {
                let created = fs::create_dir_all(dir);
                // Torch raises an exception with the same message.
                if dir.is_file() {
                    return Err(AgentError::Config(format!("log_dir: {} is a file", dir.display())));
                }
                created.map_err(AgentError::file("create", dir))?;
                (dir.clone(), None)
            }
            LogDir::Temporary => {
                // The outer process (see `guard.rs`) knows the name of this directory and removes it if it contains no
                // files.
                let guarded = crate::guard::temporary_directory().filter(|dir| create_private(dir).is_ok());
                let created = match guarded {
                    Some(dir) => dir.to_owned(),
                    None => create_unique(&std::env::temp_dir(), "torchelastic_")?,
                };
                (created.clone(), Some(created))
            }
        };
        // Replace slashes and zero bytes, so that the run id becomes a single directory name.
        let name: String = run_id.chars().map(|c| if c == '/' || c == '\0' { '_' } else { c }).collect();
        let created = create_unique(&base, &format!("{name}_"));
        if created.is_err()
            && let Some(temporary) = &temporary
        {
            let _ = fs::remove_dir(temporary);
        }
        Ok(Directory { run: Some(created?), temporary })
    }

    /// Returns the path of the directory, or `None` in a run without logs.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// Creates the directories of a start, and renames those of an earlier start after the same number of restarts.
    /// Returns the path `attempt_N`, or `None` in a run without logs.
    pub(super) fn create_attempt(&self, restart_count: u32, workers: u32) -> Result<Option<PathBuf>> {
        let Some(run) = &self.run else { return Ok(None) };
        let dir = run.join(format!("attempt_{restart_count}"));
        if dir.exists() {
            let earlier = |n: u32| run.join(format!("attempt_{restart_count}.{n}"));
            let free = (1..).map(earlier).find(|path| !path.exists()).expect("names don't run out");
            fs::rename(&dir, free).map_err(AgentError::file("rename", &dir))?;
        }
        for dir in [dir.clone()].into_iter().chain((0..workers).map(|rank| dir.join(rank.to_string()))) {
            fs::create_dir_all(&dir).map_err(AgentError::file("create", &dir))?;
        }
        Ok(Some(dir))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            remove_unused(temporary);
        }
    }
}

/// Removes every directory in this tree that contains no files, including `dir` itself.
pub(crate) fn remove_unused(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_unused(&entry.path());
    }
    // This fails if the directory is not empty.
    let _ = fs::remove_dir(dir);
}

/// Creates a directory with a unique name.
fn create_unique(base: &Path, prefix: &str) -> Result<PathBuf> {
    loop {
        let dir = base.join(format!("{prefix}{}", random_suffix()?));
        match create_private(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(AgentError::file("create", &dir)(source)),
        }
    }
}

fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)
}

/// Returns a random suffix of 8 characters, like those of Python's `tempfile`.
pub(crate) fn random_suffix() -> Result<String> {
    const LETTERS: &[u8; 37] = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(AgentError::system("generate a random name"))?;
    Ok(bytes.map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).iter().collect())
}
