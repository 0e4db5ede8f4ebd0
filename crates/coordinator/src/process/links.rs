//! The connections that a process opens.

use std::time::Duration;

use rallypoint_core::hub::LinkEnd;

use super::{Output, Process};
use crate::message::{NotServed, Purpose, Reply, Request};
use crate::node::NodeId;
use crate::raft_message::RaftMessage;

/// The id of a connection that a process opens.
pub(crate) type Link = u64;

/// The number of connections that a process may open.
pub(crate) const LINKS_PER_PROCESS: Link = 1 << 32;
/// The number of those that its client may open. They are numbered first.
pub(super) const CLIENT_LINKS: Link = LINKS_PER_PROCESS / 2;
/// How long after a probe that failed the next one starts. While the kernel ends a process, connections to it may be
/// closed before its port is.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum number of probes after the end of one connection.
const MAX_PROBES: u32 = 40;
/// The maximum number of messages for a replica that has not accepted the connection yet. Raft repeats lost messages.
const MAX_UNSENT_MESSAGES: usize = 64;

/// What a connection that this process opens is for, if it does not belong to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dial {
    Replica(String),
    Probe(Probe),
    Announcement,
}

/// A check whether the process of a node still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probe {
    node: NodeId,
    address: String,
    /// The number of probes before this one.
    failed: u32,
}

impl Probe {
    pub(super) fn new(node: NodeId, address: String) -> Probe {
        Probe { node, address, failed: 0 }
    }
}

/// A connection to another replica.
pub(super) struct ReplicaLink {
    link: Link,
    /// The messages that wait until the connection is open.
    unsent: Option<Vec<Request>>,
}

impl Process {
    fn client_link(&self, link: Link) -> Option<crate::client::Link> {
        link.checked_sub(self.first_link).filter(|link| *link < CLIENT_LINKS)
    }

    /// Returns the first message on a connection that this process opened, which is open now.
    pub(crate) fn handle_open(&mut self, link: Link, now: Duration) -> Option<Purpose> {
        let purpose = self.purpose(link, now);
        if purpose.is_none() {
            self.disconnect(link);
        }
        self.collect(now);
        purpose
    }

    fn purpose(&mut self, link: Link, now: Duration) -> Option<Purpose> {
        if let Some(client_link) = self.client_link(link) {
            let hello = self.client.as_mut()?.handle_open(client_link, now)?;
            return Some(Purpose::Node(Box::new(hello)));
        }
        let dial = self.dials.get(&link)?;
        if let Dial::Probe(_) = dial {
            return Some(Purpose::Probe);
        }
        let coordinator = self.coordinator.as_ref()?;
        match dial {
            Dial::Replica(address) => {
                let unsent = self.replica_links.get_mut(address).and_then(|replica| replica.unsent.take());
                let requests = unsent.into_iter().flatten();
                self.outputs.extend(requests.map(|request| Output::Request(link, request)));
                Some(Purpose::Replica { group: coordinator.group(), from: self.address.clone() })
            }
            _ => Some(Purpose::Announcement(coordinator.announcement(now))),
        }
    }

    /// Handles a message on a connection that this process opened.
    pub(crate) fn handle_reply(&mut self, link: Link, reply: Reply, now: Duration) {
        if let Some(client_link) = self.client_link(link) {
            if let Some(client) = &mut self.client {
                client.handle_reply(client_link, reply, now);
            }
        } else if let Some(Dial::Probe(probe)) = self.dials.get(&link).cloned() {
            self.disconnect(link);
            // A process that does not know the job is not the node, either.
            if reply != Reply::Identity(Some(probe.node)) {
                self.handle_ended(probe.node, now);
            }
        }
        self.collect(now);
    }

    /// Handles a connection that this process opened and that was closed or could not be opened.
    pub(crate) fn handle_disconnect(&mut self, link: Link, end: LinkEnd, now: Duration) {
        if let Some(client_link) = self.client_link(link)
            && let Some(client) = &mut self.client
        {
            let why = match end {
                LinkEnd::Refused => NotServed::Refused,
                LinkEnd::Closed => NotServed::NoReply,
                LinkEnd::NoService => NotServed::NoCoordinator,
            };
            client.handle_failure(client_link, why, now);
        }
        match self.dials.remove(&link) {
            Some(Dial::Replica(address)) => {
                self.replica_links.remove(&address);
                self.probe_replica(&address);
            }
            // The host has refused the connection, so no process listens there.
            Some(Dial::Probe(probe)) if end == LinkEnd::Refused => self.handle_ended(probe.node, now),
            Some(Dial::Probe(probe)) if probe.failed < MAX_PROBES => {
                let failed = probe.failed + 1;
                self.next_probes.push((now + PROBE_INTERVAL, Probe { failed, ..probe }));
            }
            Some(Dial::Probe(_) | Dial::Announcement) | None => {}
        }
        self.collect(now);
    }

    /// Probes a replica if the connection to it has ended, because it may be the leader, and its process may have ended.
    fn probe_replica(&mut self, address: &str) {
        let follows = self.coordinator.as_ref().filter(|coordinator| !coordinator.is_leader());
        let Some(coordinator) = follows else { return };
        let replica = coordinator.job().replicas.iter().find(|(_, other)| *other == address);
        if let Some((node, _)) = replica {
            self.probe(Probe::new(*node, address.to_owned()));
        }
    }

    fn handle_ended(&mut self, node: NodeId, now: Duration) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.handle_ended(node, now);
            coordinator.handle_timeout(now);
        }
    }

    pub(super) fn probe(&mut self, probe: Probe) {
        self.dial(probe.address.clone(), Dial::Probe(probe));
    }

    pub(super) fn repeat_probes(&mut self, now: Duration) {
        for (_, probe) in self.next_probes.extract_if(.., |(time, _)| *time <= now).collect::<Vec<_>>() {
            self.probe(probe);
        }
    }

    /// Announces something to other processes, and closes the connections for earlier announcements.
    pub(super) fn announce_to(&mut self, addresses: Vec<String>) {
        let old = self.dials.iter().filter(|(_, dial)| **dial == Dial::Announcement);
        let old: Vec<Link> = old.map(|(link, _)| *link).collect();
        old.into_iter().for_each(|link| self.disconnect(link));
        for address in addresses {
            self.dial(address, Dial::Announcement);
        }
    }

    pub(super) fn send_to_replica(&mut self, address: String, message: RaftMessage) {
        let request = Request::Raft(Box::new(message));
        let Some(replica) = self.replica_links.get_mut(&address) else {
            let link = self.dial(address.clone(), Dial::Replica(address.clone()));
            self.replica_links.insert(address, ReplicaLink { link, unsent: Some(vec![request]) });
            return;
        };
        match &mut replica.unsent {
            None => self.outputs.push_back(Output::Request(replica.link, request)),
            Some(unsent) if unsent.len() < MAX_UNSENT_MESSAGES => unsent.push(request),
            Some(_) => {}
        }
    }

    /// Closes the connections to other replicas, which belong to the group that this process leaves.
    pub(super) fn disconnect_replicas(&mut self) {
        for replica in std::mem::take(&mut self.replica_links).into_values() {
            self.disconnect(replica.link);
        }
    }

    fn dial(&mut self, address: String, dial: Dial) -> Link {
        let link = self.next_link;
        self.next_link += 1;
        self.dials.insert(link, dial);
        self.outputs.push_back(Output::Connect(link, address));
        link
    }

    fn disconnect(&mut self, link: Link) {
        if self.dials.remove(&link).is_some() {
            self.outputs.push_back(Output::Disconnect(link));
        }
    }
}
