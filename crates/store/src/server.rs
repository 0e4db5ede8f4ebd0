//! The TCP store server: one thread that moves bytes between sockets and the [hub](rallypoint_core::hub).

mod accept;
mod event_loop;
mod links;
mod listen;
mod resources;
mod shared;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use rallypoint_core::Limits;
use rallypoint_core::hub::{HubOptions, SERVICE_CAPABILITY, Service};
use rustix::time::{ClockId, clock_gettime};

pub use listen::Listen;
pub use rallypoint_core::hub::ServerStats;
pub use resources::raise_file_limit;
pub use shared::SharedServers;

use crate::deadline::random;
use crate::error::{Result, StoreError};
use crate::setters;
use event_loop::{Command, EventLoop, ServiceCall, ServiceSetup};

/// Options of a [`TcpStoreServer`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    listen: Vec<Listen>,
    limits: Option<Limits>,
    is_standalone: bool,
    expire_idle_jobs: Option<Duration>,
}

impl ServerOptions {
    /// Creates the options for a server that listens on all of these addresses and sockets.
    pub fn new(listen: Vec<Listen>) -> ServerOptions {
        ServerOptions { listen, limits: None, is_standalone: false, expire_idle_jobs: None }
    }

    setters! {
        /// Sets the limits. `None` means [`TcpStoreServer::default_limits`].
        limits: Option<Limits>;
        /// Sets whether the server is standalone instead of part of a node of a job. If a standalone server is lost,
        /// the nodes wait until it is reachable again and do not take over.
        is_standalone: bool;
        /// Sets the time after which the keys of an idle job are deleted. `None` disables expiry.
        ///
        /// A job is a run id of a rendezvous. It is idle while it has no connection and no request names one of its
        /// keys. A connection belongs to the job whose key it named last. Keys outside of a rendezvous never expire.
        expire_idle_jobs: Option<Duration>;
    }
}

/// A running store server. Dropping it stops the server and closes every connection.
#[derive(Debug)]
pub struct TcpStoreServer {
    addresses: Vec<SocketAddr>,
    instance: String,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Starts a server, which accepts connections when this function returns.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::InvalidArgument`] if a limit is invalid or there is no address to listen on, with
    /// [`StoreError::Call`] if a host name does not resolve, and with [`StoreError::Listen`] if an address cannot be
    /// bound or the thread cannot be started.
    pub fn start(options: ServerOptions) -> Result<TcpStoreServer> {
        Ok(TcpStoreServer::start_with(options, |_| (), |event| match event {})?.0)
    }

    /// Starts a server with a service beside the store. `service` creates the service from the addresses that the
    /// server listens on. `on_event` handles the events of the service on the thread of the server, so it must not
    /// block.
    ///
    /// # Errors
    ///
    /// Fails like [`TcpStoreServer::start`].
    pub fn start_with<S: Service + Send + 'static>(
        options: ServerOptions,
        service: impl FnOnce(&[SocketAddr]) -> S,
        on_event: impl FnMut(S::Event) + Send + 'static,
    ) -> Result<(TcpStoreServer, ServiceHandle<S>)> {
        let limits = options.limits.unwrap_or_else(Self::default_limits);
        limits.check().map_err(StoreError::InvalidArgument)?;
        let listeners = listen::open_listeners(options.listen, &limits)?;
        let instance = random_instance();
        let identity = format!(
            "version={} instance={instance} capabilities=in-order,stored{}{} value_len={}",
            env!("CARGO_PKG_VERSION"),
            if options.is_standalone { ",standalone" } else { "" },
            if S::IS_PRESENT { format!(",{SERVICE_CAPABILITY}") } else { String::new() },
            limits.value_len
        );
        let failed = |error| StoreError::Listen { address: "the opened sockets".into(), error };
        let addresses = listeners.iter().map(|listener| listener.local_addr()).collect::<Result<_, _>>();
        let addresses: Vec<SocketAddr> = addresses.map_err(failed)?;
        let hub = HubOptions {
            limits,
            seed: random(),
            identity: identity.into_bytes(),
            expire_idle_jobs: options.expire_idle_jobs,
        };
        let (commands, receiver) = channel();
        let (calls, call_receiver) = channel();
        let setup =
            ServiceSetup { service: service(&addresses), calls: call_receiver, on_event: Box::new(on_event) };
        let (event_loop, waker) = EventLoop::new(listeners, hub, receiver, setup).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("rallypoint-store".into())
            .spawn(move || event_loop.run())
            .map_err(failed)?;
        let handle = ServiceHandle { calls, waker: Arc::clone(&waker) };
        Ok((TcpStoreServer { addresses, instance, commands, waker, thread: Some(thread) }, handle))
    }

    /// Starts a server on a host name or IP address. The empty host means all addresses of this machine.
    ///
    /// # Errors
    ///
    /// Fails like [`TcpStoreServer::start`].
    pub fn bind(host: &str, port: u16) -> Result<TcpStoreServer> {
        TcpStoreServer::start(ServerOptions::new(vec![Listen::at(host, port)]))
    }

    /// Returns the default limits of a server.
    ///
    /// They are the defaults of [`Limits`], lowered so that the server fits into the memory that the machine, the
    /// control groups and the resource limits leave to this process.
    pub fn default_limits() -> Limits {
        let mut limits = Limits::default();
        limits.fit_memory(resources::budget());
        limits
    }

    /// Returns the addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the port that the server listens on, or the first one if there are several.
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// Returns the random name of this server. Every started server has a different one.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns statistics of the server. They are all zero if the event loop does not answer within 1 s.
    pub fn stats(&self) -> ServerStats {
        self.stats_query()(Duration::from_secs(1)).unwrap_or_default()
    }

    /// Returns whether the server is running. A server stops by itself only if it cannot poll its sockets.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns a function that queries the statistics of the server from any thread.
    ///
    /// The event loop itself replies, so a reply shows that it runs. The function returns `None` if there is no reply
    /// within the given time.
    pub fn stats_query(&self) -> impl Fn(Duration) -> Option<ServerStats> + Clone + Send + use<> {
        let (commands, waker) = (self.commands.clone(), Arc::clone(&self.waker));
        move |timeout| {
            let (sender, receiver) = channel();
            commands.send(Command::Stats(sender)).ok()?;
            waker.wake().ok()?;
            receiver.recv_timeout(timeout).ok()
        }
    }

    /// Stops the server. No request is carried out after this function returns.
    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // These calls fail only if the event loop has already ended or has panicked.
            let _ = self.commands.send(Command::Stop);
            let _ = self.waker.wake();
            let _ = thread.join();
        }
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A handle to the service of a server, for other threads.
pub struct ServiceHandle<S> {
    calls: Sender<ServiceCall<S>>,
    waker: Arc<Waker>,
}

impl<S> Clone for ServiceHandle<S> {
    fn clone(&self) -> ServiceHandle<S> {
        ServiceHandle { calls: self.calls.clone(), waker: Arc::clone(&self.waker) }
    }
}

impl<S> ServiceHandle<S> {
    /// Calls the service on the thread of the server, with the current time. Does nothing if the server has stopped.
    pub fn call(&self, call: impl FnOnce(&mut S, Duration) + Send + 'static) {
        if self.calls.send(Box::new(call)).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

/// Returns the time since the machine was started, including the time for which it was suspended. Services compare
/// times of different processes of a machine.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns a random name for one run of a server.
fn random_instance() -> String {
    format!("{:016x}{:016x}", random(), random())
}
