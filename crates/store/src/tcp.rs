//! The client of a TCP store. [`rallypoint_core::client`] decides what to send and what to repeat. This module provides
//! the sockets, the clock, and the implementation of [`Store`](crate::Store).

mod operations;
mod sockets;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::{
    Cancellation, Client, ConnectionFault, Deadline, Failure, OnReset, printable_key, ready,
};
use rallypoint_core::wire::Op;

use crate::deadline::{AtomicTimeout, now};
use crate::endpoint::Endpoint;
use crate::error::{Context, Result, StoreError, StoreKind};
use crate::server::{Listen, ServerOptions, TcpStoreServer};
use crate::setters;
use crate::store::{DEFAULT_TIMEOUT, Store};
use sockets::Sockets;

/// Options of a [`TcpStore`]. Most of them correspond to arguments of torch's `TCPStore`.
#[derive(Debug)]
#[non_exhaustive]
pub struct TcpStoreOptions {
    endpoint: Endpoint,
    world_size: Option<u64>,
    is_master: bool,
    timeout: Option<Duration>,
    wait_for_workers: bool,
    multi_tenant: bool,
    listen: Option<Listen>,
    limits: Limits,
    on_reset: OnReset,
    cancellation: Option<Arc<dyn Cancellation>>,
}

impl TcpStoreOptions {
    /// Creates the options for a client of the server at `endpoint`, with torch's defaults.
    pub fn new(endpoint: Endpoint) -> TcpStoreOptions {
        TcpStoreOptions {
            endpoint,
            world_size: None,
            is_master: false,
            timeout: Some(DEFAULT_TIMEOUT),
            wait_for_workers: true,
            multi_tenant: false,
            listen: None,
            limits: TcpStoreServer::default_limits(),
            on_reset: OnReset::default(),
            cancellation: None,
        }
    }

    setters! {
        /// Sets the number of workers that use the store, if known.
        world_size: Option<u64>;
        /// Sets whether to start the server at the endpoint, in this process. Port 0 selects a free port.
        is_master: bool;
        /// Sets the timeout of every operation, including opening the store. `None` means no timeout.
        timeout: Option<Duration>;
        /// Sets whether opening a store with a world size counts this process as a joined worker, and whether the
        /// master then waits until `world_size` workers have joined.
        wait_for_workers: bool;
        /// Sets whether stores of this process with the same port share one server. See [`TcpStoreServer::shared`].
        multi_tenant: bool;
        /// Sets where the server listens, instead of at the endpoint.
        listen: Option<Listen>;
        /// Sets the limits of the client, and those of the server if this store starts one.
        limits: Limits;
        /// Sets what the client does when its server was restarted and lost its data.
        on_reset: OnReset;
        /// Sets the cancellation of all calls, including the one that opens the store.
        cancellation: Option<Arc<dyn Cancellation>>;
    }
}

/// A client of a TCP store server, either ours or torch's.
///
/// Several threads may use a store, and a thread that waits does not block other threads. A clone shares the
/// connections, but has a timeout of its own. A server that a store started runs until the store and all its clones are
/// dropped.
#[derive(Debug, Clone)]
pub struct TcpStore {
    client: Arc<Client<Sockets>>,
    timeout: AtomicTimeout,
    cancellation: Option<Arc<dyn Cancellation>>,
    server: Option<Arc<TcpStoreServer>>,
}

impl TcpStore {
    /// Connects to a server. Retries for up to [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT) until the server is
    /// reachable.
    ///
    /// # Errors
    ///
    /// Fails like [`TcpStore::open`].
    pub fn connect(host: &str, port: u16) -> Result<TcpStore> {
        TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)))
    }

    /// Starts a server in this process and connects to it. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// Fails like [`TcpStore::open`].
    pub fn serve(host: &str, port: u16) -> Result<TcpStore> {
        TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)).is_master(true))
    }

    /// Opens a store with these options.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::InvalidArgument`] if the world size is 0 or a server is started with an invalid limit,
    /// with [`StoreError::Listen`] if the server cannot listen, and with [`StoreError::Call`] if the host name does not
    /// resolve, no connection could be opened, or not all workers joined before the timeout.
    pub fn open(options: TcpStoreOptions) -> Result<TcpStore> {
        TcpStore::open_reporting(options, &mut |_| {})
    }

    /// Opens a store like [`TcpStore::open`] and reports why there is no connection yet.
    ///
    /// Calls `report` after each failed attempt to connect, and once per second while a server that accepted the
    /// connection sends no reply.
    ///
    /// # Errors
    ///
    /// Fails like [`TcpStore::open`].
    pub fn open_reporting(
        options: TcpStoreOptions,
        report: &mut dyn FnMut(&ConnectionFault),
    ) -> Result<TcpStore> {
        if options.world_size == Some(0) {
            return Err(StoreError::zero_world_size("a TcpStore"));
        }
        let deadline = Deadline::after(now(), options.timeout).or_canceled(options.cancellation.clone());
        let (server, endpoint) = match options.is_master {
            false => (None, options.endpoint),
            true => {
                let Endpoint { host, port } = options.endpoint;
                let server = match options.listen {
                    None if options.multi_tenant => {
                        TcpStoreServer::shared(&host, port, options.limits.clone())?
                    }
                    listen => {
                        let listen = vec![listen.unwrap_or_else(|| Listen::at(&host, port))];
                        let server = ServerOptions::new(listen).limits(options.limits.clone());
                        Arc::new(TcpStoreServer::start(server)?)
                    }
                };
                // The client connects to the bound address, because the host name may have other addresses as well.
                let bound = server.addresses()[0];
                let host = if bound.ip().is_unspecified() { String::new() } else { bound.ip().to_string() };
                (Some(server), Endpoint { host, port: bound.port() })
            }
        };
        let sockets = Sockets { endpoint, limits: options.limits.clone() };
        let store = TcpStore {
            client: Arc::new(Client::new(sockets, options.limits, options.on_reset)),
            timeout: AtomicTimeout::new(options.timeout),
            cancellation: options.cancellation,
            server,
        };
        let failed = |failure| store.error(None, &[], failure, &deadline);
        ready(store.client.connect(&deadline, report)).map_err(failed)?;
        if let Some(world_size) = options.world_size.filter(|_| options.wait_for_workers) {
            let joined = ready(store.client.count_worker(&deadline)).map_err(failed)?;
            if store.server.is_some() {
                ready(store.client.wait_for_workers(joined, world_size, &deadline)).map_err(failed)?;
            }
        }
        Ok(store)
    }

    /// Counts this process as a joined worker and returns the number of joined workers. Torch's clients do so when they
    /// are created with a world size.
    ///
    /// # Errors
    ///
    /// Fails like [`Store::add`].
    pub fn count_worker(&self) -> Result<i64> {
        self.call(Op::Add, &[], &[], async |client, _, deadline| client.count_worker(deadline).await)
    }

    /// Returns the number of workers that have joined.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Call`] if the server does not answer.
    pub fn workers(&self) -> Result<i64> {
        self.call(Op::Get, &[], &[], async |client, _, deadline| client.workers(deadline).await)
    }

    /// Returns a clone. Opens a connection first if none is idle, so that an unreachable server is detected.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Call`] if the server is unreachable.
    pub fn try_clone(&self) -> Result<TcpStore> {
        let deadline = self.deadline();
        let connected = ready(self.client.connect(&deadline, &mut |_| {}));
        connected.map_err(|failure| self.error(None, &[], failure, &deadline))?;
        Ok(self.clone())
    }

    /// Returns a clone whose calls end early when `cancellation` is canceled.
    pub fn with_cancellation(&self, cancellation: impl Into<Option<Arc<dyn Cancellation>>>) -> TcpStore {
        TcpStore { cancellation: cancellation.into(), ..self.clone() }
    }

    /// Returns the file descriptor, the local address and the remote address of an idle connection, if there is one.
    pub fn socket(&self) -> Option<(RawFd, SocketAddr, SocketAddr)> {
        let addresses = |stream: &sockets::Stream| {
            let (local, remote) = (stream.socket.local_addr().ok()?, stream.socket.peer_addr().ok()?);
            Some((stream.socket.as_raw_fd(), local, remote))
        };
        self.client.inspect_idle(addresses).flatten()
    }

    /// Returns the local address of an idle connection to the server, if there is one.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket().map(|(_, local, _)| local)
    }

    /// Returns the host of the server as it was given. If this store has a [server](TcpStore::server) in this process,
    /// returns the IP address that the server listens on, or an empty string if it listens on all addresses.
    pub fn host(&self) -> &str {
        &self.endpoint().host
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.endpoint().port
    }

    /// Returns the server if this store started it in this process, or shares it with another store of this process. A
    /// clone returns the same server as its original.
    pub fn server(&self) -> Option<&TcpStoreServer> {
        self.server.as_deref()
    }

    /// Returns the identity of the server: `version=… instance=… capabilities=… value_len=…`.
    ///
    /// Returns `None` if the server is not one of ours, or if it does not answer and no operation has identified it
    /// before.
    pub fn server_identity(&self) -> Option<String> {
        ready(self.client.identify(&self.deadline())).ok()?;
        self.client.server().identity().map(String::from)
    }

    /// Returns whether the server is standalone (`rallypoint serve`) instead of part of a node of a job. Returns
    /// `false` if the server does not answer and no operation has identified it before.
    pub fn is_server_standalone(&self) -> bool {
        self.server_identity().is_some() && self.client.server().has_capability("standalone")
    }

    /// Sends a PING to the server and returns how long the reply took.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Call`] if the server does not answer.
    pub fn ping(&self) -> Result<Duration> {
        let start = now();
        self.call(Op::Ping, &[], &[], async |client, _, deadline| client.ping(deadline).await)?;
        Ok(now() - start)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.client.io().endpoint
    }

    /// Returns a clone with this timeout.
    fn clone_with_timeout(&self, timeout: Option<Duration>) -> TcpStore {
        TcpStore { timeout: AtomicTimeout::new(timeout), ..self.clone() }
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(now(), self.timeout()).or_canceled(self.cancellation.clone())
    }

    /// Creates the error of a call. `op` is `None` in [`TcpStore::open`] and [`TcpStore::try_clone`].
    pub(crate) fn error(
        &self,
        op: Option<Op>,
        keys: &[&[u8]],
        failure: Failure,
        deadline: &Deadline,
    ) -> StoreError {
        let context = Context::new(StoreKind::Tcp, self.endpoint().to_string());
        let keys = keys.iter().map(|key| printable_key(key)).collect();
        context.with_call(op, keys).after(deadline.waited(now())).failed(failure)
    }
}
