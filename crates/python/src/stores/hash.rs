//! `HashStore`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rallypoint_store::{HashStore, Store};

use super::store::{PyStore, native_store};
use crate::calls::{run, signal_cancellation};
use crate::process::{Native, Original};

/// A store that the threads of one process share.
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
        initialize(slf, Arc::new(HashStore::new().with_cancellation(signal_cancellation())))
    }

    /// Returns a store that shares its data with this one.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let native = native_store(slf.as_super())?;
        let store = run(slf.py(), || native.store()?.clone_store())?;
        let clone =
            Bound::new(slf.py(), PyClassInitializer::from(PyStore::empty()).add_subclass(PyHashStore))?;
        initialize(&clone, store.into())?;
        Ok(clone)
    }
}

fn initialize(slf: &Bound<'_, PyHashStore>, store: Arc<dyn Store>) -> PyResult<()> {
    slf.as_super().get().initialize(Native::new(Original::Hash(store)))
}
