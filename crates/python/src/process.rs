//! A store and the process it belongs to. A child that was forked has a copy of it, but neither its threads nor the sole
//! use of its connections, and its locks may be held by nobody. So a child gets a connection of its own, or is told why it
//! has none; it never touches the copy, not even to drop it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use rallypoint_store::{
    Endpoint, Exchange, FileStore, Result, Store, StoreError, StoreKind, TcpStore, TcpStoreOptions,
};

/// How many forks lead from the process that imported this module to the current one. Asking the system for the process id
/// would take longer than the rest of a call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The current process, as a number that a fork changes.
pub(crate) fn current() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Makes the interpreter count forks.
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let forked = wrap_pyfunction!(forked, py)?;
    let arguments = [("after_in_child", forked)].into_py_dict(py)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&arguments)).map(drop)
}

/// Called by the interpreter in a child that was just forked.
#[pyfunction]
fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
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

/// A store of ours, in whichever process it is used.
pub(crate) struct Native {
    owner: Owner,
    /// Gone only while it is dropped.
    store: Option<Original>,
    /// What a child made of it, and which.
    fresh: Mutex<Fresh>,
    timeout: Mutex<Option<Duration>>,
}

type Fresh = Option<(u32, Arc<dyn Store>)>;

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
    pub(crate) fn new(store: Original) -> Native {
        Native {
            owner: Owner::current(),
            timeout: Mutex::new(store.store().timeout()),
            fresh: Mutex::new(None),
            store: Some(store),
        }
    }

    /// The TCP store, if it is one and this is the process that made it.
    pub(crate) fn tcp(&self) -> Option<&TcpStore> {
        match self.original() {
            Original::Tcp(store) if self.is_at_home() => Some(store),
            _ => None,
        }
    }

    /// Another client of the same server.
    pub(crate) fn another_tcp(&self) -> Result<TcpStore> {
        match self.original() {
            Original::Tcp(store) if self.is_at_home() => store.another(),
            Original::Tcp(store) => connect(store, self.timeout()),
            _ => Err(StoreError::InvalidArgument("not a TCP store".into())),
        }
    }

    fn original(&self) -> &Original {
        self.store.as_ref().expect("it is there until it is dropped")
    }

    fn is_at_home(&self) -> bool {
        self.owner.is_current()
    }

    fn with<T>(&self, call: impl FnOnce(&dyn Store) -> Result<T>) -> Result<T> {
        if self.is_at_home() { call(self.original().store()) } else { call(&*self.in_child()?) }
    }

    /// The store of this process, which is a child of the one that made the original.
    fn in_child(&self) -> Result<Arc<dyn Store>> {
        let process = current();
        if let Some((owner, store)) = &*self.fresh()?
            && *owner == process
        {
            return Ok(Arc::clone(store));
        }
        let timeout = self.timeout();
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
        *self.fresh()? = Some((process, Arc::clone(&made)));
        Ok(made)
    }

    /// It is locked for moments only, so whoever holds it for longer was lost in a fork.
    fn fresh(&self) -> Result<MutexGuard<'_, Fresh>> {
        let started = Instant::now();
        loop {
            match self.fresh.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if started.elapsed() < Duration::from_secs(1) => {
                    std::thread::yield_now();
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::InvalidArgument(
                        "this store was copied by a fork while another thread opened it; make a new one"
                            .into(),
                    ));
                }
            }
        }
    }
}

/// A connection to the same server that has nothing in common with the copy.
fn connect(copy: &TcpStore, timeout: Option<Duration>) -> Result<TcpStore> {
    let endpoint = Endpoint::new(copy.host(), copy.port());
    TcpStore::open(TcpStoreOptions::new(endpoint).timeout(timeout))
}

impl Drop for Native {
    fn drop(&mut self) {
        if !self.is_at_home() {
            // Its server's thread could not be joined here, and its place in the file is its parent's.
            std::mem::forget(self.store.take());
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
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
        if self.is_at_home() {
            self.original().store().set_timeout(timeout);
        } else if let Ok(fresh) = self.fresh()
            && let Some((owner, store)) = &*fresh
            && *owner == current()
        {
            store.set_timeout(timeout);
        }
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        match self.is_at_home() {
            true => self.original().store().with_timeout(timeout),
            false => match self.in_child() {
                Ok(store) => store.with_timeout(timeout),
                Err(error) => Box::new(Nowhere(error.to_string())),
            },
        }
    }

    fn has_extended_api(&self) -> bool {
        self.original().store().has_extended_api()
    }

    fn kind(&self) -> StoreKind {
        self.original().store().kind()
    }
}

/// In the place of a store that could not be had: every call tells why.
struct Nowhere(String);

macro_rules! refuse {
    ($($name:ident($($kind:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $(_: $kind),*) -> Result<$answer> {
            Err(StoreError::InvalidArgument(self.0.clone()))
        })*
    };
}

impl Store for Nowhere {
    refuse! {
        set(&str, &[u8]) -> ();
        get(&str) -> Vec<u8>;
        add(&str, i64) -> i64;
        check(&[&str]) -> bool;
        wait_for(&[&str], Option<Duration>) -> ();
        compare_set(&str, &[u8], &[u8]) -> Vec<u8>;
        delete_key(&str) -> bool;
        num_keys() -> u64;
        clone_store() -> Box<dyn Store>;
    }

    fn timeout(&self) -> Option<Duration> {
        Some(rallypoint_store::DEFAULT_TIMEOUT)
    }

    fn set_timeout(&self, _: Option<Duration>) {}

    fn with_timeout(&self, _: Option<Duration>) -> Box<dyn Store> {
        Box::new(Nowhere(self.0.clone()))
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Other("no store")
    }
}
