//! Errors of the rendezvous as Python exceptions: torch's classes, and torch's words where torch has any. What torch leaves
//! out is in the message or in the exception it comes from.

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rallypoint_rendezvous::RendezvousError;
use rallypoint_store::StoreError;

use crate::error;

const NO_STORE: &str = "The connection to the C10d store has failed. See inner exception for details.";
const NO_STATE: &str = "The rendezvous state is corrupt. See inner exception for details.";
/// What the backend says of it, which sees bytes and not what they mean.
const NO_STATE_OBJECT: &str = "The state object is corrupt. See inner exception for details.";

/// What a dynamic rendezvous raises.
pub(super) fn raised(py: Python<'_>, error: RendezvousError) -> PyErr {
    raised_with(py, error, NO_STATE)
}

/// What the `c10d` backend raises.
pub(super) fn raised_by_cell(py: Python<'_>, error: RendezvousError) -> PyErr {
    raised_with(py, error, NO_STATE_OBJECT)
}

/// What a static rendezvous raises: torch's lets through what its store raises.
pub(super) fn raised_by_static(py: Python<'_>, error: RendezvousError) -> PyErr {
    match error {
        RendezvousError::Connection { source, .. } => error::to_python(py, source),
        error => raised(py, error),
    }
}

fn raised_with(py: Python<'_>, error: RendezvousError, no_state: &str) -> PyErr {
    let text = error.to_string();
    match error {
        RendezvousError::Closed { .. } => failure(py, "RendezvousClosedError", &text, None),
        RendezvousError::Timeout { .. } | RendezvousError::OperationTimeout { .. } => {
            failure(py, "RendezvousTimeoutError", &text, None)
        }
        RendezvousError::Connection { source, .. } => unreachable(py, source),
        RendezvousError::Outage { source, .. } => unreachable(py, *source),
        RendezvousError::State { .. } => {
            failure(py, "RendezvousStateError", no_state, Some(PyValueError::new_err(text)))
        }
        RendezvousError::GracefulExit { .. } => failure(py, "RendezvousGracefulExitError", &text, None),
        // Where torch lets through what its store raises.
        RendezvousError::NoMaster { .. } | RendezvousError::StaticTimeout { .. } => {
            error::raise(py, "DistStoreError", text)
        }
        RendezvousError::Parameters(_) => PyValueError::new_err(text),
        RendezvousError::BackendMismatch { .. } => PyRuntimeError::new_err(text),
        RendezvousError::Backend { source, .. } => match source.downcast::<PyErr>() {
            Ok(error) => *error,
            Err(_) => failure(py, "RendezvousError", &text, None),
        },
        _ => failure(py, "RendezvousError", &text, None),
    }
}

/// The store failed. What a store written in Python raises is let through unless it is of a kind that stores raise.
fn unreachable(py: Python<'_>, source: StoreError) -> PyErr {
    let is_foreign = matches!(source, StoreError::Foreign(_));
    let cause = error::to_python(py, source);
    let is_usual = cause.is_instance_of::<PyRuntimeError>(py)
        || cause.is_instance_of::<PyValueError>(py)
        || cause.is_instance_of::<PyTimeoutError>(py);
    if is_foreign && !is_usual {
        cause
    } else {
        failure(py, "RendezvousConnectionError", NO_STORE, Some(cause))
    }
}

/// One of the exceptions of `rallypoint.elastic.rendezvous`, by its name.
fn failure(py: Python<'_>, name: &str, text: &str, cause: Option<PyErr>) -> PyErr {
    static FAILURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = FAILURE
        .import(py, "rallypoint.elastic.rendezvous.errors", "failure")
        .and_then(|failure| failure.call1((name, text)));
    match made {
        Ok(exception) => {
            let error = PyErr::from_value(exception);
            error.set_cause(py, cause);
            error
        }
        Err(error) => error,
    }
}
