//! `HashStore`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rallypoint_store::{HashStore, Store};

use super::store::{PyStore, native_of};
use crate::calls::{run, signals};
use crate::process::{Native, Original};

/// A store shared by the threads of one process.
#[pyclass(name = "HashStore", module = "rallypoint", extends = PyStore, subclass, frozen)]
pub(crate) struct PyHashStore;

#[pymethods]
impl PyHashStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "()")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        let _ = (args, kwargs);
        PyClassInitializer::from(PyStore::empty()).add_subclass(PyHashStore)
    }

    fn __init__(slf: &Bound<'_, Self>) -> PyResult<()> {
        fill(slf, Arc::new(HashStore::new().with_cancellation(signals())))
    }

    /// The same store: its clones share what it holds.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let native = native_of(slf.as_super())?;
        let clone = run(slf.py(), || native.store()?.clone_store())?;
        let made =
            Bound::new(slf.py(), PyClassInitializer::from(PyStore::empty()).add_subclass(PyHashStore))?;
        fill(&made, clone.into())?;
        Ok(made)
    }
}

fn fill(slf: &Bound<'_, PyHashStore>, store: Arc<dyn Store>) -> PyResult<()> {
    slf.as_super().get().fill(Native::new(Original::Hash(store)))
}
