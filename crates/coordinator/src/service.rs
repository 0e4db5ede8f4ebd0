//! Native rendezvous on one process, without IO: it receives and sends encoded messages for any number of jobs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rallypoint_core::hub::{self, ConnectionId, LinkEnd, Peer};

use crate::client::{Client, Event};
use crate::coordinator::Coordinator;
use crate::message::{GroupId, NotServed, Open, PROTOCOL_VERSION, Purpose, Refusal, Reply, Request};
use crate::process::{LINKS_PER_PROCESS, Link, Output, Process};

/// The maximum number of jobs of a separate server.
const MAX_JOBS: usize = 10_000;

/// An instruction of the service to its hub.
pub type Action = hub::ServiceAction<Event>;

/// Options of a [`Service`].
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The host name, for messages to people.
    pub host: String,
    /// The address at which other processes reach this one, as `HOST:PORT`.
    pub address: String,
    /// Whether this process founds jobs: it is a separate server or the first endpoint.
    pub is_founder: bool,
    /// Whether this process serves any job, as a separate server does. Otherwise it serves the job of its node only.
    pub is_server: bool,
    /// A random number.
    pub seed: u64,
}

/// Native rendezvous on one process.
pub struct Service {
    options: ServiceOptions,
    seed: u64,
    jobs: BTreeMap<String, Process>,
    /// The run id and the purpose of each accepted connection.
    accepted: BTreeMap<ConnectionId, (String, Accepted)>,
    /// The run ids by the number of their first link.
    links: BTreeMap<Link, String>,
    next_first_link: Link,
    /// Whether [`Event::Idle`] is wanted.
    reports_idle: bool,
    actions: VecDeque<Action>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Accepted {
    Node,
    Replica {
        group: GroupId,
        from: String,
    },
    Other,
    /// The peer was refused. It may have sent further messages before it has read that.
    Refused,
}

impl Service {
    /// Creates a service without jobs.
    pub fn new(options: ServiceOptions) -> Service {
        Service {
            seed: options.seed,
            options,
            next_first_link: 0,
            jobs: BTreeMap::new(),
            accepted: BTreeMap::new(),
            links: BTreeMap::new(),
            reports_idle: false,
            actions: VecDeque::new(),
        }
    }

    /// Sets the address at which other processes reach this one.
    pub fn set_address(&mut self, address: &str) {
        address.clone_into(&mut self.options.address);
    }

    /// Makes this process a node of a job.
    pub fn add_node(&mut self, run_id: &str, client: Client, endpoints: Vec<String>, now: Duration) {
        let seed = client.node().id.0;
        let process = self.process(run_id, endpoints, seed, now);
        process.set_client(client);
    }

    /// Calls a method of the node's client.
    pub fn with_client(&mut self, run_id: &str, now: Duration, call: impl FnOnce(&mut Client)) {
        if let Some(process) = self.jobs.get_mut(run_id) {
            process.with_client(now, call);
        }
        self.collect(run_id);
    }

    /// Returns the process of a job.
    fn process(&mut self, run_id: &str, endpoints: Vec<String>, seed: u64, now: Duration) -> &mut Process {
        let (address, is_founder) = (&self.options.address, self.options.is_founder);
        self.jobs.entry(run_id.to_owned()).or_insert_with(|| {
            let first_link = self.next_first_link;
            self.next_first_link += LINKS_PER_PROCESS;
            self.links.insert(first_link, run_id.to_owned());
            Process::new(address, endpoints, is_founder, first_link, seed, now)
        })
    }

    /// Forgets the jobs that a separate server does not need any more.
    fn forget_jobs(&mut self, now: Duration) {
        if self.options.is_server {
            let links = &mut self.links;
            self.jobs.retain(|_, job| {
                let is_kept = !job.is_forgettable(now);
                if !is_kept {
                    links.remove(&job.first_link());
                }
                is_kept
            });
        }
    }

    /// Returns the coordinator of a job on this process, if it has one.
    pub fn coordinator(&self, run_id: &str) -> Option<&Coordinator> {
        self.jobs.get(run_id)?.coordinator.as_ref()
    }

    /// Emits [`Event::Idle`] as soon as no node, not even the node of this process, is connected to a coordinator on
    /// this process.
    pub fn report_idle(&mut self) {
        self.reports_idle = true;
        self.check_idle();
    }

    fn check_idle(&mut self) {
        let is_idle = || self.accepted.values().all(|(_, accepted)| *accepted != Accepted::Node);
        if self.reports_idle && is_idle() {
            self.reports_idle = false;
            self.actions.push_back(Action::Event(Event::Idle));
        }
    }

    /// Returns the client of the node of this process.
    pub fn client(&self, run_id: &str) -> Option<&Client> {
        self.jobs.get(run_id)?.client.as_ref()
    }

    /// Handles the first message on an accepted connection.
    fn handle_first(
        &mut self,
        connection: ConnectionId,
        message: &[u8],
        now: Duration,
    ) -> Result<(), String> {
        let peer = Peer::Client(connection);
        let Version { version, host } = parse(message)?;
        if version != PROTOCOL_VERSION {
            let other = self.options.host.clone();
            let refusal = Refusal::Version { host, version, other, job: PROTOCOL_VERSION };
            self.send(peer, &Reply::Refused(refusal));
            self.accepted.insert(connection, (String::new(), Accepted::Refused));
            return Ok(());
        }
        let Open { run_id, purpose, .. } = parse(message)?;
        if let Purpose::Node(hello) = &purpose {
            hello.settings.check()?;
        }
        if !self.jobs.contains_key(&run_id) {
            self.forget_jobs(now);
            let is_command = matches!(purpose, Purpose::Node(_) | Purpose::Operator(_));
            if let Some(job) = self.only_job().filter(|_| is_command) {
                let refusal = Refusal::OtherJob { job: job.clone(), node: run_id.clone() };
                self.send(peer, &Reply::Refused(refusal));
                self.accepted.insert(connection, (run_id, Accepted::Refused));
                return Ok(());
            }
            let is_useful = matches!(purpose, Purpose::Node(_) | Purpose::Announcement(_));
            if !self.options.is_server || !is_useful || self.jobs.len() >= MAX_JOBS {
                self.send(peer, &Reply::Redirect { addresses: Vec::new(), why: NotServed::Unknown });
                self.accepted.insert(connection, (run_id, Accepted::Refused));
                return Ok(());
            }
            // The constant of SplitMix64, which visits all 64-bit numbers.
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            self.process(&run_id, Vec::new(), self.seed, now);
        }
        let accepted = match &purpose {
            Purpose::Node(_) => Accepted::Node,
            Purpose::Replica { group, from } => Accepted::Replica { group: *group, from: from.clone() },
            _ => Accepted::Other,
        };
        self.accepted.insert(connection, (run_id.clone(), accepted));
        if let Some(job) = self.jobs.get_mut(&run_id) {
            job.handle_purpose(connection, purpose, now);
        }
        self.collect(&run_id);
        Ok(())
    }

    /// Returns the run id of the job of this process, unless the process serves any job or its job is closed.
    fn only_job(&self) -> Option<&String> {
        let is_closed = |job: &Process| {
            job.coordinator.as_ref().is_some_and(|coordinator| coordinator.job().closed.is_some())
        };
        let open = self.jobs.iter().find(|(_, job)| !is_closed(job)).map(|(run_id, _)| run_id);
        open.filter(|_| !self.options.is_server)
    }

    fn run_id_of(&self, link: Link) -> Option<String> {
        self.links.get(&(link - link % LINKS_PER_PROCESS)).cloned()
    }

    fn send(&mut self, peer: Peer, message: &impl serde::Serialize) {
        let message = serde_json::to_vec(message).expect("a message can be encoded");
        self.actions.push_back(Action::Send(peer, message));
    }

    fn collect(&mut self, run_id: &str) {
        while let Some(output) = self.jobs.get_mut(run_id).and_then(Process::poll_output) {
            match output {
                Output::Connect(link, address) => self.actions.push_back(Action::Connect(link, address)),
                Output::Request(link, request) => self.send(Peer::Link(link), &request),
                Output::Disconnect(link) => self.actions.push_back(Action::Close(Peer::Link(link))),
                Output::Reply(connection, reply) => self.send(Peer::Client(connection), &reply),
                Output::Close(connection) => {
                    self.accepted.remove(&connection);
                    self.check_idle();
                    self.actions.push_back(Action::Close(Peer::Client(connection)));
                }
                Output::Event(event) => self.actions.push_back(Action::Event(event)),
            }
        }
    }
}

impl hub::Service for Service {
    type Event = Event;

    fn handle_message(&mut self, peer: Peer, message: &[u8], now: Duration) -> Result<(), String> {
        let run_id = match peer {
            Peer::Link(link) => {
                let Some(run_id) = self.run_id_of(link) else { return Ok(()) };
                let reply: Reply = parse(message)?;
                if let Some(job) = self.jobs.get_mut(&run_id) {
                    job.handle_reply(link, reply, now);
                }
                run_id
            }
            Peer::Client(connection) => match self.accepted.get(&connection).cloned() {
                None => return self.handle_first(connection, message, now),
                Some((_, Accepted::Refused)) => return Ok(()),
                Some((run_id, accepted)) => {
                    let request: Request = parse(message)?;
                    let Some(job) = self.jobs.get_mut(&run_id) else { return Ok(()) };
                    match (accepted, request) {
                        (Accepted::Replica { group, from }, Request::Raft(message)) => {
                            job.handle_raft(group, &from, *message, now);
                        }
                        (Accepted::Node, request) => job.handle_request(connection, request, now),
                        _ => return Err("the message does not fit the purpose of the connection".into()),
                    }
                    run_id
                }
            },
        };
        self.collect(&run_id);
        Ok(())
    }

    fn handle_open(&mut self, link: Link, now: Duration) {
        let Some(run_id) = self.run_id_of(link) else { return };
        let purpose = self.jobs.get_mut(&run_id).and_then(|job| job.handle_open(link, now));
        if let Some(purpose) = purpose {
            let host = self.options.host.clone();
            let open = Open { version: PROTOCOL_VERSION, host, run_id: run_id.clone(), purpose };
            self.send(Peer::Link(link), &open);
        }
        self.collect(&run_id);
    }

    fn handle_close(&mut self, peer: Peer, end: LinkEnd, now: Duration) {
        let run_id = match peer {
            Peer::Client(connection) => {
                let Some((run_id, _)) = self.accepted.remove(&connection) else { return };
                self.check_idle();
                if let Some(job) = self.jobs.get_mut(&run_id) {
                    job.handle_close(connection, now);
                }
                run_id
            }
            Peer::Link(link) => {
                let Some(run_id) = self.run_id_of(link) else { return };
                if let Some(job) = self.jobs.get_mut(&run_id) {
                    job.handle_disconnect(link, end, now);
                }
                run_id
            }
        };
        self.collect(&run_id);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn next_timeout(&self, _: Duration) -> Option<Duration> {
        self.jobs.values().filter_map(Process::next_timeout).min()
    }

    fn handle_timeout(&mut self, now: Duration) {
        let is_due = |job: &Process| job.next_timeout().is_some_and(|time| time <= now);
        let due = self.jobs.iter().filter(|(_, job)| is_due(job));
        let due: Vec<String> = due.map(|(run_id, _)| run_id.clone()).collect();
        for run_id in due {
            if let Some(job) = self.jobs.get_mut(&run_id) {
                job.handle_timeout(now);
            }
            self.collect(&run_id);
        }
        self.forget_jobs(now);
    }
}

/// The part of the first message that every version can read.
#[derive(serde::Deserialize)]
struct Version {
    version: u32,
    #[serde(default)]
    host: String,
}

fn parse<'a, T: serde::Deserialize<'a>>(message: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(message).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
