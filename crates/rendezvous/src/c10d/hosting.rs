//! Who hosts the store. Whoever can: a node that has the endpoint's address tries to bind its port, the first one gets it,
//! and all others, on this machine or elsewhere, are its clients.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_store::{
    Cancellation, Endpoint, Failure, FileStoreOptions, Limits, OnReset, Store, StoreError, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};

use crate::endpoint::parse_rendezvous_endpoint;
use crate::error::{RendezvousError, Result};
use crate::machine::{is_loopback, is_this_machine, listen_host, outbound_address};
use crate::observer::{ConnectReporter, Observer};
use crate::parameters::RendezvousParameters;
use crate::settings::{StoreType, read_timeout, store_type};

/// The port of an endpoint that names none.
pub(crate) const DEFAULT_PORT: u16 = 29400;
/// How long a node looks for a host before it asks itself again whether it is the one: its name, or its address, may have
/// come meanwhile, or the host that was there may have gone.
const HOST_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The store of a rendezvous, and what was learnt when it was made.
pub struct C10dStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Whether this process hosts it.
    pub is_host: bool,
    /// An address of this machine under which the other nodes can reach it.
    pub reachable_as: String,
    /// Hosts the store on this node if its host is gone; `None` if this node must not.
    pub(crate) take_over: Option<TakeOver>,
}

/// Hosts the store of a rendezvous at its endpoint. Returns `None` if this node can't.
pub(crate) type TakeOver = Box<dyn Fn() -> Option<TcpStore> + Send + Sync>;

/// Makes the store that `parameters` ask for: `store_type` (`tcp` or `file`), `is_host`, `read_timeout`.
///
/// While a TCP store can't be reached, the reason goes to `observer`, or to the log if there is none.
pub fn create_store(parameters: &RendezvousParameters, observer: Option<&dyn Observer>) -> Result<C10dStore> {
    match store_type(parameters)? {
        StoreType::Tcp => {
            let TcpC10dStore { store, is_host, reachable_as } = create_tcp_store(parameters, observer, None)?;
            let take_over =
                (!is_host && !store.is_server_standalone()).then(|| take_over_fn(parameters.clone()));
            Ok(C10dStore { store: Arc::new(store), is_host, reachable_as, take_over })
        }
        StoreType::File => create_file_store(parameters),
    }
}

/// As [`C10dStore`], with a store that is known to be a TCP store.
pub struct TcpC10dStore {
    /// The store.
    pub store: TcpStore,
    /// Whether this process hosts it.
    pub is_host: bool,
    /// An address of this machine under which the other nodes can reach it.
    pub reachable_as: String,
}

/// Hosts the TCP store of `parameters`, or connects to it: `is_host`, `read_timeout`.
///
/// While the store can't be reached, the reason goes to `observer`, or to the log if there is none. `cancellation` ends the
/// call, and later calls of the store, early.
pub fn create_tcp_store(
    parameters: &RendezvousParameters,
    observer: Option<&dyn Observer>,
    cancellation: Option<Arc<dyn Cancellation>>,
) -> Result<TcpC10dStore> {
    let endpoint = parse_rendezvous_endpoint(&parameters.endpoint, DEFAULT_PORT)?;
    let is_host_option = parameters.get_as_bool("is_host")?;
    let timeout = read_timeout(parameters)?;
    let failed = |source| RendezvousError::Connection { run_id: parameters.run_id.clone(), source };
    let start = Instant::now();
    let mut reporter = ConnectReporter {
        run_id: &parameters.run_id,
        peer: "the store",
        endpoint: &endpoint,
        setting: "read_timeout",
        start,
        timeout,
        observer,
        logged: None,
    };
    if is_host_option == Some(true) {
        // Other nodes can't find a host whose name does not resolve.
        endpoint.await_name(timeout, cancellation.clone()).map_err(failed)?;
    }
    let store = loop {
        if is_host_option.unwrap_or_else(|| is_this_machine(&endpoint.host)) {
            match host_store(&endpoint, timeout, cancellation.clone()) {
                Ok(store) => {
                    tracing::info!(
                        "Process {} hosts the TCP store for the C10d rendezvous backend at {}.",
                        std::process::id(),
                        Endpoint { host: endpoint.host.clone(), port: store.port() }
                    );
                    if parameters.max_nodes > 1 && is_loopback(&endpoint.host) {
                        tracing::info!(
                            "only nodes on this machine reach it there; for others, name an address of this machine in the \
                             endpoint of every node"
                        );
                    }
                    return Ok(TcpC10dStore {
                        store,
                        is_host: true,
                        reachable_as: advertised_host(&endpoint),
                    });
                }
                Err(source) if is_host_option == Some(true) => return Err(failed(source)),
                // Somebody else on this machine has it, or the address is not ours after all.
                Err(error) => tracing::debug!("this node does not host the store: {error}"),
            }
        }
        let left = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        let open_timeout = if is_host_option.is_some() { left } else { left.min(HOST_CHECK_INTERVAL) };
        let options = client_options(endpoint.clone(), cancellation.clone()).timeout(open_timeout);
        let open_start = Instant::now();
        match TcpStore::open_reporting(options, &mut |fault| reporter.report(fault)) {
            Ok(store) => break store,
            // An attempt that ends before `most` was interrupted, and is not repeated.
            Err(StoreError::Call { failure: Failure::Unreachable(_), .. })
                if open_start.elapsed() >= open_timeout && start.elapsed() < timeout => {}
            Err(mut source) => {
                if let StoreError::Call { context, .. } = &mut source {
                    context.waited = start.elapsed();
                }
                return Err(failed(source));
            }
        }
    };
    store.set_timeout(Some(timeout));
    let reachable_as = match store.local_address() {
        // Here the host is reached by a loopback address, but elsewhere by the name that was given.
        Some(address) if address.ip().to_canonical().is_loopback() => advertised_host(&endpoint),
        Some(address) => address.ip().to_canonical().to_string(),
        None => outbound_address().to_string(),
    };
    Ok(TcpC10dStore { store, is_host: false, reachable_as })
}

fn take_over_fn(parameters: RendezvousParameters) -> TakeOver {
    Box::new(move || {
        let endpoint = parse_rendezvous_endpoint(&parameters.endpoint, DEFAULT_PORT).ok()?;
        let is_host_option = parameters.get_as_bool("is_host").ok()?;
        if !is_host_option.unwrap_or_else(|| is_this_machine(&endpoint.host)) {
            return None;
        }
        let store = host_store(&endpoint, read_timeout(&parameters).ok()?, None).ok()?;
        tracing::warn!(
            "The host of the store of the rendezvous '{}' is gone. Process {} hosts it now at {endpoint}.",
            parameters.run_id,
            std::process::id()
        );
        Some(store)
    })
}

fn host_store(
    endpoint: &Endpoint,
    timeout: Duration,
    cancellation: Option<Arc<dyn Cancellation>>,
) -> Result<TcpStore, StoreError> {
    let listen_endpoint = Endpoint { host: listen_host(&endpoint.host), port: endpoint.port };
    TcpStore::open(
        client_options(listen_endpoint, cancellation).is_master(true).multi_tenant(true).timeout(timeout),
    )
}

fn client_options(endpoint: Endpoint, cancellation: Option<Arc<dyn Cancellation>>) -> TcpStoreOptions {
    let options = TcpStoreOptions::new(endpoint).limits(store_limits()).on_reset(OnReset::Continue);
    options.cancellation(cancellation)
}

/// A rendezvous keeps nothing large in its store: whoever puts something large there wants this node's memory.
fn store_limits() -> Limits {
    let mut limits = TcpStoreServer::default_limits();
    let max_len = 4 * limits.state_bytes;
    limits.reply_len = limits.reply_len.min(max_len);
    limits.record_value_len = limits.record_value_len.min(max_len);
    limits
}

/// What the nodes on other machines call the host: the endpoint's own name. If that means every machine itself, all nodes
/// are on this one.
fn advertised_host(endpoint: &Endpoint) -> String {
    if is_loopback(&endpoint.host) && endpoint.host.parse::<std::net::IpAddr>().is_err() {
        "127.0.0.1".into()
    } else {
        endpoint.host.clone()
    }
}

pub(crate) fn create_file_store(parameters: &RendezvousParameters) -> Result<C10dStore> {
    let path: std::path::PathBuf = match parameters.endpoint.trim() {
        // Torch makes a file that only this process knows.
        "" => {
            let random = RandomState::new().build_hasher().finish();
            std::env::temp_dir().join(format!("rallypoint-{}-{random:016x}", std::process::id()))
        }
        path => path.into(),
    };
    // What is missing there will not come by itself, as the file does; it would be waited for in vain.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(RendezvousError::parameter(format!(
            "the endpoint {path:?} is to be a file (store_type=file), but there is no folder {folder:?}; make it, or name a \
             file elsewhere"
        )));
    }
    let store = FileStoreOptions::new(&path).timeout(read_timeout(parameters)?).limits(store_limits()).open();
    let store =
        store.map_err(|source| RendezvousError::Connection { run_id: parameters.run_id.clone(), source })?;
    let reachable_as = outbound_address().to_string();
    Ok(C10dStore { store: Arc::new(store), is_host: false, reachable_as, take_over: None })
}
