//! Everything that one process does for native rendezvous: it coordinates jobs, and it may itself be a node of one.
//!
//! The service owns no socket. Its caller opens connections, and passes messages in both directions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::coordinator::{self, Coordinator};
use crate::job::Job;
use crate::message::{GroupId, Hello, NotServed, Reply, Request};
use crate::node::NodeId;
use crate::participant::{self, Event, Participant};
use crate::replica::Replica;

/// A connection. The caller numbers the connections that it accepts below [`OUTGOING`]. The service numbers those that
/// it opens, from [`OUTGOING`] on.
pub type Connection = u64;

/// The number of the first connection that the service opens.
pub const OUTGOING: Connection = 1 << 63;

/// Interval at which a leader announces itself to the endpoints that are not in its group.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// How long an announcement is valid.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a process runs before it founds a job whose nodes have not all joined. In that time, the leader of a job
/// that exists already announces itself.
const FOUND_GRACE: Duration = Duration::from_secs(2);

/// What the service wants its caller to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Open a connection to an address.
    Connect(Connection, String),
    /// Send a message to a coordinator.
    Request(Connection, Request),
    /// Send a message to a node.
    Reply(Connection, Reply),
    /// Close a connection.
    Disconnect(Connection),
    /// News for the agent of this process.
    Event(Event),
    /// The workers of this process must be killed at this time, unless a later deadline follows.
    Deadline(Duration),
}

/// The purpose of a connection that the service opened.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Purpose {
    Participant(participant::Link),
    Replica(String),
    Probe(NodeId),
    Announce,
}

struct Announcement {
    leader: String,
    group: GroupId,
    has_round: bool,
    at: Duration,
}

/// Everything that one process does for native rendezvous of one job.
pub struct Service {
    run_id: String,
    /// The address of this process.
    address: String,
    /// Whether this process founds the job: it is the first endpoint.
    is_founder: bool,
    endpoints: Vec<String>,
    id: NodeId,
    seed: u64,
    started: Duration,
    participant: Option<Participant>,
    coordinator: Option<Coordinator>,
    announced: Option<Announcement>,
    /// Nodes that wait for the founding of the job.
    waiting: BTreeMap<Connection, Hello>,
    next_announcement: Duration,
    purposes: BTreeMap<Connection, (Purpose, bool)>,
    /// Messages for connections that are not open yet.
    unsent: BTreeMap<Connection, Vec<Request>>,
    links: BTreeMap<participant::Link, Connection>,
    replicas: BTreeMap<String, Connection>,
    next_connection: Connection,
    outputs: VecDeque<Output>,
}

impl Service {
    /// Creates the service of a process at `address`.
    pub fn new(run_id: &str, address: &str, is_founder: bool, endpoints: Vec<String>, seed: u64, now: Duration) -> Service {
        Service {
            run_id: run_id.to_owned(),
            address: address.to_owned(),
            is_founder,
            endpoints,
            id: NodeId(seed.max(1)),
            seed,
            started: now,
            participant: None,
            coordinator: None,
            announced: None,
            waiting: BTreeMap::new(),
            next_announcement: now,
            purposes: BTreeMap::new(),
            unsent: BTreeMap::new(),
            links: BTreeMap::new(),
            replicas: BTreeMap::new(),
            next_connection: OUTGOING,
            outputs: VecDeque::new(),
        }
    }

    /// Makes this process a node of the job.
    pub fn set_participant(&mut self, participant: Participant) {
        self.id = participant.node().id;
        self.participant = Some(participant);
    }

    /// Returns the coordinator, if this process has one.
    pub fn coordinator(&self) -> Option<&Coordinator> {
        self.coordinator.as_ref()
    }

    /// Returns the participant.
    pub fn participant(&self) -> Option<&Participant> {
        self.participant.as_ref()
    }

    /// Calls a method of the participant.
    pub fn with_participant(&mut self, now: Duration, call: impl FnOnce(&mut Participant)) {
        if let Some(participant) = &mut self.participant {
            call(participant);
        }
        self.collect(now);
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`handle_timeout`](Service::handle_timeout) is due.
    pub fn next_timeout(&self, now: Duration) -> Duration {
        let participant = self.participant.as_ref().map(|participant| participant.next_timeout(now));
        let coordinator = self.coordinator.as_ref().map(Coordinator::next_timeout);
        let waiting = (!self.waiting.is_empty()).then(|| self.started + FOUND_GRACE);
        [participant, coordinator, waiting].into_iter().flatten().min().unwrap_or(now + ANNOUNCE_INTERVAL).max(now)
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Duration) {
        if let Some(participant) = &mut self.participant {
            participant.handle_timeout(now);
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_timeout(now);
        }
        self.found_if_due(now);
        self.announce_if_due(now);
        self.collect(now);
    }

    /// Handles a connection that this service opened and that is open now.
    pub fn handle_open(&mut self, connection: Connection, now: Duration) {
        let Some((purpose, is_open)) = self.purposes.get_mut(&connection) else { return };
        *is_open = true;
        match purpose.clone() {
            Purpose::Participant(link) => {
                if let Some(participant) = &mut self.participant {
                    participant.handle_open(link, now);
                }
            }
            Purpose::Probe(_) => self.outputs.push_back(Output::Request(connection, Request::Identify)),
            Purpose::Replica(_) | Purpose::Announce => {}
        }
        for request in self.unsent.remove(&connection).unwrap_or_default() {
            self.outputs.push_back(Output::Request(connection, request));
        }
        self.collect(now);
    }

    /// Handles a connection that was closed, or that could not be opened. `is_refused` says that the address answers,
    /// and that no process listens at its port.
    pub fn handle_close(&mut self, connection: Connection, is_refused: bool, now: Duration) {
        self.waiting.remove(&connection);
        self.unsent.remove(&connection);
        match self.purposes.remove(&connection) {
            Some((Purpose::Participant(link), _)) => {
                self.links.remove(&link);
                if let Some(participant) = &mut self.participant {
                    participant.handle_close(link, now);
                }
            }
            Some((Purpose::Replica(address), _)) => drop(self.replicas.remove(&address)),
            Some((Purpose::Probe(node), is_open)) => {
                if let Some(coordinator) = self.coordinator.as_mut().filter(|_| is_refused && !is_open) {
                    coordinator.handle_probe(node, true, now);
                }
            }
            Some((Purpose::Announce, _)) => {}
            None => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.handle_close(connection, now);
                }
            }
        }
        self.collect(now);
    }

    /// Handles a message to this process as a coordinator.
    pub fn handle_request(&mut self, connection: Connection, request: Request, now: Duration) {
        match request {
            Request::Identify => {
                let id = self.participant.as_ref().map(|participant| participant.node().id);
                self.outputs.push_back(Output::Reply(connection, Reply::Identity(id)));
            }
            Request::Raft { run_id, group, from, bytes } => {
                if run_id == self.run_id {
                    self.handle_raft(group, &from, &bytes, now);
                }
            }
            Request::Announce { run_id, group, leader, has_round, .. } => {
                if run_id == self.run_id {
                    self.handle_announcement(Announcement { leader, group, has_round, at: now }, now);
                }
            }
            Request::Hello(hello) if hello.run_id != self.run_id => {
                self.redirect(connection, Vec::new());
            }
            Request::Hello(hello) if self.coordinator.is_none() => self.handle_early_hello(connection, *hello, now),
            request => match &mut self.coordinator {
                Some(coordinator) => coordinator.handle_request(connection, request, now),
                None => self.redirect(connection, Vec::new()),
            },
        }
        self.collect(now);
    }

    /// Handles a reply on a connection that this service opened.
    pub fn handle_reply(&mut self, connection: Connection, reply: Reply, now: Duration) {
        match (self.purposes.get(&connection).map(|(purpose, _)| purpose.clone()), reply) {
            (Some(Purpose::Participant(link)), reply) => {
                if let Some(participant) = &mut self.participant {
                    participant.handle_reply(link, reply, now);
                }
            }
            (Some(Purpose::Probe(node)), Reply::Identity(found)) => {
                self.disconnect(connection);
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.handle_probe(node, found != Some(node), now);
                }
            }
            _ => {}
        }
        self.collect(now);
    }

    // ---- founding ----

    fn redirect(&mut self, connection: Connection, addresses: Vec<String>) {
        let why = if addresses.is_empty() { NotServed::Unknown } else { NotServed::NotLeader };
        self.outputs.push_back(Output::Reply(connection, Reply::Redirect { addresses, why }));
    }

    fn handle_early_hello(&mut self, connection: Connection, hello: Hello, now: Duration) {
        let announced = self.announced.as_ref().filter(|announced| now.saturating_sub(announced.at) < ANNOUNCE_TIMEOUT);
        if let Some(announced) = announced {
            let leader = announced.leader.clone();
            return self.redirect(connection, vec![leader]);
        }
        // A node that was served by a group proves that the job exists elsewhere.
        if !self.is_founder || hello.group.is_some() {
            return self.redirect(connection, Vec::new());
        }
        self.waiting.insert(connection, hello);
        self.found_if_due(now);
    }

    fn found_if_due(&mut self, now: Duration) {
        let Some(first) = self.waiting.values().next() else { return };
        let terms = first.terms.clone();
        let nodes: BTreeSet<NodeId> = self.waiting.values().map(|hello| hello.node.id).collect();
        let is_full = nodes.len() >= terms.max_nodes as usize;
        if self.coordinator.is_some() || !(is_full || now >= self.started + FOUND_GRACE) {
            return;
        }
        let group = GroupId(self.seed.rotate_left(32) ^ 0x5ca1_ab1e);
        let replica = Replica::found(self.id, &self.address, Job::new(terms), self.seed, now);
        let mut coordinator = Coordinator::new(group, self.id, replica);
        coordinator.handle_timeout(now);
        for (connection, hello) in std::mem::take(&mut self.waiting) {
            coordinator.handle_request(connection, Request::Hello(hello.into()), now);
        }
        self.coordinator = Some(coordinator);
    }

    fn handle_announcement(&mut self, announcement: Announcement, now: Duration) {
        let gives_way = self.coordinator.as_ref().is_some_and(|coordinator| {
            coordinator.group() != announcement.group && coordinator.job().round.is_none() && announcement.has_round
        });
        if gives_way {
            self.coordinator = None;
        }
        if self.coordinator.is_none() {
            let leader = announcement.leader.clone();
            for connection in std::mem::take(&mut self.waiting).into_keys() {
                self.redirect(connection, vec![leader.clone()]);
            }
            self.announced = Some(announcement);
        }
        let _ = now;
    }

    fn announce_if_due(&mut self, now: Duration) {
        if now < self.next_announcement {
            return;
        }
        self.next_announcement = now + ANNOUNCE_INTERVAL;
        let Some(coordinator) = self.coordinator.as_ref().filter(|coordinator| coordinator.is_leader()) else { return };
        let voters: BTreeSet<&String> = coordinator.job().voters.values().collect();
        let request = Request::Announce {
            run_id: self.run_id.clone(),
            group: coordinator.group(),
            term: coordinator.replica().term(),
            leader: self.address.clone(),
            has_round: coordinator.job().round.is_some(),
        };
        let others: Vec<String> =
            self.endpoints.iter().filter(|endpoint| !voters.contains(endpoint) && **endpoint != self.address).cloned().collect();
        let old: Vec<Connection> =
            self.purposes.iter().filter(|(_, (purpose, _))| *purpose == Purpose::Announce).map(|(id, _)| *id).collect();
        old.into_iter().for_each(|connection| self.disconnect(connection));
        for endpoint in others {
            let connection = self.connect(Purpose::Announce, endpoint);
            self.unsent.entry(connection).or_default().push(request.clone());
        }
    }

    // ---- replicas ----

    fn handle_raft(&mut self, group: GroupId, from: &str, bytes: &[u8], now: Duration) {
        let is_known = self.participant.as_ref().and_then(Participant::group) == Some(group);
        if self.coordinator.is_none() && is_known {
            let terms = self.participant.as_ref().map(|participant| participant.terms().clone());
            let Some(terms) = terms else { return };
            let replica = Replica::join(self.id, Job::new(terms), self.seed, now);
            self.coordinator = Some(Coordinator::new(group, self.id, replica));
        }
        if let Some(coordinator) = self.coordinator.as_mut().filter(|coordinator| coordinator.group() == group) {
            coordinator.handle_raft(from, bytes, now);
        }
    }

    // ---- connections ----

    fn connect(&mut self, purpose: Purpose, address: String) -> Connection {
        let connection = self.next_connection;
        self.next_connection += 1;
        self.purposes.insert(connection, (purpose, false));
        self.outputs.push_back(Output::Connect(connection, address));
        connection
    }

    fn disconnect(&mut self, connection: Connection) {
        self.unsent.remove(&connection);
        if self.purposes.remove(&connection).is_some() {
            self.outputs.push_back(Output::Disconnect(connection));
        }
    }

    fn send_request(&mut self, connection: Connection, request: Request) {
        match self.purposes.get(&connection) {
            Some((_, true)) => self.outputs.push_back(Output::Request(connection, request)),
            Some((_, false)) => self.unsent.entry(connection).or_default().push(request),
            None => {}
        }
    }

    /// Collects the outputs of the participant and the coordinator.
    fn collect(&mut self, now: Duration) {
        while let Some(output) = self.participant.as_mut().and_then(Participant::poll_output) {
            match output {
                participant::Output::Connect(link, address) => {
                    let connection = self.connect(Purpose::Participant(link), address);
                    self.links.insert(link, connection);
                }
                participant::Output::Send(link, request) => {
                    if let Some(connection) = self.links.get(&link).copied() {
                        self.send_request(connection, request);
                    }
                }
                participant::Output::Disconnect(link) => {
                    if let Some(connection) = self.links.remove(&link) {
                        self.disconnect(connection);
                    }
                }
                participant::Output::Event(event) => self.outputs.push_back(Output::Event(event)),
                participant::Output::Deadline(deadline) => self.outputs.push_back(Output::Deadline(deadline)),
            }
        }
        // A node with a new identity is another replica.
        if let Some(participant) = &self.participant
            && participant.node().id != self.id
        {
            self.id = participant.node().id;
            self.coordinator = None;
        }
        let Some(coordinator) = &mut self.coordinator else { return };
        let group = coordinator.group();
        let outputs: Vec<coordinator::Output> = std::iter::from_fn(|| coordinator.poll_output()).collect();
        for output in outputs {
            match output {
                coordinator::Output::Send(connection, reply) => self.outputs.push_back(Output::Reply(connection, reply)),
                coordinator::Output::Probe(node, address) => drop(self.connect(Purpose::Probe(node), address)),
                coordinator::Output::Raft(message) => {
                    let connection = match self.replicas.get(&message.address) {
                        Some(connection) => *connection,
                        None => {
                            let connection = self.connect(Purpose::Replica(message.address.clone()), message.address.clone());
                            self.replicas.insert(message.address.clone(), connection);
                            connection
                        }
                    };
                    let (run_id, from) = (self.run_id.clone(), self.address.clone());
                    self.send_request(connection, Request::Raft { run_id, group, from, bytes: message.bytes });
                }
            }
        }
        let _ = now;
    }
}
