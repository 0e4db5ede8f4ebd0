//! Errors of the rendezvous as Python exceptions: torch's classes, and torch's words where torch has any. What torch leaves
//! out is in the message or in the exception it comes from.

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rallypoint_rendezvous::RendezvousError;
use rallypoint_store::StoreError;

use crate::error;

const CONNECTION_FAILED: &str =
    "The connection to the C10d store has failed. See inner exception for details.";
const STATE_CORRUPT: &str = "The rendezvous state is corrupt. See inner exception for details.";
/// What the backend says of it, which sees bytes and not what they mean.
const STATE_OBJECT_CORRUPT: &str = "The state object is corrupt. See inner exception for details.";

/// What a dynamic rendezvous raises.
pub(super) fn to_exception(py: Python<'_>, error: RendezvousError) -> PyErr {
    exception_with(py, error, STATE_CORRUPT)
}

/// What the `c10d` backend raises.
pub(super) fn cell_exception(py: Python<'_>, error: RendezvousError) -> PyErr {
    exception_with(py, error, STATE_OBJECT_CORRUPT)
}

/// What a static rendezvous raises: torch's lets through what its store raises.
pub(super) fn static_exception(py: Python<'_>, error: RendezvousError) -> PyErr {
    match error {
        RendezvousError::Connection { source, .. } => error::to_python(py, source),
        error => to_exception(py, error),
    }
}

fn exception_with(py: Python<'_>, error: RendezvousError, corrupt_state: &str) -> PyErr {
    let text = error.to_string();
    match error {
        RendezvousError::Closed { .. } => new_exception(py, "RendezvousClosedError", &text, None),
        RendezvousError::Timeout { .. } | RendezvousError::TooLong { .. } => {
            new_exception(py, "RendezvousTimeoutError", &text, None)
        }
        RendezvousError::Connection { source, .. } => connection_exception(py, source),
        RendezvousError::Outage { source, .. } => connection_exception(py, *source),
        RendezvousError::State { .. } => {
            new_exception(py, "RendezvousStateError", corrupt_state, Some(PyValueError::new_err(text)))
        }
        RendezvousError::GracefulExit { .. } => new_exception(py, "RendezvousGracefulExitError", &text, None),
        // Where torch lets through what its store raises.
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

/// The store failed. What a store written in Python raises is let through unless it is of a kind that stores raise.
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

/// One of the exceptions of `rallypoint.elastic.rendezvous`, by its name.
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
