//! Services that exchange messages in virtual time.

mod groups;
mod messages;

use std::collections::BTreeSet;

use rallypoint_core::hub::{LinkId, Service as _};

use super::*;
use crate::message::Phase;
use crate::node::{Node, NodeId};
use crate::settings::JobSettings;

const STEP: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

enum Incoming {
    Open(LinkId),
    Message(Peer, Vec<u8>),
    Close(Peer, LinkEnd),
}

/// A process at `h0:1`, `h1:1`, …
struct Host {
    service: Service,
    is_running: bool,
    events: Vec<Event>,
}

struct Net {
    now: Duration,
    settings: JobSettings,
    hosts: Vec<Host>,
    incoming: VecDeque<(usize, Incoming)>,
    peers: BTreeMap<(usize, Peer), (usize, Peer)>,
    /// The ends that their own hosts have closed. They receive nothing any more.
    closed: BTreeSet<(usize, Peer)>,
    /// Whether the messages that hand leadership over are lost.
    loses_handovers: bool,
    next_connection: u64,
}

fn address(host: usize) -> String {
    format!("h{host}:1")
}

fn node(host: usize) -> Node {
    Node {
        id: NodeId(host as u64 + 1),
        host: format!("h{host}"),
        pid: 1,
        address: address(host),
        workers: Some(1),
        command: Some(0),
        pin: None,
        preferred_rank: None,
        topology: Vec::new(),
    }
}

/// Returns whether a message asks another replica to lead.
fn is_handover(message: &[u8]) -> bool {
    let kind = raft::prelude::MessageType::MsgTimeoutNow as i32;
    String::from_utf8_lossy(message).contains(&format!("\"kind\":{kind},"))
}

/// Returns settings with short delays.
fn settings(min: u32, max: u32) -> JobSettings {
    let scale_up = crate::settings::ScaleUp::After(Duration::ZERO);
    JobSettings { last_call_timeout: SECOND, scale_up, ..JobSettings::new(min, max) }
}

impl Net {
    fn new(settings: JobSettings) -> Net {
        Net {
            now: SECOND,
            settings,
            hosts: Vec::new(),
            incoming: VecDeque::new(),
            peers: BTreeMap::new(),
            closed: BTreeSet::new(),
            loses_handovers: false,
            next_connection: 1,
        }
    }

    /// Creates a job whose nodes are in round 0.
    fn running(settings: JobSettings, nodes: usize) -> Net {
        let mut net = Net::new(settings);
        (0..nodes).for_each(|_| _ = net.add_node());
        net.pass(5 * SECOND);
        assert_eq!(net.running_nodes(0), (0..nodes).collect::<Vec<_>>());
        net
    }

    fn add(&mut self, is_server: bool) -> usize {
        let host = self.hosts.len();
        let options = ServiceOptions {
            host: format!("h{host}"),
            address: address(host),
            is_founder: host == 0,
            is_server,
            seed: host as u64 + 1,
        };
        self.hosts.push(Host { service: Service::new(options), is_running: true, events: Vec::new() });
        host
    }

    fn add_server(&mut self) -> usize {
        self.add(true)
    }

    fn add_node(&mut self) -> usize {
        let host = self.add(false);
        let (settings, now) = (self.settings.clone(), self.now);
        let client = Client::new(node(host), settings, vec![address(0)]);
        self.hosts[host].service.add_node("job", client, vec![address(0)], now);
        self.with_client(host, |client, now| client.join(now));
        host
    }

    fn with_client(&mut self, host: usize, call: impl FnOnce(&mut Client, Duration)) {
        let now = self.now;
        self.hosts[host].service.with_client("job", now, |client| call(client, now));
        self.drain(host);
    }

    fn kill(&mut self, host: usize) {
        self.hosts[host].is_running = false;
        let ends: Vec<_> = self.peers.keys().filter(|(other, _)| *other == host).copied().collect();
        for end in ends {
            self.end(end.0, end.1);
        }
    }

    // ---- network ----

    fn drain(&mut self, host: usize) {
        while let Some(action) = self.hosts[host].service.poll_action() {
            match action {
                Action::Connect(link, to) => self.connect(host, link, &to),
                Action::Send(_, message) if self.loses_handovers && is_handover(&message) => {}
                Action::Send(peer, message) => {
                    if let Some((other, peer)) = self.peers.get(&(host, peer)).copied() {
                        self.incoming.push_back((other, Incoming::Message(peer, message)));
                    }
                }
                Action::Close(peer) => self.end(host, peer),
                Action::Event(event) => self.handle_event(host, event),
            }
        }
    }

    fn connect(&mut self, host: usize, link: LinkId, to: &str) {
        let own = Peer::Link(link);
        match (0..self.hosts.len()).find(|other| address(*other) == to && self.hosts[*other].is_running) {
            Some(other) => {
                let connection = Peer::Client(ConnectionId::from_bits(self.next_connection));
                self.next_connection += 1;
                self.peers.insert((host, own), (other, connection));
                self.peers.insert((other, connection), (host, own));
                self.incoming.push_back((host, Incoming::Open(link)));
            }
            None => self.incoming.push_back((host, Incoming::Close(own, LinkEnd::Refused))),
        }
    }

    fn end(&mut self, host: usize, peer: Peer) {
        self.closed.insert((host, peer));
        if let Some((other, other_peer)) = self.peers.remove(&(host, peer)) {
            self.peers.remove(&(other, other_peer));
            self.incoming.push_back((other, Incoming::Close(other_peer, LinkEnd::Closed)));
        }
    }

    fn handle_event(&mut self, host: usize, event: Event) {
        let rejoins = matches!(event, Event::Ended { .. } | Event::LeaseOver { .. });
        self.hosts[host].events.push(event);
        if rejoins {
            let now = self.now;
            self.hosts[host].service.with_client("job", now, |client| client.join(now));
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            // Each message takes one step.
            for (host, incoming) in std::mem::take(&mut self.incoming) {
                self.deliver(host, incoming);
            }
            self.now += STEP;
            for host in 0..self.hosts.len() {
                let service = &mut self.hosts[host].service;
                let is_due = service.next_timeout(self.now).is_some_and(|time| time <= self.now);
                if is_due && self.hosts[host].is_running {
                    self.hosts[host].service.handle_timeout(self.now);
                    self.drain(host);
                }
            }
        }
    }

    fn deliver(&mut self, host: usize, incoming: Incoming) {
        let (now, Host { service, is_running, .. }) = (self.now, &mut self.hosts[host]);
        if !*is_running {
            return;
        }
        match incoming {
            Incoming::Open(link) => service.handle_open(link, now),
            Incoming::Close(peer, end) => service.handle_close(peer, end, now),
            Incoming::Message(peer, _) if self.closed.contains(&(host, peer)) => {}
            Incoming::Message(peer, message) => {
                service.handle_message(peer, &message, now).expect("a valid message");
            }
        }
        self.drain(host);
    }

    // ---- what tests see ----

    fn activity(&self, host: usize) -> (Option<u64>, Phase) {
        let activity = self.hosts[host].service.client("job").unwrap().activity().clone();
        (activity.last_round, activity.phase)
    }

    fn running_nodes(&self, round: u64) -> Vec<usize> {
        let is_node = |host: &usize| self.hosts[*host].service.client("job").is_some();
        let nodes = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_running && is_node(host));
        nodes.filter(|host| self.activity(*host) == (Some(round), Phase::Working)).collect()
    }

    fn leader(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|host| {
            let coordinator = self.hosts[*host].service.coordinator("job");
            self.hosts[*host].is_running && coordinator.is_some_and(Coordinator::is_leader)
        })
    }

    fn has_left(&self, host: usize) -> bool {
        self.hosts[host].events.contains(&Event::Left)
    }

    fn voters(&self, host: usize) -> usize {
        self.hosts[host].service.coordinator("job").map_or(0, |one| one.replica().voters().len())
    }
}
