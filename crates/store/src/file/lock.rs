//! Opens and locks the file of a store. This module does not depend on the contents of the file.
//!
//! The lock is `flock`, as in torch. It is polled, because a blocking `flock` has no timeout.
//!
//! Each operation opens the file again, for two reasons. Threads that shared one open file would share its lock,
//! because a lock belongs to an open file and not to a thread. And another process may have deleted or replaced the
//! file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::client::Backoff;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::Call;
use crate::deadline::{now, pause};
use crate::error::{FileFault, Result, StoreError};

/// The obstacles that [`StoreError::FileTimeout`] reports for a file that cannot be locked.
const MISSING: &str = "no such file";
const LOCKED: &str = "another process holds its lock";

/// The path of the file, and whether other users may share it.
#[derive(Debug, Clone)]
pub(super) struct StoreFile {
    pub(super) path: PathBuf,
    pub(super) shared: bool,
}

/// How an operation uses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads under the shared lock.
    Read,
    /// Reads and writes under the exclusive lock.
    Write,
    /// Like `Write`, and creates the file if it does not exist.
    Create,
}

/// A guard for the open and locked file. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) file: Arc<File>,
    /// The metadata of the file, read under the lock.
    pub(super) metadata: Metadata,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file is not enough: the `View` of the store keeps it open between operations, and a child that
        // was forked meanwhile may keep it open, too.
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}

impl StoreFile {
    /// Returns the current metadata of the file without locking it, or `None` if the file does not exist.
    ///
    /// Opens the file, because a network file system may answer `stat` from its cache.
    pub(super) fn metadata(&self) -> Result<Option<Metadata>> {
        Ok(self.open(Access::Read)?.map(|(_, metadata)| metadata))
    }

    /// Opens and locks the file. Retries while the file is missing or locked. The last attempt is at the deadline.
    pub(super) fn lock(&self, access: Access, call: &Call) -> Result<Locked> {
        // Other processes hold the lock for microseconds and may take it again immediately, so a long interval would
        // rarely find it free. With this backoff, polling uses about 1 % of a processor.
        let mut backoff = Backoff::new(Duration::from_micros(50), Duration::from_millis(3));
        loop {
            let is_last = call.deadline.has_passed(now());
            match self.try_lock(access)? {
                Ok(locked) => return Ok(locked),
                Err(obstacle) if is_last => return Err(call.timeout_error(&self.path, obstacle)),
                Err(_) => pause(&mut backoff, &call.deadline),
            }
        }
    }

    /// Opens and locks the file without waiting. Returns the obstacle if the file is missing or locked.
    pub(super) fn try_lock(&self, access: Access) -> Result<Result<Locked, &'static str>> {
        let operation = match access == Access::Read {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let Some((file, opened)) = self.open(access)? else { return Ok(Err(MISSING)) };
        match flock(&file, operation) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(Err(LOCKED)),
            Err(error) => return Err(self.system_error("lock", error.into())),
        }
        let mut locked = Locked { file: Arc::new(file), metadata: opened };
        // Another process may have deleted or replaced the file after this process opened it. The lock would then be on
        // a file that has no name.
        match std::fs::symlink_metadata(&self.path) {
            Ok(now) if identity(&now) == identity(&locked.metadata) => {
                locked.metadata = now;
                Ok(Ok(locked))
            }
            Ok(_) => Ok(Err(LOCKED)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(MISSING)),
            Err(error) => Err(self.system_error("look up", error)),
        }
    }

    pub(super) fn system_error(&self, what: &'static str, source: io::Error) -> StoreError {
        StoreError::File { path: self.path.clone(), fault: FileFault::System { what, source } }
    }

    /// Opens the file and refuses one that cannot be trusted. Returns `None` if the file does not exist.
    fn open(&self, access: Access) -> Result<Option<(File, Metadata)>> {
        // Without O_NONBLOCK, opening a named pipe would block.
        let safe = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let owner_only = Mode::RUSR | Mode::WUSR;
        let flags = safe | if access == Access::Read { OFlags::RDONLY } else { OFlags::RDWR };
        let mut opened = rustix::fs::open(&self.path, flags, Mode::empty());
        if access == Access::Create && matches!(opened, Err(Errno::NOENT)) {
            // O_CREAT is used only if the file does not exist. With `fs.protected_regular`, Linux refuses O_CREAT for
            // an existing file of another user in directories such as `/tmp`.
            opened = rustix::fs::open(&self.path, flags | OFlags::CREATE | OFlags::EXCL, owner_only);
        }
        let file = match opened {
            Ok(file) => File::from(file),
            // EXIST means that another process has just created the file. The next attempt opens it.
            Err(Errno::NOENT | Errno::EXIST) => return Ok(None),
            Err(Errno::LOOP | Errno::MLINK) => return Err(self.untrusted("it is a symbolic link".into())),
            Err(error) => return Err(self.system_error("open", error.into())),
        };
        let metadata = file.metadata().map_err(|error| self.system_error("examine", error))?;
        let distrust = match metadata.is_file() {
            false => Some("it is not a regular file".into()),
            true if self.shared => None,
            true => distrust(metadata.uid(), rustix::process::geteuid().as_raw(), metadata.mode())
                .map(|reason| format!("{reason}, and `FileStoreOptions::shared` is not set")),
        };
        distrust.map_or(Ok(Some((file, metadata))), |reason| Err(self.untrusted(reason)))
    }

    fn untrusted(&self, reason: String) -> StoreError {
        self.refused(format!("{reason}; use a regular file of your own with mode 0600"))
    }

    pub(super) fn refused(&self, reason: String) -> StoreError {
        StoreError::File { path: self.path.clone(), fault: FileFault::Refused(reason) }
    }
}

/// Returns the device and inode numbers, which identify a file while it is open.
pub(super) fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns why `user` cannot trust a file with this owner and mode, or `None` if it is trusted.
fn distrust(owner: u32, user: u32, mode: u32) -> Option<String> {
    if owner != user {
        Some(format!("it belongs to user {owner}, not to {user}"))
    } else if mode & 0o022 != 0 {
        Some(format!("other users can write it (mode {:04o})", mode & 0o7777))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use rallypoint_core::wire::Op;

    use super::*;

    fn test_file() -> (tempfile::TempDir, StoreFile) {
        let directory = tempfile::tempdir().unwrap();
        let file = StoreFile { path: directory.path().join("store"), shared: false };
        (directory, file)
    }

    fn call() -> Call<'static> {
        use rallypoint_core::client::Deadline;
        let deadline = Deadline::after(now(), Some(Duration::from_millis(20)));
        Call { op: Op::Set, keys: &["k"], deadline }
    }

    #[test]
    fn only_own_files_that_no_other_user_can_write_are_trusted() {
        assert_eq!(distrust(7, 7, 0o100644), None);
        assert_eq!(distrust(7, 7, 0o100600), None);
        assert_eq!(distrust(7, 8, 0o100600).unwrap(), "it belongs to user 7, not to 8");
        assert_eq!(distrust(0, 8, 0o100600).unwrap(), "it belongs to user 0, not to 8");
        for mode in [0o100620, 0o100602, 0o100666] {
            assert!(distrust(7, 7, mode).unwrap().contains("other users can write it"), "{mode:o}");
        }
    }

    #[test]
    fn readers_share_the_lock_and_a_writer_excludes_them() {
        let (_directory, file) = test_file();
        let writer = file.lock(Access::Create, &call()).unwrap();
        assert_eq!(file.try_lock(Access::Read).unwrap().unwrap_err(), LOCKED);
        drop(writer);
        let readers = [file.try_lock(Access::Read).unwrap(), file.try_lock(Access::Read).unwrap()];
        assert!(readers.iter().all(|reader| reader.is_ok()));
        assert_eq!(file.try_lock(Access::Write).unwrap().unwrap_err(), LOCKED);
        drop(readers);
        file.try_lock(Access::Write).unwrap().unwrap();
    }

    #[test]
    fn dropping_the_guard_unlocks_a_file_that_stays_open() {
        let (_directory, file) = test_file();
        let locked = file.lock(Access::Create, &call()).unwrap();
        let kept = Arc::clone(&locked.file);
        drop(locked);
        file.try_lock(Access::Write).unwrap().unwrap();
        drop(kept);
    }

    #[test]
    fn only_create_access_locks_a_missing_file() {
        let (_directory, file) = test_file();
        assert!(file.metadata().unwrap().is_none());
        assert_eq!(file.try_lock(Access::Read).unwrap().unwrap_err(), MISSING);
        assert_eq!(file.try_lock(Access::Write).unwrap().unwrap_err(), MISSING);
        file.try_lock(Access::Create).unwrap().unwrap();
        assert!(file.metadata().unwrap().is_some());
    }

    #[test]
    fn a_pipe_is_refused_without_blocking() {
        let (directory, file) = test_file();
        let pipe = StoreFile { path: directory.path().join("pipe"), shared: true };
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe.path,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        for access in [Access::Read, Access::Write, Access::Create] {
            let error = pipe.try_lock(access).unwrap_err();
            assert!(
                matches!(error, StoreError::File { fault: FileFault::Refused(_), .. }),
                "{access:?}: {error}"
            );
        }
        let inside = StoreFile { path: file.path.join("inside"), shared: false };
        std::fs::write(&file.path, "").unwrap();
        assert!(matches!(
            inside.try_lock(Access::Create),
            Err(StoreError::File { fault: FileFault::System { what: "open", .. }, .. })
        ));
    }
}
