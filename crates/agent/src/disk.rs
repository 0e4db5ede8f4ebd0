//! Errors of the log files and the event log that do not end the job: a full disk at the start, and all errors while
//! workers run. Each log reports only its first error.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The first error of a log, shared by all threads that write to it. Later errors usually have the same cause.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstError(Arc<OnceLock<String>>);

impl FirstError {
    /// Logs a warning and keeps it for the end report, unless an error was reported before.
    pub(crate) fn report(&self, text: String) {
        if self.0.set(text.clone()).is_ok() {
            tracing::warn!("{text}");
        }
    }

    /// Returns the error that was reported.
    pub(crate) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Returns whether the operation failed because the disk, or this user's quota, is full.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns whether the file system of this directory has no free space or no free inodes for ordinary users, as `df`
/// shows it. If the system call fails, the file system counts as not full.
pub(crate) fn is_full(dir: &Path) -> bool {
    rustix::fs::statvfs(dir)
        .is_ok_and(|disk| disk.f_blocks > 0 && disk.f_bavail == 0 || disk.f_files > 0 && disk.f_favail == 0)
}
