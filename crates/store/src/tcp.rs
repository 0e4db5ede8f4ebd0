//! The TCP store's client. What is sent, repeated and given up is decided by [`rallypoint_core::client`]; here are the
//! sockets, the clock, and the [`Store`](crate::Store) that the caller sees.

mod operations;
mod sockets;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::{
    Cancellation, Client, ConnectionFault, Deadline, Failure, OnReset, ready, user_key,
};
use rallypoint_core::wire::Op;

use crate::deadline::{AtomicTimeout, now};
use crate::endpoint::Endpoint;
use crate::error::{Context, Result, StoreError, StoreKind};
use crate::server::{Listen, ServerOptions, TcpStoreServer};
use crate::setters;
use crate::store::{DEFAULT_TIMEOUT, Store};
use sockets::Sockets;

/// How to make a [`TcpStore`]; torch's `TCPStore(...)` arguments.
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
    /// A client of the server at `endpoint`, with torch's defaults.
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
        /// Sets how many workers use the store, if known.
        world_size: Option<u64>;
        /// Sets whether to start the server, in this process, at the endpoint. With port 0 the server takes any free port.
        is_master: bool;
        /// Sets how long operations wait, connecting included; `None` for without end.
        timeout: Option<Duration>;
        /// Sets whether the master waits until all workers have connected.
        wait_for_workers: bool;
        /// Sets whether the stores of this process with the same port share one server; see [`TcpStoreServer::shared`].
        multi_tenant: bool;
        /// Sets a socket for the server to listen on instead of opening one.
        listen: Option<Listen>;
        /// Sets what the client accepts, and the server if it is started.
        limits: Limits;
        /// Sets what the client does when its server was restarted and has lost its contents.
        on_reset: OnReset;
        /// Sets what ends calls early, from opening the store on.
        cancellation: Option<Arc<dyn Cancellation>>;
    }
}

/// A client of a TCP store server: ours or torch's.
///
/// It may be used from many threads; a thread that waits doesn't hold up the others. A clone shares the connections, but has
/// a timeout of its own. The server that a store started lives as long as the store and its clones.
#[derive(Debug, Clone)]
pub struct TcpStore {
    client: Arc<Client<Sockets>>,
    timeout: AtomicTimeout,
    cancellation: Option<Arc<dyn Cancellation>>,
    server: Option<Arc<TcpStoreServer>>,
}

impl TcpStore {
    /// Connects to a server, waiting for it to appear for as long as the default timeout.
    pub fn connect(host: &str, port: u16) -> Result<TcpStore> {
        TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)))
    }

    /// Starts a server in this process and connects to it.
    pub fn serve(host: &str, port: u16) -> Result<TcpStore> {
        TcpStore::open(TcpStoreOptions::new(Endpoint::new(host, port)).is_master(true))
    }

    /// Makes a store as the options say.
    pub fn open(options: TcpStoreOptions) -> Result<TcpStore> {
        TcpStore::open_reporting(options, &mut |_| {})
    }

    /// As [`TcpStore::open`]. `report` is called after each failed attempt to connect, and once per second while a server
    /// that accepted the connection has not answered.
    pub fn open_reporting(
        options: TcpStoreOptions,
        report: &mut dyn FnMut(&ConnectionFault),
    ) -> Result<TcpStore> {
        if options.world_size == Some(0) {
            return Err(StoreError::bad_world_size("a TcpStore", 0));
        }
        let deadline = Deadline::after(now(), options.timeout).or_cancelled(options.cancellation.clone());
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
                // The client connects to the address that was bound: the name may mean others too.
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

    /// Counts this process among the workers that have joined, as torch's clients do when they are made with a world size;
    /// how many have.
    pub fn count_worker(&self) -> Result<i64> {
        self.call(Op::Add, &[], &[], async |client, _, deadline| client.count_worker(deadline).await)
    }

    /// How many workers have joined.
    pub fn workers(&self) -> Result<i64> {
        self.call(Op::Get, &[], &[], async |client, _, deadline| client.workers(deadline).await)
    }

    /// A clone, if the server can be reached or a connection to it is idle.
    pub fn another(&self) -> Result<TcpStore> {
        let deadline = self.deadline();
        let connected = ready(self.client.connect(&deadline, &mut |_| {}));
        connected.map_err(|failure| self.error(None, &[], failure, &deadline))?;
        Ok(self.clone())
    }

    /// A clone whose calls are ended early by `cancellation`.
    pub fn with_cancellation(&self, cancellation: impl Into<Option<Arc<dyn Cancellation>>>) -> TcpStore {
        TcpStore { cancellation: cancellation.into(), ..self.clone() }
    }

    /// The socket of an idle connection: its number, this end and the other.
    pub fn socket(&self) -> Option<(RawFd, SocketAddr, SocketAddr)> {
        let addresses = |stream: &sockets::Stream| {
            let (local, remote) = (stream.socket.local_addr().ok()?, stream.socket.peer_addr().ok()?);
            Some((stream.socket.as_raw_fd(), local, remote))
        };
        self.client.inspect_idle(addresses).flatten()
    }

    /// The address of this machine that an idle connection to the server has.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket().map(|(_, local, _)| local)
    }

    /// The server's host, as given (for a server started here: the address it is bound to).
    pub fn host(&self) -> &str {
        &self.endpoint().host
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.endpoint().port
    }

    /// The server that this store or the one it was cloned from started.
    pub fn server(&self) -> Option<&TcpStoreServer> {
        self.server.as_deref()
    }

    /// What the server says of itself (`version=… instance=… capabilities=… value_len=…`); `None` if it is not one of ours, or
    /// if no operation has identified it yet and it does not answer.
    pub fn server_identity(&self) -> Option<String> {
        ready(self.client.identify(&self.deadline())).ok()?;
        self.client.server().identity().map(String::from)
    }

    /// Whether the server belongs to no node of a job (`rallypoint serve`), as it says.
    pub fn is_server_standalone(&self) -> bool {
        self.client.server().has_capability("standalone")
    }

    /// Asks the server for a sign of life; how long it took.
    pub fn ping(&self) -> Result<Duration> {
        let start = now();
        self.call(Op::Ping, &[], &[], async |client, _, deadline| client.ping(deadline).await)?;
        Ok(now() - start)
    }

    fn endpoint(&self) -> &Endpoint {
        &self.client.io().endpoint
    }

    /// A clone with this timeout.
    fn clone_with_timeout(&self, timeout: Option<Duration>) -> TcpStore {
        TcpStore { timeout: AtomicTimeout::new(timeout), ..self.clone() }
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(now(), self.timeout()).or_cancelled(self.cancellation.clone())
    }

    /// The error for a call that failed. `op` is `None` if the store was being opened.
    pub(crate) fn error(
        &self,
        op: Option<Op>,
        keys: &[&[u8]],
        failure: Failure,
        deadline: &Deadline,
    ) -> StoreError {
        let context = Context::new(StoreKind::Tcp, self.endpoint().to_string());
        let keys = keys.iter().map(|key| user_key(key)).collect();
        context.with_call(op, keys).after(deadline.waited(now())).failed(failure)
    }
}
