//! Lets the Rust crates use stores that are written in Python.
//!
//! Each operation takes the GIL and calls the method of the Python object. An exception of that method passes through
//! the Rust code unchanged.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use rallypoint_core::counted;
use rallypoint_store::{Cancellation, Result, Store, StoreError, StoreKind};

use crate::arguments::Timeout;
use crate::calls::{cancel_if_fatal, signal_cancellation};
use crate::shutdown::{attach_unless_exiting, register_exit_hook};
use crate::stores::{PyStore, has_native, overrides};

/// A Python object with the methods of a store.
pub(crate) struct PythonStore {
    object: Py<PyAny>,
    /// The timeout of the calls through this handle. `None` means the object's own timeout.
    timeout: Option<Timeout>,
    /// Whether to run the fallback of each optional method (`append`, `multi_get`, `multi_set`), even if the object
    /// defines that method itself.
    fallbacks_only: bool,
}

impl PythonStore {
    pub(crate) fn new(object: Py<PyAny>) -> PythonStore {
        // An error is ignored, because the store works without the hook. The exiting interpreter then does not wait for
        // calls in flight.
        let _ = Python::attach(register_exit_hook);
        PythonStore { object, timeout: None, fallbacks_only: false }
    }

    /// Creates a handle that runs the fallback of every optional method. Fallbacks call the required methods.
    pub(crate) fn fallbacks_only(object: Py<PyAny>) -> PythonStore {
        PythonStore { object, timeout: None, fallbacks_only: true }
    }

    fn call<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        let interpreter_exiting = || {
            PyRuntimeError::new_err(
                "the interpreter is exiting: a store written in Python can no longer be called",
            )
        };
        attach_unless_exiting(|py| call(self.object.bind(py)).inspect_err(|error| cancel_if_fatal(py, error)))
            .unwrap_or_else(|| Err(interpreter_exiting()))
            .map_err(store_error)
    }

    /// Returns whether to call the object's own method `name`, and not the fallback.
    fn has_own(&self, name: &str) -> bool {
        !self.fallbacks_only && self.call(|store| Ok(overrides(store, name))).unwrap_or(false)
    }

    /// Returns whether the object has a `wait`, its own or that of one of our classes.
    fn can_wait(&self) -> Result<bool> {
        self.call(|store| Ok(overrides(store, "wait") || has_native(store)))
    }

    /// Waits for `key` if this handle has a timeout, because `get` takes no timeout. Does nothing for an object without
    /// `wait`, whose `get` must wait itself.
    fn wait_within_timeout(&self, key: &str) -> Result<()> {
        match self.timeout {
            Some(timeout) if self.can_wait()? => self.wait_for(&[key], timeout.zero_as_unlimited()),
            _ => Ok(()),
        }
    }

    /// Waits for `keys` with `get`, for an object without `wait`. Each `get` may take as long as the object's own
    /// timeout, but none is started after `timeout`.
    fn get_each(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let start = std::time::Instant::now();
        for (n, key) in keys.iter().enumerate() {
            if let Some(timeout) = timeout.filter(|timeout| start.elapsed() > *timeout) {
                let message =
                    format!("get() took longer than {timeout:?} for {n} of {}", counted(keys.len(), "key"));
                return Err(store_error(PyTimeoutError::new_err(message)));
            }
            self.call(|store| store.call_method1("get", (key,)).map(drop))?;
        }
        Ok(())
    }
}

/// Wraps an exception of Python code, so that `to_python` can raise the same exception again.
fn store_error(raised: PyErr) -> StoreError {
    StoreError::Foreign(Box::new(raised))
}

fn to_bytes(returned: Bound<'_, PyAny>, method: &str) -> PyResult<Vec<u8>> {
    match returned.extract::<PyBackedBytes>() {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "{method}() returned {} of type {}, it must return bytes",
            returned.repr()?,
            returned.get_type().name()?
        ))),
    }
}

fn to_timedelta(py: Python<'_>, timeout: Option<Duration>) -> PyResult<Bound<'_, PyAny>> {
    crate::stores::to_timedelta(py, Timeout::from(timeout))
}

impl Store for PythonStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(|store| store.call_method1("set", (key, PyBytes::new(store.py(), value))).map(drop))
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.wait_within_timeout(key)?;
        self.call(|store| to_bytes(store.call_method1("get", (key,))?, "get"))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.call(|store| store.call_method1("add", (key, delta))?.extract())
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.call(|store| store.call_method1("check", (keys.to_vec(),))?.is_truthy())
    }

    fn wait_for(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        if !self.can_wait()? {
            return self.get_each(keys, timeout);
        }
        self.call(|store| {
            let timeout = to_timedelta(store.py(), timeout)?;
            store.call_method1("wait", (keys.to_vec(), timeout)).map(drop)
        })
    }

    fn wait(&self, keys: &[&str]) -> Result<()> {
        match self.timeout {
            Some(timeout) => self.wait_for(keys, timeout.zero_as_unlimited()),
            None if !self.can_wait()? => self.get_each(keys, None),
            None => self.call(|store| store.call_method1("wait", (keys.to_vec(),)).map(drop)),
        }
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.call(|store| {
            let (expected, desired) = (PyBytes::new(store.py(), expected), PyBytes::new(store.py(), desired));
            to_bytes(store.call_method1("compare_set", (key, expected, desired))?, "compare_set")
        })
    }

    fn delete_key(&self, key: &str) -> Result<bool> {
        // Stores written for torch define the C++ name, because torch calls that one.
        let name =
            if self.has_own("delete_key") || !self.has_own("deleteKey") { "delete_key" } else { "deleteKey" };
        self.call(|store| store.call_method1(name, (key,))?.is_truthy())
    }

    fn num_keys(&self) -> Result<u64> {
        let name =
            if self.has_own("num_keys") || !self.has_own("getNumKeys") { "num_keys" } else { "getNumKeys" };
        self.call(|store| store.call_method0(name)?.extract())
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<()> {
        if self.has_own("append") {
            return self.call(|store| {
                store.call_method1("append", (key, PyBytes::new(store.py(), value))).map(drop)
            });
        }
        // As in torch, `compare_set` is repeated with the value that it returned. The first call expects an empty
        // value, which stands for an absent key.
        let mut current = Vec::new();
        loop {
            let grown = [current.as_slice(), value].concat();
            let stored = self.compare_set(key, &current, &grown)?;
            if stored == grown {
                return Ok(());
            }
            current = stored;
        }
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>> {
        if !self.has_own("multi_get") {
            return keys.iter().map(|key| self.get(key)).collect();
        }
        self.call(|store| {
            let returned = store.call_method1("multi_get", (keys.to_vec(),))?;
            returned.try_iter()?.map(|item| to_bytes(item?, "multi_get")).collect()
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<()> {
        if !self.has_own("multi_set") {
            return pairs.iter().try_for_each(|(key, value)| self.set(key, value));
        }
        self.call(|store| {
            let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
            let values = pairs.iter().map(|(_, value)| PyBytes::new(store.py(), value));
            let values = PyList::new(store.py(), values.collect::<Vec<_>>())?;
            store.call_method1("multi_set", (keys, values)).map(drop)
        })
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<()> {
        self.call(|store| store.call_method1("queue_push", (key, PyBytes::new(store.py(), value))).map(drop))
    }

    fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        self.call(|store| to_bytes(store.call_method1("queue_pop", (key, true))?, "queue_pop"))
    }

    fn try_queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        self.call(|store| to_bytes(store.call_method1("queue_pop", (key, false))?, "queue_pop"))
    }

    fn queue_len(&self, key: &str) -> Result<u64> {
        self.call(|store| store.call_method1("queue_len", (key,))?.extract())
    }

    fn list_keys(&self) -> Result<Vec<String>> {
        self.call(|store| store.call_method0("list_keys")?.extract())
    }

    fn timeout(&self) -> Option<Duration> {
        let own_timeout = || {
            let timeout = self.call(|store| store.getattr("timeout")?.extract::<Timeout>());
            timeout.unwrap_or_else(|_| rallypoint_store::DEFAULT_TIMEOUT.into())
        };
        self.timeout.unwrap_or_else(own_timeout).zero_as_unlimited()
    }

    fn set_timeout(&self, timeout: Option<Duration>) {
        // A store that refuses the timeout keeps its current one. This method has no way to report that.
        let _ = self
            .call(|store| store.call_method1("set_timeout", (to_timedelta(store.py(), timeout)?,)).map(drop));
    }

    fn with_timeout(&self, timeout: Option<Duration>) -> Box<dyn Store> {
        let object = Python::attach(|py| self.object.clone_ref(py));
        Box::new(PythonStore { object, timeout: Some(timeout.into()), fallbacks_only: self.fallbacks_only })
    }

    fn has_extended_api(&self) -> bool {
        self.has_own("has_extended_api")
            && self.call(|store| store.call_method0("has_extended_api")?.is_truthy()).unwrap_or(false)
    }

    fn clone_store(&self) -> Result<Box<dyn Store>> {
        self.call(|store| {
            let clone = store.call_method0("clone")?;
            match clone.is_instance_of::<PyStore>() {
                true => Ok(Box::new(PythonStore::new(clone.unbind())) as Box<dyn Store>),
                false => {
                    Err(PyTypeError::new_err(format!("clone() returned {}, not a Store", clone.repr()?)))
                }
            }
        })
    }

    fn cancellation(&self) -> Option<Arc<dyn Cancellation>> {
        signal_cancellation()
    }

    fn kind(&self) -> StoreKind {
        StoreKind::Other("a store written in Python")
    }
}
