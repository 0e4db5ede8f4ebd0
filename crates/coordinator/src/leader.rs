//! What a leader knows about the nodes of its job: their connections, leases and requests.
//!
//! Only decisions are replicated. A new leader learns everything else from the nodes, which connect to it and say what
//! they do.

mod leases;
mod roster;
mod rounds;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::job::{Cause, Closing, Decision, Departure, Job};
use crate::message::{Activity, Assignment, Command, GroupId, Hello, Phase, Refusal, Reply, Request};
use crate::node::{Node, NodeId};
use crate::roster::{Names, WaitReason};

/// The id of a connection.
pub type Connection = rallypoint_core::hub::ConnectionId;

/// The time between two evaluations of the job, per node. An evaluation visits all nodes.
const EVALUATION_INTERVAL_PER_NODE: Duration = Duration::from_micros(1);
/// The maximum number of decisions that nodes and operators have asked for and that were not taken yet.
const MAX_REQUESTS: usize = 1000;

/// An instruction of the coordinator to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a message on a connection.
    Send(Connection, Reply),
    /// Close a connection.
    Close(Connection),
    /// Tell a node on a connection where the leader is.
    Redirect(Connection),
    /// Find out whether the agent with this id still runs at this address.
    Probe(NodeId, String),
}

/// What a leader reads when it handles an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) job: &'a Job,
    pub(crate) group: GroupId,
    /// The time of the job.
    pub(crate) time: Duration,
    /// The time of this process.
    pub(crate) now: Duration,
    /// A time of this process at which a quorum still followed this leader.
    pub(crate) quorum_contact: Option<Duration>,
    /// The replicas that others are about to replace.
    pub(crate) unwanted: &'a BTreeSet<NodeId>,
}

/// What a leader knows about the nodes of its job.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    connections: BTreeMap<Connection, NodeId>,
    /// The nodes that wait for the next round, by the order in which they joined.
    queue: BTreeMap<u64, NodeId>,
    next_join: u64,
    last_check: Duration,
    /// No lease is judged before this time.
    judge_after: Duration,
    last_evaluation: Duration,
    is_changed: bool,
    /// The round that the members know, and whether they know that it has ended.
    published: Option<(u64, bool)>,
    /// The replicas that the nodes know.
    published_replicas: BTreeMap<NodeId, String>,
    /// The drained hosts whose nodes know that.
    published_drains: BTreeSet<String>,
    /// Why a node has asked to end the running round.
    cause: Option<Cause>,
    /// The decisions that nodes and operators have asked for.
    requests: VecDeque<Decision>,
    /// When all members of the last round had stopped their workers.
    stopped_since: Option<Duration>,
    /// When enough nodes for the first round had joined.
    minimum_since: Option<Duration>,
    /// When a node that can enlarge the running round first waited.
    growth_since: Option<Duration>,
    /// What the next round waits for.
    waits_for: Option<WaitReason>,
    /// The nodes that the next round lacks.
    missing: Names,
    last_notice: Option<Duration>,
    outputs: VecDeque<Output>,
}

/// A node that the leader serves, or a member that has not connected to it yet.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: Node,
    pub(crate) connection: Option<Connection>,
    /// When the connection was opened or closed.
    pub(crate) since: Duration,
    /// When the lease ends.
    pub(crate) expiry: Duration,
    pub(crate) last_heartbeat: Option<Duration>,
    /// What the node does. The leader assumes that a member that has not connected yet works.
    pub(crate) activity: Activity,
    /// The place in the queue, if the node waits for the next round.
    place: Option<u64>,
    notice: Option<WaitReason>,
    /// How the node departed. The leader ignores it from then on, and forgets it after its departure is applied.
    pub(crate) departure: Option<Departure>,
}

impl Peer {
    fn new(node: Node, activity: Activity, now: Duration) -> Peer {
        Peer {
            node,
            connection: None,
            since: now,
            expiry: now,
            last_heartbeat: None,
            activity,
            place: None,
            notice: None,
            departure: None,
        }
    }

    /// Returns whether the node has no workers of this round, and starts none.
    fn has_stopped(&self, round: u64) -> bool {
        self.activity.last_round.is_some_and(|last| last >= round) && self.activity.phase != Phase::Working
    }

    fn is_joining(&self) -> bool {
        matches!(self.activity.phase, Phase::Joining { .. })
    }
}

impl Leader {
    /// Starts to lead. A member of the current round may have a lease from an earlier leader. All these leases end at
    /// most one lease length after this leader was elected, by clocks that differ by less than 1 %.
    pub(crate) fn new(view: View<'_>) -> Leader {
        let mut leader = Leader {
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            queue: BTreeMap::new(),
            next_join: 0,
            last_check: view.now,
            judge_after: view.now,
            last_evaluation: view.now,
            is_changed: true,
            published: None,
            published_replicas: view.job.replicas.clone(),
            published_drains: view.job.drains.keys().cloned().collect(),
            cause: None,
            requests: VecDeque::new(),
            stopped_since: None,
            minimum_since: None,
            growth_since: None,
            waits_for: None,
            missing: Names::default(),
            last_notice: None,
            outputs: VecDeque::new(),
        };
        let Some(round) = &view.job.round else { return leader };
        // The members get what they have missed when they connect.
        leader.published = Some((round.number, round.end.is_some()));
        let lease = view.job.settings.lease;
        for member in round.present() {
            let activity = Activity { last_round: Some(round.number), phase: Phase::Working };
            let peer = Peer::new(member.node.clone(), activity, view.now);
            leader.peers.insert(member.node.id, Peer { expiry: view.now + lease + lease / 100, ..peer });
            leader.probe(&member.node);
        }
        leader
    }

    /// Returns the connections of all nodes.
    pub(crate) fn into_connections(self) -> impl Iterator<Item = Connection> {
        self.connections.into_keys()
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns whether an evaluation is due.
    pub(crate) fn is_evaluation_due(&self, now: Duration) -> bool {
        self.is_changed && now >= self.evaluation_time()
    }

    /// Returns when an evaluation is due, if something has changed.
    pub(crate) fn next_evaluation(&self) -> Option<Duration> {
        self.is_changed.then(|| self.evaluation_time())
    }

    fn evaluation_time(&self) -> Duration {
        self.last_evaluation + EVALUATION_INTERVAL_PER_NODE * self.peers.len() as u32
    }

    fn send(&mut self, connection: Connection, reply: Reply) {
        self.outputs.push_back(Output::Send(connection, reply));
    }

    fn send_to(&mut self, id: NodeId, reply: Reply) {
        if let Some(connection) = self.peers.get(&id).and_then(|peer| peer.connection) {
            self.send(connection, reply);
        }
    }

    fn probe(&mut self, node: &Node) {
        self.outputs.push_back(Output::Probe(node.id, node.address.clone()));
    }

    // ---- nodes ----

    /// Handles the first message of a node.
    pub(crate) fn handle_hello(&mut self, connection: Connection, mut hello: Hello, view: View<'_>) {
        if let Some(closing) = &view.job.closed {
            return self.send(connection, Reply::Closed(closing.clone()));
        }
        if hello.group != Some(view.group) {
            if let Some(round) = hello.activity.last_round.filter(|_| is_active(&hello.activity.phase)) {
                // The node must stop the workers of the other group first. It connects again then.
                let cause =
                    Cause::NodeLost { node: hello.node, how: Departure::Expired(view.job.settings.lease) };
                return self.send(connection, Reply::Ended { round, cause });
            }
            hello.activity.last_round = None;
        }
        if let Some(refusal) = refusal(&hello, view.job) {
            return self.send(connection, Reply::Refused(refusal));
        }
        let id = hello.node.id;
        if self.peers.get(&id).is_some_and(|peer| peer.departure.is_some()) {
            // Once its departure is applied, the node may come back as a new one.
            return self.outputs.push_back(Output::Close(connection));
        }
        self.is_changed = true;
        self.send(
            connection,
            Reply::Welcome {
                group: view.group,
                settings: Box::new(view.job.settings.clone()),
                voters: view.job.replicas.values().cloned().collect(),
            },
        );
        if let Some(warning) = self.difference(&hello.node) {
            self.send(connection, Reply::Warning(warning));
        }
        self.connections.insert(connection, id);
        let peer = self
            .peers
            .entry(id)
            .or_insert_with(|| Peer::new(hello.node.clone(), hello.activity.clone(), view.now));
        if let Some(earlier) = peer.connection.replace(connection) {
            self.connections.remove(&earlier);
            self.outputs.push_back(Output::Close(earlier));
        }
        (peer.node, peer.since, peer.notice) = (hello.node, view.now, None);
        self.handle_activity(id, hello.activity, view);
    }

    /// Returns a warning if the node runs something else than another node.
    fn difference(&self, node: &Node) -> Option<String> {
        let other = &self.peers.values().find(|peer| peer.node.id != node.id)?.node;
        if other.command.zip(node.command).is_some_and(|(theirs, own)| theirs != own) {
            Some(format!("{other} runs another command than this node"))
        } else {
            let counts = other.workers.zip(node.workers).filter(|(theirs, own)| theirs != own);
            counts.map(|(theirs, own)| format!("{other} has {theirs} workers, this node has {own}"))
        }
    }

    /// Handles a request of a node.
    pub(crate) fn handle_request(&mut self, connection: Connection, request: Request, view: View<'_>) {
        let Some(id) = self.connections.get(&connection).copied() else { return };
        let Some(peer) = self.peers.get(&id).filter(|peer| peer.departure.is_none()) else { return };
        match request {
            Request::Heartbeat { number } => return self.handle_heartbeat(connection, id, number, view),
            Request::Report(activity) => self.handle_activity(id, activity, view),
            Request::WorkerFailed { round, local_rank, exit } => {
                let cause = Cause::WorkerFailed { node: peer.node.clone(), local_rank, exit };
                self.request_end(round, cause, view);
            }
            Request::Drain { within } => {
                let host = peer.node.host.clone();
                self.request(Decision::Drain { host, within });
            }
            Request::Leave => self.depart(id, Departure::Left),
            // A node that has been stopped for a while may not know that the job goes on without it.
            Request::Close { .. } if is_left_behind(peer, view.job) => {}
            Request::Close { time, reason } => {
                let author = peer.node.to_string();
                self.request(Decision::Close(Closing { author, time, reason, has_finished: false }));
            }
            Request::Raft(_) => return,
        }
        self.is_changed = true;
    }

    /// Asks for a decision, unless too many others are pending. Returns whether it did.
    fn request(&mut self, decision: Decision) -> bool {
        let has_room = self.requests.len() < MAX_REQUESTS;
        if has_room && !self.requests.contains(&decision) {
            self.requests.push_back(decision);
        }
        self.is_changed = true;
        has_room
    }

    /// Asks to end a round. The first cause counts.
    fn request_end(&mut self, number: u64, cause: Cause, view: View<'_>) {
        let is_running =
            view.job.round.as_ref().is_some_and(|round| round.number == number && round.end.is_none());
        if is_running {
            self.cause.get_or_insert(cause);
        }
    }

    fn handle_activity(&mut self, id: NodeId, activity: Activity, view: View<'_>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let was_joining = peer.place.is_some();
        peer.activity = activity;
        match (peer.is_joining(), peer.place) {
            (true, None) => {
                peer.place = Some(self.next_join);
                self.queue.insert(self.next_join, id);
                self.next_join += 1;
            }
            (false, Some(place)) => {
                self.queue.remove(&place);
                peer.place = None;
            }
            _ => {}
        }
        let node = peer.node.clone();
        let (last_round, phase) = (peer.activity.last_round, peer.activity.phase.clone());
        if !was_joining && view.job.drains.contains_key(&node.host) && phase != Phase::Working {
            self.send_to(id, Reply::Drained);
        }
        let Some(round) = &view.job.round else { return };
        let is_member = round.present_member(id).is_some();
        let is_known = last_round.is_some_and(|last| last >= round.number);
        match (&round.end, phase) {
            // The round can't go on without the workers of a member.
            (None, Phase::Joining { is_fenced }) if is_member && is_known => {
                let cause = if is_fenced { Cause::Fenced { node } } else { Cause::Rejoined { node } };
                self.request_end(round.number, cause, view);
            }
            (None, Phase::Outside(_)) if is_member && is_known => {
                self.request_end(round.number, Cause::NodeLost { node, how: Departure::Left }, view);
            }
            (None, _) if is_member && !is_known => {
                let assignment = assignment(id, view);
                self.send_to(id, Reply::Started(assignment));
            }
            (Some(cause), phase) if is_member && (!is_known || is_active(&phase)) => {
                let ended = Reply::Ended { round: round.number, cause: cause.clone() };
                self.send_to(id, ended);
            }
            // The node has workers, but the other members have continued without it.
            (_, phase) if !is_member && is_active(&phase) => {
                let how = round.departed.get(&id).map(|departed| departed.how);
                let how = how.unwrap_or(Departure::Expired(view.job.settings.lease));
                let ended =
                    Reply::Ended { round: last_round.unwrap_or(0), cause: Cause::NodeLost { node, how } };
                self.send_to(id, ended);
            }
            _ => {}
        }
    }

    /// Handles a closed connection.
    pub(crate) fn handle_close(&mut self, connection: Connection, view: View<'_>) {
        let Some(peer) = self.connections.remove(&connection).and_then(|id| self.peers.get_mut(&id)) else {
            return;
        };
        if peer.connection == Some(connection) {
            (peer.connection, peer.since) = (None, view.now);
            let node = peer.node.clone();
            // Other nodes have no workers, so they may be missing for a while.
            if view.job.round.as_ref().is_some_and(|round| round.present_member(node.id).is_some()) {
                self.probe(&node);
            }
            self.is_changed = true;
        }
    }

    /// Handles the results of probes: the processes of these nodes have ended.
    pub(crate) fn handle_ended(&mut self, ended: &BTreeSet<NodeId>) {
        for id in ended {
            if self.peers.get(id).is_some_and(|peer| peer.connection.is_none()) {
                self.depart(*id, Departure::Killed);
            }
        }
    }

    /// Ignores a node from now on, because it has departed.
    fn depart(&mut self, id: NodeId, how: Departure) {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.departure.is_none()) else { return };
        peer.departure = Some(how);
        if let Some(place) = peer.place.take() {
            self.queue.remove(&place);
        }
        self.is_changed = true;
    }

    /// Forgets the nodes that have departed. Members are forgotten after their departure is applied, so this returns the
    /// decision about those for which it is not.
    fn forget_departed(&mut self, view: View<'_>) -> Option<Decision> {
        let round = view.job.round.as_ref();
        let mut members = Vec::new();
        let mut others = Vec::new();
        for (id, peer) in &self.peers {
            let Some(how) = peer.departure else { continue };
            // A process that leaves ends when its connection is closed, so its replica is replaced before.
            let is_needed = how == Departure::Left && peer.connection.is_some() && view.unwanted.contains(id);
            if round.is_some_and(|round| round.present_member(*id).is_some()) {
                let has_finished = peer.activity.phase == Phase::Finished;
                members.push((*id, if has_finished { Departure::Finished } else { how }));
            } else if !is_needed {
                others.push(*id);
            }
        }
        others.into_iter().for_each(|id| self.forget(id));
        round.filter(|_| !members.is_empty()).map(|round| Decision::Depart { round: round.number, members })
    }

    fn forget(&mut self, id: NodeId) {
        let Some(peer) = self.peers.remove(&id) else { return };
        if let Some(place) = peer.place {
            self.queue.remove(&place);
        }
        if let Some(connection) = peer.connection {
            self.connections.remove(&connection);
            self.outputs.push_back(Output::Close(connection));
        }
    }

    // ---- operators ----

    /// Handles a command that changes the job, and returns the reply.
    pub(crate) fn handle_command(&mut self, command: Command) -> Reply {
        // A node may join later, so an unknown name is no error.
        let note = |host: &str| match self.peers.values().any(|peer| peer.node.host == host) {
            true => "",
            false => " (no node of the job has this name now)",
        };
        let (decision, text) = match command {
            Command::Exclude { host, time, reason } => {
                let text = format!("{host} is excluded for {} s{}", time.as_secs(), note(&host));
                (Decision::Exclude { host, time, reason }, text)
            }
            Command::Include { host } => {
                let text = format!("{host} is neither excluded nor drained any more");
                (Decision::Include { host }, text)
            }
            Command::Drain { host, within } => {
                let limit = within.map(|within| format!(", at the latest in {} s", within.as_secs()));
                let limit = limit.unwrap_or_default();
                let text = format!("{host} leaves at the next restart{limit}{}", note(&host));
                (Decision::Drain { host, within }, text)
            }
            Command::ForceQuorum => {
                return Reply::Failed("the job has a leader with a quorum already".into());
            }
            Command::Roster => return Reply::Failed("the roster is a reply of its own".into()),
        };
        match self.request(decision) {
            true => Reply::Done(text),
            false => Reply::Failed("the coordinator has too many pending requests; try again later".into()),
        }
    }

    // ---- publishing ----

    /// Sends the start and the end of the current round to its members, and the end of the job to all nodes.
    pub(crate) fn publish(&mut self, view: View<'_>) {
        if let Some(closing) = &view.job.closed {
            for connection in std::mem::take(&mut self.connections).into_keys() {
                self.send(connection, Reply::Closed(closing.clone()));
            }
            self.queue.clear();
            return self.peers.clear();
        }
        if self.published_replicas != view.job.replicas {
            self.published_replicas.clone_from(&view.job.replicas);
            let addresses: Vec<String> = view.job.replicas.values().cloned().collect();
            for connection in self.connections.keys().copied().collect::<Vec<_>>() {
                self.send(connection, Reply::Replicas(addresses.clone()));
            }
        }
        if !view.job.drains.keys().eq(&self.published_drains) {
            self.published_drains = view.job.drains.keys().cloned().collect();
            self.publish_drains();
        }
        let Some(round) = &view.job.round else { return };
        let state = (round.number, round.end.is_some());
        if self.published == Some(state) {
            return;
        }
        let is_new = self.published.is_none_or(|(number, _)| number < round.number);
        self.published = Some(state);
        (self.stopped_since, self.growth_since, self.waits_for) = (None, None, None);
        (self.cause, self.is_changed) = (None, true);
        for id in round.members.keys() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            if is_new {
                // From now on the node may have workers.
                peer.activity = Activity { last_round: Some(round.number), phase: Phase::Working };
                peer.notice = None;
                if let Some(place) = peer.place.take() {
                    self.queue.remove(&place);
                }
            }
            let reply = match &round.end {
                None => Reply::Started(assignment(*id, view)),
                Some(cause) => Reply::Ended { round: round.number, cause: cause.clone() },
            };
            self.send_to(*id, reply);
        }
    }

    /// Tells the drained nodes that have no workers. Others are told when their workers have ended.
    fn publish_drains(&mut self) {
        let is_idle = |peer: &&Peer| {
            self.published_drains.contains(&peer.node.host) && !is_active(&peer.activity.phase)
        };
        let idle: Vec<NodeId> = self.peers.values().filter(is_idle).map(|peer| peer.node.id).collect();
        idle.into_iter().for_each(|id| self.send_to(id, Reply::Drained));
    }
}

/// Returns why a node can't be in the job.
fn refusal(hello: &Hello, job: &Job) -> Option<Refusal> {
    if let Some(mismatch) = job.settings.mismatch(&hello.settings) {
        let (node, other) = (hello.node.to_string(), job.founder.clone());
        return Some(Refusal::Settings { mismatch, node, other });
    }
    let (rank, max) = (hello.node.pin?, job.settings.max_nodes);
    (rank >= max).then_some(Refusal::PinTooLarge { rank, max })
}

/// Returns whether a node in this phase has workers or waits for the workers of other nodes.
fn is_active(phase: &Phase) -> bool {
    matches!(phase, Phase::Working | Phase::Finished)
}

/// Returns whether the job has gone on without a node that has been in one of its rounds.
fn is_left_behind(peer: &Peer, job: &Job) -> bool {
    let is_member = job.round.as_ref().is_some_and(|round| round.present_member(peer.node.id).is_some());
    peer.activity.last_round.is_some() && !is_member
}

/// Returns what a member of the current round needs to know.
fn assignment(id: NodeId, view: View<'_>) -> Assignment {
    let round = view.job.round.as_ref().expect("a round has started");
    Assignment {
        group: view.group,
        round: round.number,
        rank: round.members[&id].rank,
        world_size: round.members.len() as u32,
        master: round.master.clone(),
        lost: round.lost,
        restarts: view.job.restarts.clone(),
    }
}

#[cfg(test)]
mod tests;
