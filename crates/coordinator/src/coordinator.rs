//! The coordinator of one job on one process: a replica and, while it leads, the nodes that it serves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use raft::prelude::ConfChangeType;

use crate::job::{Decision, Job};
use crate::leader::{Connection, Leader, Output, View};
use crate::message::{Announcement, Command, GroupId, Hello, NotServed, Reply, Request};
use crate::node::NodeId;
use crate::raft_message::RaftMessage;
use crate::replica::Replica;

/// How long a replica may be without a connection to the leader before another node takes its place.
const REPLICA_GRACE: Duration = Duration::from_secs(1);
/// How long a new replica may take to get the log before another node is tried.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a node that did not get the log in time is no candidate for a replica.
const UNSUITABLE_TIMEOUT: Duration = Duration::from_secs(30);
/// If the process of the leader has ended, the voters start elections at this interval, so that they don't compete.
const ELECTION_STAGGER: Duration = Duration::from_millis(150);

/// The coordinator of one job on one process.
pub struct Coordinator {
    group: GroupId,
    address: String,
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
    outputs: VecDeque<Output>,
}

impl Coordinator {
    /// Creates a coordinator with a replica.
    pub fn new(group: GroupId, address: &str, replica: Replica) -> Coordinator {
        Coordinator {
            group,
            address: address.to_owned(),
            replica,
            leader: None,
            ended: BTreeSet::new(),
            ended_leader: None,
            catching_up: BTreeMap::new(),
            unsuitable: BTreeMap::new(),
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
        }
    }

    /// Calls a method of the leader, if this coordinator leads.
    fn with_leader(&mut self, now: Duration, call: impl FnOnce(&mut Leader, View<'_>)) {
        let Some(mut leader) = self.leader.take() else { return };
        call(&mut leader, self.view(now));
        self.leader = Some(leader);
        self.collect(now);
    }

    // ---- events ----

    /// Handles the first message of a node on a connection.
    pub fn handle_hello(&mut self, connection: Connection, hello: Hello, now: Duration) {
        match self.leader {
            Some(_) => self.with_leader(now, |leader, view| leader.handle_hello(connection, hello, view)),
            None => self.redirect(connection),
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
        let voters = self.replica.voters();
        if voters.contains(&node) && self.replica.leader().is_none_or(|leader| leader == node) {
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
            return self.redirect(connection);
        }
        let (term, voters) = (self.replica.term(), self.replica.voters());
        let address = self.address.clone();
        let mut reply = None;
        self.with_leader(now, |leader, view| {
            reply = Some(match command {
                Command::Roster => Reply::Roster(Box::new(leader.roster(term, &address, &voters, view))),
                Command::ForceQuorum => Reply::Done("the job has a leader with a quorum already".into()),
                command => Reply::Done(leader.handle_command(command)),
            });
        });
        self.outputs.extend(reply.map(|reply| Output::Send(connection, reply)));
    }

    fn redirect(&mut self, connection: Connection) {
        let replicas = &self.job().replicas;
        let leader = self.replica.leader().and_then(|leader| replicas.get(&leader)).cloned();
        let (addresses, why) = match leader.filter(|leader| *leader != self.address) {
            Some(leader) => (vec![leader], NotServed::NotLeader),
            None => {
                let voters: Vec<String> = replicas.values().cloned().collect();
                (voters.clone(), NotServed::NoQuorum { voters })
            }
        };
        self.outputs.push_back(Output::Send(connection, Reply::Redirect { addresses, why }));
    }

    // ---- decisions ----

    /// Takes all decisions that are due.
    fn advance(&mut self, now: Duration) {
        match (self.replica.is_leader(), self.leader.take()) {
            (true, None) => self.leader = Some(Leader::new(self.view(now))),
            (false, Some(leader)) => {
                for connection in leader.into_connections() {
                    self.redirect(connection);
                }
                self.catching_up.clear();
            }
            (_, leader) => self.leader = leader,
        }
        let ended = std::mem::take(&mut self.ended);
        self.with_leader(now, |leader, view| {
            leader.handle_ended(&ended, view);
            leader.publish(view);
        });
        let is_due = self.leader.as_ref().is_some_and(|leader| leader.is_evaluation_due(now));
        if is_due && self.replica.is_settled() && !self.change_replicas(now) {
            let mut decision = None;
            self.with_leader(now, |leader, view| decision = leader.evaluate(view));
            if let Some(decision) = decision {
                self.replica.propose(decision, now);
                self.with_leader(now, Leader::publish);
            }
        }
        self.collect(now);
    }

    /// Proposes the decisions of the leader, and collects its outputs.
    fn collect(&mut self, now: Duration) {
        let Some(leader) = &mut self.leader else { return };
        self.outputs.extend(std::iter::from_fn(|| leader.poll_output()));
        while let Some(decision) = leader.poll_proposal() {
            self.replica.propose(decision, now);
        }
    }

    // ---- replicas ----

    /// Proposes a change of the replicas if the current ones do not fit the connected nodes. Returns whether it has
    /// proposed something.
    ///
    /// A new replica gets the log before it may vote. So a node that the leader can't reach never blocks the group.
    fn change_replicas(&mut self, now: Duration) -> bool {
        let Some(wanted) = self.wanted_replicas(now) else { return false };
        let (voters, learners) = (self.replica.voters(), self.replica.learners());
        let id = self.replica.id();
        let is_ready = |id: &NodeId| voters.contains(id) || self.replica.is_up_to_date(*id);
        let mut changes: Vec<(NodeId, ConfChangeType)> = Vec::new();
        if wanted.keys().all(is_ready) {
            changes.extend(
                wanted.keys().filter(|id| !voters.contains(id)).map(|id| (*id, ConfChangeType::AddNode)),
            );
            let unwanted = voters.iter().filter(|voter| !wanted.contains_key(voter));
            changes
                .extend(unwanted.filter(|voter| **voter != id).map(|id| (*id, ConfChangeType::RemoveNode)));
        } else {
            let is_new = |id: &&NodeId| !voters.contains(id) && !learners.contains(id);
            changes.extend(wanted.keys().filter(is_new).map(|id| (*id, ConfChangeType::AddLearnerNode)));
        }
        let unwanted = learners.iter().filter(|learner| !wanted.contains_key(learner));
        changes.extend(unwanted.map(|id| (*id, ConfChangeType::RemoveNode)));
        // A replica that has the log falls behind for a moment with each entry, which is no reason to replace it.
        self.catching_up.retain(|id, _| wanted.contains_key(id) && !is_ready(id));
        for id in wanted.keys().filter(|id| !is_ready(id)) {
            self.catching_up.entry(*id).or_insert(now);
        }
        let mut addresses = self.job().replicas.clone();
        addresses.retain(|id, _| voters.contains(id) || learners.contains(id) || wanted.contains_key(id));
        addresses.extend(wanted.clone());
        if addresses != self.job().replicas {
            self.replica.propose(Decision::Replicas(addresses), now);
            return true;
        }
        if !changes.is_empty() {
            self.replica.propose_configuration(&changes, now);
            return true;
        }
        // A leader that is not a node of the job makes way for one that is.
        if let Some(other) = wanted.keys().find(|_| !wanted.contains_key(&id)) {
            self.replica.transfer_leadership(*other, now);
        }
        false
    }

    /// Returns the replicas that should vote: one with up to two processes, three with up to four, else five.
    fn wanted_replicas(&mut self, now: Duration) -> Option<BTreeMap<NodeId, String>> {
        let leader = self.leader.as_ref()?;
        let id = self.replica.id();
        let late = self
            .catching_up
            .iter()
            .filter(|(id, since)| now >= **since + CATCH_UP_TIMEOUT && !self.replica.is_up_to_date(**id));
        let late: Vec<NodeId> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.catching_up.remove(&id);
            self.unsuitable.insert(id, now);
        }
        self.unsuitable.retain(|_, since| now < *since + UNSUITABLE_TIMEOUT);
        let is_node = leader.peers.contains_key(&id);
        let is_alive = |id: &NodeId| {
            let peer = leader.peers.get(id);
            peer.is_some_and(|peer| peer.connection.is_some() || now < peer.since + REPLICA_GRACE)
        };
        let suitable = || {
            let peers = leader.peers.values().filter(|peer| peer.connection.is_some());
            peers.filter(|peer| !self.unsuitable.contains_key(&peer.node.id))
        };
        let is_suitable = |id: &&NodeId| is_alive(id) && !self.unsuitable.contains_key(id);
        let processes = leader.peers.keys().filter(is_suitable).count() + usize::from(!is_node);
        let count = match processes {
            0..=2 => 1,
            3..=4 => 3,
            _ => 5,
        };
        let count = count.min(self.job().settings.max_voters.max(1) as usize);
        let own = (id, self.address.clone());
        let current = self.job().replicas.iter().filter(|(id, _)| is_alive(id));
        let current = current.filter(|(id, _)| !self.unsuitable.contains_key(id));
        let others = suitable().map(|peer| (peer.node.id, peer.node.address.clone()));
        // A process that is not a node, such as a separate server, is chosen last.
        let (first, last) = if is_node { (Some(own), None) } else { (None, Some(own)) };
        let ordered =
            first.into_iter().chain(current.map(|(id, address)| (*id, address.clone()))).chain(others);
        let mut wanted = BTreeMap::new();
        for (id, address) in ordered.chain(last) {
            if wanted.len() < count {
                wanted.entry(id).or_insert(address);
            }
        }
        Some(wanted)
    }
}
