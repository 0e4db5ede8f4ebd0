//! Functions by which the ranks of a job exchange values through a store, for Python.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rallypoint_rendezvous::{Barrier, RendezvousStoreInfo};
use rallypoint_store::{Awaited, Failure, Result, Store, StoreError};

use crate::arguments::Value;
use crate::calls::run;
use crate::stores;

/// Runs `body` with the store behind a Python object, without the GIL.
fn with_store<T: Send>(
    py: Python<'_>,
    store: &Bound<'_, PyAny>,
    body: impl FnOnce(&dyn Store) -> Result<T> + Send,
) -> PyResult<T> {
    let source = stores::source(store)?;
    run(py, || body(&*source.store()?))
}

fn to_python(py: Python<'_>, values: Vec<Vec<u8>>) -> Vec<Bound<'_, PyBytes>> {
    values.iter().map(|value| PyBytes::new(py, value)).collect()
}

/// On rank 0, publishes the address and port of the workers' store. On every rank, returns what rank 0 published.
#[pyfunction]
pub(super) fn exchange_store_info(
    py: Python<'_>,
    rank: i64,
    store: &Bound<'_, PyAny>,
    local_addr: String,
    server_port: u16,
) -> PyResult<(String, u16)> {
    let rank = u64::from(rank != 0);
    let info = with_store(py, store, |store| {
        RendezvousStoreInfo::build(rank, store, &local_addr, Some(server_port))
    })?;
    Ok((info.master_addr, info.master_port))
}

/// Waits until all ranks have set their values under the prefix, and returns the values in the order of the ranks.
#[pyfunction]
pub(super) fn get_all<'py>(
    py: Python<'py>,
    store: &Bound<'py, PyAny>,
    rank: u64,
    prefix: String,
    world_size: u64,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let values = with_store(py, store, |store| {
        rallypoint_rendezvous::get_all(store, rank, &prefix, world_size, store.timeout())
    })?;
    Ok(to_python(py, values))
}

/// Sets this rank's value, waits for the values of all ranks, and returns them in the order of the ranks.
#[pyfunction]
pub(super) fn synchronize<'py>(
    py: Python<'py>,
    store: &Bound<'py, PyAny>,
    data: Value,
    rank: u64,
    world_size: u64,
    key_prefix: String,
    timeout: Duration,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let values = with_store(py, store, |store| {
        rallypoint_rendezvous::synchronize(store, &data, rank, world_size, &key_prefix, timeout)
    })?;
    Ok(to_python(py, values))
}

/// Waits until all ranks have arrived, and returns an empty list. After a timeout, returns the missing ranks if they
/// are known, and otherwise raises the timeout error.
#[pyfunction]
pub(super) fn barrier(
    py: Python<'_>,
    store: &Bound<'_, PyAny>,
    world_size: u64,
    key_prefix: String,
    timeout: Duration,
    rank: Option<u64>,
    trace_timeout: Duration,
) -> PyResult<Vec<u64>> {
    with_store(py, store, |store| {
        let options =
            Barrier::new(&key_prefix, world_size).timeout(timeout).rank(rank).trace_timeout(trace_timeout);
        match rallypoint_rendezvous::barrier(store, &options) {
            Ok(()) => Ok(Vec::new()),
            Err(StoreError::Call { failure: Failure::Timeout(Awaited::Ranks { missing, .. }), .. }) => {
                Ok(missing)
            }
            Err(error) => Err(error),
        }
    })
}
