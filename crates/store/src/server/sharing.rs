//! The servers that the stores of one process share, by port.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rallypoint_core::Limits;

use super::{Listen, ServerOptions, TcpStoreServer};
use crate::endpoint::Endpoint;
use crate::error::{LimitMismatch, ListenFault, Result, ServerMismatch, StoreError};

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

/// The server of this process on that port, if it is as asked for, or else a new one.
pub(super) fn find_or_start(asked: &Endpoint, limits: Option<Limits>) -> Result<Arc<TcpStoreServer>> {
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    if asked.port != 0
        && let Some(entry) = servers.get(&asked.port)
        && let Some(server) = entry.server.upgrade()
    {
        return match mismatch(entry, server.addresses(), asked, limits.as_ref())? {
            None => Ok(server),
            Some(mismatch) => Err(StoreError::Listen {
                address: format!("port {}", asked.port),
                fault: ListenFault::ServedOtherwise(mismatch),
            }),
        };
    }
    let limits = limits.unwrap_or_else(TcpStoreServer::default_limits);
    let listen = vec![Listen::from(asked.clone())];
    let server = Arc::new(TcpStoreServer::start(ServerOptions {
        listen,
        limits: Some(limits.clone()),
        ..ServerOptions::default()
    })?);
    servers.retain(|_, entry| entry.server.strong_count() > 0);
    let entry = Entry { server: Arc::downgrade(&server), host: asked.host.clone(), limits };
    servers.insert(server.port(), entry);
    Ok(server)
}

fn mismatch(
    entry: &Entry,
    running: &[SocketAddr],
    asked: &Endpoint,
    limits: Option<&Limits>,
) -> Result<Option<ServerMismatch>> {
    // The same host is served as well as this machine can, which may have no IPv6.
    if entry.host != asked.host && !is_served(running, asked)? {
        let host = if asked.host.is_empty() { "*".into() } else { asked.host.clone() };
        return Ok(Some(ServerMismatch::Address { running: running.to_vec(), asked: host }));
    }
    let differing = limits.map_or_else(Vec::new, |limits| differing(&entry.limits, limits));
    Ok((!differing.is_empty()).then_some(ServerMismatch::Limits(differing)))
}

/// Whether a server at these addresses is found by who connects to that host.
fn is_served(running: &[SocketAddr], asked: &Endpoint) -> Result<bool> {
    let asked = match asked.host.is_empty() {
        true => vec![(Ipv6Addr::UNSPECIFIED, asked.port).into()],
        false => asked.resolve()?,
    };
    let covers = |bound: &SocketAddr, asked: &SocketAddr| {
        let (bound, asked) = (bound.ip().to_canonical(), asked.ip().to_canonical());
        bound == asked
            // Of both kinds: that is how such an address is opened.
            || bound == IpAddr::from(Ipv6Addr::UNSPECIFIED)
            || bound == IpAddr::from(Ipv4Addr::UNSPECIFIED) && asked.is_ipv4()
    };
    Ok(asked.iter().any(|asked| running.iter().any(|bound| covers(bound, asked))))
}

/// The limits of a server that are not the same; those of clients and others are no concern of it.
fn differing(running: &Limits, asked: &Limits) -> Vec<LimitMismatch> {
    let both = running.describe().into_iter().zip(asked.describe());
    both.filter(|((_, running, _), (_, asked, _))| running != asked)
        .map(|((name, running, _), (_, asked, _))| LimitMismatch { name, running, asked })
        .collect()
}
