//! Servers that the stores of one process share, by port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rallypoint_core::Limits;

use super::{Listen, ServerOptions, TcpStoreServer};
use crate::endpoint::Endpoint;
use crate::error::{Result, StoreError, join};

/// A shared server, with the host and limits of the store that started it.
struct Entry {
    server: Weak<TcpStoreServer>,
    host: String,
    limits: Limits,
}

static SERVERS: Mutex<BTreeMap<u16, Entry>> = Mutex::new(BTreeMap::new());

/// A guard for the list of shared servers of this process.
///
/// A program must hold the guard while it forks. Otherwise the list may stay locked in the child by a thread that does
/// not exist there. The child must call [`SharedServers::forget`], because it does not have the threads of the servers.
pub struct SharedServers(MutexGuard<'static, BTreeMap<u16, Entry>>);

impl SharedServers {
    /// Locks the list. Returns `None` if another thread has locked it.
    pub fn try_lock() -> Option<SharedServers> {
        match SERVERS.try_lock() {
            Ok(servers) => Some(SharedServers(servers)),
            Err(TryLockError::Poisoned(poisoned)) => Some(SharedServers(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Empties the list, so that the next store starts a new server.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

impl TcpStoreServer {
    /// Returns the server of this process on a port, and starts it if it does not run. Port 0 always starts a new
    /// server.
    ///
    /// The stores of one process share the server, which stops when the last of them is dropped. As in torch, the port
    /// alone identifies the server.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Listen`] if the running server has other limits or listens on no address of `host`. No
    /// second server is started in that case, because it would be another store on the same port. Fails like
    /// [`TcpStoreServer::start`] if a new server cannot listen.
    pub fn shared(host: &str, port: u16, limits: Limits) -> Result<Arc<TcpStoreServer>> {
        let requested = Endpoint::new(host, port);
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        if port != 0
            && let Some(entry) = servers.get(&port)
            && let Some(server) = entry.server.upgrade()
        {
            check_match(entry, server.addresses(), &requested, &limits)?;
            return Ok(server);
        }
        let listen = vec![Listen::Endpoint(requested.clone())];
        let server = Arc::new(TcpStoreServer::start(ServerOptions::new(listen).limits(limits.clone()))?);
        servers.retain(|_, entry| entry.server.strong_count() > 0);
        let entry = Entry { server: Arc::downgrade(&server), host: requested.host, limits };
        servers.insert(server.port(), entry);
        Ok(server)
    }
}

/// Fails if a running server has other limits or listens on no address of the requested host.
fn check_match(entry: &Entry, running: &[SocketAddr], requested: &Endpoint, limits: &Limits) -> Result<()> {
    let mismatch = |how: String| {
        let reason = format!("this process already serves port {} differently: {how}", requested.port);
        Err(StoreError::Listen { address: requested.to_string(), error: io::Error::other(reason) })
    };
    // A server that was started for the same host matches, even if it could not bind all addresses of the host.
    if entry.host != requested.host && !is_reachable(running, requested)? {
        let host = if requested.host.is_empty() { "*" } else { &requested.host };
        return mismatch(format!("it listens on {}, not on {host}", join(running.iter(), ", ")));
    }
    // `describe` returns only the limits that servers use. Limits that only clients use may differ.
    let both = entry.limits.describe().into_iter().zip(limits.describe());
    let differing = both.filter(|((_, running, _), (_, requested, _))| running != requested);
    let differing = differing
        .map(|((name, running, _), (_, requested, _))| format!("{name} is {running}, not {requested}"));
    match join(differing, ", ") {
        text if text.is_empty() => Ok(()),
        differing => mismatch(format!("it has other limits: {differing}")),
    }
}

/// Returns whether a client that connects to the requested host reaches a server at these addresses. A client tries all
/// addresses of a name.
fn is_reachable(running: &[SocketAddr], requested: &Endpoint) -> Result<bool> {
    let requested = match requested.host.is_empty() {
        true => vec![(Ipv6Addr::UNSPECIFIED, requested.port).into()],
        false => requested.resolve_within(None)?,
    };
    let covers = |bound: &SocketAddr, requested: &SocketAddr| {
        let (bound, requested) = (bound.ip().to_canonical(), requested.ip().to_canonical());
        bound == requested
            // A server on this address also accepts IPv4 connections.
            || bound == IpAddr::from(Ipv6Addr::UNSPECIFIED)
            || bound == IpAddr::from(Ipv4Addr::UNSPECIFIED) && requested.is_ipv4()
    };
    Ok(requested.iter().any(|requested| running.iter().any(|bound| covers(bound, requested))))
}
