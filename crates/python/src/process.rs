//! Stores that work in the process that created them and in its forked children.
//!
//! A forked child has a copy of its parent's store, but not the store's threads. It shares the store's connections with
//! the parent, and locks of the store may be held by threads that do not exist in the child. So the child opens a
//! store of its own with the settings of the copy (timeout, address, path), or fails with an error that says why it
//! cannot. It uses nothing else of the copy, and never drops it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use rallypoint_store::{
    Endpoint, FileStore, Result, SharedServers, Store, StoreError, TcpStore, TcpStoreOptions,
};

use crate::calls::signal_cancellation;
use crate::logging::{self, PendingLines};

/// The number of forks between the process that imported this module and the current one.
///
/// A forked child has copies of its ancestors' objects. This number shows which process created an object. Reading the
/// process id from the system would take longer than the rest of a call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between the current process and each of its ancestors.
pub(crate) fn current() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

thread_local! {
    /// The locks that this thread holds while it forks.
    static FORK_LOCKS: RefCell<Option<(SharedServers, PendingLines)>> = const { RefCell::new(None) };
}

/// Adds the functions that the package calls before and after a fork.
pub(crate) fn add_fork_hooks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(after_in_parent, module)?)?;
    module.add_function(wrap_pyfunction!(after_in_child, module)?)
}

#[pyfunction(name = "_before_fork")]
fn before_fork(py: Python<'_>) {
    let servers = loop {
        match SharedServers::try_lock() {
            Some(servers) => break servers,
            // Release the GIL while waiting, because the thread that holds the lock may need the GIL.
            None => py.detach(|| std::thread::sleep(Duration::from_millis(1))),
        }
    };
    FORK_LOCKS.set(Some((servers, logging::lock_pending_lines())));
}

#[pyfunction(name = "_after_in_parent")]
fn after_in_parent() {
    FORK_LOCKS.take();
}

#[pyfunction(name = "_after_in_child")]
fn after_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some((mut servers, _)) = FORK_LOCKS.take() {
        servers.forget();
    }
}

/// The process that created an object.
pub(crate) struct Owner {
    process: u32,
    pub(crate) pid: u32,
}

impl Owner {
    /// Returns the current process.
    pub(crate) fn current() -> Owner {
        Owner { process: current(), pid: std::process::id() }
    }

    pub(crate) fn is_current(&self) -> bool {
        self.process == current()
    }
}

/// A store that can be used in the process that created it and in its forked children.
pub(crate) struct Native {
    owner: Owner,
    /// The store as it was created. `None` only while this value is dropped.
    original: Option<Original>,
    /// The number of a child process (see `current`), and the store that it opened.
    child_store: Mutex<Option<(u32, Arc<dyn Store>)>>,
}

/// A store in the process that created it.
#[derive(Clone)]
pub(crate) enum Original {
    Tcp(Arc<TcpStore>),
    File(Arc<FileStore>),
    Hash(Arc<dyn Store>),
}

impl Native {
    pub(crate) fn new(original: Original) -> Arc<Native> {
        let (owner, original) = (Owner::current(), Some(original));
        Arc::new(Native { owner, original, child_store: Mutex::default() })
    }

    fn original(&self) -> &Original {
        self.original.as_ref().expect("only `drop` takes the store")
    }

    /// Returns the store as it was created. A child may use its settings, but must not call its operations.
    pub(crate) fn original_store(&self) -> Arc<dyn Store> {
        match self.original().clone() {
            Original::Tcp(store) => store,
            Original::File(store) => store,
            Original::Hash(store) => store,
        }
    }

    /// Returns the TCP store, in the process that created it. Returns `None` in a child, and for other kinds of store.
    pub(crate) fn tcp(&self) -> Option<&TcpStore> {
        match self.original() {
            Original::Tcp(store) if self.owner.is_current() => Some(store),
            _ => None,
        }
    }

    /// Opens another client of the same server.
    pub(crate) fn clone_tcp(&self) -> Result<TcpStore> {
        match self.original() {
            Original::Tcp(store) if self.owner.is_current() => store.try_clone(),
            Original::Tcp(store) => connect(store, self.timeout()),
            _ => Err(StoreError::InvalidArgument("not a TCP store".into())),
        }
    }

    /// Returns the store of this process. In a child, the first call opens it.
    pub(crate) fn store(&self) -> Result<Arc<dyn Store>> {
        if self.owner.is_current() {
            return Ok(self.original_store());
        }
        if let Some(store) = self.opened_in_child() {
            return Ok(store);
        }
        let timeout = self.timeout();
        let opened: Arc<dyn Store> = match self.original() {
            Original::Tcp(store) => Arc::new(connect(store, timeout)?),
            Original::File(store) => Arc::new(store.for_child(timeout)),
            Original::Hash(_) => {
                return Err(StoreError::InvalidArgument(format!(
                    "this HashStore belongs to process {}, and process {} was forked from it: a HashStore is shared \
                     by the threads of one process only; create one here, or use a TCPStore or FileStore",
                    self.owner.pid,
                    std::process::id()
                )));
            }
        };
        *self.child_store() = Some((current(), Arc::clone(&opened)));
        Ok(opened)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.opened_in_child().unwrap_or_else(|| self.original_store()).timeout()
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.original_store().set_timeout(timeout);
        if let Some(store) = self.opened_in_child() {
            store.set_timeout(timeout);
        }
    }

    fn child_store(&self) -> MutexGuard<'_, Option<(u32, Arc<dyn Store>)>> {
        self.child_store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the store that this process has opened, if it is a child that has opened one.
    fn opened_in_child(&self) -> Option<Arc<dyn Store>> {
        if self.owner.is_current() {
            return None;
        }
        let child_store = self.child_store();
        child_store.as_ref().filter(|(process, _)| *process == current()).map(|(_, store)| Arc::clone(store))
    }
}

/// Opens a client of the same server that shares nothing with `copy`.
fn connect(copy: &TcpStore, timeout: Option<Duration>) -> Result<TcpStore> {
    let endpoint = Endpoint::new(copy.host(), copy.port());
    TcpStore::open(TcpStoreOptions::new(endpoint).timeout(timeout).cancellation(signal_cancellation()))
}

impl Drop for Native {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // Leak the copy: a child cannot join the thread of its parent's server, and the parent still uses the file.
            std::mem::forget(self.original.take());
        }
    }
}
