//! The coordinator of one job on one process: a replica and, while it leads, the nodes that it serves.
//!
//! Entries of the log say what is decided. The nodes' connections, leases and requests are known only to the leader. A
//! new leader learns them from the nodes, which connect to it and say what they do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::job::{Cause, Closing, Departure, Entry, Job};
use crate::message::{Activity, Assignment, GroupId, Hello, NotServed, Phase, Refusal, Reply, Request};
use crate::node::{Node, NodeId};
use crate::plan::{Candidate, plan};
use crate::replica::{RaftMessage, Replica};
use crate::terms::{PROTOCOL_VERSION, ScaleUp};

/// The id of a connection.
pub type Connection = u64;

/// How long a leader that was suspended reads before it judges leases again.
const RESUME_GRACE: Duration = Duration::from_secs(1);
/// A leader whose checks are further apart than this was suspended.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a voter may be without a connection to the leader before another node becomes a voter in its place.
const VOTER_GRACE: Duration = Duration::from_secs(1);

/// What the coordinator wants its caller to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a message to a node.
    Send(Connection, Reply),
    /// Send a message to another replica.
    Raft(RaftMessage),
    /// Find out whether a node's agent still exists: connect to the address and ask for its identity.
    Probe(NodeId, String),
}

/// The coordinator of one job on one process.
pub struct Coordinator {
    group: GroupId,
    id: NodeId,
    replica: Replica,
    leadership: Option<Leadership>,
    outputs: VecDeque<Output>,
}

/// What a leader knows about the nodes that it serves.
#[derive(Debug, Default)]
struct Leadership {
    last_check: Duration,
    /// No lease is judged before this time.
    judge_after: Duration,
    peers: BTreeMap<NodeId, Peer>,
    nodes: BTreeMap<Connection, NodeId>,
    /// When all members of the last round were known to have no workers.
    settled_since: Option<Duration>,
    /// When the minimum of the first round was reached.
    minimum_since: Option<Duration>,
    /// When a node that can enlarge the world first waited.
    growth_since: Option<Duration>,
    /// Requests to end the current round.
    failures: Vec<(u64, Cause)>,
    closing: Option<Closing>,
    /// The round whose start has been sent to its members, and whether its end has been sent, too.
    sent: Option<(u64, bool)>,
    joins: u64,
}

/// A node that the leader serves, or a member that has not connected to it yet.
#[derive(Debug)]
struct Peer {
    node: Node,
    connection: Option<Connection>,
    /// When the connection was closed, or when the leader was elected if there was none.
    disconnected_at: Duration,
    /// When the lease ends.
    expiry: Duration,
    activity: Activity,
    /// The number of the join. Nodes that joined earlier are preferred.
    join: u64,
}

impl Peer {
    /// Returns whether the node has no workers of this round, or of an earlier one.
    fn has_stopped(&self, round: u64) -> bool {
        self.activity.last_round.is_some_and(|last| last >= round) && self.activity.phase != Phase::Working
    }
}

impl Coordinator {
    /// Creates a coordinator with a replica.
    pub fn new(group: GroupId, id: NodeId, replica: Replica) -> Coordinator {
        Coordinator { group, id, replica, leadership: None, outputs: VecDeque::new() }
    }

    /// Returns the replicated state.
    pub fn job(&self) -> &Job {
        self.replica.job()
    }

    /// Returns the replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Returns the group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Returns whether this coordinator is the leader.
    pub fn is_leader(&self) -> bool {
        self.leadership.is_some()
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front().or_else(|| self.replica.poll_message().map(Output::Raft))
    }

    /// Returns when [`handle_timeout`](Coordinator::handle_timeout) is due.
    pub fn next_timeout(&self) -> Duration {
        self.replica.next_timeout()
    }

    /// Handles a message of another replica.
    pub fn handle_raft(&mut self, from: &str, bytes: &[u8], now: Duration) {
        self.replica.handle_message(from, bytes, now);
        self.advance(now);
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.replica.handle_timeout(now);
        self.advance(now);
    }

    /// Handles a request of a node.
    pub fn handle_request(&mut self, connection: Connection, request: Request, now: Duration) {
        if self.leadership.is_none() {
            let why = NotServed::NotLeader;
            return self.outputs.push_back(Output::Send(connection, self.redirect(why)));
        }
        match request {
            Request::Hello(hello) => self.handle_hello(connection, *hello, now),
            Request::Died { node, .. } => self.depart(node, Departure::Killed, now),
            request => self.handle_member_request(connection, request, now),
        }
        self.advance(now);
    }

    /// Handles a closed connection.
    pub fn handle_close(&mut self, connection: Connection, now: Duration) {
        let Some(leadership) = &mut self.leadership else { return };
        let Some(node) = leadership.nodes.remove(&connection) else { return };
        let Some(peer) = leadership.peers.get_mut(&node) else { return };
        if peer.connection == Some(connection) {
            (peer.connection, peer.disconnected_at) = (None, now);
            self.outputs.push_back(Output::Probe(node, peer.node.address.clone()));
        }
        self.advance(now);
    }

    /// Handles the result of a probe: whether the agent of the node has ended.
    pub fn handle_probe(&mut self, node: NodeId, has_ended: bool, now: Duration) {
        let is_connected = |peer: &Peer| peer.connection.is_some();
        let peer = self.leadership.as_ref().and_then(|leadership| leadership.peers.get(&node));
        if has_ended && peer.is_some_and(|peer| !is_connected(peer)) {
            self.depart(node, Departure::Ended, now);
            self.advance(now);
        }
    }

    fn redirect(&self, why: NotServed) -> Reply {
        let job = self.replica.job();
        let leader = self.replica.leader().and_then(|leader| job.voters.get(&leader));
        let addresses = match leader {
            Some(leader) => vec![leader.clone()],
            None => job.voters.values().cloned().collect(),
        };
        Reply::Redirect { addresses, why }
    }

    fn handle_hello(&mut self, connection: Connection, hello: Hello, now: Duration) {
        let reply = |reply| Output::Send(connection, reply);
        let job = self.replica.job();
        if let Some(closing) = &job.closed {
            return self.outputs.push_back(reply(Reply::Closed(closing.clone())));
        }
        if hello.version != PROTOCOL_VERSION {
            let refusal = Refusal::Version { job: PROTOCOL_VERSION, node: hello.version };
            return self.outputs.push_back(reply(Reply::Refused(refusal)));
        }
        if let Some(difference) = job.terms.difference(&hello.terms) {
            return self.outputs.push_back(reply(Reply::Refused(Refusal::Terms(difference))));
        }
        // A node that works in a round that is over for it can't continue with that id.
        let is_working = hello.activity.phase == Phase::Working;
        let is_current = hello.activity.last_round == job.round.as_ref().map(|round| round.number);
        if is_working && !(is_current && job.is_member(hello.node.id)) {
            return self.outputs.push_back(reply(Reply::Lost));
        }
        let Some(leadership) = &mut self.leadership else { return };
        if let Some(rank) = hello.node.pin {
            let conflict = leadership.peers.values().find(|peer| {
                peer.node.pin == Some(rank) && peer.node.id != hello.node.id && peer.node.host != hello.node.host
            });
            if let Some(peer) = conflict {
                let refusal = Refusal::Pinned { rank, other: peer.node.to_string() };
                return self.outputs.push_back(reply(Reply::Refused(refusal)));
            }
        }
        self.outputs.push_back(reply(Reply::Welcome {
            group: self.group,
            term: self.replica.term(),
            terms: job.terms.clone(),
            voters: job.voters.values().cloned().collect(),
        }));
        let id = hello.node.id;
        leadership.nodes.insert(connection, id);
        let activity = hello.activity;
        let peer = leadership.peers.entry(id).or_insert_with(|| Peer {
            node: hello.node.clone(),
            connection: None,
            disconnected_at: now,
            expiry: now,
            activity,
            join: u64::MAX,
        });
        if let Some(earlier) = peer.connection.replace(connection) {
            leadership.nodes.remove(&earlier);
        }
        peer.node = hello.node;
        self.handle_activity(id, activity, now);
        self.tell(id);
    }

    /// Sends a node that has just connected what it may have missed.
    fn tell(&mut self, id: NodeId) {
        let job = self.replica.job();
        let (Some(leadership), Some(round)) = (&self.leadership, &job.round) else { return };
        let Some(peer) = leadership.peers.get(&id) else { return };
        let Some(rank) = round.rank(id).filter(|_| !round.departed.contains_key(&id)) else { return };
        let Some(connection) = peer.connection else { return };
        let is_known = peer.activity.last_round.is_some_and(|last| last >= round.number);
        match &round.end {
            Some(cause) if !is_known || peer.activity.phase == Phase::Working => {
                let ended = Reply::Ended { round: round.number, cause: cause.clone() };
                self.outputs.push_back(Output::Send(connection, ended));
            }
            None if !is_known => {
                let assignment = assignment(round.number, rank, &round.members);
                self.outputs.push_back(Output::Send(connection, Reply::Started(assignment)));
            }
            _ => {}
        }
    }

    fn handle_activity(&mut self, id: NodeId, activity: Activity, now: Duration) {
        let round = self.replica.job().round.as_ref();
        let is_running = round.is_some_and(|round| {
            round.end.is_none() && round.rank(id).is_some() && activity.last_round == Some(round.number)
        });
        let Some(leadership) = &mut self.leadership else { return };
        let Some(peer) = leadership.peers.get_mut(&id) else { return };
        let was_joining = peer.activity.phase == Phase::Joining && peer.join != u64::MAX;
        peer.activity = activity;
        if activity.phase == Phase::Joining && !was_joining {
            peer.join = leadership.joins;
            leadership.joins += 1;
        }
        // A member that has no workers although its round runs: the round can't go on.
        if is_running && activity.phase != Phase::Working {
            let (number, node) = (round.map_or(0, |round| round.number), peer.node.clone());
            leadership.failures.push((number, Cause::Fenced { node }));
        }
        let _ = now;
    }

    fn handle_member_request(&mut self, connection: Connection, request: Request, now: Duration) {
        let contact = self.replica.quorum_contact();
        let lease = self.replica.job().terms.lease;
        let Some(leadership) = &mut self.leadership else { return };
        let Some(id) = leadership.nodes.get(&connection).copied() else { return };
        let Some(peer) = leadership.peers.get_mut(&id) else { return };
        match request {
            Request::Heartbeat { number } => {
                // A lease never outlasts the last contact to a quorum by more than its length.
                let expiry = contact.map_or(Duration::ZERO, |contact| contact + lease);
                if expiry > now {
                    peer.expiry = peer.expiry.max(expiry);
                    let granted = Reply::Granted { number, lease: expiry - now };
                    self.outputs.push_back(Output::Send(connection, granted));
                } else {
                    let redirect = self.redirect(NotServed::NoQuorum);
                    self.outputs.push_back(Output::Send(connection, redirect));
                }
            }
            Request::Report(activity) => {
                self.handle_activity(id, activity, now);
                self.tell(id);
            }
            Request::WorkerFailed { round, local_rank, exit } => {
                let cause = Cause::WorkerFailed { node: peer.node.clone(), local_rank, exit };
                leadership.failures.push((round, cause));
            }
            Request::Leave => self.depart(id, Departure::Left, now),
            Request::Close { time, reason } => {
                leadership.closing = Some(Closing { author: peer.node.to_string(), time, reason });
            }
            _ => {}
        }
    }

    /// Forgets a node that has departed. Proposes its departure if it is a member.
    fn depart(&mut self, id: NodeId, how: Departure, now: Duration) {
        let Some(leadership) = &mut self.leadership else { return };
        if let Some(peer) = leadership.peers.remove(&id)
            && let Some(connection) = peer.connection
        {
            leadership.nodes.remove(&connection);
        }
        let job = self.replica.job();
        let Some(round) = job.round.as_ref().filter(|_| job.is_member(id)) else { return };
        let node = round.members.iter().find(|member| member.id == id).cloned();
        let (number, is_running) = (round.number, round.end.is_none());
        self.replica.propose(&Entry::Depart { node: id, how }, now);
        if let Some(node) = node.filter(|_| is_running) {
            self.replica.propose(&Entry::End { round: number, cause: Cause::NodeLost { node, how } }, now);
        }
    }

    /// Takes all decisions that are due.
    fn advance(&mut self, now: Duration) {
        match (self.replica.is_leader(), self.leadership.is_some()) {
            (true, false) => self.lead(now),
            (false, true) => self.step_down(),
            _ => {}
        }
        if self.leadership.is_none() {
            return;
        }
        self.check_leases(now);
        self.publish();
        if !self.replica.is_settled() {
            return;
        }
        if self.choose_voters(now) {
            return;
        }
        let Some(leadership) = &mut self.leadership else { return };
        if let Some(closing) = leadership.closing.take() {
            self.replica.propose(&Entry::Close(closing), now);
        } else if let Some(entry) = self.next_entry(now) {
            self.replica.propose(&entry, now);
        }
        self.publish();
    }

    /// Starts to lead. Each member of the current round may have a lease of an earlier leader. All these leases end at
    /// most one lease length after this leader was elected.
    fn lead(&mut self, now: Duration) {
        let job = self.replica.job();
        let lease = job.terms.lease;
        let mut leadership = Leadership { last_check: now, judge_after: now, ..Leadership::default() };
        if let Some(round) = &job.round {
            for node in round.members.iter().filter(|node| !round.departed.contains_key(&node.id)) {
                let activity = Activity { last_round: Some(round.number), phase: Phase::Working };
                let expiry = now + lease + lease / 100;
                let peer = Peer {
                    node: node.clone(),
                    connection: None,
                    disconnected_at: now,
                    expiry,
                    activity,
                    join: u64::MAX,
                };
                leadership.peers.insert(node.id, peer);
                self.outputs.push_back(Output::Probe(node.id, node.address.clone()));
            }
            leadership.sent = Some((round.number, round.end.is_some()));
        }
        self.leadership = Some(leadership);
    }

    fn step_down(&mut self) {
        let redirect = self.redirect(NotServed::NotLeader);
        let Some(leadership) = self.leadership.take() else { return };
        let sends = leadership.nodes.into_keys().map(|connection| Output::Send(connection, redirect.clone()));
        self.outputs.extend(sends);
    }

    /// Declares nodes lost whose leases are over, and forgets nodes without workers that have no connection.
    fn check_leases(&mut self, now: Duration) {
        let job = self.replica.job();
        let (grace, lease) = (job.terms.reconnect_grace, job.terms.lease);
        let members: BTreeSet<NodeId> = match &job.round {
            Some(round) => round.members.iter().map(|node| node.id).filter(|id| !round.departed.contains_key(id)).collect(),
            None => BTreeSet::new(),
        };
        let Some(leadership) = &mut self.leadership else { return };
        // A leader that was suspended must read what has arrived before it judges any lease.
        if now.saturating_sub(leadership.last_check) > MAX_CHECK_INTERVAL {
            leadership.judge_after = now + RESUME_GRACE;
        }
        leadership.last_check = now;
        if now < leadership.judge_after || self.replica.quorum_contact().is_none() {
            return;
        }
        let departed: Vec<(NodeId, Departure)> = leadership
            .peers
            .iter()
            .filter_map(|(id, peer)| {
                let absent = now.saturating_sub(peer.disconnected_at);
                match members.contains(id) {
                    true if peer.expiry <= now => Some((*id, Departure::Expired(lease))),
                    false if peer.connection.is_none() && absent >= grace => {
                        Some((*id, Departure::Disconnected(grace)))
                    }
                    _ => None,
                }
            })
            .collect();
        for (id, how) in departed {
            self.depart(id, how, now);
        }
    }

    /// Sends the start and the end of the current round to its members, and the end of the job to all nodes.
    fn publish(&mut self) {
        let job = self.replica.job();
        let Some(leadership) = &mut self.leadership else { return };
        if let Some(closing) = &job.closed {
            for connection in std::mem::take(&mut leadership.nodes).into_keys() {
                self.outputs.push_back(Output::Send(connection, Reply::Closed(closing.clone())));
            }
            return leadership.peers.clear();
        }
        let Some(round) = &job.round else { return };
        let state = (round.number, round.end.is_some());
        if leadership.sent == Some(state) {
            return;
        }
        let is_start_sent = leadership.sent.is_some_and(|(number, _)| number == round.number);
        leadership.sent = Some(state);
        (leadership.settled_since, leadership.growth_since) = (None, None);
        leadership.failures.clear();
        for (rank, node) in (0..).zip(&round.members) {
            let Some(peer) = leadership.peers.get_mut(&node.id) else { continue };
            if !is_start_sent {
                // The node may start workers from now on.
                peer.activity = Activity { last_round: Some(round.number), phase: Phase::Working };
                peer.join = u64::MAX;
            }
            let Some(connection) = peer.connection else { continue };
            let reply = match &round.end {
                None => Reply::Started(assignment(round.number, rank, &round.members)),
                Some(cause) => Reply::Ended { round: round.number, cause: cause.clone() },
            };
            self.outputs.push_back(Output::Send(connection, reply));
        }
    }

    /// Returns the next entry to propose.
    fn next_entry(&mut self, now: Duration) -> Option<Entry> {
        let job = self.replica.job();
        match &job.round {
            Some(round) if round.end.is_none() => self.end_entry(now),
            _ => self.start_entry(now),
        }
    }

    /// Returns the entry that ends the running round, if it has to end.
    fn end_entry(&mut self, now: Duration) -> Option<Entry> {
        let leadership = self.leadership.as_mut()?;
        let job = self.replica.job();
        let round = job.round.as_ref()?;
        let failure = leadership.failures.drain(..).find(|(number, _)| *number == round.number);
        let departed = round.members.iter().find_map(|node| Some((node, *round.departed.get(&node.id)?)));
        let drained = round.members.iter().find(|node| {
            job.drains.get(&node.id).is_some_and(|until| until.is_some_and(|until| until <= now))
        });
        let cause = if let Some((_, cause)) = failure {
            cause
        } else if let Some((node, how)) = departed {
            Cause::NodeLost { node: node.clone(), how }
        } else if let Some(node) = drained {
            Cause::Drained { node: node.clone() }
        } else {
            let ScaleUp::After(delay) = job.terms.scale_up else { return None };
            let waiting: Vec<_> = leadership.peers.values().filter(|peer| is_candidate(peer, job, now)).collect();
            let members = (0..).zip(&round.members).map(|(rank, node)| candidate(node, Some(rank)));
            let candidates: Vec<_> = members.chain(waiting.iter().map(|peer| candidate(&peer.node, None))).collect();
            let size = plan(&candidates, &job.terms).map_or(0, |ranks| ranks.len());
            if size <= round.members.len() {
                leadership.growth_since = None;
                return None;
            }
            let since = *leadership.growth_since.get_or_insert(now);
            if now < since + delay {
                return None;
            }
            Cause::Growth { waiting: waiting.len() as u32 }
        };
        let is_over_budget = job.terms.job_max_restarts.is_some_and(|max| job.total_restarts() >= max);
        if is_over_budget {
            let reason = format!("--job-max-restarts is used up; the last cause: {cause}");
            let (author, time) = ("the coordinator".into(), String::new());
            return Some(Entry::Close(Closing { author, time, reason }));
        }
        Some(Entry::End { round: round.number, cause })
    }

    /// Returns the entry that starts the next round, if it can start.
    fn start_entry(&mut self, now: Duration) -> Option<Entry> {
        let leadership = self.leadership.as_mut()?;
        let job = self.replica.job();
        let mut is_complete = false;
        let mut previous: BTreeMap<NodeId, u32> = BTreeMap::new();
        if let Some(round) = &job.round {
            let present = (0..).zip(&round.members).filter(|(_, node)| !round.departed.contains_key(&node.id));
            previous = present.map(|(rank, node)| (node.id, rank)).collect();
            let peers: Vec<Option<&Peer>> = previous.keys().map(|id| leadership.peers.get(id)).collect();
            if !peers.iter().all(|peer| peer.is_some_and(|peer| peer.has_stopped(round.number))) {
                leadership.settled_since = None;
                return None;
            }
            is_complete = peers.iter().flatten().all(|peer| peer.activity.phase == Phase::Joining);
        }
        let settled_since = *leadership.settled_since.get_or_insert(now);
        let mut joined: Vec<&Peer> = leadership.peers.values().filter(|peer| is_candidate(peer, job, now)).collect();
        joined.sort_by_key(|peer| peer.join);
        let candidates: Vec<_> =
            joined.iter().map(|peer| candidate(&peer.node, previous.get(&peer.node.id).copied())).collect();
        let Ok(ranks) = plan(&candidates, &job.terms) else {
            leadership.minimum_since = None;
            return None;
        };
        let is_full = ranks.len() + job.terms.node_unit.max(1) as usize > job.terms.max_nodes as usize;
        let is_due = match &job.round {
            None => {
                let since = *leadership.minimum_since.get_or_insert(now);
                is_full || now >= since + job.terms.last_call_timeout
            }
            Some(_) => is_complete || now >= settled_since + job.terms.return_grace,
        };
        is_due.then(|| Entry::Start { members: ranks.into_iter().map(|index| joined[index].node.clone()).collect() })
    }

    /// Proposes other voters if the current ones do not fit. Returns whether it has proposed something.
    fn choose_voters(&mut self, now: Duration) -> bool {
        let Some(leadership) = &self.leadership else { return false };
        let job = self.replica.job();
        let is_alive = |id: &NodeId| {
            *id == self.id
                || leadership.peers.get(id).is_some_and(|peer| {
                    peer.connection.is_some() || now.saturating_sub(peer.disconnected_at) < VOTER_GRACE
                })
        };
        let connected = leadership.peers.values().filter(|peer| peer.connection.is_some());
        let own = usize::from(!leadership.peers.contains_key(&self.id));
        let wanted = match connected.clone().count() + own {
            0..=2 => 1,
            3..=4 => 3,
            _ => 5,
        };
        let wanted = wanted.min(job.terms.max_voters.max(1) as usize);
        let mut voters: BTreeMap<NodeId, String> = BTreeMap::new();
        let own_address = job.voters.get(&self.id).cloned().unwrap_or_default();
        let current = job.voters.iter().filter(|(id, _)| is_alive(id)).map(|(id, address)| (*id, address.clone()));
        let others = connected.map(|peer| (peer.node.id, peer.node.address.clone()));
        for (id, address) in [(self.id, own_address)].into_iter().chain(current).chain(others) {
            if voters.len() < wanted {
                voters.entry(id).or_insert(address);
            }
        }
        if voters.keys().eq(job.voters.keys()) {
            return false;
        }
        self.replica.propose_voters(&voters, now);
        true
    }
}

fn is_candidate(peer: &Peer, job: &Job, now: Duration) -> bool {
    peer.activity.phase == Phase::Joining
        && peer.connection.is_some()
        && peer.expiry > now
        && !job.drains.contains_key(&peer.node.id)
        && job.exclusion(&peer.node.host, now).is_none()
}

fn candidate(node: &Node, previous_rank: Option<u32>) -> Candidate {
    Candidate { previous_rank, pin: node.pin, topology: node.topology.clone() }
}

fn assignment(round: u64, rank: u32, members: &[Node]) -> Assignment {
    let master = members.first().map(|node| node.address.clone()).unwrap_or_default();
    Assignment { round, rank, world_size: members.len() as u32, master }
}
