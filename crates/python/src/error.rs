//! What a store's error is in Python: torch's exception for it, with torch's words first where programs may look for them,
//! and then ours.

use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use rallypoint_core::wire::Op;
use rallypoint_store::{Awaited, Failure, StoreError, StoreKind};

use crate::arguments::Timeout;

/// The exception for an error of a call that was given no timeout of its own.
pub(crate) fn to_python(py: Python<'_>, error: StoreError) -> PyErr {
    let text = with_hint(&error, error.to_string());
    match error {
        StoreError::Foreign(error) => match error.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(error) => exception(py, "DistStoreError", error.to_string()),
        },
        StoreError::QueueEmpty { .. } => exception(py, "QueueEmptyError", text),
        StoreError::Listen { .. } => exception(py, "DistNetworkError", text),
        StoreError::Call { failure, .. } => match failure {
            Failure::NoAnswer
            | Failure::Unreachable(_)
            | Failure::ConnectionLost(_)
            | Failure::Indeterminate(_)
            | Failure::Protocol(..) => exception(py, "DistNetworkError", text),
            Failure::NotANumber { .. } => exception(py, "NotANumberError", text),
            Failure::Unsupported(_) => PyNotImplementedError::new_err(text),
            _ => exception(py, "DistStoreError", text),
        },
        StoreError::InvalidArgument(_) => PyValueError::new_err(text),
        _ => exception(py, "DistStoreError", text),
    }
}

/// Adds a hint on a line of its own to the text of an error, if the error says why there was no connection.
pub(crate) fn with_hint(error: &StoreError, text: String) -> String {
    match error.connection_fault() {
        Some(fault) => format!("{text}\nhint: {}", fault.hint()),
        None => text,
    }
}

/// How many keys a timeout names. Torch names all, which may be a hundred thousand.
const MAX_NAMED_KEYS: usize = 64;

/// The exception for an error of a wait: a timeout is told as torch tells it.
pub(crate) fn wait_error_to_python(py: Python<'_>, error: StoreError, timeout: Timeout) -> PyErr {
    let StoreError::Call { context, failure: Failure::Timeout(awaited) } = &error else {
        return to_python(py, error);
    };
    let message = match (awaited, context.store, context.op) {
        // Torch's stores each have words of their own.
        (Awaited::Keys(_), StoreKind::File, Some(Op::Get | Op::MultiGet)) => {
            let key = error.missing_keys().first().copied().unwrap_or_default().to_owned();
            format!("Timeout waiting for key: {key} after {} ms", timeout.millis())
        }
        (Awaited::Keys(_), store, _) => {
            let wait = if store == StoreKind::Tcp { "wait" } else { "Wait" };
            let names =
                context.keys.iter().take(MAX_NAMED_KEYS).map(|key| format!("/{key}")).collect::<Vec<_>>();
            let more = if context.keys.len() > MAX_NAMED_KEYS { ", ..." } else { "" };
            format!("{wait} timeout after {}ms, keys: {}{more}", timeout.millis(), names.join(", "))
        }
        (Awaited::Arrivals(_), store, _) => {
            let barrier = if store == StoreKind::Tcp { "barrier" } else { "Wait" };
            format!("{barrier} timeout after {}ms, key: {}", timeout.millis(), context.keys.join(", "))
        }
        _ => return to_python(py, error),
    };
    exception(py, "DistStoreError", format!("{message} ({error})"))
}

/// One of the package's exceptions.
pub(crate) fn exception(py: Python<'_>, name: &str, text: String) -> PyErr {
    let class = || {
        let module = py.import("rallypoint._exceptions")?;
        module
            .call_method1("class_to_raise", (module.getattr(name)?,))?
            .cast_into::<PyType>()
            .map_err(PyErr::from)
    };
    class().map_or_else(|error| error, |class| PyErr::from_type(class, (text,)))
}
