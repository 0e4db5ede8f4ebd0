//! A store and the process it belongs to. A child that was forked has a copy of it, but neither its threads nor the sole
//! use of its connections, and some of its locks may be held by threads that were not copied. So a child gets a connection
//! of its own, or is told why it has none. It asks the copy for its timeout and its address, and never drops it.

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

/// How many forks lead from the process that imported this module to the current one. Asking the system for the process id
/// would take longer than the rest of a call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The current process, as a number that a fork changes.
pub(crate) fn current() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

thread_local! {
    /// Held while this thread forks.
    static FORK_LOCKS: RefCell<Option<(SharedServers, PendingLines)>> = const { RefCell::new(None) };
}

/// Adds the functions that the package calls when the interpreter forks.
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
            // Its holder may wait for the interpreter.
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

/// The process that made an object.
pub(crate) struct Owner {
    process: u32,
    pub(crate) pid: u32,
}

impl Owner {
    /// The current process.
    pub(crate) fn current() -> Owner {
        Owner { process: current(), pid: std::process::id() }
    }

    pub(crate) fn is_current(&self) -> bool {
        self.process == current()
    }
}

/// A store that can be used in the process that made it and in its children.
pub(crate) struct Native {
    owner: Owner,
    /// There until it is dropped.
    original: Option<Original>,
    /// The store of a child, and which child.
    child_store: Mutex<Option<(u32, Arc<dyn Store>)>>,
}

/// The store as it was made.
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
        self.original.as_ref().expect("it is there until it is dropped")
    }

    /// The store of the process that made it. A child may ask it for its settings, but must not call it.
    pub(crate) fn settings(&self) -> Arc<dyn Store> {
        match self.original().clone() {
            Original::Tcp(store) => store,
            Original::File(store) => store,
            Original::Hash(store) => store,
        }
    }

    /// The TCP store, if it is one and this is the process that made it.
    pub(crate) fn tcp(&self) -> Option<&TcpStore> {
        match self.original() {
            Original::Tcp(store) if self.owner.is_current() => Some(store),
            _ => None,
        }
    }

    /// Another client of the same server.
    pub(crate) fn clone_tcp(&self) -> Result<TcpStore> {
        match self.original() {
            Original::Tcp(store) if self.owner.is_current() => store.another(),
            Original::Tcp(store) => connect(store, self.timeout()),
            _ => Err(StoreError::InvalidArgument("not a TCP store".into())),
        }
    }

    /// The store of this process. A child connects when it first needs it.
    pub(crate) fn store(&self) -> Result<Arc<dyn Store>> {
        if self.owner.is_current() {
            return Ok(self.settings());
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
                    "this HashStore belongs to process {}, and this is {}, forked from it: a HashStore is shared by the \
                     threads of one process only; make one here, or use a TCPStore or FileStore",
                    self.owner.pid,
                    std::process::id()
                )));
            }
        };
        *self.child_store() = Some((current(), Arc::clone(&opened)));
        Ok(opened)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.opened_in_child().unwrap_or_else(|| self.settings()).timeout()
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.settings().set_timeout(timeout);
        if let Some(store) = self.opened_in_child() {
            store.set_timeout(timeout);
        }
    }

    fn child_store(&self) -> MutexGuard<'_, Option<(u32, Arc<dyn Store>)>> {
        self.child_store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store that this process has opened, if it is a child.
    fn opened_in_child(&self) -> Option<Arc<dyn Store>> {
        if self.owner.is_current() {
            return None;
        }
        let child_store = self.child_store();
        child_store.as_ref().filter(|(process, _)| *process == current()).map(|(_, store)| Arc::clone(store))
    }
}

/// A connection to the same server that has nothing in common with the copy.
fn connect(copy: &TcpStore, timeout: Option<Duration>) -> Result<TcpStore> {
    let endpoint = Endpoint::new(copy.host(), copy.port());
    TcpStore::open(TcpStoreOptions::new(endpoint).timeout(timeout).cancellation(signal_cancellation()))
}

impl Drop for Native {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // A child can't join the thread of its parent's server, and its parent still uses the file.
            std::mem::forget(self.original.take());
        }
    }
}
