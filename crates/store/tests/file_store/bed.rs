//! What the tests stand on: a folder that goes away, files made of raw records, locks held, time and processor time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rallypoint_store::{FileStore, FileStoreOptions, StoreError};
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};

/// Long enough for anything that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A folder with room for one store's file.
pub(crate) struct Bed {
    folder: tempfile::TempDir,
}

impl Bed {
    pub(crate) fn new() -> Bed {
        Bed { folder: tempfile::tempdir().unwrap() }
    }

    /// A folder where the file is there already.
    pub(crate) fn with(bytes: &[u8]) -> Bed {
        let bed = Bed::new();
        std::fs::write(bed.path(), bytes).unwrap();
        bed
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    pub(crate) fn options(&self) -> FileStoreOptions {
        FileStoreOptions::new(self.path()).timeout(SOON)
    }

    pub(crate) fn open(&self) -> FileStore {
        self.options().open().unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    /// All records of the file, which must be whole.
    pub(crate) fn records(&self) -> Vec<(String, String)> {
        let bytes = self.bytes();
        let mut rest = &bytes[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            records.push((text(&mut rest), text(&mut rest)));
        }
        records
    }
}

fn text(rest: &mut &[u8]) -> String {
    let (len, tail) = rest.split_at(4);
    let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
    let (text, tail) = tail.split_at(len);
    *rest = tail;
    String::from_utf8(text.to_vec()).unwrap()
}

/// One record, with the key as the file has it.
pub(crate) fn record(key: &str, value: &str) -> Vec<u8> {
    let len = |text: &str| (text.len() as u32).to_le_bytes();
    [&len(key)[..], key.as_bytes(), &len(value), value.as_bytes()].concat()
}

/// Puts bytes at the end of the file, asking nobody.
pub(crate) fn push(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// Holds the file's lock, as another process would, until dropped.
pub(crate) struct Held(File);

impl Held {
    pub(crate) fn exclusive(path: &Path) -> Held {
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        Held(file)
    }

    pub(crate) fn shared(path: &Path) -> Held {
        let file = File::open(path).unwrap();
        flock(&file, FlockOperation::LockShared).unwrap();
        Held(file)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        flock(&self.0, FlockOperation::Unlock).unwrap();
    }
}

/// What came of a call, how long it took, for how much of that time this thread was ready to run but other threads had the
/// processors, and what share of the time it was computing.
pub(crate) struct Timed<T> {
    pub(crate) result: T,
    pub(crate) took: Duration,
    pub(crate) run_delay: Duration,
    pub(crate) busy: f64,
}

pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> Timed<T> {
    let (started, delay, before) = (Instant::now(), thread_run_delay(), thread_time());
    let result = call();
    let (took, run_delay) = (started.elapsed(), thread_run_delay() - delay);
    Timed { result, took, run_delay, busy: (thread_time() - before).as_secs_f64() / took.as_secs_f64() }
}

/// How long this thread has waited for a processor so far.
fn thread_run_delay() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split_whitespace().nth(1).unwrap().parse().unwrap())
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The error of a call that takes its timeout, at most 5 % or 100 ms more while it could run, and sleeps meanwhile.
#[track_caller]
pub(crate) fn times_out_after<T>(
    timeout: Duration,
    attempt: impl FnOnce() -> Timed<Result<T, StoreError>>,
) -> StoreError {
    let Timed { result, took, run_delay, busy } = attempt();
    let Err(error) = result else { panic!("it did not fail") };
    let most = timeout + (timeout / 20).max(Duration::from_millis(100));
    assert!(took >= timeout, "took {took:?} with {timeout:?}: {error}");
    assert!(took - run_delay <= most, "took {took:?}, {run_delay:?} not running, with {timeout:?}: {error}");
    assert!(busy < 0.25, "busy for {:.1} % of {took:?}: {error}", busy * 100.0);
    error
}
