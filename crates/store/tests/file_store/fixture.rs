//! Fixtures of the tests: a temporary file, raw records, locks, and assertions on timeouts and processor time.

use std::fmt::Debug;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rallypoint_store::{FileStore, FileStoreOptions, Result, StoreError};
use rallypoint_testkit::fails_in_time;
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};

/// The timeout of calls that should return immediately. Only a failure takes this long.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// The file of one store in a temporary directory.
pub(crate) struct TestFile {
    directory: tempfile::TempDir,
}

impl TestFile {
    pub(crate) fn new() -> TestFile {
        TestFile { directory: tempfile::tempdir().unwrap() }
    }

    /// Creates the file with this content.
    pub(crate) fn with(bytes: &[u8]) -> TestFile {
        let file = TestFile::new();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub(crate) fn options(&self) -> FileStoreOptions {
        FileStoreOptions::new(self.path()).timeout(CALL_TIMEOUT)
    }

    pub(crate) fn open(&self) -> FileStore {
        self.options().open().unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    /// Returns all records of the file. Panics if one of them is torn.
    pub(crate) fn records(&self) -> Vec<(String, String)> {
        let bytes = self.bytes();
        let mut rest = &bytes[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            records.push((read_field(&mut rest), read_field(&mut rest)));
        }
        records
    }
}

fn read_field(rest: &mut &[u8]) -> String {
    let (len, tail) = rest.split_at(4);
    let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
    let (text, tail) = tail.split_at(len);
    *rest = tail;
    String::from_utf8(text.to_vec()).unwrap()
}

/// Encodes one record. `key` includes its prefix in the file.
pub(crate) fn record(key: &str, value: &str) -> Vec<u8> {
    let len = |text: &str| (text.len() as u32).to_le_bytes();
    [&len(key)[..], key.as_bytes(), &len(value), value.as_bytes()].concat()
}

/// Appends bytes to the file without locking it.
pub(crate) fn append_bytes(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// A lock on the file, as another process would hold it. Dropping the value releases the lock.
pub(crate) struct LockHolder(File);

impl LockHolder {
    pub(crate) fn exclusive(path: &Path) -> LockHolder {
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        LockHolder(file)
    }

    pub(crate) fn shared(path: &Path) -> LockHolder {
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::LockShared).unwrap();
        LockHolder(file)
    }
}

impl Drop for LockHolder {
    fn drop(&mut self) {
        flock(&self.0, FlockOperation::Unlock).unwrap();
    }
}

/// Runs a call that must fail at its timeout and use a processor for less than 25 % of that time. Returns the error.
#[track_caller]
pub(crate) fn times_out_after<T: Debug>(timeout: Duration, call: impl FnOnce() -> Result<T>) -> StoreError {
    times_out_with_cpu(timeout, 0.25, call)
}

/// Like [`times_out_after`], but the call may use a processor for up to the fraction `max_cpu` of its timeout.
#[track_caller]
pub(crate) fn times_out_with_cpu<T: Debug>(
    timeout: Duration,
    max_cpu: f64,
    call: impl FnOnce() -> Result<T>,
) -> StoreError {
    let before = thread_time();
    let error = fails_in_time(timeout, call);
    let cpu = (thread_time() - before).as_secs_f64() / timeout.as_secs_f64();
    assert!(cpu < max_cpu, "used a processor for {:.1} % of {timeout:?}: {error}", cpu * 100.0);
    error
}

/// Returns the processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
