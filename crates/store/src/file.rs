//! A store in one file that many processes share, torch's among them. `core::record` says what the bytes mean; here they
//! are read, locked and written.
//!
//! No process serves this store, so a waiter can't be woken: `get` and `wait` poll the file.

mod lock;
mod view;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rallypoint_core::client::{Awaited, Backoff, Cancellation, Deadline, Exchange, Failure, Oversized};
use rallypoint_core::record::{CLEANUP, REFCOUNT, RUN_ID, Record, Table, user_key, user_keys};
use rallypoint_core::wire::Op;
use rallypoint_core::{Limits, printable};

use self::lock::{Access, Locked, StoreFile};
use self::view::View;
use crate::deadline::{AtomicTimeout, now, pause};
use crate::error::{Context, FileFault, Result, StoreError, StoreKind};
use crate::setters;
use crate::store::{DEFAULT_TIMEOUT, Store, sum, within};

/// How long dropping a store may wait for the lock; [`FileStore::close`] takes the store's timeout instead.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// What a [`FileStore`] may be told before it is opened.
///
/// ```no_run
/// # use std::time::Duration;
/// # use rallypoint_store::FileStoreOptions;
/// # fn main() -> rallypoint_store::Result<()> {
/// let store = FileStoreOptions::new("/scratch/job-7/store").num_workers(4).timeout(Duration::from_secs(30)).open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FileStoreOptions {
    path: PathBuf,
    num_workers: Option<u64>,
    timeout: Option<Duration>,
    shared: bool,
    run_id: Option<String>,
    limits: Limits,
    cancellation: Option<Arc<dyn Cancellation>>,
}

impl FileStoreOptions {
    /// A file at this path, of this user alone, that is not removed.
    pub fn new(path: impl Into<PathBuf>) -> FileStoreOptions {
        FileStoreOptions {
            path: path.into(),
            num_workers: None,
            timeout: Some(DEFAULT_TIMEOUT),
            shared: false,
            run_id: None,
            limits: Limits::default(),
            cancellation: None,
        }
    }

    setters! {
        /// How many instances must have closed the file before the last one removes it. All that share the file should say the same.
        num_workers: Option<u64>;
        /// How long opening and every later operation may take; `None` for without end.
        timeout: Option<Duration>;
        /// Whether to use a file that belongs to another user or that others may write to. A process that can write to it
        /// decides what this process reads. A file that isn't there is made for this user alone (mode 0600) all the same.
        shared: bool;
        /// Refuses a file that an earlier run left behind.
        ///
        /// The first one to open a file without any user's keys writes the run's name into it; a file that names another
        /// run, or that holds keys but names none, is [`FileFault::Refused`](crate::FileFault::Refused). Torch's processes
        /// neither write nor check the name, so in a job that mixes both one of ours must come first.
        run_id: Option<String>;
        /// The longest key and value that are taken for such.
        limits: Limits;
        /// Sets what ends calls early, from opening the store on.
        cancellation: Option<Arc<dyn Cancellation>>;
    }

    /// Opens the store and counts it in the file.
    pub fn open(self) -> Result<FileStore> {
        // The file is opened anew each time, so a change of the working directory must not matter.
        let path = std::path::absolute(&self.path).map_err(|source| StoreError::File {
            path: self.path.clone(),
            fault: FileFault::System { what: "find", source },
        })?;
        let (file, timeout) = (StoreFile { path, shared: self.shared }, AtomicTimeout::new(self.timeout));
        let store =
            FileStore { shared: Arc::new(Shared { options: self, file, view: Mutex::default() }), timeout };
        let names = [REFCOUNT];
        store.shared.change(&store.call(Op::Add, &names), |table| {
            let count = store.shared.count(table, REFCOUNT, 1)?;
            Ok((vec![Record::set(REFCOUNT, count.to_string())], ()))
        })?;
        store.shared.view().is_counted = true;
        Ok(store)
    }
}

/// A [`Store`] in one file, which may be shared with torch's `FileStore`s on this machine or on any machine that sees the
/// file and honors its locks.
///
/// It has what torch's has: no queues, and `append`, `multi_get` and `multi_set` although
/// [`has_extended_api`](Store::has_extended_api) says no. `num_keys` counts the file's own bookkeeping keys, and
/// `delete_key` always returns true, as torch's do; `list_keys` lists only the user's.
///
/// An instance is counted in the file while it lives. The last one to go removes the file once as many have gone as the
/// number of workers it was opened with. [`close`](FileStore::close) does so and reports errors; dropping the store does so
/// too, and waits up to 5 s for the lock.
pub struct FileStore {
    shared: Arc<Shared>,
    timeout: AtomicTimeout,
}

/// What a store and its copies with other timeouts have in common. It is counted in the file.
struct Shared {
    options: FileStoreOptions,
    file: StoreFile,
    /// Locked after the file and only for as long as it takes to read: a thread that waits for the file's lock must not
    /// block another thread with an earlier deadline.
    view: Mutex<View>,
}

/// An operation under way.
struct Call<'a> {
    op: Op,
    keys: &'a [&'a str],
    deadline: Deadline,
}

impl Call<'_> {
    fn context(&self, path: &Path) -> Context {
        let keys = self.keys.iter().map(|key| key.to_string()).collect();
        let waited = self.deadline.waited(now());
        Context::new(StoreKind::File, path.display().to_string()).with_call(self.op, keys).after(waited)
    }

    fn timeout_error(&self, path: &Path, obstacle: &'static str) -> StoreError {
        StoreError::FileTimeout { context: Box::new(self.context(path)), obstacle }
    }
}

impl FileStore {
    /// Opens the store at `path`, making the file if it isn't there. With a number of workers the last of them to go
    /// removes the file; without (torch's -1) the file stays.
    pub fn open(path: impl AsRef<Path>, num_workers: Option<u64>) -> Result<FileStore> {
        FileStoreOptions::new(path.as_ref()).num_workers(num_workers).open()
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.shared.options.path
    }

    /// Closes the store: it is no longer counted in the file, and if it was the last one, the file is removed. If the
    /// file is gone or was replaced meanwhile there is nothing to do.
    pub fn close(self) -> Result<()> {
        let result = self.shared.leave(self.timeout());
        // Dropping the store must not try again, even after a failure.
        self.shared.view().is_counted = false;
        result
    }

    /// The same file for a process that was forked from the one which opened it. It is not counted in the file, and has
    /// nothing in common with the one it is made from: that one's locks may be held by threads which were not copied.
    pub fn for_child(&self, timeout: Option<Duration>) -> FileStore {
        let Shared { options, file, .. } = &*self.shared;
        let shared = Shared { options: options.clone(), file: file.clone(), view: Mutex::default() };
        FileStore { shared: Arc::new(shared), timeout: AtomicTimeout::new(timeout) }
    }

    fn call<'a>(&self, op: Op, keys: &'a [&'a str]) -> Call<'a> {
        self.shared.call(op, keys, self.timeout())
    }

    /// The key as the file has it, if it may be that long.
    fn key(&self, key: &str) -> Result<Vec<u8>> {
        // The slash before it, and the mark of deletion that may come before that.
        let limit = self.shared.options.limits.record_key_len.saturating_sub(2);
        within(Oversized::Key, key.len(), limit)
            .map_err(|failure| self.shared.refused(&printable(key.as_bytes()), failure))?;
        Ok(user_key(key))
    }

    fn keys(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        keys.iter().map(|key| self.key(key)).collect()
    }

    fn record(&self, key: &str, value: &[u8]) -> Result<Record> {
        let limit = self.shared.options.limits.record_value_len;
        within(Oversized::Value, value.len(), limit).map_err(|failure| self.shared.refused(key, failure))?;
        Ok(Record::set(self.key(key)?, value))
    }
}

impl Shared {
    fn call<'a>(&self, op: Op, keys: &'a [&'a str], timeout: Option<Duration>) -> Call<'a> {
        let deadline = Deadline::after(now(), timeout).or_cancelled(self.options.cancellation.clone());
        Call { op, keys, deadline }
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what the file holds now. The lock is needed only if the file has changed.
    fn read<T>(&self, call: &Call, read: impl FnOnce(&View) -> T) -> Result<T> {
        if let Some(metadata) = self.file.metadata()? {
            let view = self.view();
            if view.is_current(&metadata) {
                self.check_run(&view.table)?;
                return Ok(read(&view));
            }
        }
        let (_locked, view, _) = self.lock(Access::Read, call)?;
        Ok(read(&view))
    }

    /// Looks until `find` finds something, or the time is up. There is a last look at the deadline.
    fn wait<T>(&self, call: &Call, keys: &[Vec<u8>], find: impl Fn(&Table) -> Option<T>) -> Result<T> {
        // Torch's pause is 10 ms always.
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
        let mut last_position = None;
        loop {
            let is_last = call.deadline.has_passed(now());
            let found = self.read(call, |view| {
                // Seeking many keys takes time, and most looks find the file unchanged.
                let is_changed = last_position.replace(view.position()) != Some(view.position());
                match is_changed.then(|| find(&view.table)).flatten() {
                    Some(found) => Ok(Some(found)),
                    None if is_last => Err(self.key_timeout_error(call, keys, view)),
                    None => Ok(None),
                }
            })??;
            if let Some(found) = found {
                return Ok(found);
            }
            pause(&mut backoff, &call.deadline);
        }
    }

    fn key_timeout_error(&self, call: &Call, keys: &[Vec<u8>], view: &View) -> StoreError {
        let mut context = call.context(&self.file.path);
        if view.torn_len() > 0 {
            context.peer.push_str(&format!(" (its last {} bytes are a torn record)", view.torn_len()));
        }
        let present = keys.iter().map(|key| view.table.contains_key(key)).collect();
        context.failed(Failure::Timeout(Awaited::Keys(Some(present))))
    }

    /// The error for what can't be done to this key.
    fn refused(&self, key: &str, failure: Failure) -> StoreError {
        let path = self.file.path.display().to_string();
        Context::new(StoreKind::File, path).with_call(None, vec![key.to_owned()]).failed(failure)
    }

    /// The number that `key`, which the file has as `name`, holds once `delta` is added. An empty value counts as 0: torch's
    /// FileStore does so, although its TCPStore refuses it.
    fn sum(&self, table: &Table, key: &str, name: &[u8], delta: i64) -> Result<i64> {
        let value = table.get(name).map(Vec::as_slice).filter(|value| !value.is_empty());
        sum(value, delta).map_err(|failure| self.refused(key, failure))
    }

    /// One of the file's own counts after this change.
    fn count(&self, table: &Table, key: &str, delta: i64) -> Result<i64> {
        self.sum(table, key, key.as_bytes(), delta)
    }

    /// Decides on what the file holds now, and writes the records that follow before any other process can write.
    fn change<T>(&self, call: &Call, decide: impl FnOnce(&Table) -> Result<(Vec<Record>, T)>) -> Result<T> {
        // Torch's delete is the one writer that waits for a missing file rather than making it.
        let access = if call.op == Op::DeleteKey { Access::Write } else { Access::Create };
        let (locked, mut view, claim) = self.lock(access, call)?;
        let (records, result) = decide(&view.table)?;
        view.append(&locked, &self.file, claim.into_iter().chain(records).collect())?;
        Ok(result)
    }

    /// Locks the file and reads it. Returns the record that claims it for this run, too, if that is not written yet.
    fn lock(&self, access: Access, call: &Call) -> Result<(Locked, MutexGuard<'_, View>, Option<Record>)> {
        let locked = self.file.lock(access, call)?;
        let mut view = self.view();
        view.refresh(&locked, &self.file, &self.options.limits, call)?;
        let claim = self.check_run(&view.table)?;
        if access != Access::Read {
            view.cut_torn_tail(&locked, &self.file)?;
        }
        Ok((locked, view, claim))
    }

    /// Refuses a file of another run. Returns the record that claims a file which no run has used yet.
    fn check_run(&self, table: &Table) -> Result<Option<Record>> {
        let Some(run_id) = &self.options.run_id else { return Ok(None) };
        let reason = match table.get(RUN_ID.as_bytes()) {
            Some(owner) if owner == run_id.as_bytes() => return Ok(None),
            Some(owner) => format!("it belongs to run {:?}", printable(owner)),
            None if user_keys(table).next().is_none() => {
                return Ok(Some(Record::set(RUN_ID, run_id.as_str())));
            }
            None => "it holds keys already and names no run".into(),
        };
        Err(self
            .file
            .refused(format!("{reason}, so run {run_id:?} does not use it; remove it if its run is over")))
    }

    /// Signs out of the file. By torch's rule, the instance removes the file if no other has it open and at least as many
    /// have closed it as there are workers. If the file is gone or is another one now, there is nothing to do.
    fn leave(&self, timeout: Option<Duration>) -> Result<()> {
        let is_counted_here = |metadata| {
            let view = self.view();
            view.is_counted && view.is_same_file(&metadata)
        };
        if !self.file.metadata()?.is_some_and(is_counted_here) {
            return Ok(());
        }
        let call = self.call(Op::Add, &[CLEANUP, REFCOUNT], timeout);
        let (locked, mut view, _) = self.lock(Access::Write, &call)?;
        if !view.is_counted {
            return Ok(());
        }
        let (closed, open) = (self.count(&view.table, CLEANUP, 1)?, self.count(&view.table, REFCOUNT, -1)?);
        let records = vec![Record::set(CLEANUP, closed.to_string()), Record::set(REFCOUNT, open.to_string())];
        view.append(&locked, &self.file, records)?;
        view.is_counted = false;
        let workers = self.options.num_workers.and_then(|workers| i64::try_from(workers).ok());
        // Removed under the lock: a process that waits for the lock then finds the file gone.
        match open == 0 && workers.is_some_and(|workers| closed >= workers) {
            true => {
                let removed = std::fs::remove_file(&self.file.path);
                removed.map_err(|error| self.file.system_error("remove", error))
            }
            false => Ok(()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.view().is_counted {
            return;
        }
        if let Err(error) = self.leave(Some(DROP_TIMEOUT)) {
            tracing::warn!(%error, "left a file without signing out of it");
        }
    }
}

impl fmt::Debug for FileStore {
    /// Without the keys and values, which don't belong in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let record = self.record(key, value)?;
        self.shared.change(&self.call(Op::Set, &[key]), |_| Ok((vec![record], ())))
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let names = [self.key(key)?];
        self.shared.wait(&self.call(Op::Get, &[key]), &names, |table| table.get(&names[0]).cloned())
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let name = self.key(key)?;
        self.shared.change(&self.call(Op::Add, &[key]), |table| {
            let sum = self.shared.sum(table, key, &name, delta)?;
            Ok((vec![Record::set(name, sum.to_string())], sum))
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let names = self.keys(keys)?;
        self.shared.read(&self.call(Op::Check, keys), |view| has_all(&view.table, &names))
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let names = self.keys(keys)?;
        let call = self.shared.call(Op::Wait, keys, timeout);
        self.shared.wait(&call, &names, |table| has_all(table, &names).then_some(()))
    }

    fn compare_exchange(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Exchange> {
        let record = self.record(key, desired)?;
        self.shared.change(&self.call(Op::CompareSet, &[key]), |table| {
            Ok(match table.get(&record.key) {
                Some(value) if value != expected => (vec![], Exchange::Held(value.clone())),
                None if !expected.is_empty() => (vec![], Exchange::Absent),
                _ => (vec![record], Exchange::Stored),
            })
        })
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        let record = Record::delete(self.key(key)?);
        self.shared.change(&self.call(Op::DeleteKey, &[key]), |_| Ok((vec![record], true)))
    }

    fn num_keys(&self) -> Result<u64> {
        self.shared.read(&self.call(Op::NumKeys, &[]), |view| view.table.len() as u64)
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        let name = self.key(key)?;
        self.shared.change(&self.call(Op::Append, &[key]), |table| {
            let current = table.get(&name).map_or(&[][..], Vec::as_slice);
            Ok((vec![self.record(key, &[current, value].concat())?], ()))
        })
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        let names = self.keys(keys)?;
        self.shared.wait(&self.call(Op::MultiGet, keys), &names, |table| {
            names.iter().map(|name| table.get(name).cloned()).collect()
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        let records = pairs.iter().map(|(key, value)| self.record(key, value)).collect::<Result<_>>()?;
        let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
        self.shared.change(&self.call(Op::MultiSet, &keys), |_| Ok((records, ())))
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        self.shared.read(&self.call(Op::ListKeys, &[]), |view| {
            user_keys(&view.table).map(|key| String::from_utf8_lossy(key).into_owned()).collect()
        })
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout.load()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        self.timeout.store(timeout);
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        Box::new(FileStore { shared: Arc::clone(&self.shared), timeout: AtomicTimeout::new(timeout) })
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(self.shared.options.clone().timeout(self.timeout()).open()?))
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        self.shared.options.cancellation.clone()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::File
    }
}

fn has_all(table: &Table, names: &[Vec<u8>]) -> bool {
    names.iter().all(|name| table.contains_key(name))
}
