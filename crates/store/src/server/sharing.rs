//! The servers that the stores of one process share, by port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rallypoint_core::Limits;

use super::{Listen, ServerOptions, TcpStoreServer};
use crate::endpoint::Endpoint;
use crate::error::{Result, StoreError, join};

/// A server, and what it was started for.
struct Entry {
    server: Weak<TcpStoreServer>,
    host: String,
    limits: Limits,
}

static SERVERS: Mutex<BTreeMap<u16, Entry>> = Mutex::new(BTreeMap::new());

/// The list of the servers that the stores of this process share, locked.
///
/// A program that forks must hold it while it does: otherwise its child may find the list locked by a thread that was not
/// copied. The child must then call [`SharedServers::forget`], since it has no threads of its parent's servers.
pub struct SharedServers(MutexGuard<'static, BTreeMap<u16, Entry>>);

impl SharedServers {
    /// Locks the list, unless another thread holds it.
    pub fn try_lock() -> Option<SharedServers> {
        match SERVERS.try_lock() {
            Ok(servers) => Some(SharedServers(servers)),
            Err(TryLockError::Poisoned(poisoned)) => Some(SharedServers(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Empties the list, so that the next store starts a server of its own.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

impl TcpStoreServer {
    /// Returns the server of this process on that port, and starts it if there is none. The stores of one process share it, and
    /// it stops when the last of them is dropped.
    ///
    /// As in torch, the port alone identifies a server. A server that was started for another host or with other limits is
    /// returned only if that makes no difference: it must listen on an address of `host`, too, and have the limits asked for.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Listen`] if the running server is not what was asked for. A second server beside it
    /// would be another store under the same port. Fails like [`TcpStoreServer::start`] if a new server can't listen.
    pub fn shared(host: &str, port: u16, limits: Limits) -> Result<Arc<TcpStoreServer>> {
        let requested = &Endpoint::new(host, port);
        let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
        if port != 0
            && let Some(entry) = servers.get(&port)
            && let Some(server) = entry.server.upgrade()
        {
            check_match(entry, server.addresses(), requested, &limits)?;
            return Ok(server);
        }
        let listen = vec![Listen::Endpoint(requested.clone())];
        let server = Arc::new(TcpStoreServer::start(ServerOptions::new(listen).limits(limits.clone()))?);
        servers.retain(|_, entry| entry.server.strong_count() > 0);
        let entry = Entry { server: Arc::downgrade(&server), host: host.into(), limits };
        servers.insert(server.port(), entry);
        Ok(server)
    }
}

/// Fails unless a running server is what was asked for.
fn check_match(entry: &Entry, running: &[SocketAddr], requested: &Endpoint, limits: &Limits) -> Result<()> {
    let mismatch = |how: String| {
        let reason = format!("this process serves port {} already, but not as asked: {how}", requested.port);
        Err(StoreError::Listen { address: requested.to_string(), error: io::Error::other(reason) })
    };
    // The same host is served as well as this machine can, which may have no IPv6.
    if entry.host != requested.host && !is_reachable(running, requested)? {
        let host = if requested.host.is_empty() { "*" } else { &requested.host };
        return mismatch(format!("it listens on {}, not on {host}", join(running.iter(), ", ")));
    }
    // Only limits of a server are described. Those of clients are each client's own.
    let both = entry.limits.describe().into_iter().zip(limits.describe());
    let differing = both.filter(|((_, running, _), (_, requested, _))| running != requested);
    let differing = differing
        .map(|((name, running, _), (_, requested, _))| format!("{name} is {running}, not {requested}"));
    match join(differing, ", ") {
        text if text.is_empty() => Ok(()),
        differing => mismatch(format!("it has other limits: {differing}")),
    }
}

/// Returns whether a client that connects to that host reaches a server at these addresses. A client tries all addresses of a
/// name.
fn is_reachable(running: &[SocketAddr], requested: &Endpoint) -> Result<bool> {
    let requested = match requested.host.is_empty() {
        true => vec![(Ipv6Addr::UNSPECIFIED, requested.port).into()],
        false => requested.resolve_within(None)?,
    };
    let covers = |bound: &SocketAddr, requested: &SocketAddr| {
        let (bound, requested) = (bound.ip().to_canonical(), requested.ip().to_canonical());
        bound == requested
            // Of both kinds: that is how such an address is opened.
            || bound == IpAddr::from(Ipv6Addr::UNSPECIFIED)
            || bound == IpAddr::from(Ipv4Addr::UNSPECIFIED) && requested.is_ipv4()
    };
    Ok(requested.iter().any(|requested| running.iter().any(|bound| covers(bound, requested))))
}
