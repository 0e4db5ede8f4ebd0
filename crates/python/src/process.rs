//! A store and the process it belongs to. A child that was forked has a copy of it, but neither its threads nor the sole
//! use of its connections, and its locks may be held by nobody. So a child gets a connection of its own, or is told why it
//! has none; it never touches the copy, not even to drop it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rallypoint_store::{
    Cancellation, Endpoint, Exchange, FileStore, Result, SharedServers, Store, StoreError, StoreKind,
    TcpStore, TcpStoreOptions,
};

use crate::calls::signals;

/// How many forks lead from the process that imported this module to the current one. Asking the system for the process id
/// would take longer than the rest of a call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The current process, as a number that a fork changes.
pub(crate) fn current() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

thread_local! {
    /// Held while this thread forks.
    static HELD: RefCell<Option<SharedServers>> = const { RefCell::new(None) };
}

/// Makes the interpreter call these functions when it forks.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let hooks = PyDict::new(py);
    hooks.set_item("before", wrap_pyfunction!(before_fork, py)?)?;
    hooks.set_item("after_in_parent", wrap_pyfunction!(after_in_parent, py)?)?;
    hooks.set_item("after_in_child", wrap_pyfunction!(after_in_child, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks)).map(drop)
}

#[pyfunction]
fn before_fork(py: Python<'_>) {
    let servers = loop {
        match SharedServers::try_lock() {
            Some(servers) => break servers,
            // Its holder may wait for the interpreter.
            None => py.detach(|| std::thread::sleep(Duration::from_millis(1))),
        }
    };
    HELD.set(Some(servers));
}

#[pyfunction]
fn after_in_parent() {
    HELD.take();
}

#[pyfunction]
fn after_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(mut servers) = HELD.take() {
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

/// Locks a mutex that threads hold only for moments. Returns `None` if the lock is not released within 1 s: its holder was
/// lost in a fork.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let started = Instant::now();
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if started.elapsed() > Duration::from_secs(1) => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// A store that can be used in the process that made it and in its children.
#[derive(Clone)]
pub(crate) struct Native {
    shared: Arc<Shared>,
    /// The timeout of this handle, if it is not the store's.
    timeout: Option<Option<Duration>>,
}

struct Shared {
    owner: Owner,
    /// There until it is dropped.
    original: Option<Original>,
    /// The store of a child, and which child.
    of_child: Mutex<Option<(u32, Arc<dyn Store>)>>,
    timeout: Mutex<Option<Duration>>,
}

/// The store as it was made.
pub(crate) enum Original {
    Tcp(TcpStore),
    File(Box<FileStore>),
    Hash(Box<dyn Store>),
}

impl Original {
    fn store(&self) -> &dyn Store {
        match self {
            Original::Tcp(store) => store,
            Original::File(store) => &**store,
            Original::Hash(store) => &**store,
        }
    }
}

impl Native {
    pub(crate) fn new(original: Original) -> Native {
        let shared = Shared {
            owner: Owner::current(),
            timeout: Mutex::new(original.store().timeout()),
            of_child: Mutex::default(),
            original: Some(original),
        };
        Native { shared: Arc::new(shared), timeout: None }
    }

    /// The TCP store, if it is one and this is the process that made it.
    pub(crate) fn tcp(&self) -> Option<&TcpStore> {
        match self.shared.original() {
            Original::Tcp(store) if self.shared.owner.is_current() => Some(store),
            _ => None,
        }
    }

    /// Another client of the same server.
    pub(crate) fn another_tcp(&self) -> Result<TcpStore> {
        match self.shared.original() {
            Original::Tcp(store) if self.shared.owner.is_current() => store.another(),
            Original::Tcp(store) => connect(store, self.timeout()),
            _ => Err(StoreError::InvalidArgument("not a TCP store".into())),
        }
    }

    fn with<T>(&self, call: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        let in_child;
        let store = if self.shared.owner.is_current() {
            self.shared.original().store()
        } else {
            in_child = self.shared.in_child()?;
            &*in_child
        };
        match self.timeout {
            None => call(store),
            Some(timeout) => call(&*store.with_timeout(timeout)),
        }
    }
}

impl Shared {
    fn original(&self) -> &Original {
        self.original.as_ref().expect("it is there until it is dropped")
    }

    /// The store of this process, which is a child of the one that made the original.
    fn in_child(&self) -> Result<Arc<dyn Store>> {
        let lost = || {
            let text = "this store was copied by a fork while another thread opened it; make a new one";
            StoreError::InvalidArgument(text.into())
        };
        let process = current();
        if let Some((owner, store)) = &*lock(&self.of_child).ok_or_else(lost)?
            && *owner == process
        {
            return Ok(Arc::clone(store));
        }
        let timeout = *lock(&self.timeout).ok_or_else(lost)?;
        let made: Arc<dyn Store> = match self.original() {
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
        *lock(&self.of_child).ok_or_else(lost)? = Some((process, Arc::clone(&made)));
        Ok(made)
    }
}

/// A connection to the same server that has nothing in common with the copy.
fn connect(copy: &TcpStore, timeout: Option<Duration>) -> Result<TcpStore> {
    let endpoint = Endpoint::new(copy.host(), copy.port());
    TcpStore::open(TcpStoreOptions::new(endpoint).timeout(timeout).cancellation(signals()))
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // A child can't join the thread of its parent's server, and its parent still uses the file.
            std::mem::forget(self.original.take());
        }
    }
}

/// Each of these is the store's own, in this process.
macro_rules! pass_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Result<$answer> {
            self.with(|store| store.$name($($argument),*))
        })*
    };
}

impl Store for Native {
    pass_on! {
        set(key: &str, value: &[u8]) -> ();
        get(key: &str) -> Vec<u8>;
        add(key: &str, delta: i64) -> i64;
        check(keys: &[&str]) -> bool;
        wait_for(keys: &[&str], timeout: Option<Duration>) -> ();
        wait(keys: &[&str]) -> ();
        compare_set(key: &str, expected: &[u8], desired: &[u8]) -> Vec<u8>;
        compare_exchange(key: &str, expected: &[u8], desired: &[u8]) -> Exchange;
        delete_key(key: &str) -> bool;
        num_keys() -> u64;
        append(key: &str, value: &[u8]) -> ();
        multi_get(keys: &[&str]) -> Vec<Vec<u8>>;
        multi_set(pairs: &[(&str, &[u8])]) -> ();
        queue_push(key: &str, value: &[u8]) -> ();
        queue_pop(key: &str) -> Vec<u8>;
        try_queue_pop(key: &str) -> Vec<u8>;
        queue_len(key: &str) -> u64;
        list_keys() -> Vec<String>;
        barrier(key: &str, world_size: u64) -> ();
        barrier_for(key: &str, world_size: u64, timeout: Option<Duration>) -> ();
        clone_store() -> Box<dyn Store>;
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout.unwrap_or_else(|| lock(&self.shared.timeout).and_then(|timeout| *timeout))
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        if let Some(mut held) = lock(&self.shared.timeout) {
            *held = timeout;
        }
        if self.shared.owner.is_current() {
            self.shared.original().store().set_timeout(timeout);
        } else if let Some(of_child) = lock(&self.shared.of_child)
            && let Some((owner, store)) = &*of_child
            && *owner == current()
        {
            store.set_timeout(timeout);
        }
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        match self.shared.owner.is_current() {
            true => self.shared.original().store().with_timeout(timeout),
            false => Box::new(Native { timeout: Some(timeout), ..self.clone() }),
        }
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        signals()
    }

    fn has_extended_api(&self) -> bool {
        self.shared.original().store().has_extended_api()
    }

    fn generation(&self) -> u64 {
        self.with(|store| Ok(store.generation())).unwrap_or_default()
    }

    fn kind(&self) -> StoreKind {
        self.shared.original().store().kind()
    }
}
