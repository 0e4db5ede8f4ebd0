//! `PrefixStore`.

use std::sync::{Arc, OnceLock, Weak};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rallypoint_store::{PrefixStore, Store};

use super::store::{Below, PyStore, Zero, below, native_of};
use crate::arguments::Key;
use crate::python_store::Foreign;

/// A part of another store: every key gets prefix and a slash before it. Prefixes may be nested.
#[pyclass(name = "PrefixStore", module = "rallypoint", extends = PyStore, subclass, frozen)]
pub(crate) struct PyPrefixStore {
    of: OnceLock<Of>,
}

/// What a part is a part of.
struct Of {
    prefix: String,
    store: Py<PyAny>,
    /// That store as this one calls it, if it is written in Python: it holds the object once more. And this one, if Rust
    /// still has it.
    below: Option<(Arc<Foreign>, Weak<dyn Store>)>,
}

impl PyPrefixStore {
    fn empty() -> PyClassInitializer<PyPrefixStore> {
        PyClassInitializer::from(PyStore::empty()).add_subclass(PyPrefixStore { of: OnceLock::new() })
    }

    fn parts<'a>(slf: &'a Bound<'_, Self>) -> PyResult<&'a Of> {
        native_of(slf.as_super())?;
        slf.get().of.get().ok_or_else(|| PyTypeError::new_err("PrefixStore: it is being initialised"))
    }
}

#[pymethods]
impl PyPrefixStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "(prefix, store)")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        let _ = (args, kwargs);
        PyPrefixStore::empty()
    }

    fn __init__(slf: &Bound<'_, Self>, prefix: Key, store: &Bound<'_, PyAny>) -> PyResult<()> {
        if store.is_none() {
            return Err(PyValueError::new_err("store argument cannot be None"));
        }
        if !store.is_instance_of::<PyStore>() && !is_torch_store(store) {
            let found = store.get_type().name()?.to_string();
            return Err(PyTypeError::new_err(format!("store must be a Store, not {found}")));
        }
        let (of, python) = match below(store)? {
            Below::Native(native) => (native, None),
            Below::Python(python) => (Arc::clone(&python) as Arc<dyn Store>, Some(python)),
        };
        let part: Arc<dyn Store> = Arc::new(PrefixStore::new(&*prefix, of));
        let below = python.map(|python| (python, Arc::downgrade(&part)));
        fill(slf, part, Of { prefix: prefix.to_owned(), store: store.clone().unbind(), below })
    }

    /// A store written in Python may hold the parts that were made of it. It is what breaks such a circle.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(of) = self.of.get() else { return Ok(()) };
        visit.call(&of.store)?;
        match &of.below {
            // Held by this object alone, here and in what does its work; whoever else has that holds the store too.
            Some((python, part)) if Arc::strong_count(python) == 2 && part.strong_count() == 1 => {
                visit.call(python.object())
            }
            _ => Ok(()),
        }
    }

    /// The store that this one is a part of.
    #[getter]
    fn underlying_store(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        Ok(Self::parts(slf)?.store.clone_ref(slf.py()))
    }

    /// The store below all prefixes.
    #[getter]
    fn _underlying_non_prefix_store(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let mut below = Self::parts(slf)?.store.bind(slf.py()).clone();
        while let Ok(prefixed) = below.cast::<PyPrefixStore>() {
            let next = Self::parts(prefixed)?.store.bind(slf.py()).clone();
            below = next;
        }
        Ok(below.unbind())
    }

    /// The same part of a clone of the store it is a part of.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let Of { prefix, store, .. } = Self::parts(slf)?;
        let below = store.bind(slf.py()).call_method0("clone")?;
        part_of(&below, prefix)
    }
}

fn fill(slf: &Bound<'_, PyPrefixStore>, part: Arc<dyn Store>, of: Of) -> PyResult<()> {
    let zero = of.store.bind(slf.py()).cast::<PyStore>().map_or(Zero::Forever, |store| store.get().zero());
    slf.as_super().get().fill(part, zero)?;
    let _ = slf.get().of.set(of);
    Ok(())
}

/// The part of a store object under this prefix.
pub(crate) fn part_of<'py>(store: &Bound<'py, PyAny>, prefix: &str) -> PyResult<Bound<'py, PyAny>> {
    store.py().get_type::<PyPrefixStore>().call1((prefix, store))
}

/// Wraps `part`, the part of `store` under `prefix`, in a Python object: a PrefixStore of torch's if `store` is one of
/// torch's stores.
pub(crate) fn adopt_part<'py>(
    store: &Bound<'py, PyAny>,
    prefix: String,
    part: Arc<dyn Store>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = store.py();
    if is_torch_store(store) {
        return py.import("torch.distributed")?.call_method1("PrefixStore", (prefix, store));
    }
    let adopted = Bound::new(py, PyPrefixStore::empty())?;
    fill(&adopted, part, Of { prefix, store: store.clone().unbind(), below: None })?;
    Ok(adopted.into_any())
}

/// Whether it is one of torch's own. Where torch is not loaded there are none.
fn is_torch_store(object: &Bound<'_, PyAny>) -> bool {
    let check = || -> PyResult<bool> {
        let modules = object.py().import("sys")?.getattr("modules")?;
        let torch = modules.call_method1("get", ("torch.distributed",))?;
        if torch.is_none() { Ok(false) } else { object.is_instance(&torch.getattr("Store")?) }
    };
    check().unwrap_or(false)
}
