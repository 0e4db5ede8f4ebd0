//! `Store`, the base class of all stores, including those written in Python.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDelta, PyDict, PyList, PyTuple, PyType};
use rallypoint_core::counted;
use rallypoint_store::{DEFAULT_TIMEOUT, PrefixStore, Store, StoreError, StoreKind};

use super::prefix::PyPrefixStore;
use crate::arguments::{Boolean, Integer, Key, List, Timeout, Value};
use crate::calls::{detached, run};
use crate::error::{exception, wait_error_to_python};
use crate::process::Native;
use crate::python_store::PythonStore;

/// The base class of all stores: keys with values, counters and queues that the processes of a job share.
///
/// Every operation raises DistNetworkError if the server cannot be reached or a connection is lost, TypeError or
/// ValueError if an argument is invalid, and NotImplementedError if this kind of store does not have the operation.
///
/// Derive from Store to write a store in Python. Define set, get, add, check, compare_set and wait. append, multi_get,
/// multi_set and barrier have fallbacks, which call these six methods. Define every other method that the program
/// calls. Such a store can be passed to PrefixStore.
#[pyclass(name = "Store", module = "rallypoint", subclass, frozen, weakref)]
pub(crate) struct PyStore {
    /// The Rust store behind a TCPStore, FileStore or HashStore.
    native: OnceLock<Arc<Native>>,
    /// The timeout of a store written in Python, in milliseconds.
    timeout: AtomicI64,
}

impl PyStore {
    /// Creates a store without a Rust store: one that `__init__` will initialize, or one written in Python.
    pub(super) fn empty() -> PyStore {
        let timeout = AtomicI64::new(Timeout::from(DEFAULT_TIMEOUT).millis());
        PyStore { native: OnceLock::new(), timeout }
    }

    /// Sets the Rust store. Fails with `TypeError` if there is one already.
    pub(super) fn initialize(&self, native: Arc<Native>) -> PyResult<()> {
        self.native.set(native).map_err(|_| initialized_twice_error())
    }
}

pub(super) fn initialized_twice_error() -> PyErr {
    PyTypeError::new_err("a store cannot be initialized twice; create a new one")
}

impl Drop for PyStore {
    fn drop(&mut self) {
        // The Rust store is dropped without the GIL, because the drop may stop a server or update a file.
        let mut native = self.native.take();
        if native.is_some() {
            Python::try_attach(|py| {
                let native = native.take();
                py.detach(|| drop(native));
            });
        }
    }
}

/// The store to which a Python object passes its calls.
pub(crate) enum Source {
    Native(Arc<Native>),
    /// A part of another store, under a prefix.
    Prefix(String, Box<Source>),
    /// The methods of the object itself.
    Python(Arc<PythonStore>),
}

impl Source {
    /// Returns the store of this process.
    ///
    /// The caller must not have the GIL, because a forked child may have to connect first.
    pub(crate) fn store(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Source::Native(native) => native.store()?,
            Source::Prefix(prefix, inner) => Arc::new(PrefixStore::new(prefix, inner.store()?)),
            Source::Python(store) => Arc::clone(store) as Arc<dyn Store>,
        })
    }

    fn timeout(&self) -> Timeout {
        match self {
            Source::Native(native) => native.timeout().into(),
            Source::Prefix(_, inner) => inner.timeout(),
            Source::Python(store) => store.timeout().into(),
        }
    }

    fn set_timeout(&self, timeout: Timeout) {
        match self {
            Source::Native(native) => native.set_timeout(self.effective_timeout(timeout)),
            Source::Prefix(_, inner) => inner.set_timeout(timeout),
            Source::Python(store) => store.set_timeout(self.effective_timeout(timeout)),
        }
    }

    /// Returns how long calls with this timeout wait. Zero means no timeout, except for a TCPStore, where it expires
    /// immediately as in torch.
    fn effective_timeout(&self, timeout: Timeout) -> Option<Duration> {
        match self {
            Source::Native(native) if native.original_store().kind() == StoreKind::Tcp => {
                Some(timeout.zero_as_immediate())
            }
            Source::Prefix(_, inner) => inner.effective_timeout(timeout),
            _ => timeout.zero_as_unlimited(),
        }
    }

    fn has_extended_api(&self) -> bool {
        match self {
            Source::Native(native) => native.original_store().has_extended_api(),
            Source::Prefix(_, inner) => inner.has_extended_api(),
            Source::Python(store) => store.has_extended_api(),
        }
    }
}

/// Returns the store behind any Python object, including objects of subclasses and torch's stores.
///
/// Fails with `TypeError` if the `__init__` of one of our classes was not called.
pub(crate) fn source(object: &Bound<'_, PyAny>) -> PyResult<Source> {
    if let Ok(store) = object.cast::<PyStore>() {
        match own_source(store)? {
            Some(source) if is_exactly_native(object) => return Ok(source),
            None if is_uninitialized(object) => return Err(uninitialized_error(object)),
            _ => {}
        }
    }
    Ok(Source::Python(Arc::new(PythonStore::new(object.clone().unbind()))))
}

/// Returns the store behind one of our classes, or `None` for a store that is written in Python or not initialized.
fn own_source(slf: &Bound<'_, PyStore>) -> PyResult<Option<Source>> {
    match (slf.get().native.get(), slf.cast::<PyPrefixStore>()) {
        (Some(native), _) => Ok(Some(Source::Native(Arc::clone(native)))),
        (None, Ok(prefix_store)) => prefix_store.get().source(slf.py()),
        (None, Err(_)) => Ok(None),
    }
}

/// The classes whose `__init__` must run before the store can be used.
fn native_classes(py: Python<'_>) -> [Bound<'_, PyType>; 4] {
    [
        py.get_type::<super::tcp::PyTcpStore>(),
        py.get_type::<super::file::PyFileStore>(),
        py.get_type::<super::hash::PyHashStore>(),
        py.get_type::<super::prefix::PyPrefixStore>(),
    ]
}

/// Returns whether the object's class is one of ours, and not a subclass that may override methods.
fn is_exactly_native(object: &Bound<'_, PyAny>) -> bool {
    native_classes(object.py()).iter().any(|class| object.get_type().is(class))
}

/// Returns whether a store for which `own_source` returned `None` needs its `__init__` first. If not, it is written in
/// Python.
fn is_uninitialized(object: &Bound<'_, PyAny>) -> bool {
    native_classes(object.py()).iter().any(|class| object.is_instance(class).unwrap_or(false))
}

pub(super) fn uninitialized_error(object: &Bound<'_, PyAny>) -> PyErr {
    let class = object.get_type();
    let name = class.name().map_or_else(|_| "it".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "{name}: the store's own __init__() must be called when overriding __init__"
    ))
}

/// Returns the Rust store behind a TCPStore, FileStore or HashStore.
pub(super) fn native_store<'a>(slf: &'a Bound<'_, PyStore>) -> PyResult<&'a Arc<Native>> {
    slf.get().native.get().ok_or_else(|| uninitialized_error(slf))
}

/// Returns whether the object's class has a method `name` other than that of `Store`.
pub(crate) fn overrides(object: &Bound<'_, PyAny>, name: &str) -> bool {
    let Ok(own) = object.get_type().getattr(name) else { return false };
    match object.py().get_type::<PyStore>().getattr(name) {
        Ok(inherited) => !own.is(&inherited),
        Err(_) => true,
    }
}

/// Returns whether the object is an initialized instance of one of our store classes, so that inherited methods work.
pub(crate) fn has_native(object: &Bound<'_, PyAny>) -> bool {
    object.cast::<PyStore>().is_ok_and(|store| own_source(store).is_ok_and(|source| source.is_some()))
}

/// Converts a timeout to a `timedelta`.
pub(crate) fn to_timedelta(py: Python<'_>, timeout: Timeout) -> PyResult<Bound<'_, PyAny>> {
    const DAY_MILLIS: i64 = 86_400_000;
    const MAX_DAYS: i64 = 999_999_999;
    let days = timeout.millis().div_euclid(DAY_MILLIS).clamp(-MAX_DAYS, MAX_DAYS);
    let rest = timeout.millis().rem_euclid(DAY_MILLIS);
    let (seconds, micros) = (rest / 1_000, rest % 1_000 * 1_000);
    Ok(PyDelta::new(py, days as i32, seconds as i32, micros as i32, true)?.into_any())
}

/// Returns the exception for a method that a store written in Python does not define.
fn not_implemented(slf: &Bound<'_, PyStore>, method: &str) -> PyErr {
    if is_uninitialized(slf) {
        return uninitialized_error(slf);
    }
    let class = slf.get_type();
    let name = class.name().map_or_else(|_| "Store".into(), |name| name.to_string());
    PyNotImplementedError::new_err(format!("Not implemented.: {name} does not define {method}()"))
}

/// Returns the store behind `slf`. Fails with `NotImplementedError` for a store written in Python, which has to define
/// `method` itself.
fn require_source(slf: &Bound<'_, PyStore>, method: &str) -> PyResult<Source> {
    own_source(slf)?.ok_or_else(|| not_implemented(slf, method))
}

/// Returns the store behind `slf`, or the fallbacks for a store written in Python.
fn source_or_fallbacks(slf: &Bound<'_, PyStore>) -> PyResult<Source> {
    match own_source(slf)? {
        Some(source) => Ok(source),
        None if is_uninitialized(slf) => Err(uninitialized_error(slf)),
        None => Ok(Source::Python(Arc::new(PythonStore::fallbacks_only(slf.clone().into_any().unbind())))),
    }
}

/// Runs an operation that does not wait.
fn call<T: Send>(
    py: Python<'_>,
    source: &Source,
    call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    run(py, || call(&*source.store()?))
}

/// Runs an operation that waits for at most `timeout`, or for at most the store's own timeout if `timeout` is `None`.
/// If the operation times out, the exception has torch's message.
fn wait<T: Send>(
    py: Python<'_>,
    source: &Source,
    timeout: Option<Timeout>,
    call: impl FnOnce(&dyn Store, Option<Duration>) -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    let timeout = timeout.unwrap_or_else(|| source.timeout());
    let effective_timeout = source.effective_timeout(timeout);
    detached(py, || call(&*source.store()?, effective_timeout))?
        .map_err(|error| wait_error_to_python(py, error, timeout))
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "()")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyStore {
        // The arguments are for the `__init__` of a subclass.
        let _ = (args, kwargs);
        PyStore::empty()
    }

    fn __init__(&self) {}

    /// Stores value under key, and replaces the value that the key had.
    fn set(slf: &Bound<'_, Self>, key: Key, value: Value) -> PyResult<()> {
        call(slf.py(), &require_source(slf, "set")?, |store| store.set(&key, &value))
    }

    /// Returns the value of key as bytes. Waits until the key exists.
    ///
    /// Raises:
    ///     DistStoreError: the key did not exist within the store's timeout.
    fn get<'py>(slf: &Bound<'py, Self>, key: Key) -> PyResult<Bound<'py, PyBytes>> {
        let value = wait(slf.py(), &require_source(slf, "get")?, None, |store, _| store.get(&key))?;
        Ok(PyBytes::new(slf.py(), &value))
    }

    /// Adds amount to the integer that is stored under key, and returns the sum. An absent key counts as 0.
    ///
    /// Raises:
    ///     NotANumberError: the value of key is not an integer.
    fn add(slf: &Bound<'_, Self>, key: Key, amount: Integer<i64>) -> PyResult<i64> {
        call(slf.py(), &require_source(slf, "add")?, |store| store.add(&key, amount.0))
    }

    /// Returns whether all keys exist. Does not wait.
    fn check(slf: &Bound<'_, Self>, keys: List<Key>) -> PyResult<bool> {
        call(slf.py(), &require_source(slf, "check")?, |store| store.check(&keys.refs()))
    }

    /// Stores desired_value if the value of key is expected_value. An absent key counts as empty.
    ///
    /// Returns the value of key after the call, or expected_value if the key is absent and nothing was stored.
    fn compare_set<'py>(
        slf: &Bound<'py, Self>,
        key: Key,
        expected_value: Value,
        desired_value: Value,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let stored = call(slf.py(), &require_source(slf, "compare_set")?, |store| {
            store.compare_set(&key, &expected_value, &desired_value)
        })?;
        Ok(PyBytes::new(slf.py(), &stored))
    }

    /// Deletes key. Returns whether the key existed, except that a FileStore always returns True.
    fn delete_key(slf: &Bound<'_, Self>, key: Key) -> PyResult<bool> {
        call(slf.py(), &require_source(slf, "delete_key")?, |store| store.delete_key(&key))
    }

    /// Returns the number of keys in the whole store, including keys that the store created for itself.
    fn num_keys(slf: &Bound<'_, Self>) -> PyResult<u64> {
        call(slf.py(), &require_source(slf, "num_keys")?, |store| store.num_keys())
    }

    /// Waits until all keys exist, for at most timeout. The default is the store's timeout.
    ///
    /// Raises:
    ///     DistStoreError: not all keys existed within the timeout.
    #[pyo3(signature = (keys, timeout = None))]
    fn wait(slf: &Bound<'_, Self>, keys: List<Key>, timeout: Option<Timeout>) -> PyResult<()> {
        wait(slf.py(), &require_source(slf, "wait")?, timeout, |store, timeout| {
            store.wait_for(&keys.refs(), timeout)
        })
    }

    /// The timeout of operations that wait, as a timedelta.
    #[getter]
    fn timeout<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = match own_source(slf)? {
            Some(source) => source.timeout(),
            None => Timeout::from_millis(slf.get().timeout.load(Ordering::Relaxed)),
        };
        to_timedelta(slf.py(), timeout)
    }

    /// Sets the timeout of operations that wait.
    fn set_timeout(slf: &Bound<'_, Self>, timeout: Timeout) -> PyResult<()> {
        match own_source(slf)? {
            Some(source) => detached(slf.py(), || source.set_timeout(timeout)),
            None => {
                slf.get().timeout.store(timeout.millis(), Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Appends value to the value of key. An absent key counts as empty.
    fn append(slf: &Bound<'_, Self>, key: Key, value: Value) -> PyResult<()> {
        call(slf.py(), &source_or_fallbacks(slf)?, |store| store.append(&key, &value))
    }

    /// Returns the values of keys, in the same order. Waits until all keys exist.
    ///
    /// Raises:
    ///     DistStoreError: not all keys existed within the store's timeout.
    fn multi_get<'py>(slf: &Bound<'py, Self>, keys: List<Key>) -> PyResult<Bound<'py, PyList>> {
        let source = source_or_fallbacks(slf)?;
        let values = wait(slf.py(), &source, None, |store, _| store.multi_get(&keys.refs()))?;
        PyList::new(slf.py(), values.iter().map(|value| PyBytes::new(slf.py(), value)).collect::<Vec<_>>())
    }

    /// Stores each value under the key at the same index.
    ///
    /// Raises:
    ///     DistStoreError: keys and values differ in length.
    fn multi_set(slf: &Bound<'_, Self>, keys: List<Key>, values: List<Value>) -> PyResult<()> {
        let source = source_or_fallbacks(slf)?;
        let (keys, values) = (keys.refs(), values.refs());
        if keys.len() != values.len() {
            let counts = format!("{} and {}", counted(keys.len(), "key"), counted(values.len(), "value"));
            let text = format!("multiSet keys and values vectors must be of same size ({counts})");
            return Err(exception(slf.py(), "DistStoreError", text));
        }
        let pairs: Vec<_> = keys.into_iter().zip(values).collect();
        call(slf.py(), &source, |store| store.multi_set(&pairs))
    }

    /// Returns whether append, multi_get and multi_set are single operations of this store.
    fn has_extended_api(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(own_source(slf)?.is_some_and(|source| source.has_extended_api()))
    }

    /// Appends value to the queue key.
    fn queue_push(slf: &Bound<'_, Self>, key: Key, value: Value) -> PyResult<()> {
        call(slf.py(), &require_source(slf, "queue_push")?, |store| store.queue_push(&key, &value))
    }

    /// Removes the first value of the queue key and returns it. Waits for a value, unless block is False.
    ///
    /// Raises:
    ///     DistStoreError: the queue was empty for the store's timeout.
    ///     QueueEmptyError: the queue is empty, and block is False.
    #[pyo3(signature = (key, block = Boolean(true)), text_signature = "($self, key, block=True)")]
    fn queue_pop<'py>(slf: &Bound<'py, Self>, key: Key, block: Boolean) -> PyResult<Bound<'py, PyBytes>> {
        let value = wait(slf.py(), &require_source(slf, "queue_pop")?, None, |store, _| match block.0 {
            true => store.queue_pop(&key),
            false => store.try_queue_pop(&key),
        })?;
        Ok(PyBytes::new(slf.py(), &value))
    }

    /// Returns the number of values in the queue key.
    fn queue_len(slf: &Bound<'_, Self>, key: Key) -> PyResult<u64> {
        call(slf.py(), &require_source(slf, "queue_len")?, |store| store.queue_len(&key))
    }

    /// Returns the names of all keys, in no particular order.
    fn list_keys(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        call(slf.py(), &require_source(slf, "list_keys")?, |store| store.list_keys())
    }

    /// Waits until world_size callers have reached the barrier key.
    ///
    /// Waits for at most timeout. The default is the store's timeout.
    ///
    /// Raises:
    ///     DistStoreError: fewer than world_size callers arrived within the timeout.
    ///     ValueError: world_size is less than 1.
    #[pyo3(signature = (key, world_size, timeout = None))]
    fn barrier(
        slf: &Bound<'_, Self>,
        key: Key,
        world_size: Integer<i64>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let source = source_or_fallbacks(slf)?;
        let Some(count) = u64::try_from(world_size.0).ok().filter(|count| *count > 0) else {
            let given = world_size.0;
            return Err(PyValueError::new_err(format!(
                "world_size of a barrier must be at least 1, not {given}"
            )));
        };
        wait(slf.py(), &source, timeout, |store, timeout| store.barrier_for(&key, count, timeout))
    }

    /// Returns an independent client of the same store.
    fn clone(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Err(not_implemented(slf, "clone"))
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let class = slf.get_type();
        let name = class.name()?;
        Err(PyTypeError::new_err(format!(
            "cannot pickle '{name}' object: it belongs to this process; create one in the other process with the \
             same arguments"
        )))
    }
}
