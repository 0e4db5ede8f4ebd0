//! The `c10d` backend for Python, which keeps the state under one key of a store.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rallypoint_rendezvous::{C10dBackend, RendezvousBackend, Token};

use super::check_owner;
use super::exceptions::cell_exception;
use crate::calls::{detached, run};
use crate::process::Owner;
use crate::stores;

type Bytes<'py> = Bound<'py, PyBytes>;

/// The rendezvous state of one job in a store.
#[pyclass(frozen, module = "rallypoint._rallypoint")]
pub(super) struct RendezvousCell {
    backend: Arc<C10dBackend>,
    owner: Owner,
}

impl RendezvousCell {
    pub(super) fn backend(&self) -> PyResult<&Arc<C10dBackend>> {
        check_owner(&self.owner)?;
        Ok(&self.backend)
    }
}

#[pymethods]
impl RendezvousCell {
    /// Creates the cell of the job `run_id` in `store`.
    #[new]
    fn new(py: Python<'_>, store: &Bound<'_, PyAny>, run_id: String) -> PyResult<RendezvousCell> {
        let source = stores::source(store)?;
        let store = run(py, || source.store())?;
        let created = detached(py, || C10dBackend::new(store, &run_id))?;
        let backend = Arc::new(created.map_err(|error| cell_exception(py, error))?);
        Ok(RendezvousCell { backend, owner: Owner::current() })
    }

    /// Returns the state and its token, or `None` if there is no state yet.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bytes<'py>, Bytes<'py>)>> {
        let backend = self.backend()?;
        let read = detached(py, || backend.state())?;
        Ok(read.map_err(|error| cell_exception(py, error))?.map(|current| to_python(py, current)))
    }

    /// Replaces the state if `token` belongs to the current one. An empty token means that there is no state yet.
    ///
    /// Returns the current state, its token, and whether this call stored it, or `None` if there is no state.
    fn set<'py>(
        &self,
        py: Python<'py>,
        state: PyBackedBytes,
        token: PyBackedBytes,
    ) -> PyResult<Option<(Bytes<'py>, Bytes<'py>, bool)>> {
        let backend = self.backend()?;
        let written = detached(py, || backend.set_state(&state, &token))?;
        let written = written.map_err(|error| cell_exception(py, error))?;
        Ok(written.now.map(|current| {
            let (state, token) = to_python(py, current);
            (state, token, written.won)
        }))
    }
}

fn to_python(py: Python<'_>, (state, token): (Vec<u8>, Token)) -> (Bytes<'_>, Bytes<'_>) {
    (PyBytes::new(py, &state), PyBytes::new(py, &token))
}
