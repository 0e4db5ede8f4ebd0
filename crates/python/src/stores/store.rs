//! `Store`: what all stores have in common, and what a store written in Python derives from.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDelta, PyDict, PyList, PyTuple, PyType};
use rallypoint_core::counted;
use rallypoint_store::{DEFAULT_TIMEOUT, Store, StoreError};

use crate::arguments::{Key, List, Timeout, Truth, Value, Whole};
use crate::calls::{detached, run};
use crate::error::{of_wait, raise};
use crate::python_store::Foreign;

/// The base of all stores: keys with values, counters and queues that the processes of a job share.
///
/// Derive from it to write a store in Python: define set, get, add, check, compare_set, wait and whatever else is used; append,
/// multi_get, multi_set and barrier have fall-backs over those. Such a store can be passed to PrefixStore.
#[pyclass(name = "Store", module = "rallypoint", subclass, frozen, weakref)]
pub(crate) struct PyStore {
    /// What does the work; a store written in Python has none.
    native: OnceLock<NativeStore>,
    /// That of a store written in Python, in milliseconds.
    timeout: AtomicI64,
}

struct NativeStore {
    store: Arc<dyn Store>,
    /// What a time-out of zero means to it.
    zero: Zero,
}

/// What a time-out of zero means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    /// Over at once: torch's TCPStore.
    AtOnce,
    /// Without end: all others.
    Forever,
}

impl PyStore {
    /// One that is still to be initialised, or that is written in Python.
    pub(super) fn empty() -> PyStore {
        let timeout = AtomicI64::new(Timeout::from(DEFAULT_TIMEOUT).millis());
        PyStore { native: OnceLock::new(), timeout }
    }

    /// Gives it what does the work.
    pub(super) fn fill(&self, store: Arc<dyn Store>, zero: Zero) -> PyResult<()> {
        self.native
            .set(NativeStore { store, zero })
            .map_err(|_| PyTypeError::new_err("a store can't be initialised twice; make a new one"))
    }

    /// What does the work, if it is not Python.
    pub(super) fn native(&self) -> Option<&Arc<dyn Store>> {
        self.native.get().map(|native| &native.store)
    }

    /// What a time-out of zero means to it.
    pub(super) fn zero(&self) -> Zero {
        self.native.get().map_or(Zero::Forever, |native| native.zero)
    }

    fn duration(&self, timeout: Timeout) -> Option<Duration> {
        match self.zero() {
            Zero::AtOnce => Some(timeout.or_at_once()),
            Zero::Forever => timeout.or_forever(),
        }
    }
}

impl Drop for PyStore {
    fn drop(&mut self) {
        // A server is stopped and a file signed out of, which may take a moment.
        if let Some(native) = self.native.take()
            && Arc::strong_count(&native.store) == 1
        {
            let mut last = Some(native);
            Python::try_attach(|py| {
                let last = last.take();
                py.detach(|| drop(last));
            });
        }
    }
}

/// The store that does an object's work, as Rust sees it: itself, or the object if it is, or derives, one in Python.
pub(crate) fn to_rust(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn Store>> {
    Ok(match below(object)? {
        Below::Native(store) => store,
        Below::Python(store) => store,
    })
}

/// What does an object's work.
pub(super) enum Below {
    Native(Arc<dyn Store>),
    /// The object itself, which this holds.
    Python(Arc<Foreign>),
}

pub(super) fn below(object: &Bound<'_, PyAny>) -> PyResult<Below> {
    if let Ok(store) = object.cast::<PyStore>() {
        match store.get().native() {
            Some(native) if is_plain(object) => return Ok(Below::Native(Arc::clone(native))),
            None if is_unfinished(object) => return Err(unfinished(object)),
            _ => {}
        }
    }
    Ok(Below::Python(Arc::new(Foreign::new(object.clone().unbind()))))
}

/// The classes whose `__init__` opens a store.
fn native_classes(py: Python<'_>) -> [Bound<'_, PyType>; 4] {
    [
        py.get_type::<super::tcp::PyTcpStore>(),
        py.get_type::<super::file::PyFileStore>(),
        py.get_type::<super::hash::PyHashStore>(),
        py.get_type::<super::prefix::PyPrefixStore>(),
    ]
}

/// Whether it is of one of our own classes, and not of one that derives from them and may do otherwise.
fn is_plain(object: &Bound<'_, PyAny>) -> bool {
    native_classes(object.py()).iter().any(|class| object.get_type().is(class))
}

/// Whether it is of a class whose `__init__` should have filled it, given that it is empty.
fn is_unfinished(object: &Bound<'_, PyAny>) -> bool {
    native_classes(object.py()).iter().any(|class| object.is_instance(class).unwrap_or(false))
}

fn unfinished(object: &Bound<'_, PyAny>) -> PyErr {
    let class = object.get_type();
    let name = class.name().map_or_else(|_| "it".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "{name}: the store's own __init__() must be called when overriding __init__"
    ))
}

/// What does the work of one of our own classes.
pub(super) fn native_of<'a>(slf: &'a Bound<'_, PyStore>) -> PyResult<&'a Arc<dyn Store>> {
    slf.get().native().ok_or_else(|| unfinished(slf))
}

/// Whether an object's class has a method of this name that is not the one of `Store`.
pub(crate) fn overrides(object: &Bound<'_, PyAny>, name: &str) -> bool {
    let Ok(own) = object.get_type().getattr(name) else { return false };
    match object.py().get_type::<PyStore>().getattr(name) {
        Ok(inherited) => !own.is(&inherited),
        Err(_) => true,
    }
}

/// Whether it derives from one of our own classes, so that what it does not define is there nevertheless.
pub(crate) fn has_native(object: &Bound<'_, PyAny>) -> bool {
    object.cast::<PyStore>().is_ok_and(|store| store.get().native().is_some())
}

/// A `timedelta`.
pub(crate) fn to_delta(py: Python<'_>, timeout: Timeout) -> PyResult<Bound<'_, PyAny>> {
    const DAY: i64 = 86_400_000;
    const MOST: i64 = 999_999_999;
    let days = timeout.millis().div_euclid(DAY).clamp(-MOST, MOST);
    let rest = timeout.millis().rem_euclid(DAY);
    let (seconds, micros) = (rest / 1_000, rest % 1_000 * 1_000);
    Ok(PyDelta::new(py, days as i32, seconds as i32, micros as i32, true)?.into_any())
}

/// What a method does that a store written in Python must define, if it doesn't.
fn missing(slf: &Bound<'_, PyStore>, method: &str) -> PyErr {
    if is_unfinished(slf) {
        return unfinished(slf);
    }
    let class = slf.get_type();
    let name = class.name().map_or_else(|_| "Store".into(), |name| name.to_string());
    PyNotImplementedError::new_err(format!("Not implemented.: {name} does not define {method}()"))
}

/// The store that does the work, or the error of one written in Python that doesn't do it.
fn working<'a>(slf: &'a Bound<'_, PyStore>, method: &str) -> PyResult<&'a Arc<dyn Store>> {
    slf.get().native().ok_or_else(|| missing(slf, method))
}

/// The store that does the work, or the fall-backs of one written in Python.
fn working_or_fall_back(slf: &Bound<'_, PyStore>) -> PyResult<Arc<dyn Store>> {
    match slf.get().native() {
        Some(store) => Ok(Arc::clone(store)),
        None if is_unfinished(slf) => Err(unfinished(slf)),
        None => Ok(Arc::new(Foreign::fall_back(slf.clone().into_any().unbind()))),
    }
}

/// Runs what waits, at most for so long: a time-out is told in torch's words.
fn run_wait<T: Send>(
    py: Python<'_>,
    timeout: Timeout,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    detached(py, call)?.map_err(|error| of_wait(py, error, timeout))
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "()")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyStore {
        // They are for the `__init__` of whoever derives from it.
        let _ = (args, kwargs);
        PyStore::empty()
    }

    fn __init__(&self) {}

    /// Stores value under key, whatever was there.
    fn set(slf: &Bound<'_, Self>, key: Key, value: Value) -> PyResult<()> {
        let store = working(slf, "set")?;
        run(slf.py(), || store.set(&key, &value))
    }

    /// The value of key as bytes, waiting until there is one, at most for the store's time-out.
    fn get<'py>(slf: &Bound<'py, Self>, key: Key) -> PyResult<Bound<'py, PyBytes>> {
        let store = working(slf, "get")?;
        let value = run_wait(slf.py(), store.timeout().into(), || store.get(&key))?;
        Ok(PyBytes::new(slf.py(), &value))
    }

    /// Adds amount to the number that key holds (0 if there is none) and returns the sum.
    fn add(slf: &Bound<'_, Self>, key: Key, amount: Whole<i64>) -> PyResult<i64> {
        let store = working(slf, "add")?;
        run(slf.py(), || store.add(&key, amount.0))
    }

    /// Whether all these keys are there. Never waits.
    fn check(slf: &Bound<'_, Self>, keys: List<Key>) -> PyResult<bool> {
        let store = working(slf, "check")?;
        run(slf.py(), || store.check(&keys.refs()))
    }

    /// Stores desired_value if key holds expected_value, or if it is absent and expected_value is empty. Returns the value held
    /// afterwards; expected_value if the key is absent and nothing was stored.
    fn compare_set<'py>(
        slf: &Bound<'py, Self>,
        key: Key,
        expected_value: Value,
        desired_value: Value,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let store = working(slf, "compare_set")?;
        let held = run(slf.py(), || store.compare_set(&key, &expected_value, &desired_value))?;
        Ok(PyBytes::new(slf.py(), &held))
    }

    /// Removes key; whether it was there (a FileStore always says yes).
    fn delete_key(slf: &Bound<'_, Self>, key: Key) -> PyResult<bool> {
        let store = working(slf, "delete_key")?;
        run(slf.py(), || store.delete_key(&key))
    }

    /// How many keys the whole store holds, its own bookkeeping included.
    fn num_keys(slf: &Bound<'_, Self>) -> PyResult<u64> {
        let store = working(slf, "num_keys")?;
        run(slf.py(), || store.num_keys())
    }

    /// Waits until all these keys are there, at most for timeout; for the store's own if none is given.
    #[pyo3(signature = (keys, timeout = None))]
    fn wait(slf: &Bound<'_, Self>, keys: List<Key>, timeout: Option<Timeout>) -> PyResult<()> {
        let store = working(slf, "wait")?;
        let timeout = timeout.unwrap_or_else(|| store.timeout().into());
        let limit = slf.get().duration(timeout);
        run_wait(slf.py(), timeout, || store.wait_for(&keys.refs(), limit))
    }

    /// How long the store waits: a timedelta.
    #[getter]
    fn timeout<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let timeout = match slf.get().native() {
            Some(store) => store.timeout().into(),
            None => Timeout::of_millis(slf.get().timeout.load(Ordering::Relaxed)),
        };
        to_delta(slf.py(), timeout)
    }

    /// Sets how long the store waits from now on.
    fn set_timeout(slf: &Bound<'_, Self>, timeout: Timeout) -> PyResult<()> {
        match slf.get().native() {
            Some(store) => {
                let limit = slf.get().duration(timeout);
                detached(slf.py(), || store.set_timeout(limit))
            }
            None => {
                slf.get().timeout.store(timeout.millis(), Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Puts value after what key holds.
    fn append(slf: &Bound<'_, Self>, key: Key, value: Value) -> PyResult<()> {
        let store = working_or_fall_back(slf)?;
        run(slf.py(), || store.append(&key, &value))
    }

    /// The values of these keys, waiting until all are there, at most for the store's time-out.
    fn multi_get<'py>(slf: &Bound<'py, Self>, keys: List<Key>) -> PyResult<Bound<'py, PyList>> {
        let store = working_or_fall_back(slf)?;
        let values = run_wait(slf.py(), store.timeout().into(), || store.multi_get(&keys.refs()))?;
        PyList::new(slf.py(), values.iter().map(|value| PyBytes::new(slf.py(), value)).collect::<Vec<_>>())
    }

    /// Stores each of values under the key at its place in keys.
    fn multi_set(slf: &Bound<'_, Self>, keys: List<Key>, values: List<Value>) -> PyResult<()> {
        let store = working_or_fall_back(slf)?;
        let (keys, values) = (keys.refs(), values.refs());
        if keys.len() != values.len() {
            let counts = format!("{} and {}", counted(keys.len(), "key"), counted(values.len(), "value"));
            let text = format!("multiSet keys and values vectors must be of same size ({counts})");
            return Err(raise(slf.py(), "DistStoreError", text));
        }
        let pairs: Vec<_> = keys.into_iter().zip(values).collect();
        run(slf.py(), || store.multi_set(&pairs))
    }

    /// Whether append, multi_get and multi_set are single operations here rather than loops.
    fn has_extended_api(slf: &Bound<'_, Self>) -> bool {
        match slf.get().native().map(Arc::clone) {
            // It may be one in Python below a prefix.
            Some(store) => slf.py().detach(|| store.has_extended_api()),
            None => false,
        }
    }

    /// Puts value at the end of the queue key.
    fn queue_push(slf: &Bound<'_, Self>, key: Key, value: Value) -> PyResult<()> {
        let store = working(slf, "queue_push")?;
        run(slf.py(), || store.queue_push(&key, &value))
    }

    /// Takes the value at the head of the queue key. Waits for one at most for the store's time-out; with block=False it raises
    /// QueueEmptyError instead.
    #[pyo3(signature = (key, block = Truth(true)), text_signature = "($self, key, block=True)")]
    fn queue_pop<'py>(slf: &Bound<'py, Self>, key: Key, block: Truth) -> PyResult<Bound<'py, PyBytes>> {
        let store = working(slf, "queue_pop")?;
        let value = run_wait(slf.py(), store.timeout().into(), || match block.0 {
            true => store.queue_pop(&key),
            false => store.try_queue_pop(&key),
        })?;
        Ok(PyBytes::new(slf.py(), &value))
    }

    /// How many values the queue key holds.
    fn queue_len(slf: &Bound<'_, Self>, key: Key) -> PyResult<u64> {
        let store = working(slf, "queue_len")?;
        run(slf.py(), || store.queue_len(&key))
    }

    /// The names of all keys, in no order.
    fn list_keys(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        let store = working(slf, "list_keys")?;
        run(slf.py(), || store.list_keys())
    }

    /// Waits until world_size callers have come to the barrier key, at most for timeout; for the store's own if none is given.
    #[pyo3(signature = (key, world_size, timeout = None))]
    fn barrier(
        slf: &Bound<'_, Self>,
        key: Key,
        world_size: Whole<i64>,
        timeout: Option<Timeout>,
    ) -> PyResult<()> {
        let store = working_or_fall_back(slf)?;
        let Some(count) = u64::try_from(world_size.0).ok().filter(|count| *count > 0) else {
            let found = world_size.0;
            return Err(PyValueError::new_err(format!(
                "world_size of a barrier must be at least 1, not {found}"
            )));
        };
        let timeout = timeout.unwrap_or_else(|| store.timeout().into());
        let limit = slf.get().duration(timeout);
        run_wait(slf.py(), timeout, || store.barrier_for(&key, count, limit))
    }

    /// An independent client of the same store.
    fn clone(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Err(missing(slf, "clone"))
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let class = slf.get_type();
        let name = class.name()?;
        Err(PyTypeError::new_err(format!(
            "cannot pickle '{name}' object: it belongs to this process; make one in the other with the same arguments"
        )))
    }
}
