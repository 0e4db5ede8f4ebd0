//! Store errors as Python exceptions.
//!
//! Each error becomes the exception that torch raises for it. Where programs may search for torch's message, the
//! exception has that message, and our message follows it in parentheses.

use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use rallypoint_core::wire::Op;
use rallypoint_store::{Awaited, Failure, StoreError, StoreKind};

use crate::arguments::Timeout;

/// Converts an error to the exception that torch raises for it, with our message.
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
            Failure::NoReply
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

/// Appends a hint to `text`, on its own line, if `error` states why there is no connection.
pub(crate) fn with_hint(error: &StoreError, text: String) -> String {
    match error.connection_fault() {
        Some(fault) => format!("{text}\nhint: {}", fault.hint()),
        None => text,
    }
}

/// The maximum number of keys that a timeout message lists. Torch lists all of them, which can be 100,000.
const MAX_NAMED_KEYS: usize = 64;

/// Converts an error of a call that had this timeout. If the call timed out, the message starts with torch's message.
pub(crate) fn wait_error_to_python(py: Python<'_>, error: StoreError, timeout: Timeout) -> PyErr {
    let StoreError::Call { context, failure: Failure::Timeout(awaited) } = &error else {
        return to_python(py, error);
    };
    let message = match (awaited, context.store, context.op) {
        // The message differs between torch's stores.
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

/// Creates the exception `name` of `rallypoint._exceptions`.
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
