//! The TCP store server: one thread that moves bytes between sockets and the engine. It decides nothing itself.
//!
//! It can live in any program: start it, keep it, drop it to stop it.

mod connection;
mod crowd;
mod event_loop;
mod listen;
mod memory;
mod offences;
mod outbox;
mod sharing;
mod stats;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use rallypoint_core::Limits;
use rallypoint_core::store::Engine;

pub use listen::Listen;
pub use sharing::SharedServers;
pub use stats::ServerStats;

use crate::endpoint::Endpoint;
use crate::error::{ListenFault, Result, StoreError};
use event_loop::EventLoop;
use stats::Counters;

/// How to start a [`TcpStoreServer`].
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// What peers may do; the defaults, fitted to this machine's memory and file limit, if not given.
    pub limits: Option<Limits>,
    /// Whether the server belongs to no node of a job. Nodes wait for such a server to come back when it is gone, and
    /// never take its place.
    pub is_standalone: bool,
    /// Deletes the keys of a job after this time without a connection and without a request for one of its keys. A job is a run
    /// id of a rendezvous; a connection belongs to the job whose key it named last. Keys outside of a rendezvous never expire.
    /// `None` turns expiry off.
    pub expire_idle_jobs: Option<Duration>,
}

/// A running store server. Dropping it stops it and closes every connection.
#[derive(Debug)]
pub struct TcpStoreServer {
    addresses: Vec<SocketAddr>,
    instance: String,
    counters: Arc<Counters>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl TcpStoreServer {
    /// Starts a server. When this returns it accepts connections.
    pub fn start(options: ServerOptions) -> Result<TcpStoreServer> {
        let limits = options.limits.unwrap_or_else(Self::default_limits);
        limits.check().map_err(StoreError::InvalidArgument)?;
        let listeners = listen::open(options.listen, &limits)?;
        let instance = random_name();
        let identity = format!(
            "version={} instance={instance} capabilities=in-order,stored{} value_len={}",
            env!("CARGO_PKG_VERSION"),
            if options.is_standalone { ",standalone" } else { "" },
            limits.value_len
        );
        let counters = Arc::<Counters>::default();
        let wrong =
            |source| StoreError::Listen { address: "event loop".into(), fault: ListenFault::System(source) };
        let addresses = listeners.iter().map(|listener| listener.local_addr()).collect::<Result<_, _>>();
        let mut engine = Engine::new(limits.clone(), random_number(), Some(identity.as_bytes()));
        if let Some(idle_after) = options.expire_idle_jobs {
            engine.expire_jobs_after(idle_after);
        }
        let idle_after = options.expire_idle_jobs.unwrap_or(Duration::MAX);
        let event_loop =
            EventLoop::new(listeners, limits, engine, idle_after, Arc::clone(&counters)).map_err(wrong)?;
        let waker = event_loop.waker();
        let thread = std::thread::Builder::new()
            .name("rallypoint-store".into())
            .spawn(move || event_loop.run())
            .map_err(wrong)?;
        let addresses = addresses.map_err(wrong)?;
        Ok(TcpStoreServer { addresses, instance, counters, waker, thread: Some(thread) })
    }

    /// Starts a server on one address: a name, an IP address, or empty for all addresses of this machine.
    pub fn bind(host: &str, port: u16) -> Result<TcpStoreServer> {
        TcpStoreServer::start(ServerOptions {
            listen: vec![Listen::at(host, port)],
            ..ServerOptions::default()
        })
    }

    /// The server of this process on that port, started if there is none: the several stores of one process share it.
    /// It stops when the last of them lets go.
    ///
    /// As in torch, the port alone says which server it is. But one that was started for another host or with other limits
    /// is given only where that makes no difference: if it listens on an address of `host` as well (who connects to a name
    /// tries all of its addresses) and has the limits asked for, `None` being any. Else it is
    /// [`ServedOtherwise`](ListenFault::ServedOtherwise), which says what is running and what was asked for: a second server
    /// beside it would be another store under the same port.
    pub fn shared(host: &str, port: u16, limits: Option<Limits>) -> Result<Arc<TcpStoreServer>> {
        sharing::find_or_start(&Endpoint::new(host, port), limits)
    }

    /// Returns the limits of a server that is given none: the defaults, lowered so that everything the server holds fits into
    /// the memory that the machine, the control groups and the resource limits leave to this process.
    pub fn default_limits() -> Limits {
        let mut limits = Limits::default();
        limits.fit_memory(memory::budget());
        limits
    }

    /// The addresses it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The port it listens on (the first, if there are several).
    pub fn port(&self) -> u16 {
        self.addresses.first().map_or(0, SocketAddr::port)
    }

    /// The name of this run of the server; another run has another.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The server in figures.
    pub fn stats(&self) -> ServerStats {
        self.counters.read()
    }

    /// A question that any thread may ask: is it still serving? It stops by itself only if something is badly wrong.
    pub fn liveness(&self) -> impl Fn() -> bool + Send + use<> {
        let counters = Arc::clone(&self.counters);
        move || !counters.has_ended()
    }

    /// A question that any thread may ask: how is it doing? The loop that serves answers itself; `None` if it doesn't
    /// within that time.
    pub fn inquiry(&self) -> impl Fn(Duration) -> Option<ServerStats> + Clone + Send + use<> {
        let (counters, waker) = (Arc::clone(&self.counters), Arc::clone(&self.waker));
        move |patience| {
            let (reply, replied) = channel();
            counters.ask(reply);
            waker.wake().ok()?;
            replied.recv_timeout(patience).ok()
        }
    }

    /// Stops it: nobody is answered any more once this returns.
    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.counters.request_stop();
            // A waker that fails leaves nobody to wake: the loop is gone already.
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

/// A number that nobody can guess, from the hash seeds that the standard library draws from the system.
pub(crate) fn random_number() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

fn random_name() -> String {
    format!("{:016x}{:016x}", random_number(), random_number())
}
