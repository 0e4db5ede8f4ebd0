//! A store in one file that several processes share, including processes that use torch's `FileStore`. `core::record`
//! defines the format of the file.
//!
//! There is no server that could wake a waiter, so an operation that waits polls the file.

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

/// How long dropping a store waits for the lock. [`FileStore::close`] uses the timeout of the store instead.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a [`FileStore`].
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
    /// Creates the options for the file at this path. By default, the store refuses a file that belongs to another user
    /// or that other users can write, and never deletes the file.
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
        /// Sets the number of workers. The last open instance deletes the file when it closes, provided that at least
        /// this number of instances, including itself, have closed the file. All instances should use the same number.
        /// `None` means that the file is never deleted.
        num_workers: Option<u64>;
        /// Sets the timeout of every operation, including opening. `None` means no timeout.
        timeout: Option<Duration>;
        /// Sets whether to accept a file that belongs to another user or that other users can write. Such users control
        /// what this process reads. A new file has mode 0600 in either case.
        shared: bool;
        /// Sets the run id, so that a file of an earlier run is refused.
        ///
        /// The first instance that opens a file without users' keys writes the run id into it. Every operation on a
        /// file with another run id, or with users' keys but no run id, fails with
        /// [`FileFault::Refused`](crate::FileFault::Refused). Torch's processes neither write nor check the run id, so
        /// in a mixed job one of our processes must open the file first.
        run_id: Option<String>;
        /// Sets the limits on the length of keys and values. A file that contains a longer one counts as corrupt.
        limits: Limits;
        /// Sets the cancellation of all calls, including the one that opens the store.
        cancellation: Option<Arc<dyn Cancellation>>;
    }

    /// Opens the store and counts this instance in the file.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::File`] if the file cannot be used, and with [`StoreError::FileTimeout`] if the file
    /// could not be created, locked and read before the timeout.
    pub fn open(self) -> Result<FileStore> {
        // Each operation opens the file again, so the path must not depend on the working directory.
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

/// A [`Store`] in one file.
///
/// Processes that use torch's `FileStore` can share the file, on this machine or on another one. Between machines, this
/// needs a shared file system with `flock`.
///
/// The operations are those of torch's `FileStore`. There are no queues. `append`, `multi_get` and `multi_set` work
/// although [`has_extended_api`](Store::has_extended_api) returns `false`. `num_keys` also counts the internal keys of
/// the file, but `list_keys` returns only users' keys. `delete_key` always returns `true`.
///
/// The file contains the number of open instances and the number of closed ones. An instance that closes deletes the
/// file if it was the last open one and the number of closed instances has reached the number of workers.
/// [`close`](FileStore::close) closes an instance and reports errors. Dropping an instance also closes it, waits up to
/// 5 s for the lock, and logs errors.
pub struct FileStore {
    shared: Arc<Shared>,
    timeout: AtomicTimeout,
}

/// One instance, as counted in the file. A store and the copies that `with_timeout` returns share one instance.
struct Shared {
    options: FileStoreOptions,
    file: StoreFile,
    /// A thread must not hold this mutex while it waits for the lock of the file, because it would block a thread with
    /// an earlier deadline.
    view: Mutex<View>,
}

/// An operation in progress.
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
    /// Opens the store at `path` and creates the file if it does not exist.
    ///
    /// With a number of workers, the last open instance may delete the file when it closes; see
    /// [`FileStoreOptions::num_workers`]. With `None` (torch's -1), the file is never deleted.
    ///
    /// # Errors
    ///
    /// Fails like [`FileStoreOptions::open`].
    pub fn open(path: impl AsRef<Path>, num_workers: Option<u64>) -> Result<FileStore> {
        FileStoreOptions::new(path.as_ref()).num_workers(num_workers).open()
    }

    /// Returns the path with which the store was opened.
    pub fn path(&self) -> &Path {
        &self.shared.options.path
    }

    /// Closes the store and updates the numbers of open and closed instances in the file. May delete the file; see
    /// [`FileStoreOptions::num_workers`].
    ///
    /// Does nothing if the file was deleted or replaced in the meantime.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::File`] or [`StoreError::FileTimeout`] if the file cannot be locked or updated.
    pub fn close(self) -> Result<()> {
        let result = self.shared.close(self.timeout());
        // Even after a failure, `drop` must not try again.
        self.shared.view().is_counted = false;
        result
    }

    /// Returns a store on the same file for a forked child of the process that opened it.
    ///
    /// The new store is not counted in the file. It shares no mutex with the original, because a thread that does not
    /// exist in the child may have locked that mutex.
    pub fn for_child(&self, timeout: Option<Duration>) -> FileStore {
        let Shared { options, file, .. } = &*self.shared;
        let shared = Shared { options: options.clone(), file: file.clone(), view: Mutex::default() };
        FileStore { shared: Arc::new(shared), timeout: AtomicTimeout::new(timeout) }
    }

    fn call<'a>(&self, op: Op, keys: &'a [&'a str]) -> Call<'a> {
        self.shared.call(op, keys, self.timeout())
    }

    /// Returns the form that the key has in the file. Fails if the key is too long.
    fn key(&self, key: &str) -> Result<Vec<u8>> {
        // In the file, a slash precedes the key, and a deletion mark may precede the slash.
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
        let deadline = Deadline::after(now(), timeout).or_canceled(self.options.cancellation.clone());
        Call { op, keys, deadline }
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `read` with the current contents of the file. Takes the lock only if the file has changed since this
    /// instance read it. Waits for a missing file until the deadline.
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

    /// Polls the file until `find` returns a value. The last poll is at the deadline.
    fn wait<T>(&self, call: &Call, keys: &[Vec<u8>], find: impl Fn(&Table) -> Option<T>) -> Result<T> {
        // The maximum interval is that of torch, which polls every 10 ms.
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(10));
        let mut last_position = None;
        loop {
            let is_last = call.deadline.has_passed(now());
            let found = self.read(call, |view| {
                // `find` is slow for many keys, and most polls find the file unchanged.
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
        if view.unparsed_len() > 0 {
            context.peer.push_str(&format!(" (its last {} bytes are a torn record)", view.unparsed_len()));
        }
        let present = keys.iter().map(|key| view.table.contains_key(key)).collect();
        context.failed(Failure::Timeout(Awaited::Keys(Some(present))))
    }

    /// Creates the error for an operation that this store refuses.
    fn refused(&self, key: &str, failure: Failure) -> StoreError {
        let path = self.file.path.display().to_string();
        Context::new(StoreKind::File, path).with_call(None, vec![key.to_owned()]).failed(failure)
    }

    /// Returns the sum of `delta` and the number under `key`, whose form in the file is `name`.
    ///
    /// An empty value counts as 0, as in torch's FileStore. Torch's TCPStore refuses it.
    fn sum(&self, table: &Table, key: &str, name: &[u8], delta: i64) -> Result<i64> {
        let value = table.get(name).map(Vec::as_slice).filter(|value| !value.is_empty());
        sum(value, delta).map_err(|failure| self.refused(key, failure))
    }

    /// Returns the sum of `delta` and the number under an internal key of the file.
    fn count(&self, table: &Table, key: &str, delta: i64) -> Result<i64> {
        self.sum(table, key, key.as_bytes(), delta)
    }

    /// Passes the current contents to `decide` and writes the records that it returns, all under the exclusive lock.
    fn change<T>(&self, call: &Call, decide: impl FnOnce(&Table) -> Result<(Vec<Record>, T)>) -> Result<T> {
        // In torch, `delete_key` is the only write operation that waits for a missing file instead of creating it.
        let access = if call.op == Op::DeleteKey { Access::Write } else { Access::Create };
        let (locked, mut view, claim) = self.lock(access, call)?;
        let (records, result) = decide(&view.table)?;
        view.append(&locked, &self.file, claim.into_iter().chain(records).collect())?;
        Ok(result)
    }

    /// Locks the file and reads it. If the file has no run id yet, also returns the record with the run id of this
    /// store, which a caller that writes must append.
    fn lock(&self, access: Access, call: &Call) -> Result<(Locked, MutexGuard<'_, View>, Option<Record>)> {
        let locked = self.file.lock(access, call)?;
        let mut view = self.view();
        view.refresh(&locked, &self.file, &self.options.limits, call)?;
        let claim = self.check_run(&view.table)?;
        if access != Access::Read {
            view.truncate_torn_record(&locked, &self.file)?;
        }
        Ok((locked, view, claim))
    }

    /// Refuses a file of another run. Returns the record with the run id of this store if the file has no run id yet.
    fn check_run(&self, table: &Table) -> Result<Option<Record>> {
        let Some(run_id) = &self.options.run_id else { return Ok(None) };
        let reason = match table.get(RUN_ID.as_bytes()) {
            Some(owner) if owner == run_id.as_bytes() => return Ok(None),
            Some(owner) => format!("it belongs to run {:?}", printable(owner)),
            None if user_keys(table).next().is_none() => {
                return Ok(Some(Record::set(RUN_ID, run_id.as_str())));
            }
            None => "it already has keys and no run id".into(),
        };
        Err(self
            .file
            .refused(format!("{reason}, so run {run_id:?} does not use it; delete it if its run has ended")))
    }

    /// Counts this instance as closed in the file.
    ///
    /// By torch's rule, this instance deletes the file if it is the last open one and the number of closed instances
    /// has reached the number of workers. Does nothing if the file was deleted or replaced.
    fn close(&self, timeout: Option<Duration>) -> Result<()> {
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
        // The file is deleted under the lock, so a process that waits for the lock then finds that the file is missing.
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
        if let Err(error) = self.close(Some(DROP_TIMEOUT)) {
            tracing::warn!(%error, "closed a FileStore without updating the count in its file");
        }
    }
}

impl fmt::Debug for FileStore {
    /// Omits the keys and values, which do not belong in a log.
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
                Some(value) if value != expected => (vec![], Exchange::Mismatch(value.clone())),
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
