//! `FileStore`.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rallypoint_store::{DEFAULT_TIMEOUT, FileStoreOptions};

use super::store::{PyStore, native_store};
use crate::arguments::{FilePath, Integer};
use crate::calls::{run, signal_cancellation};
use crate::process::{Native, Original};

/// A store in one file that several processes share. Torch's FileStore can use the same file.
///
/// Args:
///     file_name: the path of the file, which is created if it does not exist.
///     world_size: the number of stores that use the file. The last of them to be closed deletes the file.
///         If it is negative, the file is never deleted.
#[pyclass(name = "FileStore", module = "rallypoint", extends = PyStore, subclass, frozen)]
pub(crate) struct PyFileStore {
    arguments: OnceLock<(PathBuf, i32)>,
}

impl PyFileStore {
    fn empty() -> PyClassInitializer<PyFileStore> {
        PyClassInitializer::from(PyStore::empty()).add_subclass(PyFileStore { arguments: OnceLock::new() })
    }
}

#[pymethods]
impl PyFileStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "(file_name, world_size=-1)")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        let _ = (args, kwargs);
        PyFileStore::empty()
    }

    #[pyo3(signature = (file_name, world_size = Integer(-1)))]
    fn __init__(slf: &Bound<'_, Self>, file_name: FilePath, world_size: Integer<i32>) -> PyResult<()> {
        open(slf, file_name.0, world_size.0, Some(DEFAULT_TIMEOUT))
    }

    /// The path of the file.
    #[getter]
    fn path(slf: &Bound<'_, Self>) -> PyResult<String> {
        native_store(slf.as_super())?;
        Ok(slf.get().arguments.get().map(|(path, _)| path.display().to_string()).unwrap_or_default())
    }

    /// Returns another store in the same file. It counts as one more user of the file.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let timeout = native_store(slf.as_super())?.timeout();
        let clone = Bound::new(slf.py(), PyFileStore::empty())?;
        let (path, world_size) = slf.get().arguments.get().cloned().unwrap_or_default();
        open(&clone, path, world_size, timeout)?;
        Ok(clone)
    }
}

fn open(
    slf: &Bound<'_, PyFileStore>,
    path: PathBuf,
    world_size: i32,
    timeout: Option<Duration>,
) -> PyResult<()> {
    let options = FileStoreOptions::new(&path)
        .num_workers(u64::try_from(world_size).ok())
        .timeout(timeout)
        .cancellation(signal_cancellation());
    let store = run(slf.py(), || options.open())?;
    slf.as_super().get().initialize(Native::new(Original::File(Arc::new(store))))?;
    let _ = slf.get().arguments.set((path, world_size));
    Ok(())
}
