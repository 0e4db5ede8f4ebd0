//! Lets the Rust rendezvous handler use backends that are written in Python. A method of a backend is called with the
//! GIL and without any other lock.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rallypoint_rendezvous::{RendezvousBackend, RendezvousError, Token, Written};

use crate::calls::cancel_if_fatal;

/// A Python object with `name`, `get_state` and `set_state`, like torch's `RendezvousBackend`.
pub(super) struct PythonBackend {
    name: String,
    backend: Py<PyAny>,
    tokens: Mutex<Tokens>,
}

/// The backend's most recent tokens.
///
/// A token of a Python backend is any object, while a token in Rust is bytes. So each object gets a number, whose bytes
/// are the token.
#[derive(Default)]
struct Tokens {
    next: u64,
    recent: VecDeque<(u64, Py<PyAny>)>,
}

/// The number of tokens that are remembered. Only a few threads use a backend, and each uses one token at a time.
const MAX_TOKENS: usize = 256;

impl PythonBackend {
    pub(super) fn new(backend: &Bound<'_, PyAny>) -> PyResult<PythonBackend> {
        let name = backend.getattr("name")?.extract()?;
        Ok(PythonBackend { name, backend: backend.clone().unbind(), tokens: Mutex::default() })
    }

    fn call<T>(&self, body: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, RendezvousError> {
        // A heartbeat thread may still run while the process exits.
        let interpreter_exiting = || Err(PyRuntimeError::new_err("the interpreter is exiting"));
        Python::try_attach(|py| body(py).inspect_err(|error| cancel_if_fatal(py, error)))
            .unwrap_or_else(interpreter_exiting)
            .map_err(|error| RendezvousError::Backend { backend: self.name.clone(), source: Box::new(error) })
    }

    /// Assigns a number to a token and returns the number's bytes.
    fn register_token(&self, token: Bound<'_, PyAny>) -> Token {
        let (number, oldest) = {
            let mut tokens = self.tokens();
            let number = tokens.next;
            tokens.next += 1;
            tokens.recent.push_back((number, token.unbind()));
            let oldest = if tokens.recent.len() > MAX_TOKENS { tokens.recent.pop_front() } else { None };
            (number, oldest)
        };
        // The oldest token is dropped after the lock is released, because that may call a destructor written in Python.
        drop(oldest);
        Token::copy_from_slice(&number.to_be_bytes())
    }

    /// Returns the object for the bytes of a token, or `None` if it is no longer remembered.
    fn token_object<'py>(&self, py: Python<'py>, token: &[u8]) -> Option<Bound<'py, PyAny>> {
        let number = u64::from_be_bytes(token.try_into().ok()?);
        let tokens = self.tokens();
        let (_, token) = tokens.recent.iter().find(|(candidate, _)| *candidate == number)?;
        Some(token.bind(py).clone())
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RendezvousBackend for PythonBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> Result<Option<(Vec<u8>, Token)>, RendezvousError> {
        self.call(|py| {
            let returned = self.backend.bind(py).call_method0("get_state")?;
            if returned.is_none() {
                return Ok(None);
            }
            let (state, token): (PyBackedBytes, Bound<'_, PyAny>) = returned.extract()?;
            Ok(Some((state.to_vec(), self.register_token(token))))
        })
    }

    fn set_state(&self, state: &[u8], token: &[u8]) -> Result<Written, RendezvousError> {
        self.call(|py| {
            let token = if token.is_empty() { None } else { self.token_object(py, token) };
            let returned =
                self.backend.bind(py).call_method1("set_state", (PyBytes::new(py, state), token))?;
            if returned.is_none() {
                return Ok(Written { won: false, now: None });
            }
            let (state, token, won): (PyBackedBytes, Bound<'_, PyAny>, bool) = returned.extract()?;
            Ok(Written { won, now: Some((state.to_vec(), self.register_token(token))) })
        })
    }
}
