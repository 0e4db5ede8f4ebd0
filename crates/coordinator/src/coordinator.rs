//! The coordinator of one job on one process: a replica and, while it leads, the nodes that it serves.

mod replicas;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::job::Job;
use crate::leader::{Connection, Leader, Output, View};
use crate::message::{Announcement, Command, GroupId, Hello, Reply, Request};
use crate::node::NodeId;
use crate::raft_message::RaftMessage;
use crate::replica::Replica;

/// If the process of the leader has ended, the voters start elections at this interval, so that they don't compete.
const ELECTION_STAGGER: Duration = Duration::from_millis(150);

/// The coordinator of one job on one process.
pub struct Coordinator {
    group: GroupId,
    address: String,
    /// Whether this process is a node of the job, rather than a separate server.
    is_node: bool,
    replica: Replica,
    leader: Option<Leader>,
    /// Nodes whose processes have ended, according to a probe.
    ended: BTreeSet<NodeId>,
    /// The leader, if its process has ended, and the time at which this replica starts an election.
    ended_leader: Option<(NodeId, Duration)>,
    /// The replicas that do not have the log yet, and since when.
    catching_up: BTreeMap<NodeId, Duration>,
    /// The nodes that did not get the log in time, and when that was.
    unsuitable: BTreeMap<NodeId, Duration>,
    /// The replicas that others are about to replace.
    unwanted: BTreeSet<NodeId>,
    last_hand_over: Option<Duration>,
    /// Whether the last decision was a change of the replicas.
    has_changed_replicas: bool,
    outputs: VecDeque<Output>,
}

impl Coordinator {
    /// Creates a coordinator with a replica.
    pub fn new(group: GroupId, address: &str, is_node: bool, replica: Replica) -> Coordinator {
        Coordinator {
            group,
            address: address.to_owned(),
            is_node,
            replica,
            leader: None,
            ended: BTreeSet::new(),
            ended_leader: None,
            catching_up: BTreeMap::new(),
            unsuitable: BTreeMap::new(),
            unwanted: BTreeSet::new(),
            last_hand_over: None,
            has_changed_replicas: false,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Returns the replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Returns the job after the applied entries.
    pub fn job(&self) -> &Job {
        self.replica.job()
    }

    /// Returns whether this coordinator leads the job.
    pub fn is_leader(&self) -> bool {
        self.leader.is_some()
    }

    /// Returns when the lease of each node ends, if this coordinator leads the job.
    pub fn leases(&self) -> impl Iterator<Item = (NodeId, Duration)> {
        let peers = self.leader.iter().flat_map(|leader| &leader.peers);
        peers.map(|(id, peer)| (*id, peer.expiry))
    }

    /// Returns whether this group has neither a node nor another voter, and has decided nothing.
    pub(crate) fn is_unused(&self) -> bool {
        let has_peers = self.leader.as_ref().is_none_or(|leader| !leader.peers.is_empty());
        let job = self.job();
        !has_peers && job.round.is_none() && job.closed.is_none() && self.replica.voters().len() == 1
    }

    /// Returns the connections of the nodes that this leader serves.
    pub(crate) fn into_connections(self) -> impl Iterator<Item = Connection> {
        self.leader.into_iter().flat_map(Leader::into_connections)
    }

    /// Returns what this leader announces to endpoints that are not in its group.
    pub fn announcement(&self, now: Duration) -> Announcement {
        Announcement {
            group: self.group,
            leader: self.address.clone(),
            has_round: self.job().round.is_some(),
            forced: self.job().forced,
            age: self.replica.job_time(now),
        }
    }

    /// Returns the next output.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the next message for another replica, with the address of that replica.
    pub fn poll_message(&mut self) -> Option<(String, RaftMessage)> {
        self.replica.poll_message()
    }

    /// Returns when [`handle_timeout`](Coordinator::handle_timeout) is due.
    pub fn next_timeout(&self) -> Duration {
        let tick = self.replica.next_timeout();
        let leader = self.leader.as_ref().filter(|_| self.replica.is_settled());
        let evaluation = leader.and_then(Leader::next_evaluation);
        let election = self.ended_leader.map(|(_, time)| time);
        [evaluation, election].into_iter().flatten().fold(tick, Duration::min)
    }

    fn view(&self, now: Duration) -> View<'_> {
        View {
            job: self.replica.job(),
            group: self.group,
            time: self.replica.job_time(now),
            now,
            quorum_contact: self.replica.quorum_contact(),
            unwanted: &self.unwanted,
        }
    }

    /// Calls a method of the leader, if this coordinator leads.
    fn with_leader(&mut self, now: Duration, call: impl FnOnce(&mut Leader, View<'_>)) {
        let Some(mut leader) = self.leader.take() else { return };
        call(&mut leader, self.view(now));
        self.leader = Some(leader);
        self.collect();
    }

    // ---- events ----

    /// Handles the first message of a node on a connection.
    pub fn handle_hello(&mut self, connection: Connection, hello: Hello, now: Duration) {
        match self.leader {
            Some(_) => self.with_leader(now, |leader, view| leader.handle_hello(connection, hello, view)),
            None => self.outputs.push_back(Output::Redirect(connection)),
        }
    }

    /// Handles a request of a node.
    pub fn handle_request(&mut self, connection: Connection, request: Request, now: Duration) {
        self.with_leader(now, |leader, view| leader.handle_request(connection, request, view));
    }

    /// Handles a closed connection of a node.
    pub fn handle_close(&mut self, connection: Connection, now: Duration) {
        self.with_leader(now, |leader, view| leader.handle_close(connection, view));
    }

    /// Handles the result of a probe: the process of a node has ended.
    pub fn handle_ended(&mut self, node: NodeId, now: Duration) {
        self.ended.insert(node);
        if self.replica.may_replace(node) {
            let voters = self.replica.voters();
            let place = voters.iter().filter(|voter| **voter != node && **voter < self.replica.id()).count();
            self.ended_leader = Some((node, now + ELECTION_STAGGER * place as u32));
        }
    }

    /// Handles a message of another replica.
    pub fn handle_raft(&mut self, from: &str, message: RaftMessage, now: Duration) {
        self.replica.handle_message(from, message, now);
        self.advance(now);
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Duration) {
        let has_ticked = self.replica.handle_timeout(now);
        if has_ticked {
            self.with_leader(now, Leader::check_leases);
        }
        if let Some((leader, _)) = self.ended_leader.filter(|(_, time)| *time <= now) {
            self.ended_leader = None;
            self.replica.replace_ended_leader(leader, now);
        }
        self.advance(now);
    }

    /// Handles a command of an operator.
    pub fn handle_command(&mut self, connection: Connection, command: Command, now: Duration) {
        if self.leader.is_none() {
            return self.outputs.push_back(Output::Redirect(connection));
        }
        let (term, voters) = (self.replica.term(), self.replica.voters());
        let address = self.address.clone();
        let mut reply = None;
        self.with_leader(now, |leader, view| {
            reply = Some(match command {
                Command::Roster => Reply::Roster(Box::new(leader.roster(term, &address, &voters, view))),
                command => leader.handle_command(command),
            });
        });
        self.outputs.extend(reply.map(|reply| Output::Send(connection, reply)));
    }

    /// Returns the addresses at which another replica may lead, and whether this replica follows a leader.
    pub(crate) fn other_replicas(&self) -> (Option<String>, Vec<String>) {
        let replicas = &self.job().replicas;
        let leader = self.replica.leader().and_then(|leader| replicas.get(&leader)).cloned();
        (leader.filter(|leader| *leader != self.address), replicas.values().cloned().collect())
    }

    // ---- decisions ----

    /// Takes all decisions that are due.
    fn advance(&mut self, now: Duration) {
        match (self.replica.is_leader(), self.leader.take()) {
            (true, None) => self.leader = Some(Leader::new(self.view(now))),
            (false, Some(leader)) => {
                self.outputs.extend(leader.into_connections().map(Output::Redirect));
                self.catching_up.clear();
            }
            (_, leader) => self.leader = leader,
        }
        let ended = std::mem::take(&mut self.ended);
        self.with_leader(now, |leader, view| {
            leader.handle_ended(&ended);
            leader.publish(view);
        });
        let is_due = self.leader.as_ref().is_some_and(|leader| leader.is_evaluation_due(now));
        if is_due && self.replica.is_settled() {
            // Changes of replicas that do not succeed must not keep the leader from other decisions.
            self.has_changed_replicas = !self.has_changed_replicas && self.change_replicas(now);
            if self.has_changed_replicas {
                return self.collect();
            }
            let mut decision = None;
            self.with_leader(now, |leader, view| decision = leader.evaluate(view));
            if let Some(decision) = decision {
                self.replica.propose(decision, now);
                self.with_leader(now, Leader::publish);
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        let Some(leader) = &mut self.leader else { return };
        self.outputs.extend(std::iter::from_fn(|| leader.poll_output()));
    }
}
