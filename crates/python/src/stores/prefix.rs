//! `PrefixStore`.

use std::sync::{Arc, OnceLock, Weak};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rallypoint_store::{PrefixStore, Store};

use super::base::{Below, PyStore, Zero, below, native_of};
use crate::argument::Key;
use crate::foreign::Foreign;

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
        let zero = match store.cast::<PyStore>() {
            Ok(store) => store.get().zero(),
            Err(_) if is_torch_store(store) => Zero::Forever,
            Err(_) => {
                let found = store.get_type().name()?.to_string();
                return Err(PyTypeError::new_err(format!("store must be a Store, not {found}")));
            }
        };
        let (of, python) = match below(store)? {
            Below::Native(native) => (native, None),
            Below::Python(python) => (Arc::clone(&python) as Arc<dyn Store>, Some(python)),
        };
        let part: Arc<dyn Store> = Arc::new(PrefixStore::new(&*prefix, of));
        let below = python.map(|python| (python, Arc::downgrade(&part)));
        slf.as_super().get().fill(part, zero)?;
        let _ = slf.get().of.set(Of { prefix: prefix.to_owned(), store: store.clone().unbind(), below });
        Ok(())
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
        slf.py().get_type::<PyPrefixStore>().call1((prefix, below))
    }
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
