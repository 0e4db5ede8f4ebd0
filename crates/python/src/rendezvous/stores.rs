//! Functions that create the store of a rendezvous or a job, and that handle endpoints and ports, for Python.

use std::os::fd::IntoRawFd;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rallypoint_rendezvous::{
    C10dStoreOptions, Config, RendezvousParameters, create_tcp_store, split_rendezvous_endpoint,
    unknown_c10d_options,
};

use super::exceptions::to_exception;
use crate::calls::{detached, signal_cancellation};
use crate::logging::{forward, start_capture};
use crate::{error, stores};

/// Returns the host and port of an endpoint. The port is `None` if the endpoint has none.
#[pyfunction]
pub(super) fn parse_rendezvous_endpoint(py: Python<'_>, endpoint: &str) -> PyResult<(String, Option<u16>)> {
    split_rendezvous_endpoint(endpoint).map_err(|error| to_exception(py, error))
}

/// Returns a message for each option that the `c10d` backend does not know.
#[pyfunction]
pub(super) fn check_rendezvous_options(names: Vec<String>) -> Vec<String> {
    unknown_c10d_options(&names)
}

/// Hosts the store of a rendezvous, or connects to it. Also returns this node's address for other nodes.
#[pyfunction]
pub(super) fn create_rendezvous_store<'py>(
    py: Python<'py>,
    endpoint: &str,
    run_id: &str,
    min_nodes: u64,
    max_nodes: u64,
    is_host: Option<bool>,
    read_timeout: i64,
) -> PyResult<(Bound<'py, PyAny>, String)> {
    let host = parse_rendezvous_endpoint(py, endpoint)?.0;
    let mut config = Config::from([("read_timeout".into(), read_timeout.into())]);
    config.extend(is_host.map(|is_host| ("is_host".to_owned(), is_host.into())));
    let parameters = RendezvousParameters::new("c10d", endpoint, run_id, min_nodes, max_nodes)
        .and_then(|parameters| parameters.with_config(config))
        .map_err(|error| to_exception(py, error))?;
    start_capture(py)?;
    let created = detached(py, || create_tcp_store(&parameters, None, signal_cancellation()))?;
    forward(py)?;
    let created = created.map_err(|error| to_exception(py, error))?;
    Ok((stores::wrap_tcp_store(py, created.store, host, true)?, created.reachable_as))
}

/// Creates the store of a job.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "torch has the same arguments")]
pub(super) fn create_c10d_store<'py>(
    py: Python<'py>,
    is_server: bool,
    server_addr: String,
    server_port: Option<i64>,
    world_size: i64,
    timeout: Duration,
    wait_for_workers: bool,
    retries: i64,
    use_libuv: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let server_port = server_port
        .map(|port| u16::try_from(port).map_err(|_| PyValueError::new_err(format!("{port} is not a port"))))
        .transpose()?;
    let options = C10dStoreOptions::new(&server_addr, server_port)
        .is_server(is_server)
        .world_size(u64::try_from(world_size).unwrap_or(0))
        .timeout(timeout)
        .wait_for_workers(wait_for_workers)
        .retries(retries.clamp(1, i64::from(u32::MAX)) as u32)
        .cancellation(signal_cancellation());
    match detached(py, || rallypoint_rendezvous::create_c10d_store(&options))? {
        Ok(store) => stores::wrap_tcp_store(py, store, server_addr, use_libuv),
        Err(error) if error.is_address_in_use() => {
            let port = server_port.unwrap_or_default();
            Err(error::exception(
                py,
                "DistNetworkError",
                format!("on {server_addr}, port: {port} already in use"),
            ))
        }
        Err(error) => Err(error::to_python(py, error)),
    }
}

/// Binds a socket to a free port and returns its file descriptor.
#[pyfunction]
pub(super) fn reserve_port(py: Python<'_>) -> PyResult<i32> {
    let reserved = rallypoint_rendezvous::reserve_port().map_err(|error| error::to_python(py, error))?;
    Ok(reserved.into_socket().into_raw_fd())
}
