//! The `c10d` backend for Python: the state under one key of a store.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rallypoint_rendezvous::{C10dBackend, RendezvousBackend, Token};

use super::exceptions::raised_by_cell;
use crate::calls::detached;
use crate::stores;

type Bytes<'py> = Bound<'py, PyBytes>;

/// The state of one job in a store.
#[pyclass(frozen, module = "rallypoint._rallypoint")]
pub(super) struct RendezvousCell {
    backend: Arc<C10dBackend>,
}

impl RendezvousCell {
    pub(super) fn backend(&self) -> Arc<C10dBackend> {
        Arc::clone(&self.backend)
    }
}

#[pymethods]
impl RendezvousCell {
    /// The cell of the job `run_id` in `store`.
    #[new]
    fn new(py: Python<'_>, store: &Bound<'_, PyAny>, run_id: String) -> PyResult<RendezvousCell> {
        let store = stores::to_rust(store)?;
        let made = detached(py, || C10dBackend::new(store, &run_id))?;
        Ok(RendezvousCell { backend: Arc::new(made.map_err(|error| raised_by_cell(py, error))?) })
    }

    /// The state and its token; `None` if there is no state yet.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bytes<'py>, Bytes<'py>)>> {
        let read = detached(py, || self.backend.state())?;
        Ok(read.map_err(|error| raised_by_cell(py, error))?.map(|held| shown(py, held)))
    }

    /// Replaces the state if its token still is this one (empty: there is none yet). What is there now, its token, and
    /// whether it is this.
    fn set<'py>(
        &self,
        py: Python<'py>,
        state: PyBackedBytes,
        token: PyBackedBytes,
    ) -> PyResult<Option<(Bytes<'py>, Bytes<'py>, bool)>> {
        let written = detached(py, || self.backend.set_state(&state, &token))?;
        let written = written.map_err(|error| raised_by_cell(py, error))?;
        Ok(written.now.map(|held| {
            let (state, token) = shown(py, held);
            (state, token, written.won)
        }))
    }
}

fn shown(py: Python<'_>, (state, token): (Vec<u8>, Token)) -> (Bytes<'_>, Bytes<'_>) {
    (PyBytes::new(py, &state), PyBytes::new(py, &token))
}
