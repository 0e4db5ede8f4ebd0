//! What a store's error is in Python: torch's exception for it, with torch's words first where programs may look for them,
//! and then ours.

use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use rallypoint_core::wire::Op;
use rallypoint_store::StoreError;

use crate::arguments::Timeout;

/// The exception for an error of a call that was given no time-out of its own.
pub(crate) fn to_python(py: Python<'_>, error: StoreError) -> PyErr {
    let text = with_hint(&error, error.to_string());
    match error {
        StoreError::Foreign(error) => match error.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(error) => raise(py, "DistStoreError", error.to_string()),
        },
        StoreError::QueueEmpty { .. } => raise(py, "QueueEmptyError", text),
        StoreError::NoAnswer { .. }
        | StoreError::Unreachable { .. }
        | StoreError::Unresolvable { .. }
        | StoreError::ConnectionLost { .. }
        | StoreError::Indeterminate { .. }
        | StoreError::AddressInUse { .. }
        | StoreError::ServedOtherwise { .. }
        | StoreError::Listen { .. }
        | StoreError::Protocol { .. }
        | StoreError::WrongNonce { .. } => raise(py, "DistNetworkError", text),
        StoreError::NotANumber { .. } => raise(py, "NotANumberError", text),
        StoreError::Unsupported { .. } | StoreError::UnsupportedByServer { .. } => {
            PyNotImplementedError::new_err(text)
        }
        StoreError::BadWorldSize { .. } | StoreError::InvalidArgument(_) => PyValueError::new_err(text),
        _ => raise(py, "DistStoreError", text),
    }
}

/// Adds a hint on a line of its own to the text of an error, if the error says why there was no connection.
pub(crate) fn with_hint(error: &StoreError, text: String) -> String {
    match error.connection_fault() {
        Some(fault) => format!("{text}\nhint: {}", fault.hint()),
        None => text,
    }
}

/// How many keys a time-out names. Torch names all, which may be a hundred thousand.
const SOME_KEYS: usize = 64;

/// The exception for an error of a wait: a time-out is told as torch tells it.
pub(crate) fn of_wait(py: Python<'_>, error: StoreError, timeout: Timeout) -> PyErr {
    let told = match &error {
        // Torch's stores each have words of their own.
        StoreError::Timeout { op: Op::Get | Op::MultiGet, store, keys, .. }
            if store.starts_with("FileStore") =>
        {
            let key = keys.missing().first().copied().unwrap_or_default().to_owned();
            format!("Timeout waiting for key: {key} after {} ms", timeout.millis())
        }
        StoreError::Timeout { store, keys, .. } => {
            let wait = if store.starts_with("TCP") { "wait" } else { "Wait" };
            let named = keys.keys.iter().take(SOME_KEYS).map(|key| format!("/{key}")).collect::<Vec<_>>();
            let more = if keys.keys.len() > SOME_KEYS { ", ..." } else { "" };
            format!("{wait} timeout after {}ms, keys: {}{more}", timeout.millis(), named.join(", "))
        }
        StoreError::BarrierTimeout { store, key, .. } => {
            let barrier = if store.starts_with("TCP") { "barrier" } else { "Wait" };
            format!("{barrier} timeout after {}ms, key: {key}", timeout.millis())
        }
        _ => return to_python(py, error),
    };
    raise(py, "DistStoreError", format!("{told} ({error})"))
}

/// One of the package's exceptions.
pub(crate) fn raise(py: Python<'_>, name: &str, text: String) -> PyErr {
    let class = || {
        let module = py.import("rallypoint._exceptions")?;
        module.call_method1("raised", (module.getattr(name)?,))?.cast_into::<PyType>().map_err(PyErr::from)
    };
    class().map_or_else(|error| error, |class| PyErr::from_type(class, (text,)))
}
