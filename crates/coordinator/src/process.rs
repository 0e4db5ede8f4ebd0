//! Everything that one process does for one job: it may be a node, it may have a replica, and it may found the job.

mod founding;
mod links;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::client::{self, Client, Event};
use crate::coordinator::Coordinator;
use crate::leader::{self, Connection};
use crate::message::{Announcement, Command, GroupId, Hello, NotServed, Purpose, Reply, Request};
use crate::node::NodeId;
use crate::raft_message::RaftMessage;
use links::{Dial, Probe, ReplicaLink};

pub(crate) use links::{LINKS_PER_PROCESS, Link};

/// After this long without a message, a separate server forgets a job. Nodes, and a leader elsewhere, send messages every
/// second.
const FORGET_TIMEOUT: Duration = Duration::from_secs(3600);

/// An instruction of a process to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Open a connection to an address.
    Connect(Link, String),
    /// Send a message on a connection that this process opened.
    Request(Link, Request),
    /// Close a connection that this process opened.
    Disconnect(Link),
    /// Send a message on a connection that this process accepted.
    Reply(Connection, Reply),
    /// Close a connection that this process accepted.
    Close(Connection),
    /// Tell the agent.
    Event(Event),
}

/// Everything that one process does for one job.
pub(crate) struct Process {
    address: String,
    endpoints: Vec<String>,
    /// Whether this process may found the job: it is a separate server or the first endpoint.
    is_founder: bool,
    /// Whether another process has shown that the job exists.
    is_founded: bool,
    id: NodeId,
    seed: u64,
    pub(crate) client: Option<Client>,
    pub(crate) coordinator: Option<Coordinator>,
    /// The groups that this process has left. It ignores their messages, because it has forgotten its votes in them.
    left: BTreeSet<GroupId>,
    /// The last announcement of a leader, and when it arrived.
    announced: Option<(Announcement, Duration)>,
    /// Nodes that wait for the founding of the job: the order in which they came, and their latest connections.
    waiting: BTreeMap<NodeId, (usize, Connection, Hello)>,
    /// When the first of them said hello.
    waiting_since: Duration,
    last_message: Duration,
    next_announcement: Duration,
    first_link: Link,
    next_link: Link,
    /// The connections that this process opened, apart from those of its client.
    dials: BTreeMap<Link, Dial>,
    replica_links: BTreeMap<String, ReplicaLink>,
    /// Probes to repeat, and when.
    next_probes: Vec<(Duration, Probe)>,
    outputs: VecDeque<Output>,
}

impl Process {
    /// Creates a process that is not a node yet. It numbers the connections that it opens from `first_link` on.
    pub(crate) fn new(
        address: &str,
        endpoints: Vec<String>,
        is_founder: bool,
        first_link: Link,
        seed: u64,
        now: Duration,
    ) -> Process {
        Process {
            address: address.to_owned(),
            endpoints,
            is_founder,
            is_founded: false,
            id: NodeId(seed.max(1)),
            seed,
            client: None,
            coordinator: None,
            left: BTreeSet::new(),
            announced: None,
            waiting: BTreeMap::new(),
            waiting_since: now,
            last_message: now,
            next_announcement: now,
            first_link,
            next_link: first_link + links::CLIENT_LINKS,
            dials: BTreeMap::new(),
            replica_links: BTreeMap::new(),
            next_probes: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Makes this process a node of the job.
    pub(crate) fn set_client(&mut self, client: Client) {
        self.id = client.node().id;
        self.client = Some(client);
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns whether a separate server can forget this job.
    pub(crate) fn is_forgettable(&self, now: Duration) -> bool {
        let is_unused = match &self.coordinator {
            Some(coordinator) => coordinator.is_unused(),
            None => !self.is_founded && self.waiting.is_empty(),
        };
        self.client.is_none() && (is_unused || now >= self.last_message + FORGET_TIMEOUT)
    }

    /// Returns the first link, which identifies this process.
    pub(crate) fn first_link(&self) -> Link {
        self.first_link
    }

    /// Returns when [`handle_timeout`](Process::handle_timeout) is due.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let client = self.client.as_ref().and_then(Client::next_timeout);
        let coordinator = self.coordinator.as_ref().map(Coordinator::next_timeout);
        let probes = self.next_probes.iter().map(|(time, _)| *time);
        [client, coordinator, self.founding_time()].into_iter().flatten().chain(probes).min()
    }

    /// Handles the passage of time.
    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        if let Some(client) = &mut self.client {
            client.handle_timeout(now);
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_timeout(now);
        }
        self.found_if_due(now);
        self.announce_if_due(now);
        self.repeat_probes(now);
        self.collect(now);
    }

    /// Calls a method of the client.
    pub(crate) fn with_client(&mut self, now: Duration, call: impl FnOnce(&mut Client)) {
        if let Some(client) = &mut self.client {
            call(client);
        }
        self.collect(now);
    }

    // ---- accepted connections ----

    /// Handles the first message on an accepted connection.
    pub(crate) fn handle_purpose(&mut self, connection: Connection, purpose: Purpose, now: Duration) {
        self.last_message = now;
        match purpose {
            Purpose::Node(hello) => match &mut self.coordinator {
                Some(coordinator) => coordinator.handle_hello(connection, *hello, now),
                None => self.handle_early_hello(connection, *hello, now),
            },
            Purpose::Probe => {
                let id = self.client.as_ref().map(|client| client.node().id);
                self.outputs.push_back(Output::Reply(connection, Reply::Identity(id)));
            }
            Purpose::Announcement(announcement) => self.handle_announcement(announcement, now),
            Purpose::Operator(Command::ForceQuorum) => self.force_quorum(connection, now),
            Purpose::Operator(command) => match &mut self.coordinator {
                Some(coordinator) => coordinator.handle_command(connection, command, now),
                None => self.redirect(connection, now),
            },
            Purpose::Replica { .. } => {}
        }
        self.collect(now);
    }

    /// Handles a later message of a node.
    pub(crate) fn handle_request(&mut self, connection: Connection, request: Request, now: Duration) {
        self.last_message = now;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_request(connection, request, now);
        }
        self.collect(now);
    }

    /// Handles a message of another replica.
    pub(crate) fn handle_raft(&mut self, group: GroupId, from: &str, message: RaftMessage, now: Duration) {
        self.last_message = now;
        if message.to == self.id.0 {
            self.join_group(group, now);
        }
        if let Some(coordinator) =
            self.coordinator.as_mut().filter(|coordinator| coordinator.group() == group)
        {
            coordinator.handle_raft(from, message, now);
        }
        self.collect(now);
    }

    /// Handles the end of an accepted connection.
    pub(crate) fn handle_close(&mut self, connection: Connection, now: Duration) {
        self.waiting.retain(|_, (_, other, _)| *other != connection);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_close(connection, now);
        }
        self.collect(now);
    }

    /// Tells a node or an operator where the leader is: at the address where it serves the node of this process, where it
    /// has announced itself lately, or where this replica has heard from it.
    fn redirect(&mut self, connection: Connection, now: Duration) {
        let (leader, voters) = match &self.coordinator {
            Some(coordinator) => {
                let (leader, voters) = coordinator.other_replicas();
                (leader, Some(voters))
            }
            None => (None, None),
        };
        let reply = match (self.known_leader(now).or(leader), voters) {
            (Some(leader), _) => Reply::Redirect { addresses: vec![leader], why: NotServed::NotLeader },
            (None, Some(voters)) => {
                Reply::Redirect { addresses: voters.clone(), why: NotServed::NoQuorum { voters } }
            }
            (None, None) => {
                let why = if self.is_founded { NotServed::Lost } else { NotServed::Unknown };
                Reply::Redirect { addresses: Vec::new(), why }
            }
        };
        self.outputs.push_back(Output::Reply(connection, reply));
    }

    // ---- outputs ----

    /// Collects the outputs of the client and of the coordinator.
    fn collect(&mut self, now: Duration) {
        while let Some(output) = self.client.as_mut().and_then(Client::poll_output) {
            let first = self.first_link;
            self.outputs.push_back(match output {
                client::Output::Connect(link, address) => Output::Connect(first + link, address),
                client::Output::Send(link, request) => Output::Request(first + link, request),
                client::Output::Close(link) => Output::Disconnect(first + link),
                client::Output::Event(event) => Output::Event(event),
            });
        }
        while let Some(output) = self.coordinator.as_mut().and_then(Coordinator::poll_output) {
            match output {
                leader::Output::Send(connection, reply) => {
                    self.outputs.push_back(Output::Reply(connection, reply))
                }
                leader::Output::Close(connection) => self.outputs.push_back(Output::Close(connection)),
                leader::Output::Redirect(connection) => self.redirect(connection, now),
                leader::Output::Probe(node, address) => self.probe(Probe::new(node, address)),
            }
        }
        while let Some((address, message)) = self.coordinator.as_mut().and_then(Coordinator::poll_message) {
            self.send_to_replica(address, message);
        }
    }
}

#[cfg(test)]
mod tests;
