//! The native rendezvous: a coordinator with leases, which is replicated among the agents of a job.
//!
//! Each agent runs a store server. The coordinator is a service of these servers, so it has the same port. This module
//! is the agent's side: it asks to join, waits for what the coordinator pushes, and opens the store of the round.

mod join;
mod node_state;
mod operator;
mod pre_join_check;
mod round;
mod settings;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rallypoint_coordinator::client::Client;
use rallypoint_coordinator::node::{Node, NodeId};
use rallypoint_coordinator::service::{Service, ServiceOptions};
use rallypoint_core::rendezvous::{Membership, NodeDesc};
use rallypoint_store::{
    Cancellation, Endpoint, Listen, ServerOptions, ServiceHandle, StoreError, TcpStore, TcpStoreServer,
    boot_time,
};

pub use node_state::NativeFault;
pub use operator::{OperatorCommand, OperatorError, OperatorReply, Roster, send_command};
pub use settings::NATIVE_OPTIONS;
pub(crate) use settings::NativeSettings;

use crate::dynamic::system_clock;
use crate::error::{RendezvousError, Result};
use crate::handler::{RendezvousHandler, RendezvousInfo, Report};
use crate::machine::{
    advertised_host, host_name, is_loopback, is_this_machine, listen_host, outbound_address,
};
use crate::observer::Observer;
use crate::parameters::RendezvousParameters;
use node_state::{NodeState, Shared};

/// The name of the backend.
pub const NATIVE_BACKEND: &str = "rallypoint";
/// How long a process whose job is closed keeps running until the other nodes have read that from its coordinator.
const LINGER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long leaving may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a launcher tells the coordinator about its node.
#[derive(Debug, Clone, Default)]
pub struct NativeNode {
    /// The number of workers, if the launcher knows it.
    pub workers: Option<u32>,
    /// A hash of the command that the workers run, for other nodes to compare with theirs.
    pub command: Option<u64>,
    /// Whether [`RendezvousInfo::participants`] lists the nodes of each round. The node asks the coordinator for them,
    /// so a large job should not do that on every node.
    pub wants_participants: bool,
}

/// Gets the time, since the machine was started, at which the workers of a node must be dead.
/// [`boot_time`](rallypoint_store::boot_time) returns the current time.
pub type DeadlineObserver = Box<dyn Fn(Duration) + Send + Sync>;

/// The handler of one node in a native rendezvous.
pub struct NativeRendezvousHandler {
    run_id: String,
    node: Node,
    settings: NativeSettings,
    wants_participants: bool,
    /// The server with the coordinator and with the stores of rounds in which this node has group rank 0.
    _server: TcpStoreServer,
    service: ServiceHandle<Service>,
    shared: Arc<Shared>,
    observer: Option<Arc<dyn Observer>>,
    cancellation: Option<Arc<dyn Cancellation>>,
    /// The store of the last round, without a prefix.
    round_store: Mutex<Option<TcpStore>>,
    /// The server of the workers' store, if this node has group rank 0.
    workers_server: Mutex<Option<TcpStoreServer>>,
}

/// Creates a handler of a node without a launcher, such as a node of an unchanged `torchrun`.
///
/// # Errors
///
/// Fails like [`NativeRendezvousHandler::create`].
pub fn create_native_handler(parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>> {
    Ok(Box::new(NativeRendezvousHandler::create(parameters, NativeNode::default(), None, None)?))
}

impl NativeRendezvousHandler {
    /// Creates a handler and starts the server of this node.
    ///
    /// `on_deadline` gets the time at which all workers of this node must be dead. It is called for each renewal of the
    /// lease, unless fencing is disabled.
    ///
    /// If an endpoint is an address of this machine and its port is free, the server listens there. If it is the first
    /// endpoint, this node may found the job.
    ///
    /// # Errors
    ///
    /// Fails with [`RendezvousError::Parameters`] if `parameters` are invalid, and with `Connection` if the server
    /// can't be started.
    pub fn create(
        parameters: &RendezvousParameters,
        node: NativeNode,
        observer: Option<Arc<dyn Observer>>,
        on_deadline: Option<DeadlineObserver>,
    ) -> Result<NativeRendezvousHandler> {
        let settings = NativeSettings::parse(parameters)?;
        let run_id = parameters.run_id.clone();
        let shared = Arc::new(Shared::new(&run_id, settings.fence, on_deadline));
        let seed = RandomState::new().build_hasher().finish();
        let local_addr = parameters.local_addr.as_deref();
        let mut started = None;
        for (index, endpoint) in settings.endpoints.iter().enumerate() {
            if !is_this_machine(&endpoint.host) {
                continue;
            }
            let host = advertised_host(endpoint);
            match start(&host, local_addr, endpoint.port, index == 0, seed, &shared) {
                Ok(server) => {
                    started = Some((server, host));
                    break;
                }
                // Another node on this machine, or a separate server, listens there.
                Err(error) => tracing::debug!("this node does not listen at {endpoint}: {error}"),
            }
        }
        let ((server, service), host) = match started {
            Some(started) => started,
            None => {
                let host = local_addr.map_or_else(|| own_address(&settings.endpoints), String::from);
                let failed = |source| RendezvousError::Connection { run_id: run_id.clone(), source };
                (start(&host, local_addr, 0, false, seed, &shared).map_err(failed)?, host)
            }
        };
        let node_info = Node {
            id: NodeId(seed.max(1)),
            host: settings.node_name.clone().unwrap_or_else(host_name),
            pid: i64::from(std::process::id()),
            address: Endpoint::new(local_addr.unwrap_or(&host), server.port()).to_string(),
            workers: node.workers,
            command: node.command,
            pin: settings.pin,
            preferred_rank: settings.preferred_rank,
            topology: settings.topology.clone(),
        };
        let endpoints: Vec<String> = settings.endpoints.iter().map(Endpoint::to_string).collect();
        let client = Client::new(node_info.clone(), settings.job.clone(), endpoints.clone());
        let (job, own_address) = (run_id.clone(), node_info.address.clone());
        service.call(move |service, now| {
            service.set_address(&own_address);
            service.add_node(&job, client, endpoints, now);
        });
        Ok(NativeRendezvousHandler {
            run_id,
            node: node_info,
            settings,
            wants_participants: node.wants_participants,
            _server: server,
            service,
            shared,
            observer,
            cancellation: None,
            round_store: Mutex::new(None),
            workers_server: Mutex::new(None),
        })
    }

    /// Sets a cancellation that ends calls early.
    pub fn with_cancellation(
        mut self,
        cancellation: Option<Arc<dyn Cancellation>>,
    ) -> NativeRendezvousHandler {
        self.cancellation = cancellation;
        self
    }

    /// Returns another handle to the store of the last round that this node has joined, without the prefix of the round.
    pub fn round_store(&self) -> Option<TcpStore> {
        self.round_store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns this node, as other nodes know it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Closes the job, for a launcher like torch's, whose nodes use the store of the round until each of them closes the
    /// job. The node with that store waits up to 5 s until the other nodes have closed the job as well.
    ///
    /// # Errors
    ///
    /// Fails like [`RendezvousHandler::set_closed`].
    pub fn shut_down(&self) -> Result<()> {
        self.set_closed()?;
        if let Err(error) = self.await_shut_downs() {
            tracing::debug!("the other nodes may have lost the store of the round: {error}");
        }
        self.linger();
        Ok(())
    }

    /// If the job is closed, waits up to 1.5 s until the other nodes have read that from the coordinator of this node.
    pub fn linger(&self) {
        if self.shared.lock().closed.is_some() {
            // A node that has read that the job is closed closes its connection.
            self.service.call(|service, _| service.report_idle());
            self.shared.wait_until(LINGER_TIMEOUT, |state| state.is_idle || !state.is_server_running);
        }
    }

    fn with_client(&self, call: impl FnOnce(&mut Client, Duration) + Send + 'static) {
        let run_id = self.run_id.clone();
        self.service.call(move |service, now| {
            service.with_client(&run_id, now, |client| call(client, now));
        });
    }

    /// Waits for the effect of a request. Fails if there is none within `limit`, or if the server has ended.
    fn await_effect(
        &self,
        operation: &'static str,
        (limit, setting): (Duration, &'static str),
        condition: impl Fn(&NodeState) -> bool,
    ) -> Result<()> {
        let run_id = self.run_id.clone();
        match self.shared.wait_until(limit, |state| condition(state) || !state.is_server_running) {
            true if condition(&self.shared.lock()) => Ok(()),
            true => Err(RendezvousError::Native { run_id, fault: NativeFault::ServerEnded }),
            false => Err(RendezvousError::OperationTimeout { run_id, operation, limit, setting }),
        }
    }
}

/// Starts a separate store server with a coordinator, which serves any job. Other processes reach it at the first of its
/// addresses to listen on.
///
/// # Errors
///
/// Fails like [`TcpStoreServer::start`].
pub fn start_coordinator_server(
    listen: &[Endpoint],
    options: ServerOptions,
) -> Result<TcpStoreServer, StoreError> {
    let host = listen.first().map_or(String::new(), advertised_host);
    let is_wildcard = host.is_empty() || host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let host = if is_wildcard { outbound_address().to_string() } else { host };
    let seed = RandomState::new().build_hasher().finish();
    let service = |addresses: &[SocketAddr]| {
        let port = addresses.first().map_or(0, SocketAddr::port);
        let address = Endpoint::new(&host, port).to_string();
        let options = ServiceOptions { host: host_name(), address, is_founder: true, is_server: true, seed };
        Service::new(options)
    };
    Ok(TcpStoreServer::start_with(options, service, |_| ())?.0)
}

/// Tells the threads of the agent when the server has ended, even if its thread has panicked. The server owns this value.
struct ServerGuard(Arc<Shared>);

impl Drop for ServerGuard {
    fn drop(&mut self) {
        self.0.set_server_running(false);
    }
}

/// Starts a server with a coordinator at this host and port. If other nodes reach this machine at another address, the
/// server listens on all addresses: a closed port at that address would mean that this process has ended.
fn start(
    host: &str,
    local_addr: Option<&str>,
    port: u16,
    is_founder: bool,
    seed: u64,
    shared: &Arc<Shared>,
) -> Result<(TcpStoreServer, ServiceHandle<Service>), StoreError> {
    let is_reached_elsewhere = local_addr.is_some_and(|address| address != host);
    let listen = match !is_reached_elsewhere && is_this_machine(host) {
        true => listen_host(host),
        false => String::new(),
    };
    let options = ServerOptions::new(vec![Listen::at(&listen, port)]);
    let guard = ServerGuard(Arc::clone(shared));
    let service = |addresses: &[SocketAddr]| {
        shared.set_server_running(true);
        let port = addresses.first().map_or(port, SocketAddr::port);
        let address = Endpoint::new(local_addr.unwrap_or(host), port).to_string();
        let options = ServiceOptions { host: host_name(), address, is_founder, is_server: false, seed };
        Service::new(options)
    };
    TcpStoreServer::start_with(options, service, move |event| guard.0.handle_event(event))
}

/// Returns an address at which other nodes reach this machine. If all endpoints are loopback addresses, all nodes are
/// on this machine.
fn own_address(endpoints: &[Endpoint]) -> String {
    match endpoints.iter().all(|endpoint| is_loopback(&endpoint.host)) {
        true => "127.0.0.1".into(),
        false => outbound_address().to_string(),
    }
}

impl Drop for NativeRendezvousHandler {
    fn drop(&mut self) {
        self.linger();
    }
}

impl RendezvousHandler for NativeRendezvousHandler {
    fn backend(&self) -> &str {
        NATIVE_BACKEND
    }

    fn run_id(&self) -> &str {
        &self.run_id
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo> {
        *self.workers_server.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.join_round()
    }

    fn membership(&self) -> Result<Membership> {
        let mut state = self.shared.lock();
        if !state.is_server_running {
            return Err(RendezvousError::Native {
                run_id: self.run_id.clone(),
                fault: NativeFault::ServerEnded,
            });
        }
        Ok(state.membership(NodeDesc::new(self.node.host.as_str(), self.node.pid, 0), boot_time()))
    }

    fn wait_for_change(&self, timeout: Duration) {
        self.shared.wait_for_change(timeout);
    }

    fn set_closed(&self) -> Result<()> {
        let reason = self.shared.lock().close_reason();
        self.close(&reason)
    }

    fn close(&self, reason: &str) -> Result<()> {
        let (time, reason) = (system_clock().to_string(), reason.to_owned());
        self.with_client(move |client, _| client.close(&time, &reason));
        let limit = (self.settings.close_timeout, "close_timeout");
        self.await_effect("closing", limit, |state| state.closed.is_some() || state.refused.is_some())
    }

    fn leave(&self) -> Result<()> {
        self.with_client(|client, _| client.leave());
        // The coordinator closes the connection after it has applied the departure.
        self.await_effect("leaving", (LEAVE_TIMEOUT, "a fixed limit"), |state| state.has_left)
    }

    fn interrupt(&self) {
        self.shared.interrupt();
    }

    fn hosts_store(&self) -> bool {
        self.shared.lock().is_master()
    }

    fn report(&self, report: Report) {
        match report {
            Report::WorkerFailed { local_rank, exit } => {
                self.with_client(move |client, _| client.worker_failed(local_rank, &exit));
            }
            Report::Finished => {
                self.shared.finish();
                self.with_client(|client, now| client.finish(now));
            }
            Report::Drain => self.with_client(|client, _| client.drain(None)),
        }
    }
}

#[cfg(test)]
mod tests;
