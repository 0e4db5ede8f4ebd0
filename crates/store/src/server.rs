//! The TCP store server: one thread that moves bytes between sockets and the [hub](rallypoint_core::hub).
//!
//! A server can live in any program. Dropping it stops it.

mod event_loop;
mod listen;
mod resources;
mod sharing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use rallypoint_core::Limits;
use rallypoint_core::hub::HubOptions;

pub use listen::Listen;
pub use rallypoint_core::hub::ServerStats;
pub use resources::raise_file_limit;
pub use sharing::SharedServers;

use crate::deadline::random;
use crate::error::{Result, StoreError};
use crate::setters;
use event_loop::{Command, EventLoop};

/// How to start a [`TcpStoreServer`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    listen: Vec<Listen>,
    limits: Option<Limits>,
    is_standalone: bool,
    expire_idle_jobs: Option<Duration>,
}

impl ServerOptions {
    /// A server that listens in these places.
    pub fn new(listen: Vec<Listen>) -> ServerOptions {
        ServerOptions { listen, limits: None, is_standalone: false, expire_idle_jobs: None }
    }

    setters! {
        /// Sets what peers may do; `None` for [`TcpStoreServer::default_limits`].
        limits: Option<Limits>;
        /// Sets whether the server belongs to no node of a job. Nodes wait for such a server to come back when it is gone,
        /// and never take its place.
        is_standalone: bool;
        /// Deletes the keys of a job after this time without a connection and without a request for one of its keys. A job is
        /// a run id of a rendezvous; a connection belongs to the job whose key it named last. Keys outside of a rendezvous
        /// never expire. `None` turns expiry off.
        expire_idle_jobs: Option<Duration>;
    }
}

/// A running store server. Dropping it stops it and closes every connection.
#[derive(Debug)]
pub struct TcpStoreServer {
    addresses: Vec<SocketAddr>,
    instance: String,
    commands: Sender<Command>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Starts a server. When this returns it accepts connections.
    pub fn start(options: ServerOptions) -> Result<TcpStoreServer> {
        let limits = options.limits.unwrap_or_else(Self::default_limits);
        limits.check().map_err(StoreError::InvalidArgument)?;
        let listeners = listen::open_listeners(options.listen, &limits)?;
        let instance = random_instance();
        let identity = format!(
            "version={} instance={instance} capabilities=in-order,stored{} value_len={}",
            env!("CARGO_PKG_VERSION"),
            if options.is_standalone { ",standalone" } else { "" },
            limits.value_len
        );
        let failed = |error| StoreError::Listen { address: "event loop".into(), error };
        let addresses = listeners.iter().map(|listener| listener.local_addr()).collect::<Result<_, _>>();
        let addresses = addresses.map_err(failed)?;
        let hub = HubOptions {
            limits,
            seed: random(),
            identity: identity.into_bytes(),
            expire_idle_jobs: options.expire_idle_jobs,
        };
        let (commands, receiver) = channel();
        let (event_loop, waker) = EventLoop::new(listeners, hub, receiver).map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("rallypoint-store".into())
            .spawn(move || event_loop.run())
            .map_err(failed)?;
        Ok(TcpStoreServer { addresses, instance, commands, waker: Arc::new(waker), thread: Some(thread) })
    }

    /// Starts a server on one address: a name, an IP address, or empty for all addresses of this machine.
    pub fn bind(host: &str, port: u16) -> Result<TcpStoreServer> {
        TcpStoreServer::start(ServerOptions::new(vec![Listen::at(host, port)]))
    }

    /// Returns the limits of a server that is given none: the defaults, lowered so that everything the server holds fits into
    /// the memory that the machine, the control groups and the resource limits leave to this process.
    pub fn default_limits() -> Limits {
        let mut limits = Limits::default();
        limits.fit_memory(resources::budget());
        limits
    }

    /// Returns the addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the port that the server listens on: the first, if there are several.
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// Returns the name of this run of the server. Each run has another name.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns the server in figures. The event loop answers itself; if it doesn't within a second, all figures are zero.
    pub fn stats(&self) -> ServerStats {
        self.inquiry()(Duration::from_secs(1)).unwrap_or_default()
    }

    /// Returns whether the server is still serving. It stops by itself only if its sockets cannot be polled.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns a function that any thread may call to ask for the figures. The event loop answers itself, so an answer shows
    /// that it turns. The function returns `None` if no answer comes within the given time.
    pub fn inquiry(&self) -> impl Fn(Duration) -> Option<ServerStats> + Clone + Send + use<> {
        let (commands, waker) = (self.commands.clone(), Arc::clone(&self.waker));
        move |timeout| {
            let (sender, receiver) = channel();
            commands.send(Command::Stats(sender)).ok()?;
            waker.wake().ok()?;
            receiver.recv_timeout(timeout).ok()
        }
    }

    /// Stops the server. No request is answered once this returns.
    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Both fail only if the loop has ended already.
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

fn random_instance() -> String {
    format!("{:016x}{:016x}", random(), random())
}
