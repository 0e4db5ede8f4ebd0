//! Converts Python arguments to the types that the stores take. An argument of the wrong type raises `TypeError`, as in
//! torch.

use std::ffi::OsStr;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyDelta, PyDeltaAccess, PyDict, PyFloat, PyInt, PyString};

/// A key: `str`, or `bytes` in UTF-8.
pub(crate) struct Key(String);

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Key> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Key(text.to_cow().map_err(|_| not_utf8())?.into_owned()));
        }
        match object.extract::<PyBackedBytes>() {
            Ok(bytes) => Ok(Key(std::str::from_utf8(&bytes).map_err(|_| not_utf8())?.to_owned())),
            Err(_) => Err(type_error("a key must be str or bytes", object)),
        }
    }
}

fn not_utf8() -> PyErr {
    PyTypeError::new_err("a key must be text that can be encoded as UTF-8")
}

/// The path of a file: `str`, `os.PathLike`, or `bytes` in the system's own encoding.
pub(crate) struct FilePath(pub(crate) PathBuf);

impl<'py> FromPyObject<'_, 'py> for FilePath {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<FilePath> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(FilePath(OsStr::from_bytes(bytes.as_bytes()).into()));
        }
        object
            .extract()
            .map(FilePath)
            .map_err(|_| type_error("a file's path must be str, bytes or os.PathLike", object))
    }
}

/// A list of keys or values.
///
/// Accepts the same types as torch: sequences, sets, generators, `map` and the views of a dictionary. Refuses `str`,
/// `bytes`, `bytearray`, `dict` and other iterables.
pub(crate) struct List<T>(Vec<T>);

/// A type of the items of a `List`.
pub(crate) trait Item {
    /// The start of the error message for an object that is not a list of such items.
    const EXPECTED: &'static str;
}

impl Item for Key {
    const EXPECTED: &'static str = "keys must be a list of str";
}

impl Item for Value {
    const EXPECTED: &'static str = "values must be a list of str or bytes";
}

impl<T: Deref> List<T> {
    /// Borrows the items.
    pub(crate) fn refs(&self) -> Vec<&T::Target> {
        self.0.iter().map(|item| &**item).collect()
    }
}

impl<'py, T> FromPyObject<'_, 'py> for List<T>
where
    T: Item + for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<List<T>> {
        if object.is_instance_of::<PyString>()
            || object.is_instance_of::<PyBytes>()
            || object.is_instance_of::<PyByteArray>()
            || !is_list_like(object)?
        {
            return Err(type_error(T::EXPECTED, object));
        }
        let items = object.try_iter().map_err(|_| type_error(T::EXPECTED, object))?;
        items.map(|item| item?.extract::<T>()).collect::<PyResult<_>>().map(List)
    }
}

fn is_list_like(object: Borrowed<'_, '_, PyAny>) -> PyResult<bool> {
    const ITERABLES: [&str; 7] =
        ["set", "frozenset", "generator", "dict_keys", "dict_values", "dict_items", "map"];
    if object.is_instance_of::<PyDict>() {
        return Ok(false);
    }
    Ok(object.hasattr("__getitem__")?
        || ITERABLES.iter().any(|name| object.get_type().name().is_ok_and(|own| own == *name)))
}

/// A value: `bytes`, or `str`, which is encoded as UTF-8.
pub(crate) enum Value {
    Bytes(PyBackedBytes),
    Text(String),
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            Value::Text(text) => text.as_bytes(),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Value> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_cow().map_err(|_| {
                PyTypeError::new_err("a value that is str must be text that can be encoded as UTF-8")
            })?;
            return Ok(Value::Text(text.into_owned()));
        }
        object.extract().map(Value::Bytes).map_err(|_| type_error("a value must be str or bytes", object))
    }
}

/// An integer. A number that does not fit into `T` raises `TypeError`, like an object of another type.
pub(crate) struct Integer<T>(pub(crate) T);

impl<'py, T> FromPyObject<'_, 'py> for Integer<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Integer<T>> {
        let number = object.extract::<T>().map_err(Into::into);
        // An object with `__int__` is accepted, except a float: its conversion would silently drop digits.
        let converted = number.or_else(|error| {
            match object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>() {
                true => Err(error),
                false => object.call_method0("__int__")?.extract::<T>().map_err(Into::into),
            }
        });
        converted.map(Integer).map_err(|_| match object.is_instance_of::<PyInt>() {
            true => PyTypeError::new_err(format!(
                "{} is out of range (it must fit into {})",
                object.str().map_or_else(|_| "a number".into(), |text| text.to_string()),
                std::any::type_name::<T>(),
            )),
            false => type_error("must be an int", object),
        })
    }
}

/// A boolean: `None`, or an object whose class defines `__bool__`. Containers, which only have a length, are refused.
pub(crate) struct Boolean(pub(crate) bool);

impl<'py> FromPyObject<'_, 'py> for Boolean {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Boolean> {
        if !object.is_none() && !object.hasattr("__bool__")? {
            return Err(type_error("must be True or False", object));
        }
        object.is_truthy().map(Boolean).map_err(|_| type_error("must be True or False", object))
    }
}

/// A timeout in milliseconds, as in torch. It may be negative.
#[derive(Clone, Copy)]
pub(crate) struct Timeout(i64);

impl Timeout {
    /// Returns the timeout for calls in which zero means "no timeout". A negative timeout expires immediately.
    pub(crate) fn zero_as_unlimited(self) -> Option<Duration> {
        (self.0 != 0).then(|| self.zero_as_immediate())
    }

    /// Returns the timeout for calls in which zero expires immediately. A negative timeout counts as zero.
    pub(crate) fn zero_as_immediate(self) -> Duration {
        Duration::from_millis(u64::try_from(self.0).unwrap_or(0))
    }

    pub(crate) fn from_millis(millis: i64) -> Timeout {
        Timeout(millis)
    }

    pub(crate) fn millis(self) -> i64 {
        self.0
    }
}

impl From<Option<Duration>> for Timeout {
    fn from(timeout: Option<Duration>) -> Timeout {
        timeout.unwrap_or_default().into()
    }
}

impl From<Duration> for Timeout {
    fn from(timeout: Duration) -> Timeout {
        Timeout(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX))
    }
}

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Timeout> {
        if let Ok(delta) = object.cast::<PyDelta>() {
            // `timedelta.max` has more microseconds than fit into an i64.
            let seconds = i128::from(delta.get_days()) * 86_400 + i128::from(delta.get_seconds());
            let millis = (seconds * 1_000_000 + i128::from(delta.get_microseconds())) / 1_000;
            return Ok(Timeout(i64::try_from(millis).unwrap_or(i64::MAX)));
        }
        if let Ok(seconds) = object.cast::<PyFloat>() {
            // The cast saturates, and turns NaN into 0.
            return Ok(Timeout((seconds.value() * 1e3) as i64));
        }
        Err(type_error("a timeout must be a datetime.timedelta, or a float of seconds", object))
    }
}

fn type_error(expected: &str, object: Borrowed<'_, '_, PyAny>) -> PyErr {
    let found = object.get_type().name().map_or_else(|_| "something else".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{expected}, not {found}"))
}
