//! The TCP store's client: every operation over a connection that may break, within the time the caller gave.
//!
//! What may be repeated is repeated until the time is up; what may not is never sent twice. What is wrong with a server
//! is for [`StoreError`] to say.

mod broken;
mod connection;
mod known;
mod link;
mod looking;
mod newer;
mod operations;
mod pool;
mod pulse;
mod waiting;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::wire::Op;

use crate::deadline::{Backoff, Deadline};
use crate::endpoint::Endpoint;
use crate::error::{Awaited, Result, StoreError};
use crate::fault::ConnectionFault;
use crate::server::{Listen, ServerOptions, TcpStoreServer};
use crate::store::DEFAULT_TIMEOUT;
pub use known::OnReset;
use link::Link;

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
        }
    }

    /// Sets how many workers use the store, if known.
    pub fn world_size(mut self, world_size: impl Into<Option<u64>>) -> Self {
        self.world_size = world_size.into();
        self
    }

    /// Sets whether to start the server, in this process, at the endpoint. With port 0 the server takes any free port.
    pub fn is_master(mut self, is_master: bool) -> Self {
        self.is_master = is_master;
        self
    }

    /// Sets how long operations wait, connecting included; `None` for without end.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Sets whether the master waits until all workers have connected.
    pub fn wait_for_workers(mut self, wait_for_workers: bool) -> Self {
        self.wait_for_workers = wait_for_workers;
        self
    }

    /// Sets whether the stores of this process with the same port share one server; see [`TcpStoreServer::shared`].
    pub fn multi_tenant(mut self, multi_tenant: bool) -> Self {
        self.multi_tenant = multi_tenant;
        self
    }

    /// Sets a socket for the server to listen on instead of opening one.
    pub fn listen(mut self, listen: impl Into<Option<Listen>>) -> Self {
        self.listen = listen.into();
        self
    }

    /// Sets what the client accepts, and the server if it is started.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets what the client does when its server was restarted and has lost its contents.
    pub fn on_reset(mut self, on_reset: OnReset) -> Self {
        self.on_reset = on_reset;
        self
    }
}

/// A client of a TCP store server: ours or torch's.
///
/// It may be used from many threads; those that wait don't hold up the others. The server it started, if any, lives as
/// long as it and its clones.
pub struct TcpStore {
    link: Arc<Link>,
    timeout: Mutex<Option<Duration>>,
    server: Option<Arc<TcpStoreServer>>,
}

impl std::fmt::Debug for TcpStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpStore")
            .field("endpoint", &self.link.endpoint().to_string())
            .field("server", &self.link.known().identity())
            .field("serves", &self.server.is_some())
            .finish_non_exhaustive()
    }
}

/// The counter of workers that have come. Torch's own name for it, without the slash that users' keys have.
const INIT_KEY: &[u8] = b"init/";

impl TcpStore {
    /// Connects to a server, waiting for it to appear for as long as the default time-out.
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
    /// that accepted the connection, or a name server, has not answered.
    pub fn open_reporting(
        options: TcpStoreOptions,
        report: &mut dyn FnMut(&ConnectionFault),
    ) -> Result<TcpStore> {
        if options.world_size == Some(0) {
            return Err(StoreError::bad_world_size("a TcpStore", 0));
        }
        let deadline = Deadline::after(options.timeout);
        let (server, endpoint) = match options.is_master {
            false => (None, options.endpoint),
            true => {
                let Endpoint { host, port } = options.endpoint;
                let server = match options.listen {
                    None if options.multi_tenant => {
                        TcpStoreServer::shared(&host, port, Some(options.limits.clone()))?
                    }
                    listen => Arc::new(TcpStoreServer::start(ServerOptions {
                        listen: vec![listen.unwrap_or_else(|| Listen::at(&host, port))],
                        limits: Some(options.limits.clone()),
                        ..ServerOptions::default()
                    })?),
                };
                // At the address that was bound: the name may mean others too.
                let bound = server.addresses()[0];
                let host = if bound.ip().is_unspecified() { String::new() } else { bound.ip().to_string() };
                (Some(server), Endpoint { host, port: bound.port() })
            }
        };
        let link = Link::new(endpoint, options.limits, options.on_reset);
        link.connect(&deadline, report)?;
        let store = TcpStore::over(Arc::new(link), server, options.timeout);
        if let Some(world_size) = options.world_size.filter(|_| options.wait_for_workers) {
            store.join(world_size, &deadline)?;
        }
        Ok(store)
    }

    fn over(link: Arc<Link>, server: Option<Arc<TcpStoreServer>>, timeout: Option<Duration>) -> TcpStore {
        TcpStore { link, timeout: Mutex::new(timeout), server }
    }

    /// Adds itself to the workers; the one with the server waits for the others.
    fn join(&self, world_size: u64, deadline: &Deadline) -> Result<()> {
        let mut joined = self.add_at(INIT_KEY, 1, deadline)?;
        self.link.known().witness_steady(INIT_KEY, joined);
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        while self.server.is_some() && joined < world_size as i64 {
            if deadline.has_passed() {
                return Err(self.workers_missing(joined, world_size, deadline));
            }
            deadline.sleep(backoff.pause());
            joined = match self.number_at(INIT_KEY, &deadline.grace()) {
                // The time is up, and there was none left to ask once more: what was known last is told.
                Err(_) if deadline.has_passed() => joined,
                answer => answer?,
            };
        }
        Ok(())
    }

    /// Counts this process among the workers that have come, as torch's clients do when they are made with a world size;
    /// how many have.
    pub fn count_worker(&self) -> Result<i64> {
        let joined = self.add_at(INIT_KEY, 1, &Deadline::after(self.load_timeout()))?;
        self.link.known().witness_steady(INIT_KEY, joined);
        Ok(joined)
    }

    /// How many workers have come.
    pub fn workers(&self) -> Result<i64> {
        self.number_at(INIT_KEY, &Deadline::after(self.load_timeout()))
    }

    /// Another handle of this same client.
    pub fn client(&self) -> TcpStore {
        TcpStore::over(Arc::clone(&self.link), self.server.clone(), self.load_timeout())
    }

    /// Another client of the same server, with a time-out of its own. They share their connections and what they know of
    /// the server: one that took its place is as strange to either.
    pub fn another(&self) -> Result<TcpStore> {
        self.link.connect(&Deadline::after(self.load_timeout()), &mut |_| {})?;
        Ok(self.client())
    }

    /// The socket of a connection that is not in use just now: its number, this end and the other.
    pub fn socket(&self) -> Option<(RawFd, SocketAddr, SocketAddr)> {
        self.link.socket()
    }

    /// The address of this machine that the connection to the server has; `None` if it is not connected just now.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.link.local_address()
    }

    /// The server's host, as given (for a server started here: the address it is bound to).
    pub fn host(&self) -> &str {
        &self.link.endpoint().host
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.link.endpoint().port
    }

    /// The server that this store or the one it was cloned from started.
    pub fn server(&self) -> Option<&TcpStoreServer> {
        self.server.as_deref()
    }

    /// What the server says of itself (`version=… instance=… capabilities=… value_len=…`); `None` if it is not one of ours, or
    /// if no operation has identified it yet and it does not answer.
    pub fn server_identity(&self) -> Option<String> {
        let server = self.link.server(Op::Ping, &[], &Deadline::after(self.load_timeout()));
        server.ok()?.identity().map(String::from)
    }

    /// Whether the server belongs to no node of a job (`rallypoint serve`), as it says.
    pub fn is_server_standalone(&self) -> bool {
        self.link.known().is_capable_of("standalone")
    }

    /// Asks the server for a sign of life; how long it took.
    pub fn ping(&self) -> Result<Duration> {
        let deadline = Deadline::after(self.load_timeout());
        // The first operation of a store identifies the server, which is not what is measured.
        drop(self.link.server(Op::Ping, &[], &deadline)?);
        let started = std::time::Instant::now();
        self.link
            .call(Op::Ping, &[], true, &deadline, |connection, deadline| connection.acknowledge(deadline))?;
        Ok(started.elapsed())
    }

    pub(crate) fn workers_missing(&self, joined: i64, expected: u64, deadline: &Deadline) -> StoreError {
        let context = self.link.context().into();
        let awaited = Awaited::Workers { joined, expected };
        StoreError::Timeout { context, waited: deadline.waited(), awaited }
    }

    fn load_timeout(&self) -> Option<Duration> {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
