//! Everything that one process does for one job: it may be a node, it may have a replica, and it may found the job.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::client::{self, Client, Event};
use crate::coordinator::Coordinator;
use crate::job::Job;
use crate::leader::{self, Connection};
use crate::message::{Announcement, Command, GroupId, Hello, NotServed, Purpose, Reply, Request};
use crate::node::NodeId;
use crate::raft_message::RaftMessage;
use crate::replica::Replica;
use crate::settings::JobSettings;

/// The interval at which a leader announces itself to the endpoints that are not in its group.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);
/// How long an announcement is valid.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a process runs before it founds a job whose nodes have not all arrived. If the job exists already, its
/// leader announces itself in that time.
const FOUND_GRACE: Duration = Duration::from_secs(2);
/// How long after a probe that failed the next one starts. While the kernel ends a process, connections to it may be
/// closed before its port is.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum number of probes after the end of one connection.
const MAX_PROBES: u32 = 40;
/// The maximum number of messages for a replica that has not accepted the connection yet. Raft repeats lost messages.
const MAX_UNSENT_MESSAGES: usize = 64;

/// The id of a connection that a process opens.
pub(crate) type Link = u64;

/// An instruction of a process to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Open a connection to an address. Its first message has this purpose.
    Connect(Link, String, Dial),
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

/// What a connection that this process opens is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dial {
    Client(client::Link),
    Replica(String),
    Probe(Probe),
    Announcement,
}

/// A check whether the process of a node still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    node: NodeId,
    address: String,
    /// The number of probes before this one.
    failed: u32,
}

/// Who may found the job on this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Founding {
    /// Whether this process may found the job: it is a separate server or the first endpoint.
    pub(crate) is_founder: bool,
    /// The start of the process.
    pub(crate) started: Duration,
}

/// Everything that one process does for one job.
pub(crate) struct Process {
    address: String,
    endpoints: Vec<String>,
    founding: Founding,
    id: NodeId,
    seed: u64,
    pub(crate) client: Option<Client>,
    pub(crate) coordinator: Option<Coordinator>,
    /// The last announcement of a leader, and when it arrived.
    announced: Option<(Announcement, Duration)>,
    /// Nodes that wait for the founding of the job.
    waiting: BTreeMap<Connection, Hello>,
    next_announcement: Duration,
    /// Probes to repeat, and when.
    next_probes: Vec<(Duration, Probe)>,
    dials: BTreeMap<Link, Dial>,
    /// The open connections of `dials`.
    open: BTreeSet<Link>,
    /// Messages for connections that are not open yet.
    unsent: BTreeMap<Link, Vec<Request>>,
    client_links: BTreeMap<client::Link, Link>,
    replica_links: BTreeMap<String, Link>,
    next_link: Link,
    outputs: VecDeque<Output>,
}

impl Process {
    /// Creates a process that is not a node yet. It numbers the connections that it opens from `first_link` on.
    pub(crate) fn new(
        address: &str,
        endpoints: Vec<String>,
        founding: Founding,
        first_link: Link,
        seed: u64,
        now: Duration,
    ) -> Process {
        Process {
            address: address.to_owned(),
            endpoints,
            founding,
            id: NodeId(seed.max(1)),
            seed,
            client: None,
            coordinator: None,
            announced: None,
            waiting: BTreeMap::new(),
            next_announcement: now,
            next_probes: Vec::new(),
            dials: BTreeMap::new(),
            open: BTreeSet::new(),
            unsent: BTreeMap::new(),
            client_links: BTreeMap::new(),
            replica_links: BTreeMap::new(),
            next_link: first_link,
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

    /// Returns when [`handle_timeout`](Process::handle_timeout) is due.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let client = self.client.as_ref().and_then(Client::next_timeout);
        let coordinator = self.coordinator.as_ref().map(Coordinator::next_timeout);
        let founding = (!self.waiting.is_empty()).then(|| self.founding.started + FOUND_GRACE);
        let probes = self.next_probes.iter().map(|(time, _)| *time);
        [client, coordinator, founding].into_iter().flatten().chain(probes).min()
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
        for (_, probe) in self.next_probes.extract_if(.., |(time, _)| *time <= now).collect::<Vec<_>>() {
            self.probe(probe);
        }
        self.collect();
    }

    /// Calls a method of the client.
    pub(crate) fn with_client(&mut self, call: impl FnOnce(&mut Client)) {
        if let Some(client) = &mut self.client {
            call(client);
        }
        self.collect();
    }

    // ---- accepted connections ----

    /// Handles the first message on an accepted connection.
    pub(crate) fn handle_purpose(&mut self, connection: Connection, purpose: Purpose, now: Duration) {
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
                None => self.redirect(connection),
            },
            Purpose::Replica { .. } => {}
        }
        self.collect();
    }

    /// Handles a later message of a node.
    pub(crate) fn handle_request(&mut self, connection: Connection, request: Request, now: Duration) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_request(connection, request, now);
        }
        self.collect();
    }

    /// Handles a message of another replica.
    pub(crate) fn handle_raft(&mut self, group: GroupId, from: &str, message: RaftMessage, now: Duration) {
        let client = self.client.as_ref();
        // Only a member of the group knows its id, so the message comes from one.
        let is_known = client.is_some_and(|client| client.group() == Some(group))
            || self.announced_group() == Some(group);
        if self.coordinator.is_none() && is_known && message.to == self.id.0 {
            // The leader's snapshot replaces this state.
            let settings = client.map_or_else(|| JobSettings::new(1, 1), |client| client.settings().clone());
            let replica = Replica::join(self.id, Job::new(settings, String::new()), self.seed, now);
            self.coordinator = Some(Coordinator::new(group, &self.address, replica));
        }
        if let Some(coordinator) =
            self.coordinator.as_mut().filter(|coordinator| coordinator.group() == group)
        {
            coordinator.handle_raft(from, message, now);
        }
        self.collect();
    }

    /// Handles the end of an accepted connection.
    pub(crate) fn handle_close(&mut self, connection: Connection, now: Duration) {
        self.waiting.remove(&connection);
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_close(connection, now);
        }
        self.collect();
    }

    // ---- opened connections ----

    /// Returns the first message on a connection that this process opened, which is open now.
    pub(crate) fn handle_open(&mut self, link: Link, now: Duration) -> Option<Purpose> {
        let dial = self.dials.get(&link)?.clone();
        self.open.insert(link);
        let purpose = match dial {
            Dial::Client(client_link) => {
                let client = self.client.as_mut()?;
                client.handle_open(client_link, now);
                // The hello is the next output of the client.
                let hello = match client.poll_output()? {
                    client::Output::Hello(_, hello) => hello,
                    other => unreachable!("a client says hello first, not {other:?}"),
                };
                Purpose::Node(hello)
            }
            Dial::Replica(_) => {
                Purpose::Replica { group: self.coordinator.as_ref()?.group(), from: self.address.clone() }
            }
            Dial::Probe(_) => Purpose::Probe,
            Dial::Announcement => Purpose::Announcement(self.coordinator.as_ref()?.announcement(now)),
        };
        for request in self.unsent.remove(&link).unwrap_or_default() {
            self.outputs.push_back(Output::Request(link, request));
        }
        Some(purpose)
    }

    /// Handles a message on a connection that this process opened.
    pub(crate) fn handle_reply(&mut self, link: Link, reply: Reply, now: Duration) {
        match (self.dials.get(&link).cloned(), reply) {
            (Some(Dial::Client(client_link)), reply) => {
                if let Some(client) = &mut self.client {
                    client.handle_reply(client_link, reply, now);
                }
            }
            (Some(Dial::Probe(probe)), reply) => {
                self.disconnect(link);
                // A process that does not know the job is not the node, either.
                if reply != Reply::Identity(Some(probe.node)) {
                    self.handle_ended(probe.node, now);
                }
            }
            _ => {}
        }
        self.collect();
    }

    /// Handles a connection that this process opened and that was closed or could not be opened. `is_refused` says that
    /// the host has refused it, so no process listens there.
    pub(crate) fn handle_disconnect(&mut self, link: Link, is_refused: bool, now: Duration) {
        self.unsent.remove(&link);
        self.open.remove(&link);
        match self.dials.remove(&link) {
            Some(Dial::Client(client_link)) => {
                self.client_links.remove(&client_link);
                if let Some(client) = &mut self.client {
                    client.handle_close(client_link, now);
                }
            }
            Some(Dial::Replica(address)) => {
                self.replica_links.remove(&address);
                self.probe_replica(&address);
            }
            Some(Dial::Probe(probe)) if is_refused => self.handle_ended(probe.node, now),
            Some(Dial::Probe(probe)) if probe.failed < MAX_PROBES => {
                let failed = probe.failed + 1;
                self.next_probes.push((now + PROBE_INTERVAL, Probe { failed, ..probe }));
            }
            Some(Dial::Probe(_) | Dial::Announcement) | None => {}
        }
        self.collect();
    }

    /// Probes a replica if the connection to it has ended, because it may be the leader, and its process may have ended.
    fn probe_replica(&mut self, address: &str) {
        let Some(coordinator) = self.coordinator.as_ref().filter(|coordinator| !coordinator.is_leader())
        else {
            return;
        };
        let replica = coordinator.job().replicas.iter().find(|(_, other)| *other == address);
        if let Some((node, _)) = replica {
            self.probe(Probe { node: *node, address: address.to_owned(), failed: 0 });
        }
    }

    fn handle_ended(&mut self, node: NodeId, now: Duration) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_ended(node, now);
            coordinator.handle_timeout(now);
        }
    }

    // ---- founding ----

    fn redirect(&mut self, connection: Connection) {
        let (addresses, why) = match self.known_leader() {
            Some(leader) => (vec![leader], NotServed::NotLeader),
            None => (Vec::new(), NotServed::Unknown),
        };
        self.outputs.push_back(Output::Reply(connection, Reply::Redirect { addresses, why }));
    }

    /// Returns the address of the leader that serves this node or that has announced itself here.
    fn known_leader(&self) -> Option<String> {
        let served_by = self.client.as_ref().and_then(|client| client.leader());
        served_by
            .map(str::to_owned)
            .or_else(|| self.announced.as_ref().map(|(announced, _)| announced.leader.clone()))
    }

    fn announced_group(&self) -> Option<GroupId> {
        self.announced.as_ref().map(|(announced, _)| announced.group)
    }

    /// Handles the first message of a node when this process has no replica.
    fn handle_early_hello(&mut self, connection: Connection, hello: Hello, now: Duration) {
        self.announced.take_if(|(_, at)| now >= *at + ANNOUNCE_TIMEOUT);
        if hello.group.is_some() {
            self.stop_founding();
        }
        if self.known_leader().is_some() || !self.founding.is_founder {
            return self.redirect(connection);
        }
        self.waiting.insert(connection, hello);
        self.found_if_due(now);
    }

    /// Does not found the job, because another process has shown that the job exists. If its voters are lost, an operator
    /// has to force a quorum.
    fn stop_founding(&mut self) {
        self.founding.is_founder = false;
        for connection in std::mem::take(&mut self.waiting).into_keys() {
            self.redirect(connection);
        }
    }

    fn found_if_due(&mut self, now: Duration) {
        let Some(first) = self.waiting.values().next() else { return };
        let nodes: BTreeSet<NodeId> = self.waiting.values().map(|hello| hello.node.id).collect();
        let is_full = nodes.len() >= first.settings.max_nodes as usize;
        if self.coordinator.is_some() || !(is_full || now >= self.founding.started + FOUND_GRACE) {
            return;
        }
        let job = Job::new(first.settings.clone(), first.node.to_string());
        let waiting = std::mem::take(&mut self.waiting);
        self.found(job, now);
        for (connection, hello) in waiting {
            if let Some(coordinator) = &mut self.coordinator {
                coordinator.handle_hello(connection, hello, now);
            }
        }
    }

    fn found(&mut self, job: Job, now: Duration) {
        // The constant of SplitMix64, which visits all 64-bit numbers.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let group = GroupId(self.seed.rotate_left(32) ^ self.id.0);
        let replica = Replica::found(self.id, &self.address, job, self.seed, now);
        let mut coordinator = Coordinator::new(group, &self.address, replica);
        coordinator.handle_timeout(now);
        self.coordinator = Some(coordinator);
    }

    /// Founds a new group with the state of this replica, because the operator vouches that the missing voters are
    /// stopped.
    fn force_quorum(&mut self, connection: Connection, now: Duration) {
        let text = match &self.coordinator {
            None => {
                "this process has no replica of the job; send the command to one of its voters".to_owned()
            }
            Some(coordinator) if coordinator.replica().applied() == 0 => {
                "the replica of this process has no log yet; send the command to another voter".to_owned()
            }
            Some(coordinator) if !coordinator.replica().voters().contains(&coordinator.replica().id()) => {
                "the replica of this process does not vote; send the command to a voter".to_owned()
            }
            Some(coordinator) if coordinator.replica().leader().is_some() => {
                "the replica of this process follows a leader; if that is lost, try again in 3 s".to_owned()
            }
            Some(coordinator) => {
                let job = coordinator.job().clone();
                self.found(job, now);
                format!("{} is the only voter now", self.address)
            }
        };
        self.outputs.push_back(Output::Reply(connection, Reply::Done(text)));
    }

    fn handle_announcement(&mut self, announcement: Announcement, now: Duration) {
        let makes_way = self.coordinator.as_ref().is_some_and(|coordinator| {
            let own = coordinator.announcement(now);
            own.group != announcement.group
                && announcement.has_round
                && (!own.has_round || own.age < announcement.age)
        });
        if let Some(coordinator) = self.coordinator.take_if(|_| makes_way) {
            let (addresses, why) = (vec![announcement.leader.clone()], NotServed::NotLeader);
            for connection in coordinator.into_connections() {
                let redirect = Reply::Redirect { addresses: addresses.clone(), why: why.clone() };
                self.outputs.push_back(Output::Reply(connection, redirect));
            }
        }
        if self.coordinator.is_none() {
            self.announced = Some((announcement, now));
            self.stop_founding();
        }
    }

    fn announce_if_due(&mut self, now: Duration) {
        let is_leader = self.coordinator.as_ref().is_some_and(Coordinator::is_leader);
        if !is_leader || now < self.next_announcement {
            return;
        }
        self.next_announcement = now + ANNOUNCE_INTERVAL;
        let Some(coordinator) = &self.coordinator else { return };
        let replicas: BTreeSet<&String> = coordinator.job().replicas.values().collect();
        let others = self
            .endpoints
            .iter()
            .filter(|endpoint| !replicas.contains(endpoint) && **endpoint != self.address);
        let others: Vec<String> = others.cloned().collect();
        let is_announcement = |(_, dial): &(&Link, &Dial)| **dial == Dial::Announcement;
        let old: Vec<Link> = self.dials.iter().filter(is_announcement).map(|(link, _)| *link).collect();
        old.into_iter().for_each(|link| self.disconnect(link));
        for endpoint in others {
            self.dial(endpoint, Dial::Announcement);
        }
    }

    // ---- outputs ----

    fn dial(&mut self, address: String, dial: Dial) -> Link {
        let link = self.next_link;
        self.next_link += 1;
        self.dials.insert(link, dial.clone());
        self.outputs.push_back(Output::Connect(link, address, dial));
        link
    }

    fn probe(&mut self, probe: Probe) {
        self.dial(probe.address.clone(), Dial::Probe(probe));
    }

    fn disconnect(&mut self, link: Link) {
        self.unsent.remove(&link);
        self.open.remove(&link);
        if self.dials.remove(&link).is_some() {
            self.outputs.push_back(Output::Disconnect(link));
        }
    }

    fn request(&mut self, link: Link, request: Request) {
        match self.open.contains(&link) {
            true => self.outputs.push_back(Output::Request(link, request)),
            false => {
                let unsent = self.unsent.entry(link).or_default();
                if unsent.len() < MAX_UNSENT_MESSAGES {
                    unsent.push(request);
                }
            }
        }
    }

    /// Collects the outputs of the client and of the coordinator.
    fn collect(&mut self) {
        while let Some(output) = self.client.as_mut().and_then(Client::poll_output) {
            match output {
                client::Output::Connect(client_link, address) => {
                    let link = self.dial(address, Dial::Client(client_link));
                    self.client_links.insert(client_link, link);
                }
                client::Output::Send(client_link, request) => {
                    if let Some(link) = self.client_links.get(&client_link).copied() {
                        self.request(link, request);
                    }
                }
                client::Output::Close(client_link) => {
                    if let Some(link) = self.client_links.remove(&client_link) {
                        self.disconnect(link);
                    }
                }
                client::Output::Hello(..) => unreachable!("the hello is taken when the connection is open"),
                client::Output::Event(event) => self.outputs.push_back(Output::Event(event)),
            }
        }
        while let Some(output) = self.coordinator.as_mut().and_then(Coordinator::poll_output) {
            match output {
                leader::Output::Send(connection, reply) => {
                    self.outputs.push_back(Output::Reply(connection, reply))
                }
                leader::Output::Close(connection) => self.outputs.push_back(Output::Close(connection)),
                leader::Output::Probe(node, address) => self.probe(Probe { node, address, failed: 0 }),
            }
        }
        while let Some((address, message)) = self.coordinator.as_mut().and_then(Coordinator::poll_message) {
            let link = match self.replica_links.get(&address) {
                Some(link) => *link,
                None => {
                    let link = self.dial(address.clone(), Dial::Replica(address.clone()));
                    self.replica_links.insert(address, link);
                    link
                }
            };
            self.request(link, Request::Raft(Box::new(message)));
        }
    }
}
