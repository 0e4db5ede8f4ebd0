//! The fence: kills the workers of a node whose lease is over, even if its agent is stopped.
//!
//! The agent writes the deadline to a file. The outer process reads the file and kills the workers at the deadline. A
//! process that is about to become a worker reads it, too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rallypoint_store::boot_time;
use rustix::process::{Pid, Signal};

use super::{
    AGENT_PREFIX, SEARCH_INTERVAL, command_line, descendants, directory_path, parse_name, send, sibling_path,
    temporary_directory,
};

/// The longest interval between two reads of the deadline. The agent creates the file when it gets its first lease.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the path of the file with the deadline.
pub(super) fn fence_path(directory: &Path) -> PathBuf {
    sibling_path(directory, "rallypoint_fence_")
}

/// The agent's side: the file with the deadline.
#[derive(Debug)]
pub(crate) struct FenceFile(File);

impl FenceFile {
    /// Creates the file. Returns `None` if this process has no outer process.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be created.
    pub(crate) fn create() -> std::io::Result<Option<FenceFile>> {
        let Some(path) = temporary_directory().map(fence_path) else { return Ok(None) };
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Some(FenceFile(file)))
    }

    /// Sets the time, since the machine was started, at which the workers are killed.
    pub(crate) fn set(&self, deadline: Duration) {
        // The file has 8 bytes from the first call on, so later calls need no space.
        if let Err(error) = self.0.write_all_at(&(deadline.as_micros() as u64).to_le_bytes(), 0) {
            tracing::warn!("cannot write the deadline of the workers: {error}");
        }
    }
}

/// The outer process's side.
pub(super) struct Fence {
    path: PathBuf,
    file: Option<File>,
}

impl Fence {
    pub(super) fn new(directory: &Path) -> Fence {
        Fence { path: fence_path(directory), file: None }
    }

    /// Kills all descendants of the agent if their deadline has passed. Returns the time until the next check.
    pub(super) fn check(&mut self, agent: Pid) -> Duration {
        match self.deadline().map(|deadline| deadline.saturating_sub(boot_time())) {
            Some(Duration::ZERO) => {
                let found = descendants(agent);
                found.iter().for_each(|process| send(process, Signal::KILL));
                // A process may have started another one during the search.
                if found.is_empty() { MAX_CHECK_INTERVAL } else { SEARCH_INTERVAL }
            }
            Some(left) => left.min(MAX_CHECK_INTERVAL),
            None => MAX_CHECK_INTERVAL,
        }
    }

    fn deadline(&mut self) -> Option<Duration> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let mut bytes = [0; 8];
        self.file.as_ref()?.read_exact_at(&mut bytes, 0).ok()?;
        Some(Duration::from_micros(u64::from_le_bytes(bytes)))
    }
}

/// Returns whether the deadline of this agent's workers has passed. A process that is about to become a worker checks
/// this, because the agent may have been stopped after its own check.
pub(crate) fn has_passed(agent: Pid) -> bool {
    let line = command_line(agent);
    let Some((_, suffix)) = line.first().and_then(|name| parse_name(AGENT_PREFIX, name)) else {
        return false;
    };
    let deadline = Fence::new(&directory_path(&suffix)).deadline();
    deadline.is_some_and(|deadline| deadline <= boot_time())
}
