//! The native rendezvous: a coordinator with leases, which is replicated among the agents of a job.
//!
//! Each agent runs a store server. The coordinator is a service of these servers, so it has the same port. This module
//! is the agent's side: it asks to join, waits for what the coordinator pushes, and opens the store of the round.

mod node_state;
mod operator;
mod round;
mod settings;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rallypoint_coordinator::client::{Client, Event};
use rallypoint_coordinator::message::Assignment;
use rallypoint_coordinator::node::{Node, NodeId};
use rallypoint_coordinator::service::{Service, ServiceOptions};
use rallypoint_core::rendezvous::{Membership, NodeDesc};
use rallypoint_store::{
    Endpoint, Listen, ServerOptions, ServiceHandle, StoreError, TcpStoreServer, boot_time,
};

pub use node_state::NativeFault;
pub use operator::{OperatorCommand, OperatorError, OperatorReply, Roster, send_command};
pub use settings::NATIVE_OPTIONS;

use crate::dynamic::system_clock;
use crate::error::{RendezvousError, Result};
use crate::handler::{RendezvousHandler, RendezvousInfo, Report};
use crate::machine::{
    advertised_host, host_name, is_loopback, is_this_machine, listen_host, outbound_address,
};
use crate::observer::{NativeWaiting, Observer};
use crate::parameters::RendezvousParameters;
use node_state::{Shared, Step};
use settings::NativeSettings;

/// The name of the backend.
pub const NATIVE_BACKEND: &str = "rallypoint";
/// Interval at which a waiting node notifies its observer.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a process whose job is closed keeps running until the other nodes have read that from its coordinator.
const LINGER_GRACE: Duration = Duration::from_millis(1500);
/// Interval for checking whether they have.
const LINGER_INTERVAL: Duration = Duration::from_millis(10);
/// How long leaving may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a launcher tells the coordinator about its node.
#[derive(Debug, Clone, Default)]
pub struct NativeNode {
    /// The number of workers.
    pub workers: u32,
    /// A hash of the command that the workers run, for other nodes to compare with theirs.
    pub command: u64,
    /// The group rank that the node asks for.
    pub pin: Option<u32>,
    /// The topology groups of the node, as names and values.
    pub topology: Vec<(String, String)>,
}

/// Gets the time, since the machine was started, at which the workers of a node must be dead. [`boot_time`](rallypoint_store::boot_time) returns the
/// current time.
pub type DeadlineObserver = Box<dyn Fn(Duration) + Send + Sync>;

/// The handler of one node in a native rendezvous.
pub struct NativeRendezvousHandler {
    run_id: String,
    node: Node,
    settings: NativeSettings,
    /// The server with the coordinator and with the stores of rounds in which this node has group rank 0.
    _server: TcpStoreServer,
    service: ServiceHandle<Service>,
    shared: Arc<Shared>,
    observer: Option<Arc<dyn Observer>>,
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
        let settings = NativeSettings::parse(parameters, &node)?;
        let run_id = parameters.run_id.clone();
        let shared = Arc::new(Shared::new(&run_id, settings.fence, on_deadline));
        let seed = RandomState::new().build_hasher().finish();
        let on_event = {
            let shared = Arc::clone(&shared);
            move |event| shared.handle_event(event)
        };
        let mut started = None;
        for (index, endpoint) in settings.endpoints.iter().enumerate() {
            if !is_this_machine(&endpoint.host) {
                continue;
            }
            let address = advertised_host(endpoint);
            match start(&address, endpoint.port, index == 0, seed, on_event.clone()) {
                Ok(server) => {
                    started = Some((server, address));
                    break;
                }
                // Another node on this machine, or a separate server, listens there.
                Err(error) => tracing::debug!("this node does not listen at {endpoint}: {error}"),
            }
        }
        let (server, service, address) = match started {
            Some(((server, service), address)) => (server, service, address),
            None => {
                let address =
                    parameters.local_addr.clone().unwrap_or_else(|| own_address(&settings.endpoints));
                let failed = |source| RendezvousError::Connection { run_id: run_id.clone(), source };
                let (server, service) = start(&address, 0, false, seed, on_event).map_err(failed)?;
                (server, service, address)
            }
        };
        let address = parameters.local_addr.clone().unwrap_or(address);
        let topology = node.topology.into_iter().map(|(_, value)| value).collect();
        let node = Node {
            id: NodeId(seed.max(1)),
            host: host_name(),
            pid: i64::from(std::process::id()),
            address: Endpoint::new(&address, server.port()).to_string(),
            workers: node.workers,
            command: node.command,
            pin: node.pin,
            topology,
        };
        let endpoints: Vec<String> = settings.endpoints.iter().map(Endpoint::to_string).collect();
        let client = Client::new(node.clone(), settings.job.clone(), endpoints.clone());
        let (job, own_address) = (run_id.clone(), node.address.clone());
        service.call(move |service, now| {
            service.set_address(&own_address);
            service.add_node(&job, client, endpoints, now);
        });
        let workers_server = Mutex::new(None);
        Ok(NativeRendezvousHandler {
            run_id,
            node,
            settings,
            _server: server,
            service,
            shared,
            observer,
            workers_server,
        })
    }

    /// Returns this node, as other nodes know it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    fn with_client(&self, call: impl FnOnce(&mut Client, Duration) + Send + 'static) {
        let run_id = self.run_id.clone();
        self.service.call(move |service, now| {
            service.with_client(&run_id, now, |client| call(client, now));
        });
    }

    /// Asks to join, and waits until a round starts.
    fn join(&self, start: Instant) -> Result<Assignment> {
        self.shared.start_joining();
        self.with_client(|client, now| client.join(now));
        let timeout = self.settings.join_timeout;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let fault = match self.shared.wait_for_step(left.min(REPORT_INTERVAL)) {
                Step::Started(assignment) => return Ok(assignment),
                Step::Failed(NativeFault::Interrupted) => {
                    self.withdraw();
                    return Err(RendezvousError::Interrupted { run_id: self.run_id.clone() });
                }
                Step::Failed(fault) => fault,
                Step::Waiting if left.is_zero() => {
                    self.withdraw();
                    let waits_for = self.shared.lock().describe_wait();
                    NativeFault::Timeout { waits_for, timeout }
                }
                Step::Waiting => {
                    if let Some(observer) = &self.observer {
                        let (state, ends_in) = {
                            let state = self.shared.lock();
                            (state.describe_wait(), state.wait_left())
                        };
                        let waited = start.elapsed();
                        observer.native_waiting(&NativeWaiting { state: &state, ends_in, waited, left });
                    }
                    continue;
                }
            };
            return Err(RendezvousError::Native { run_id: self.run_id.clone(), fault });
        }
    }

    /// Tells the coordinator that this node does not want to join now.
    fn withdraw(&self) {
        self.with_client(|client, now| client.stay_outside("the node has stopped waiting", now));
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

/// Starts a server with a coordinator that other nodes reach at `host`.
fn start(
    host: &str,
    port: u16,
    is_founder: bool,
    seed: u64,
    on_event: impl FnMut(Event) + Send + 'static,
) -> Result<(TcpStoreServer, ServiceHandle<Service>), StoreError> {
    let listen = if is_this_machine(host) { listen_host(host) } else { String::new() };
    let options = ServerOptions::new(vec![Listen::at(&listen, port)]);
    let service = |addresses: &[SocketAddr]| {
        let port = addresses.first().map_or(port, SocketAddr::port);
        let address = Endpoint::new(host, port).to_string();
        let options = ServiceOptions { host: host_name(), address, is_founder, is_server: false, seed };
        Service::new(options)
    };
    TcpStoreServer::start_with(options, service, on_event)
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
        let start = Instant::now();
        while self.shared.lock().closed.is_some() && start.elapsed() < LINGER_GRACE {
            let (sender, receiver) = channel();
            // A node that has read that the job is closed closes its connection.
            self.service.call(move |service, _| _ = sender.send(service.node_connections()));
            if !matches!(receiver.recv_timeout(LINGER_GRACE), Ok(1..)) {
                return;
            }
            std::thread::sleep(LINGER_INTERVAL);
        }
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
        let start = Instant::now();
        *self.workers_server.lock().unwrap_or_else(PoisonError::into_inner) = None;
        loop {
            let assignment = self.join(start)?;
            tracing::info!(
                "The node '{}' has joined round {} of the rendezvous '{}' as rank {} in a world of size {}.",
                self.node,
                assignment.round,
                self.run_id,
                assignment.rank,
                assignment.world_size
            );
            if let Some(info) = self.enter(&assignment)? {
                return Ok(info);
            }
            tracing::info!(
                "round {} ended before its workers started; joining the next one",
                assignment.round
            );
        }
    }

    fn membership(&self) -> Result<Membership> {
        let own = NodeDesc::new(self.node.host.as_str(), self.node.pid, 0);
        Ok(self.shared.lock().membership(own, boot_time()))
    }

    fn wait_for_change(&self, timeout: Duration) {
        self.shared.wait_for_change(timeout);
    }

    fn set_closed(&self) -> Result<()> {
        let time = system_clock().to_string();
        let reason = self.shared.lock().close_reason();
        self.with_client(move |client, _| client.close(&time, &reason));
        let timeout = self.settings.close_timeout;
        match self.shared.wait_until(timeout, |state| state.closed.is_some() || state.refused.is_some()) {
            true => Ok(()),
            false => Err(RendezvousError::OperationTimeout {
                run_id: self.run_id.clone(),
                operation: "closing",
                limit: timeout,
                setting: "close_timeout",
            }),
        }
    }

    fn leave(&self) -> Result<()> {
        self.with_client(|client, _| client.leave());
        // The coordinator closes the connection after it has applied the departure.
        match self.shared.wait_until(LEAVE_TIMEOUT, |state| state.has_left) {
            true => Ok(()),
            false => Err(RendezvousError::OperationTimeout {
                run_id: self.run_id.clone(),
                operation: "leaving",
                limit: LEAVE_TIMEOUT,
                setting: "a fixed limit",
            }),
        }
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
