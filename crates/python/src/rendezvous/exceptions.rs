//! Rendezvous errors as Python exceptions.
//!
//! Each error becomes the exception that torch raises for it, with torch's message where torch has one. Details that
//! torch omits are in the message or in the exception's `__cause__`.

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rallypoint_rendezvous::{NativeFault, RendezvousError};
use rallypoint_store::StoreError;

use crate::error;

const CONNECTION_FAILED: &str =
    "The connection to the C10d store has failed. See inner exception for details.";
const STATE_CORRUPT: &str = "The rendezvous state is corrupt. See inner exception for details.";
/// The message of torch's `c10d` backend for a value that is not base64. The backend does not unpickle the state.
const STATE_OBJECT_CORRUPT: &str = "The state object is corrupt. See inner exception for details.";

/// Converts an error of a dynamic rendezvous.
pub(super) fn to_exception(py: Python<'_>, error: RendezvousError) -> PyErr {
    exception_with(py, error, STATE_CORRUPT)
}

/// Converts an error of the `c10d` backend.
pub(super) fn cell_exception(py: Python<'_>, error: RendezvousError) -> PyErr {
    exception_with(py, error, STATE_OBJECT_CORRUPT)
}

/// Converts an error of a static rendezvous. As in torch, errors of the store keep their own exception.
pub(super) fn static_exception(py: Python<'_>, error: RendezvousError) -> PyErr {
    match error {
        RendezvousError::Connection { source, .. } => error::to_python(py, source),
        error => to_exception(py, error),
    }
}

fn exception_with(py: Python<'_>, error: RendezvousError, corrupt_state: &str) -> PyErr {
    let text = error.to_string();
    match error {
        RendezvousError::Closed { .. } | RendezvousError::Native { fault: NativeFault::Closed(_), .. } => {
            new_exception(py, "RendezvousClosedError", &text, None)
        }
        RendezvousError::Timeout { .. }
        | RendezvousError::OperationTimeout { .. }
        | RendezvousError::Native { fault: NativeFault::Timeout { .. }, .. } => {
            new_exception(py, "RendezvousTimeoutError", &text, None)
        }
        RendezvousError::Connection { source, .. } => connection_exception(py, source),
        RendezvousError::Outage { source, .. } => connection_exception(py, *source),
        RendezvousError::State { .. } => {
            new_exception(py, "RendezvousStateError", corrupt_state, Some(PyValueError::new_err(text)))
        }
        RendezvousError::GracefulExit { .. }
        | RendezvousError::Native { fault: NativeFault::Drained, .. } => {
            new_exception(py, "RendezvousGracefulExitError", &text, None)
        }
        // In torch, the store raises the exceptions for these errors.
        RendezvousError::NoMaster { .. } | RendezvousError::StaticTimeout { .. } => {
            error::exception(py, "DistStoreError", text)
        }
        RendezvousError::Parameters(_) => PyValueError::new_err(text),
        RendezvousError::BackendMismatch { .. } => PyRuntimeError::new_err(text),
        RendezvousError::Backend { source, .. } => match source.downcast::<PyErr>() {
            Ok(error) => *error,
            Err(_) => new_exception(py, "RendezvousError", &text, None),
        },
        _ => new_exception(py, "RendezvousError", &text, None),
    }
}

/// Returns the exception for a store that failed.
///
/// That is a `RendezvousConnectionError` whose `__cause__` is the exception of the store. But if a store written in
/// Python raises an exception other than `RuntimeError`, `ValueError` and `TimeoutError`, it is returned unchanged.
fn connection_exception(py: Python<'_>, source: StoreError) -> PyErr {
    let is_foreign = matches!(source, StoreError::Foreign(_));
    let cause = error::to_python(py, source);
    let is_store_exception = cause.is_instance_of::<PyRuntimeError>(py)
        || cause.is_instance_of::<PyValueError>(py)
        || cause.is_instance_of::<PyTimeoutError>(py);
    if is_foreign && !is_store_exception {
        cause
    } else {
        new_exception(py, "RendezvousConnectionError", CONNECTION_FAILED, Some(cause))
    }
}

/// Creates the exception `name` of `rallypoint.elastic.rendezvous`.
fn new_exception(py: Python<'_>, name: &str, text: &str, cause: Option<PyErr>) -> PyErr {
    static CREATE_ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let created = CREATE_ERROR
        .import(py, "rallypoint.elastic.rendezvous.errors", "create_error")
        .and_then(|create_error| create_error.call1((name, text)));
    match created {
        Ok(exception) => {
            let error = PyErr::from_value(exception);
            error.set_cause(py, cause);
            error
        }
        Err(error) => error,
    }
}
