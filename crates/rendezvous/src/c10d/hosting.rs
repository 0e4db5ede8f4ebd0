//! Decides which node hosts the store. Every node whose machine has the endpoint's address tries to bind the endpoint's
//! port. The first one hosts the store, and all other nodes are its clients. With the option `is_host`, the user
//! decides instead.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rallypoint_store::{
    Cancellation, Endpoint, Failure, FileStoreOptions, Limits, OnReset, Store, StoreError, TcpStore,
    TcpStoreOptions, TcpStoreServer,
};

use crate::endpoint::parse_rendezvous_endpoint;
use crate::error::{RendezvousError, Result};
use crate::machine::{advertised_host, is_loopback, is_this_machine, listen_host, outbound_address};
use crate::observer::{ConnectReporter, Observer};
use crate::parameters::RendezvousParameters;
use crate::settings::{StoreType, read_timeout, store_type};

/// The port of an endpoint without a port.
pub(crate) const DEFAULT_PORT: u16 = 29400;
/// How long a node tries to connect before it checks again whether it can host the store. By then, the name of the
/// endpoint may resolve, its address may be configured on this machine, or the previous host may have exited.
const HOST_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The store of a rendezvous.
pub struct C10dStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Whether this process hosts the store.
    pub is_host: bool,
    /// An address at which other nodes reach this machine.
    pub reachable_as: String,
    /// A function that hosts the store on this node after the host was lost. `None` if this node hosts the store
    /// already, if the server is standalone, or if the store is a file.
    pub(crate) take_over: Option<TakeOver>,
}

/// A function that hosts the store of a rendezvous at its endpoint, and returns `None` if this node can't.
pub(crate) type TakeOver = Box<dyn Fn() -> Option<TcpStore> + Send + Sync>;

/// Creates the store of a rendezvous. The options are `store_type` (`tcp` or `file`), `is_host` and `read_timeout`.
///
/// While a TCP store can't be reached, `observer` is notified of the reason. Without an observer, the reason is logged.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid, and with `Connection` if the store can't be
/// created, or can't be reached within `read_timeout`.
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

/// The TCP store of a rendezvous.
pub struct TcpC10dStore {
    /// The store.
    pub store: TcpStore,
    /// Whether this process hosts the store.
    pub is_host: bool,
    /// An address at which other nodes reach this machine.
    pub reachable_as: String,
}

/// Hosts the TCP store of a rendezvous or connects to it. The options are `is_host` and `read_timeout`.
///
/// `observer` is notified when the store is reached and, until then, of the reason why it can't be reached. Without an
/// observer, that reason is logged, and the host logs that it hosts the store. `cancellation` ends this call and later
/// calls to the store early.
///
/// # Errors
///
/// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid, and with `Connection` if the store can't be
/// created, or can't be reached within `read_timeout`.
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
        // Other nodes can't find a host whose name does not resolve, so wait until it does.
        endpoint.wait_until_resolved(timeout, cancellation.clone()).map_err(failed)?;
    }
    let store = loop {
        if is_host_option.unwrap_or_else(|| is_this_machine(&endpoint.host)) {
            match host_store(&endpoint, timeout, cancellation.clone()) {
                Ok(store) => {
                    let at = Endpoint { host: endpoint.host.clone(), port: store.port() };
                    match observer {
                        // With port 0, the system chose the port of the store, and no other node knows it.
                        Some(observer) if endpoint.port != 0 => observer.connected(&at, true),
                        _ => tracing::info!(
                            "Process {} hosts the TCP store for the C10d rendezvous backend at {at}.",
                            std::process::id()
                        ),
                    }
                    if parameters.max_nodes > 1 && is_loopback(&endpoint.host) {
                        tracing::info!(
                            "only nodes on this machine can reach the store at {}; for nodes on other machines, use \
                             another address of this machine as the endpoint of every node",
                            endpoint.host
                        );
                    }
                    return Ok(TcpC10dStore {
                        store,
                        is_host: true,
                        reachable_as: advertised_host(&endpoint),
                    });
                }
                Err(source) if is_host_option == Some(true) => return Err(failed(source)),
                // Another process on this machine hosts the store, or the address belongs to another machine.
                Err(error) => tracing::debug!("this node does not host the store: {error}"),
            }
        }
        let left = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        let open_timeout = if is_host_option.is_some() { left } else { left.min(HOST_CHECK_INTERVAL) };
        let options = client_options(endpoint.clone(), cancellation.clone()).timeout(open_timeout);
        let open_start = Instant::now();
        match TcpStore::open_reporting(options, &mut |fault| reporter.report(fault)) {
            Ok(store) => break store,
            // Try again only if the attempt used all of `open_timeout`. An attempt that ended earlier was canceled.
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
    if let Some(observer) = observer {
        observer.connected(&endpoint, false);
    }
    store.set_timeout(Some(timeout));
    let reachable_as = match store.local_address() {
        // The connection uses a loopback address, so this node is on the host's machine. Nodes on other machines reach
        // that machine by the name in the endpoint.
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
            "The host of the store of the rendezvous '{}' was lost. This node hosts it now at {endpoint}.",
            parameters.run_id
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

/// Returns the default limits with a smaller maximum for replies and for values in a file. No node of a rendezvous
/// stores a larger value than the state, so a larger value is an error or an attack. It must not exhaust the memory of
/// this node.
fn store_limits() -> Limits {
    let mut limits = TcpStoreServer::default_limits();
    let max_len = 4 * limits.state_bytes;
    limits.reply_len = limits.reply_len.min(max_len);
    limits.record_value_len = limits.record_value_len.min(max_len);
    limits
}

pub(crate) fn create_file_store(parameters: &RendezvousParameters) -> Result<C10dStore> {
    let path: std::path::PathBuf = match parameters.endpoint.trim() {
        // As in torch, an empty endpoint means a new file that no other process knows.
        "" => {
            let random = RandomState::new().build_hasher().finish();
            std::env::temp_dir().join(format!("rallypoint-{}-{random:016x}", std::process::id()))
        }
        path => path.into(),
    };
    // The store creates a missing file, but not a missing directory. Without this check, the nodes would wait until
    // their timeout.
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
        return Err(RendezvousError::parameter(format!(
            "the endpoint {path:?} must be a file (store_type=file), but there is no directory {directory:?}; create it, or use \
             another path"
        )));
    }
    let store = FileStoreOptions::new(&path).timeout(read_timeout(parameters)?).limits(store_limits()).open();
    let store =
        store.map_err(|source| RendezvousError::Connection { run_id: parameters.run_id.clone(), source })?;
    let reachable_as = outbound_address().to_string();
    Ok(C10dStore { store: Arc::new(store), is_host: false, reachable_as, take_over: None })
}
