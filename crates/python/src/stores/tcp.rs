//! `TCPStore`.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rallypoint_store::{
    Awaited, DEFAULT_TIMEOUT, Endpoint, Failure, Listen, Store, StoreError, TcpStore, TcpStoreOptions,
};

use super::listener::adopt_socket;
use super::store::{PyStore, native_store};
use crate::arguments::{Boolean, Integer, Key, Timeout};
use crate::calls::{detached, run, signal_cancellation};
use crate::error::{exception, to_python, with_hint};
use crate::process::{Native, Original};

/// A store that one process serves over TCP, and to which other processes connect.
///
/// Servers and clients are compatible with those of torch's TCPStore.
///
/// Args:
///     host_name: the host of the server.
///     port: the port of the server. With 0, the server picks a free port; the attribute port has its number.
///     world_size: the number of processes that use the store, or None if it is not known.
///     is_master: whether this process runs the server.
///     timeout: the timeout of connecting and of operations that wait. The default is 300 s.
///     wait_for_workers: whether the process with the server waits until world_size processes have connected.
///     multi_tenant: whether all stores of this process with the same port share one server.
///     master_listen_fd: the file descriptor of a bound socket. The server listens on it, and closes it when it stops.
///     use_libuv: ignored. Torch has this argument.
///
/// Raises:
///     DistNetworkError: the port is in use, or the server could not be reached within the timeout.
///     DistStoreError: fewer than world_size processes connected within the timeout.
#[pyclass(name = "TCPStore", module = "rallypoint", extends = PyStore, subclass, frozen)]
pub(crate) struct PyTcpStore {
    opened: OnceLock<Opened>,
}

#[derive(Clone)]
struct Opened {
    native: Arc<Native>,
    host: String,
    port: u16,
    libuv: bool,
}

impl PyTcpStore {
    fn empty() -> PyClassInitializer<PyTcpStore> {
        PyClassInitializer::from(PyStore::empty()).add_subclass(PyTcpStore { opened: OnceLock::new() })
    }

    fn initialize(slf: &Bound<'_, Self>, opened: Opened) -> PyResult<()> {
        slf.as_super().get().initialize(Arc::clone(&opened.native))?;
        let _ = slf.get().opened.set(opened);
        Ok(())
    }

    fn opened<'a>(slf: &'a Bound<'_, Self>) -> PyResult<&'a Opened> {
        native_store(slf.as_super())?;
        slf.get()
            .opened
            .get()
            .ok_or_else(|| PyValueError::new_err("TCPStore: the store is still being initialized"))
    }
}

#[pymethods]
impl PyTcpStore {
    #[new]
    #[pyo3(signature = (*args, **kwargs), text_signature = "(host_name, port, world_size=None, is_master=False, timeout=..., \
        wait_for_workers=True, multi_tenant=False, master_listen_fd=None, use_libuv=True)")]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        let _ = (args, kwargs);
        PyTcpStore::empty()
    }

    #[pyo3(signature = (host_name, port, world_size = None, is_master = false, timeout = Timeout::from(DEFAULT_TIMEOUT),
        wait_for_workers = Boolean(true), multi_tenant = Boolean(false), master_listen_fd = None, use_libuv = Boolean(true)))]
    #[allow(clippy::too_many_arguments)]
    fn __init__(
        slf: &Bound<'_, Self>,
        host_name: Key,
        port: Integer<u16>,
        world_size: Option<Integer<i32>>,
        is_master: bool,
        timeout: Timeout,
        wait_for_workers: Boolean,
        multi_tenant: Boolean,
        master_listen_fd: Option<Integer<i32>>,
        use_libuv: Boolean,
    ) -> PyResult<()> {
        let world_size = world_size.and_then(|size| u64::try_from(size.0).ok());
        if world_size == Some(0) {
            return Err(PyValueError::new_err("TCPStore world size cannot be 0"));
        }
        let py = slf.py();
        let arguments = OpenArguments {
            host: host_name.to_owned(),
            port: port.0,
            world_size,
            is_master,
            timeout,
            wait_for_workers: wait_for_workers.0,
            multi_tenant: multi_tenant.0,
        };
        let listen = master_listen_fd.filter(|_| is_master).map(|number| adopt_socket(number.0)).transpose();
        let listen = listen.map_err(|reason| exception(py, "DistNetworkError", reason))?;
        let store =
            detached(py, || arguments.open(listen))?.map_err(|error| arguments.to_exception(py, error))?;
        store.set_timeout(Some(arguments.timeout.zero_as_immediate()));
        let port = store.port();
        let native = Native::new(Original::Tcp(Arc::new(store)));
        Self::initialize(slf, Opened { native, host: arguments.host, port, libuv: use_libuv.0 })
    }

    /// The host of the server, as given to the constructor.
    #[getter]
    fn host(slf: &Bound<'_, Self>) -> PyResult<String> {
        Self::opened(slf).map(|opened| opened.host.clone())
    }

    /// The port of the server.
    #[getter]
    fn port(slf: &Bound<'_, Self>) -> PyResult<u16> {
        Self::opened(slf).map(|opened| opened.port)
    }

    /// The value of use_libuv, for programs that read it.
    #[getter]
    #[allow(non_snake_case)]
    fn libuvBackend(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Self::opened(slf).map(|opened| opened.libuv)
    }

    /// Returns another client of the same server, with a connection of its own.
    fn clone<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let opened = Self::opened(slf)?;
        let store = run(slf.py(), || opened.native.clone_tcp())?;
        let clone = Bound::new(slf.py(), PyTcpStore::empty())?;
        let native = Native::new(Original::Tcp(Arc::new(store)));
        Self::initialize(&clone, Opened { native, ..opened.clone() })?;
        Ok(clone)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let opened = Self::opened(slf)?;
        let (client, server) = slf.py().detach(|| match opened.native.tcp() {
            None => ("<not shown in a forked process>".into(), None),
            Some(store) => (format_socket(store), store.server().map(|server| server.port())),
        });
        let server = server.map_or("<nullptr>".into(), |port| format!("TCPServer(port={port})"));
        Ok(format!("TCPStore(client=TCPClient({client}), server={server})"))
    }
}

/// Wraps a TCP store in a Python object.
///
/// `host` is the server's host as the user gave it, and `libuv` the value of `libuvBackend`.
pub(crate) fn wrap_tcp_store(
    py: Python<'_>,
    store: TcpStore,
    host: String,
    libuv: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let wrapped = Bound::new(py, PyTcpStore::empty())?;
    let port = store.port();
    let native = Native::new(Original::Tcp(Arc::new(store.with_cancellation(signal_cancellation()))));
    PyTcpStore::initialize(&wrapped, Opened { native, host, port, libuv })?;
    Ok(wrapped.into_any())
}

/// The arguments of `TCPStore`.
struct OpenArguments {
    host: String,
    port: u16,
    world_size: Option<u64>,
    is_master: bool,
    timeout: Timeout,
    wait_for_workers: bool,
    multi_tenant: bool,
}

impl OpenArguments {
    fn open(&self, listen: Option<Listen>) -> Result<TcpStore, StoreError> {
        let host = if self.is_master { bind_host(&self.host) } else { &self.host };
        let (timeout, start) = (self.timeout.zero_as_immediate(), Instant::now());
        if self.is_master {
            // Fail if the host name does not resolve, because no client could find the server. Torch's server also
            // fails in this case, because it connects to itself by that name.
            Endpoint::new(&self.host, self.port).wait_until_resolved(timeout, signal_cancellation())?;
        }
        let remaining = timeout.saturating_sub(start.elapsed());
        match TcpStore::open(self.options(host, self.is_master, listen, remaining)) {
            // The agent that started this process already serves the store.
            Err(error) if error.is_address_in_use() && self.is_agent_store() => {
                TcpStore::open(self.options(&self.host, false, None, remaining))
            }
            // The address is not an address of this machine, for example because of network address translation. Listen
            // on all addresses, as torch does.
            Err(StoreError::Listen { error, .. })
                if self.is_master && error.kind() == std::io::ErrorKind::AddrNotAvailable =>
            {
                TcpStore::open(self.options("", true, None, remaining))
            }
            other => other,
        }
    }

    fn options(
        &self,
        host: &str,
        is_master: bool,
        listen: Option<Listen>,
        timeout: Duration,
    ) -> TcpStoreOptions {
        TcpStoreOptions::new(Endpoint::new(host, self.port))
            .world_size(self.world_size)
            .is_master(is_master)
            .timeout(timeout)
            .wait_for_workers(self.wait_for_workers)
            .multi_tenant(self.multi_tenant)
            .listen(listen)
            .cancellation(signal_cancellation())
    }

    /// Returns whether, according to the environment variables, the launcher's agent serves the store at this port.
    fn is_agent_store(&self) -> bool {
        let variable = |name| std::env::var(name).unwrap_or_default().to_lowercase();
        matches!(variable("TORCHELASTIC_USE_AGENT_STORE").as_str(), "1" | "y" | "yes" | "t" | "true")
            && variable("MASTER_PORT").parse() == Ok(self.port)
    }

    /// Converts an error of `open`. The message is torch's, followed by ours in parentheses.
    fn to_exception(&self, py: Python<'_>, error: StoreError) -> PyErr {
        let (host, port) = (&self.host, self.port);
        let (class, message) = match &error {
            error if error.is_address_in_use() => (
                "DistNetworkError",
                format!(
                    "The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, \
                     code: -98, name: EADDRINUSE, message: address already in use"
                ),
            ),
            StoreError::Listen { .. } => (
                "DistNetworkError",
                format!("The server socket has failed to listen on any local network address. port: {port}"),
            ),
            StoreError::Call { failure: Failure::Unreachable(_), .. } => (
                "DistNetworkError",
                format!(
                    "The client socket has timed out after {}ms while trying to connect to ({host}, {port})",
                    self.timeout.millis()
                ),
            ),
            StoreError::Call { failure: Failure::Timeout(Awaited::Workers { joined, expected }), .. } => (
                "DistStoreError",
                format!(
                    "Timed out after {} seconds waiting for clients. {joined}/{expected} clients joined.",
                    self.timeout.millis() / 1_000
                ),
            ),
            _ => return to_python(py, error),
        };
        exception(py, class, with_hint(&error, format!("{message} ({error})")))
    }
}

/// Returns the host to bind for a server at `host`. An empty string means all addresses.
///
/// An IP address and `localhost` are bound as given. Any other name is the one by which other machines reach this
/// machine. On this machine, it may resolve to another address, so the server binds all addresses.
fn bind_host(host: &str) -> &str {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<IpAddr>().is_ok() || host == "localhost" { host } else { "" }
}

/// Formats a client's socket as torch does.
fn format_socket(store: &TcpStore) -> String {
    let name = |address: SocketAddr| match address.ip().is_loopback() {
        true => format!("[localhost]:{}", address.port()),
        false => format!("[{}]:{}", address.ip(), address.port()),
    };
    match store.socket() {
        Some((fd, local, remote)) => {
            format!("SocketImpl(fd={fd}, addr={}, remote={})", name(local), name(remote))
        }
        None => "SocketImpl(in use)".into(),
    }
}
