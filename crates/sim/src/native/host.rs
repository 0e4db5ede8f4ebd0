//! A host with its clock, and the process on it: the event loop around a real hub, like the one in `crates/store`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use rallypoint_coordinator::client::{Client, Event as ClientEvent};
use rallypoint_coordinator::coordinator::Coordinator;
use rallypoint_coordinator::node::{Node, NodeId};
use rallypoint_coordinator::service::{Service, ServiceOptions};
use rallypoint_core::Limits;
use rallypoint_core::hub::{Action, ConnectionId, Hub, HubOptions};

use super::agent::{Agent, AgentEvent};
use super::network::{ConnectionIndex, Segment, Side};
use super::worker::Worker;
use super::world::{Event, World};

/// The run id of the job.
pub(super) const RUN_ID: &str = "job";
/// The identity of every server. It says that the server has a service.
const IDENTITY: &[u8] = b"version=1 capabilities=in-order,messages value_len=5";
/// The shortest time between two passes of an event loop.
const PASS_TIME: Duration = Duration::from_micros(20);
/// The maximum number of passes of an event loop per second that no packet has caused (N9).
const MAX_IDLE_PASSES: u32 = 1_000;

/// The clocks of a host, which differ from the virtual time.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// The time since the start of the machine, at the start of the run.
    offset: Duration,
    /// The difference between the speed of the clock and that of time, in parts per million.
    drift: i64,
    /// The error of the wall clock. Nothing may depend on it.
    pub(super) wall_error: i64,
}

impl Clock {
    pub(super) fn new(offset: Duration, drift: i64) -> Clock {
        Clock { offset, drift, wall_error: 0 }
    }

    fn rate(&self) -> u128 {
        (1_000_000 + self.drift) as u128
    }

    /// Returns the time since the start of the machine.
    pub(super) fn local(&self, now: Duration) -> Duration {
        self.offset + Duration::from_nanos((now.as_nanos() * self.rate() / 1_000_000) as u64)
    }

    /// Returns the first virtual time at which the clock shows `local`.
    pub(super) fn virtual_time(&self, local: Duration) -> Duration {
        let nanos = local.saturating_sub(self.offset).as_nanos() * 1_000_000;
        Duration::from_nanos(nanos.div_ceil(self.rate()).min(u128::from(u64::MAX)) as u64)
    }

    /// Returns the wall clock's time, for people to read.
    pub(super) fn wall(&self, now: Duration) -> String {
        format!("{} s", now.as_secs() as i64 + self.wall_error)
    }
}

/// A host.
pub(super) struct Host {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) clock: Clock,
    pub(super) is_powered: bool,
    /// The agent with its server, or the separate server.
    pub(super) process: Option<Box<Process>>,
    /// The processes of workers.
    pub(super) workers: Vec<Worker>,
    /// The file with the deadline of the workers, in the time of the host.
    pub(super) fence: Option<Duration>,
    /// The group rank that the node asks for.
    pub(super) pin: Option<u32>,
    /// How the agent ended, if it did not crash.
    pub(super) ended: Option<Ended>,
}

/// How an agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The job has ended.
    Job,
    /// The node left the job, because of a signal or a drain.
    Left,
    /// The agent failed. A scheduler starts it again.
    Failed,
}

/// One side of a connection, as a socket.
pub(super) type SocketKey = (ConnectionIndex, Side);

/// A socket.
#[derive(Debug, Default)]
struct Socket {
    id: Option<ConnectionId>,
    /// Whether the connection is established.
    is_connected: bool,
    input: Vec<u8>,
    has_ended: bool,
    has_failed: bool,
}

/// A call of the agent to the client of its node. The event loop carries it out.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Join,
    StayOutside,
    Finish,
    WorkerFailed,
    Drain,
    Leave,
    Close(String),
    /// Asks for [`ClientEvent::Idle`].
    ReportIdle,
}

/// A process: an agent with its server, or a separate server.
pub(super) struct Process {
    /// The number of the process. No two processes of a run have the same number.
    pub(super) number: u64,
    /// The id of the node, or zero for a separate server.
    pub(super) id: NodeId,
    hub: Hub<(), Service>,
    sockets: BTreeMap<SocketKey, Socket>,
    keys: BTreeMap<ConnectionId, SocketKey>,
    readable: Vec<SocketKey>,
    accepted: Vec<SocketKey>,
    /// Sockets that were connected, or could not be connected. The flag says whether the host has refused the connection.
    connected: Vec<(SocketKey, Result<(), bool>)>,
    calls: Vec<Call>,
    wake_at: Option<Duration>,
    /// The time that the event loop has read before it stalled.
    stalled: Option<Duration>,
    pub(super) paused_until: Option<Duration>,
    pub(super) agent: Option<Agent>,
    /// Events of the agent that wait until the process is not paused.
    pub(super) deferred: Vec<AgentEvent>,
    /// The current second, and the number of passes in it that no packet has caused.
    idle_passes: (u64, u32),
}

impl Process {
    pub(super) fn coordinator(&mut self) -> Option<&Coordinator> {
        self.hub.service().coordinator(RUN_ID)
    }

    pub(super) fn client(&mut self) -> Option<&Client> {
        self.hub.service().client(RUN_ID)
    }

    pub(super) fn call(&mut self, call: Call) {
        self.calls.push(call);
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = SocketKey> {
        self.sockets.keys().copied()
    }
}

impl World {
    /// Returns whether this process runs on the host.
    pub(super) fn is_running(&self, host: usize, process: u64) -> bool {
        self.hosts[host].process.as_ref().is_some_and(|current| current.number == process)
    }

    /// Returns the local time of a host.
    pub(super) fn local(&self, host: usize) -> Duration {
        self.hosts[host].clock.local(self.now)
    }

    /// Starts the process of a host, if none runs.
    pub(super) fn launch(&mut self, host: usize) {
        if self.hosts[host].process.is_some() || !self.hosts[host].is_powered {
            return;
        }
        let is_server = self.config.has_server && host == 0;
        self.next_process += 1;
        let (number, seed, local) = (self.next_process, self.random.next(), self.local(host));
        let options = ServiceOptions {
            host: self.hosts[host].name.clone(),
            address: self.hosts[host].address.clone(),
            is_founder: host == 0,
            is_server,
            seed,
        };
        let mut service = Service::new(options);
        let id = NodeId(if is_server { 0 } else { seed.max(1) });
        if !is_server {
            let endpoints: Vec<String> = self
                .hosts
                .iter()
                .take(self.config.endpoints.min(self.hosts.len()))
                .map(|host| host.address.clone())
                .collect();
            let node = Node {
                id,
                host: self.hosts[host].name.clone(),
                pid: number as i64,
                address: self.hosts[host].address.clone(),
                workers: Some(1),
                command: Some(0),
                pin: self.hosts[host].pin,
                preferred_rank: None,
                topology: Vec::new(),
            };
            let client = Client::new(node, self.config.settings.clone(), endpoints.clone());
            service.add_node(RUN_ID, client, endpoints, local);
        }
        let mut limits = Limits::default();
        limits.connections = 1 << 20;
        let hub = HubOptions { limits, seed, identity: IDENTITY.to_vec(), expire_idle_jobs: None };
        let process = Process {
            number,
            id,
            hub: Hub::with_service(hub, (), service),
            sockets: BTreeMap::new(),
            keys: BTreeMap::new(),
            readable: Vec::new(),
            accepted: Vec::new(),
            connected: Vec::new(),
            calls: Vec::new(),
            wake_at: None,
            stalled: None,
            paused_until: None,
            agent: (!is_server).then(|| Agent::new(&self.config)),
            deferred: Vec::new(),
            idle_passes: (0, 0),
        };
        let target = &mut self.hosts[host];
        (target.process, target.fence, target.ended) = (Some(Box::new(process)), None, None);
        self.record_launch(number, id);
        self.trace(|| format!("h{host} starts process {number} with id {}", id.0));
        if !is_server {
            self.watch_fence(host, number);
            self.drive_agent(host);
        }
        self.run_pass(host);
    }

    /// Ends the process of a host. Its kernel closes the connections, and kills the workers.
    pub(super) fn end_process(&mut self, host: usize, is_kill: bool) {
        let Some(process) = self.hosts[host].process.take() else { return };
        for (index, side) in process.sockets() {
            // The kernel resets a connection with data that the process has not read.
            let segment = if is_kill && self.random.one_in(2) { Segment::Reset } else { Segment::End };
            self.close_side(index, side, segment);
        }
        self.kill_workers_of_dead_agent(host);
    }

    /// Ends everything on a host at once. Other hosts learn nothing.
    pub(super) fn power_off(&mut self, host: usize) {
        let target = &mut self.hosts[host];
        (target.process, target.is_powered, target.fence) = (None, false, None);
        let workers = std::mem::take(&mut target.workers);
        workers.iter().for_each(|worker| self.forget_worker(host, worker));
    }

    // ---- packets ----

    /// Passes a segment to the socket of the process of a host.
    pub(super) fn receive(&mut self, host: usize, key: SocketKey, segment: Segment) {
        let Some(process) = &mut self.hosts[host].process else { return };
        if segment == Segment::Open {
            process.sockets.insert(key, Socket { is_connected: true, ..Socket::default() });
            process.accepted.push(key);
        }
        let Some(socket) = process.sockets.get_mut(&key) else { return };
        match segment {
            Segment::Open => {}
            Segment::Accepted => {
                socket.is_connected = true;
                process.connected.push((key, Ok(())));
            }
            Segment::Refused => process.connected.push((key, Err(true))),
            Segment::End | Segment::Reset if !socket.is_connected => {
                process.connected.push((key, Err(false)))
            }
            Segment::Bytes(bytes) => {
                socket.input.extend_from_slice(&bytes);
                process.readable.push(key);
            }
            Segment::End => {
                socket.has_ended = true;
                process.readable.push(key);
            }
            Segment::Reset => {
                socket.has_failed = true;
                process.readable.push(key);
            }
        }
        process.idle_passes.1 = process.idle_passes.1.saturating_sub(1);
        self.run_pass(host);
    }

    // ---- the event loop ----

    /// Handles the end of the time for which an event loop waited.
    pub(super) fn handle_wake(&mut self, host: usize, number: u64) {
        let Some(process) = self.hosts[host].process.as_mut().filter(|process| process.number == number)
        else {
            return;
        };
        if process.wake_at != Some(self.now) {
            return;
        }
        process.wake_at = None;
        let second = self.now.as_secs();
        if process.idle_passes.0 != second {
            process.idle_passes = (second, 0);
        }
        process.idle_passes.1 += 1;
        if process.idle_passes.1 > MAX_IDLE_PASSES {
            self.fail(
                "N9",
                format!("the event loop of h{host} has run more than {MAX_IDLE_PASSES} times within 1 s"),
            );
        }
        self.run_pass(host);
    }

    /// Runs the event loop of a host's process once. The loop may stall after it has read the clock.
    pub(super) fn run_pass(&mut self, host: usize) {
        let now = self.local(host);
        let is_stalling =
            self.config.stall_one_in > 0 && self.has_faults() && self.random.one_in(self.config.stall_one_in);
        let Some(process) = &mut self.hosts[host].process else { return };
        if process.paused_until.is_some() || process.stalled.is_some() {
            return;
        }
        if is_stalling {
            process.stalled = Some(now);
            let number = process.number;
            let stall = Duration::from_micros(self.random.between(1, self.config.max_stall_us));
            return self.queue.schedule(self.now + stall, Event::Proceed { host, process: number });
        }
        self.finish_pass(host, now);
    }

    /// Continues an event loop that has stalled.
    pub(super) fn proceed(&mut self, host: usize, number: u64) {
        let Some(process) = self.hosts[host].process.as_mut().filter(|process| process.number == number)
        else {
            return;
        };
        if process.paused_until.is_some() {
            return;
        }
        if let Some(now) = process.stalled.take() {
            self.finish_pass(host, now);
        }
    }

    /// Continues a process that was paused.
    pub(super) fn resume(&mut self, host: usize, number: u64) {
        let now = self.now;
        let Some(process) = self.hosts[host].process.as_mut().filter(|process| process.number == number)
        else {
            return;
        };
        if process.paused_until.is_none_or(|until| until > now) {
            return;
        }
        process.paused_until = None;
        let deferred = std::mem::take(&mut process.deferred);
        let stalled = process.stalled.take();
        self.trace(|| format!("h{host} resumes"));
        for event in deferred {
            let delay = Duration::from_micros(self.random.between(0, 1_000));
            self.schedule_agent(host, number, delay, event);
        }
        self.watch_supervisor(host);
        match stalled {
            Some(read) => self.finish_pass(host, read),
            None => self.run_pass(host),
        }
    }

    /// Carries out one pass of an event loop that has read the time `now`. The order of the steps is that of the event
    /// loop in `crates/store`.
    fn finish_pass(&mut self, host: usize, now: Duration) {
        let Some(mut process) = self.hosts[host].process.take() else { return };
        let fresh = self.local(host);
        for key in std::mem::take(&mut process.readable) {
            if let Some((id, socket)) =
                process.sockets.get(&key).and_then(|socket| Some((socket.id?, socket)))
            {
                process.hub.handle_readable(id, socket.has_ended || socket.has_failed);
            }
        }
        for key in std::mem::take(&mut process.accepted) {
            let from = self.network.connections[key.0].ends[key.1.other() as usize].host;
            let Some(socket) = process.sockets.get_mut(&key) else { continue };
            socket.id = process.hub.handle_open(socket_address(from), now);
            match socket.id {
                Some(id) => {
                    process.keys.insert(id, key);
                }
                None => {
                    process.sockets.remove(&key);
                    self.close_side(key.0, key.1, Segment::Reset);
                }
            }
        }
        process.hub.handle_timeout(now);
        for call in std::mem::take(&mut process.calls) {
            let service = process.hub.service();
            match call {
                Call::ReportIdle => service.report_idle(),
                call => service.with_client(RUN_ID, now, |client| call.carry_out(client, now)),
            }
        }
        for (key, result) in std::mem::take(&mut process.connected) {
            let Some(id) = process.sockets.get(&key).and_then(|socket| socket.id) else { continue };
            match result {
                Ok(()) => process.hub.handle_connected(id, now),
                Err(is_refused) => process.hub.handle_not_connected(id, is_refused, now),
            }
        }
        while let Some(action) = process.hub.poll_action(now) {
            match action {
                Action::Read { id, len } => read(&mut process, id, len, now, fresh),
                Action::Send(id) => {
                    let (slices, count) = process.hub.transmit(id);
                    let bytes = slices[..count].concat();
                    process.hub.handle_sent(id, bytes.len(), true, now);
                    if let Some((index, side)) = process.keys.get(&id).copied()
                        && !self.network.connections[index].is_over[side as usize]
                    {
                        self.transmit(index, side.other(), Segment::Bytes(bytes));
                    }
                }
                Action::Close(id) => {
                    if let Some(key) = process.keys.remove(&id) {
                        process.sockets.remove(&key);
                        self.close_side(key.0, key.1, Segment::End);
                    }
                }
                Action::Connect(id) => {
                    let address = process.hub.link_address(id).unwrap_or_default();
                    match self.host_at(address) {
                        Some(to) => {
                            let key = (self.open(host, process.number, to), Side::Opener);
                            process.sockets.insert(key, Socket { id: Some(id), ..Socket::default() });
                            process.keys.insert(id, key);
                        }
                        None => process.hub.handle_not_connected(id, false, now),
                    }
                }
            }
        }
        let events: Vec<ClientEvent> = std::iter::from_fn(|| process.hub.poll_service_event()).collect();
        if let Some(timeout) = process.hub.poll_timeout(fresh) {
            let at = self.hosts[host].clock.virtual_time(fresh + timeout).max(self.now + PASS_TIME);
            if process.wake_at.is_none_or(|earlier| at < earlier) {
                process.wake_at = Some(at);
                self.queue.schedule(at, Event::Wake { host, process: process.number });
            }
        }
        self.hosts[host].process = Some(process);
        self.check_process(host);
        for event in events {
            self.handle_client_event(host, event);
        }
    }

    /// Returns the host at an address.
    fn host_at(&self, address: &str) -> Option<usize> {
        let host = address.strip_prefix('h')?.split(':').next()?.parse().ok()?;
        (host < self.hosts.len()).then_some(host)
    }
}

/// Reads from a socket, like the event loop in `crates/store`: the time of the bytes is read after them.
fn read(process: &mut Process, id: ConnectionId, len: usize, now: Duration, fresh: Duration) {
    let Some(socket) = process.keys.get(&id).and_then(|key| process.sockets.get_mut(key)) else { return };
    if socket.has_failed {
        process.hub.handle_failure(id, now);
    } else if !socket.input.is_empty() {
        let rest = socket.input.split_off(len.min(socket.input.len()));
        let bytes = std::mem::replace(&mut socket.input, rest);
        let is_drained = socket.input.is_empty();
        process.hub.handle_bytes(id, &bytes, is_drained, fresh);
    } else if socket.has_ended {
        process.hub.handle_end(id);
    } else {
        process.hub.handle_bytes(id, &[], true, now);
    }
}

fn socket_address(host: usize) -> SocketAddr {
    let [_, high, middle, low] = (host as u32).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, high, middle, low)), 40_000)
}

impl Call {
    fn carry_out(self, client: &mut Client, now: Duration) {
        match self {
            Call::Join => client.join(now),
            Call::StayOutside => client.stay_outside("the node has stopped waiting", now),
            Call::Finish => client.finish(now),
            Call::WorkerFailed => client.worker_failed(0, "exit code 1"),
            Call::Drain => client.drain(None),
            Call::Leave => client.leave(),
            Call::Close(time) => client.close(&time, "the job ended"),
            Call::ReportIdle => {}
        }
    }
}
