//! A store in one file that many processes share, torch's among them. What the bytes mean is core's `record`; here they
//! are read, locked and written.
//!
//! Nobody serves this store, so nobody can wake a waiter: `get` and `wait` look again and again.

mod call;
mod options;
mod place;
mod turn;
mod view;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rallypoint_core::client::{Cancellation, Deadline, Exchange, Failure, Oversized};
use rallypoint_core::record::{Record, user_key};
use rallypoint_core::wire::Op;
use rallypoint_core::{Value, printable};

use self::call::Call;
pub use self::options::FileStoreOptions;
use self::place::Place;
use self::view::View;
use crate::deadline::now;
use crate::error::{Context, FileFault, Result, StoreError, StoreKind};
use crate::store::Store;

/// How long dropping a store may wait for the lock; [`FileStore::close`] takes the store's time-out instead.
const DROP_WITHIN: Duration = Duration::from_secs(5);

/// A [`Store`] in one file, which may be shared with torch's `FileStore`s on this machine or on any that sees the file
/// and honours its locks.
///
/// It has what torch's has: no queues, and `append`, `multi_get` and `multi_set` although
/// [`has_extended_api`](Store::has_extended_api) says no. `num_keys` counts the file's own bookkeeping keys, and
/// `delete_key` is always true, as torch has it; `list_keys` lists only the user's.
///
/// An instance is counted in the file while it lives. The last one to go removes the file once as many have gone as the
/// number of workers it was opened with. [`close`](FileStore::close) does so and tells of errors; dropping it does so
/// too.
pub struct FileStore {
    options: FileStoreOptions,
    place: Arc<Place>,
    timeout: Mutex<Option<Duration>>,
    /// Whether it is this one that is counted in the file, rather than the one it shares everything with.
    counted: bool,
    /// Locked after the file and only for as long as it takes to read: a thread that waits for the file's lock must not
    /// keep another, whose time is up earlier, from finding that out.
    view: Arc<Mutex<View>>,
}

impl FileStore {
    /// Opens the store at `path`, making the file if it isn't there. With a number of workers the last of them to go
    /// removes the file; without (torch's -1) nobody does.
    pub fn open(path: impl AsRef<Path>, num_workers: Option<u64>) -> Result<FileStore> {
        FileStoreOptions::new(path.as_ref()).num_workers(num_workers).open()
    }

    fn with_options(options: FileStoreOptions) -> Result<FileStore> {
        // Opened anew each time, so a change of the working directory must not matter.
        let path = std::path::absolute(&options.path).map_err(|source| StoreError::File {
            path: options.path.clone(),
            fault: FileFault::System { what: "find", source },
        })?;
        let store = FileStore {
            place: Arc::new(Place::new(path, options.shared)),
            timeout: Mutex::new(options.timeout),
            counted: true,
            view: Arc::new(Mutex::new(View::new(&options.limits))),
            options,
        };
        let call = store.begin(Op::Add, &["refcount/"], store.timeout());
        store.change(&call, |replay| match replay.join() {
            Ok(record) => Ok((vec![record], ())),
            Err(held) => Err(store.refused("refcount/", Failure::NotANumber { delta: 1, held })),
        })?;
        store.view().joined = true;
        Ok(store)
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// Closes the store: it is no longer counted in the file, and if it was the last one, the file is removed. If the
    /// file is gone or was replaced meanwhile there is nothing to do.
    pub fn close(self) -> Result<()> {
        let left = self.leave(self.timeout());
        // Whatever came of it, dropping must not try again.
        self.view().joined = false;
        left
    }

    /// The same file for a process that was forked from the one which opened it. It is not counted in the file, and has
    /// nothing in common with the one it is made from: that one's locks may be held by threads which were not copied.
    pub fn for_child(&self, timeout: Option<Duration>) -> FileStore {
        FileStore {
            options: self.options.clone(),
            place: Arc::new(Place::new(self.place.path().to_owned(), self.options.shared)),
            timeout: Mutex::new(timeout),
            counted: false,
            view: Arc::new(Mutex::new(View::new(&self.options.limits))),
        }
    }

    fn begin<'a>(&self, op: Op, keys: &'a [&'a str], timeout: Option<Duration>) -> Call<'a> {
        let deadline = Deadline::after(now(), timeout).or_cancelled(self.options.cancellation.clone());
        Call::new(op, keys, deadline)
    }

    /// The key as the file has it, if it may be that long.
    fn key(&self, key: &str) -> Result<Box<[u8]>> {
        // The slash before it, and the mark of deletion that may come before that.
        let limit = self.options.limits.record_key_len.saturating_sub(2);
        match key.len() > limit {
            true => {
                let (what, len) = (Oversized::Key, key.len() as u64);
                Err(self.refused(&printable(key.as_bytes()), Failure::TooLarge { what, len, limit }))
            }
            false => Ok(user_key(key)),
        }
    }

    /// The error for what can't be done to this key.
    fn refused(&self, key: &str, failure: Failure) -> StoreError {
        let path = self.place.path().display().to_string();
        Context::new(StoreKind::File, path).during(None, vec![key.to_owned()]).failed(failure)
    }

    fn keys(&self, keys: &[&str]) -> Result<Vec<Box<[u8]>>> {
        keys.iter().map(|key| self.key(key)).collect()
    }

    fn record(&self, key: &str, value: &[u8]) -> Result<Record> {
        let limit = self.options.limits.record_value_len;
        match value.len() > limit {
            true => {
                let (what, len) = (Oversized::Value, value.len() as u64);
                Err(self.refused(key, Failure::TooLarge { what, len, limit }))
            }
            false => Ok(Record::set(self.key(key)?, Value::copied(value))),
        }
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let record = self.record(key, value)?;
        self.change(&self.begin(Op::Set, &[key], self.timeout()), |_| Ok((vec![record], ())))
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let names = [self.key(key)?];
        let wanted = [key];
        let call = self.begin(Op::Get, &wanted, self.timeout());
        self.await_keys(&call, &names, |replay| replay.value(&names[0]).map(|value| value.to_vec()))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let name = self.key(key)?;
        self.change(&self.begin(Op::Add, &[key], self.timeout()), |replay| {
            let sum = replay.sum(&name, delta);
            let sum = sum.map_err(|held| self.refused(key, Failure::NotANumber { delta, held }))?;
            Ok((vec![Record::number(name, sum)], sum))
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let names = self.keys(keys)?;
        let call = self.begin(Op::Check, keys, self.timeout());
        self.look(&call, |view| names.iter().all(|name| view.replay().value(name).is_some()))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let names = self.keys(keys)?;
        let call = self.begin(Op::Wait, keys, timeout);
        self.await_keys(&call, &names, |replay| {
            names.iter().all(|name| replay.value(name).is_some()).then_some(())
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        Ok(match self.compare_exchange(key, expected, desired)? {
            Exchange::Stored => desired.to_vec(),
            Exchange::Held(held) => held,
            Exchange::Absent => expected.to_vec(),
        })
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        let record = self.record(key, desired)?;
        self.change(&self.begin(Op::CompareSet, &[key], self.timeout()), |replay| {
            if replay.accepts(&record.key, expected) {
                return Ok((vec![record], Exchange::Stored));
            }
            let held = replay.value(&record.key);
            Ok((vec![], held.map_or(Exchange::Absent, |held| Exchange::Held(held.to_vec()))))
        })
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        let record = Record::delete(self.key(key)?);
        self.change(&self.begin(Op::DeleteKey, &[key], self.timeout()), |_| Ok((vec![record], true)))
    }

    fn num_keys(&self) -> Result<u64> {
        let call = self.begin(Op::NumKeys, &[], self.timeout());
        self.look(&call, |view| view.replay().len() as u64)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let name = self.key(key)?;
        self.change(&self.begin(Op::Append, &[key], self.timeout()), |replay| {
            let held = replay.value(&name).map_or(&[][..], |held| held);
            Ok((vec![self.record(key, &[held, value].concat())?], ()))
        })
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        let names = self.keys(keys)?;
        let call = self.begin(Op::MultiGet, keys, self.timeout());
        self.await_keys(&call, &names, |replay| {
            names.iter().map(|name| replay.value(name).map(|value| value.to_vec())).collect()
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let records = pairs.iter().map(|(key, value)| self.record(key, value)).collect::<Result<_>>()?;
        let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
        self.change(&self.begin(Op::MultiSet, &keys, self.timeout()), |_| Ok((records, ())))
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        let call = self.begin(Op::ListKeys, &[], self.timeout());
        self.look(&call, |view| {
            view.replay().user_keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
        })
    }

    fn timeout(&self) -> Option<Duration> {
        *self.timeout.lock().expect("nothing panics while it holds the time-out")
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().expect("nothing panics while it holds the time-out") = timeout;
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(FileStore {
            options: self.options.clone(),
            place: Arc::clone(&self.place),
            timeout: Mutex::new(timeout),
            counted: false,
            view: Arc::clone(&self.view),
        })
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.options.clone().timeout(self.timeout()).open()?))
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        self.options.cancellation.clone()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::File
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let timeout = self.timeout().map_or(DROP_WITHIN, |timeout| timeout.min(DROP_WITHIN));
        if let Err(error) = self.leave(Some(timeout)) {
            tracing::warn!(%error, "left a file without signing out of it");
        }
    }
}

impl fmt::Debug for FileStore {
    /// Without the keys and values: they are nobody's business in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("path", &self.options.path).finish_non_exhaustive()
    }
}
