//! What a leader knows about the nodes of its job: their connections, leases and requests.
//!
//! Only decisions are replicated. A new leader learns everything else from the nodes, which connect to it and say what
//! they do.

mod rounds;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::job::{Cause, Closing, Decision, Departure, Job};
use crate::message::{
    Activity, Assignment, Command, GroupId, Hello, NotServed, Phase, Refusal, Reply, Request,
};
use crate::node::{Node, NodeId};
use crate::roster::WaitReason;

/// The id of a connection.
pub type Connection = rallypoint_core::hub::ConnectionId;

/// A leader whose checks of leases are further apart than this was suspended.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a leader that was suspended reads before it judges leases again.
const RESUME_GRACE: Duration = Duration::from_secs(1);
/// The interval at which waiting nodes are told what they wait for, if it has changed.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two evaluations of the job, per node. An evaluation visits all nodes.
const EVALUATION_INTERVAL_PER_NODE: Duration = Duration::from_micros(1);

/// An instruction of the coordinator to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a message on a connection.
    Send(Connection, Reply),
    /// Close a connection.
    Close(Connection),
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
    /// Requests to end a round.
    causes: Vec<(u64, Cause)>,
    closing: Option<Closing>,
    /// When all members of the last round had stopped their workers.
    stopped_since: Option<Duration>,
    /// When enough nodes for the first round had joined.
    minimum_since: Option<Duration>,
    /// When a node that can enlarge the running round first waited.
    growth_since: Option<Duration>,
    /// What the next round waits for.
    waits_for: Option<WaitReason>,
    last_notice: Duration,
    proposals: VecDeque<Decision>,
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
}

impl Peer {
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
            causes: Vec::new(),
            closing: None,
            stopped_since: None,
            minimum_since: None,
            growth_since: None,
            waits_for: None,
            last_notice: view.now.saturating_sub(NOTICE_INTERVAL),
            proposals: VecDeque::new(),
            outputs: VecDeque::new(),
        };
        let Some(round) = &view.job.round else { return leader };
        // The members get what they have missed when they connect.
        leader.published = Some((round.number, round.end.is_some()));
        round.present().for_each(|member| leader.expect_member(&member.node, round.number, view));
        leader
    }

    /// Adds a member that may work and is not connected to this leader.
    fn expect_member(&mut self, node: &Node, round: u64, view: View<'_>) {
        let lease = view.job.settings.lease;
        let peer = Peer {
            node: node.clone(),
            connection: None,
            since: view.now,
            expiry: view.now + lease + lease / 100,
            last_heartbeat: None,
            activity: Activity { last_round: Some(round), phase: Phase::Working },
            place: None,
            notice: None,
        };
        self.peers.insert(node.id, peer);
        self.probe(node);
    }

    /// Returns the connections of all nodes.
    pub(crate) fn into_connections(self) -> impl Iterator<Item = Connection> {
        self.connections.into_keys()
    }

    pub(crate) fn poll_proposal(&mut self) -> Option<Decision> {
        self.proposals.pop_front()
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
        if let Some(refusal) = self.refusal(&hello, view.job) {
            return self.send(connection, Reply::Refused(refusal));
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
        let id = hello.node.id;
        self.connections.insert(connection, id);
        let peer = self.peers.entry(id).or_insert_with(|| Peer {
            node: hello.node.clone(),
            connection: None,
            since: view.now,
            expiry: view.now,
            last_heartbeat: None,
            activity: hello.activity.clone(),
            place: None,
            notice: None,
        });
        if let Some(earlier) = peer.connection.replace(connection) {
            self.connections.remove(&earlier);
            self.outputs.push_back(Output::Close(earlier));
        }
        (peer.node, peer.since, peer.notice) = (hello.node, view.now, None);
        self.handle_activity(id, hello.activity, view);
    }

    /// Returns why a node can't be in the job.
    fn refusal(&self, hello: &Hello, job: &Job) -> Option<Refusal> {
        if let Some(mismatch) = job.settings.mismatch(&hello.settings) {
            return Some(Refusal::Settings { mismatch, other: job.founder.clone() });
        }
        let rank = hello.node.pin?;
        let max = job.settings.max_nodes;
        if rank >= max {
            return Some(Refusal::PinTooLarge { rank, max });
        }
        // An earlier process on the same host is on its way out, and the node waits for its end.
        let other = self.peers.values().find(|peer| {
            peer.node.pin == Some(rank) && peer.node.host != hello.node.host && peer.connection.is_some()
        })?;
        Some(Refusal::Pinned { rank, other: other.node.to_string() })
    }

    /// Returns a warning if the node runs something else than another node.
    fn difference(&self, node: &Node) -> Option<String> {
        let other = &self.peers.values().find(|peer| peer.node.id != node.id)?.node;
        if other.command != node.command {
            Some(format!("{other} runs another command than this node"))
        } else if other.workers != node.workers {
            Some(format!("{other} has {} workers, this node has {}", other.workers, node.workers))
        } else {
            None
        }
    }

    /// Handles a request of a node.
    pub(crate) fn handle_request(&mut self, connection: Connection, request: Request, view: View<'_>) {
        let Some(id) = self.connections.get(&connection).copied() else { return };
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match request {
            Request::Heartbeat { number } => return self.handle_heartbeat(connection, id, number, view),
            Request::Report(activity) => self.handle_activity(id, activity, view),
            Request::WorkerFailed { round, local_rank, exit } => {
                self.causes.push((round, Cause::WorkerFailed { node: peer.node.clone(), local_rank, exit }));
            }
            Request::Drain { within } => {
                let host = peer.node.host.clone();
                self.tell_drained(&host);
                self.proposals.push_back(Decision::Drain { host, within });
            }
            Request::Leave => self.depart(&[(id, Departure::Left)], view),
            Request::Close { time, reason } => {
                let author = peer.node.to_string();
                self.closing = Some(Closing { author, time, reason, has_finished: false });
            }
            Request::Raft(_) => return,
        }
        self.is_changed = true;
    }

    /// Renews a lease. A lease never outlasts the last contact to a quorum by more than its length, and a node whose
    /// workers do not belong to the running round gets none.
    fn handle_heartbeat(&mut self, connection: Connection, id: NodeId, number: u64, view: View<'_>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.last_heartbeat = Some(view.now);
        let round = view.job.round.as_ref();
        let is_member = round.is_some_and(|round| {
            round.present_member(id).is_some() && peer.activity.last_round == Some(round.number)
        });
        if matches!(peer.activity.phase, Phase::Working | Phase::Finished) && !is_member {
            return;
        }
        let expiry = view.quorum_contact.map_or(Duration::ZERO, |contact| contact + view.job.settings.lease);
        if expiry <= view.now {
            let voters: Vec<String> = view.job.replicas.values().cloned().collect();
            let why = NotServed::NoQuorum { voters: voters.clone() };
            return self.send(connection, Reply::Redirect { addresses: voters, why });
        }
        // The first lease makes a node a candidate.
        self.is_changed |= peer.expiry <= view.now;
        peer.expiry = peer.expiry.max(expiry);
        self.send(connection, Reply::Granted { number, lease: expiry - view.now });
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
                self.causes.push((round.number, cause));
            }
            (None, Phase::Outside(_)) if is_member && is_known => {
                self.causes.push((round.number, Cause::NodeLost { node, how: Departure::Left }));
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
                let how = round.departed.get(&id).copied();
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
            self.probe(&node);
            self.is_changed = true;
        }
    }

    /// Handles the result of a probe: the process of the node has ended.
    pub(crate) fn handle_ended(&mut self, ended: &BTreeSet<NodeId>, view: View<'_>) {
        let is_gone = |id: &&NodeId| self.peers.get(id).is_some_and(|peer| peer.connection.is_none());
        let gone: Vec<_> = ended.iter().filter(is_gone).map(|id| (*id, Departure::Killed)).collect();
        self.depart(&gone, view);
    }

    /// Forgets nodes. Proposes the departure of those that are members.
    fn depart(&mut self, nodes: &[(NodeId, Departure)], view: View<'_>) {
        let mut members = Vec::new();
        for (id, how) in nodes {
            let Some(peer) = self.peers.remove(id) else { continue };
            self.is_changed = true;
            if let Some(place) = peer.place {
                self.queue.remove(&place);
            }
            if let Some(connection) = peer.connection {
                self.connections.remove(&connection);
                self.outputs.push_back(Output::Close(connection));
            }
            if view.job.round.as_ref().is_some_and(|round| round.present_member(*id).is_some()) {
                let has_finished = peer.activity.phase == Phase::Finished;
                members.push((*id, if has_finished { Departure::Finished } else { *how }));
            }
        }
        if let Some(round) = view.job.round.as_ref().filter(|_| !members.is_empty()) {
            self.proposals.push_back(Decision::Depart { round: round.number, members });
        }
    }

    // ---- operators ----

    /// Tells the nodes of a host that have no workers that they are drained.
    fn tell_drained(&mut self, host: &str) {
        let is_idle = |peer: &&Peer| peer.node.host == host && !is_active(&peer.activity.phase);
        let idle: Vec<NodeId> = self.peers.values().filter(is_idle).map(|peer| peer.node.id).collect();
        idle.into_iter().for_each(|id| self.send_to(id, Reply::Drained));
    }

    /// Handles a command that changes the job, and returns the text of the reply.
    pub(crate) fn handle_command(&mut self, command: Command) -> String {
        let (decision, text) = match command {
            Command::Exclude { host, time, reason } => {
                let text = format!("{host} is excluded for {} s", time.as_secs());
                (Decision::Exclude { host, time, reason }, text)
            }
            Command::Include { host } => {
                let text = format!("{host} is neither excluded nor drained any more");
                (Decision::Include { host }, text)
            }
            Command::Drain { host, within } => {
                self.tell_drained(&host);
                let when = within.map(|within| format!(" within {} s", within.as_secs())).unwrap_or_default();
                let text = format!("{host} leaves at the next restart{when}");
                (Decision::Drain { host, within }, text)
            }
            Command::ForceQuorum | Command::Roster => unreachable!("these commands don't change the job"),
        };
        self.proposals.push_back(decision);
        self.is_changed = true;
        text
    }

    // ---- leases ----

    /// Declares members lost whose leases are over, and forgets other nodes that have no connection.
    pub(crate) fn check_leases(&mut self, view: View<'_>) {
        // A leader that was suspended must read what has arrived before it judges any lease.
        if view.now.saturating_sub(self.last_check) > MAX_CHECK_INTERVAL {
            self.judge_after = view.now + RESUME_GRACE;
        }
        self.last_check = view.now;
        if view.now < self.judge_after || view.quorum_contact.is_none() {
            return;
        }
        let settings = &view.job.settings;
        let round = view.job.round.as_ref();
        let is_over = |(id, peer): (&NodeId, &Peer)| {
            let is_member = round.is_some_and(|round| round.present_member(*id).is_some());
            let is_over = match is_member {
                true => peer.expiry <= view.now,
                // A host that has lost power does not close its connections.
                false => {
                    let since =
                        if peer.connection.is_some() { peer.since.max(peer.expiry) } else { peer.since };
                    view.now >= since + settings.reconnect_grace
                }
            };
            is_over.then_some((*id, Departure::Expired(settings.lease)))
        };
        let over: Vec<_> = self.peers.iter().filter_map(is_over).collect();
        if !over.is_empty() {
            self.depart(&over, view);
        }
        // Some decisions become due as time passes.
        self.is_changed = true;
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
        let Some(round) = &view.job.round else { return };
        let state = (round.number, round.end.is_some());
        if self.published == Some(state) {
            return;
        }
        let is_new = self.published.is_none_or(|(number, _)| number < round.number);
        self.published = Some(state);
        (self.stopped_since, self.growth_since, self.waits_for) = (None, None, None);
        self.causes.retain(|(number, _)| *number > round.number);
        self.is_changed = true;
        for (id, member) in &round.members {
            if is_new && !self.peers.contains_key(id) {
                // The member has left or was lost while the start of the round was being decided.
                self.expect_member(&member.node, round.number, view);
            }
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
}

/// Returns whether a node in this phase has workers or waits for the workers of other nodes.
fn is_active(phase: &Phase) -> bool {
    matches!(phase, Phase::Working | Phase::Finished)
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
