//! The rendezvous for Python.

use pyo3::prelude::*;

/// Adds its classes and functions to the module.
pub(crate) fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
