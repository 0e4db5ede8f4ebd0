//! `PrefixStore`.

use std::sync::OnceLock;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::store::{PyStore, Source, initialized_twice_error, source, uninitialized_error};
use crate::arguments::Key;

/// A part of another store: puts the prefix and a slash in front of every key.
///
/// Args:
///     prefix: the prefix.
///     store: the other store. It may be a PrefixStore itself.
#[pyclass(name = "PrefixStore", module = "rallypoint", extends = PyStore, subclass, frozen)]
pub(crate) struct PyPrefixStore {
    target: OnceLock<Target>,
}

/// The prefix and the store that it applies to.
struct Target {
    prefix: String,
    store: Py<PyAny>,
}

impl PyPrefixStore {
    /// Returns this store as a [`Source::Prefix`], or `None` before `__init__`.
    pub(super) fn source(&self, py: Python<'_>) -> PyResult<Option<Source>> {
        let Some(target) = self.target.get() else { return Ok(None) };
        Ok(Some(Source::Prefix(target.prefix.clone(), Box::new(source(target.store.bind(py))?))))
    }

    fn target<'a>(slf: &'a Bound<'_, Self>) -> PyResult<&'a Target> {
        slf.get().target.get().ok_or_else(|| uninitialized_error(slf))
    }
}

#[pymethods]
impl PyPrefixStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "(prefix, store)")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        let _ = (args, kwargs);
        PyClassInitializer::from(PyStore::empty()).add_subclass(PyPrefixStore { target: OnceLock::new() })
    }

    fn __init__(slf: &Bound<'_, Self>, prefix: Key, store: &Bound<'_, PyAny>) -> PyResult<()> {
        if store.is_none() {
            return Err(PyValueError::new_err("store argument cannot be None"));
        }
        if !store.is_instance_of::<PyStore>() && !is_torch_store(store) {
            let found = store.get_type().name()?.to_string();
            return Err(PyTypeError::new_err(format!("store must be a Store, not {found}")));
        }
        // `source` fails for a store whose `__init__` was not called.
        source(store)?;
        let target = Target { prefix: prefix.to_owned(), store: store.clone().unbind() };
        slf.get().target.set(target).map_err(|_| initialized_twice_error())
    }

    /// Visits the inner store. A store written in Python may refer to a PrefixStore around itself, and Python's garbage
    /// collector breaks such cycles.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.target.get().map_or(Ok(()), |target| visit.call(&target.store))
    }

    /// The store that this store is a part of.
    #[getter]
    fn underlying_store(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(Self::target(slf)?.store.clone_ref(slf.py()))
    }

    /// The store below all nested prefixes.
    #[getter]
    fn _underlying_non_prefix_store(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let mut inner = Self::target(slf)?.store.bind(slf.py()).clone();
        while let Ok(prefixed) = inner.cast::<PyPrefixStore>() {
            let next = Self::target(prefixed)?.store.bind(slf.py()).clone();
            inner = next;
        }
        Ok(inner.unbind())
    }

    /// Returns a PrefixStore with the same prefix over a clone of the underlying store.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let Target { prefix, store } = Self::target(slf)?;
        let inner = store.bind(slf.py()).call_method0("clone")?;
        slf.py().get_type::<PyPrefixStore>().call1((prefix, inner))
    }
}

/// Creates a PrefixStore around a store object. For one of torch's stores, that is torch's PrefixStore.
pub(crate) fn prefix_store_for<'py>(
    store: &Bound<'py, PyAny>,
    prefix: String,
) -> PyResult<Bound<'py, PyAny>> {
    let py = store.py();
    if is_torch_store(store) {
        return py.import("torch.distributed")?.call_method1("PrefixStore", (prefix, store));
    }
    let prefixed = PyPrefixStore { target: Target { prefix, store: store.clone().unbind() }.into() };
    Ok(Bound::new(py, PyClassInitializer::from(PyStore::empty()).add_subclass(prefixed))?.into_any())
}

/// Returns whether the object is one of torch's stores. Does not import torch: if the program has not imported it, no
/// such object exists.
fn is_torch_store(object: &Bound<'_, PyAny>) -> bool {
    let check = || -> PyResult<bool> {
        let modules = object.py().import("sys")?.getattr("modules")?;
        let torch = modules.call_method1("get", ("torch.distributed",))?;
        if torch.is_none() { Ok(false) } else { object.is_instance(&torch.getattr("Store")?) }
    };
    check().unwrap_or(false)
}
