//! Decides which nodes have the replicas, and which replica leads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use raft::prelude::ConfChangeType;

use super::Coordinator;
use crate::job::{Decision, Departure};
use crate::leader::Peer;
use crate::node::NodeId;

/// How long a replica may be without a connection to the leader before another node takes its place.
const REPLICA_GRACE: Duration = Duration::from_secs(1);
/// How long a new replica may take to get the log before another node is tried.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a node that did not get the log in time is no candidate for a replica.
const UNSUITABLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which a leader that is not wanted tries to hand over. Each try takes up to 2 s, in which the leader
/// decides nothing.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(4);

impl Coordinator {
    /// Changes the replicas, or the leader, if the current ones do not fit the connected nodes. Returns whether a change
    /// was started.
    ///
    /// A new replica gets the log before it may vote, so a node that the leader can't reach never blocks the group. A
    /// leader that is not wanted hands over first, and its successor removes it.
    pub(super) fn change_replicas(&mut self, now: Duration) -> bool {
        let Some(wanted) = self.wanted_replicas(now) else { return false };
        let (voters, learners) = (self.replica.voters(), self.replica.learners());
        let id = self.replica.id();
        self.unwanted = voters.union(&learners).copied().filter(|id| !wanted.contains_key(id)).collect();
        let may_hand_over = self.last_hand_over.is_none_or(|last| now >= last + HAND_OVER_INTERVAL);
        if !wanted.contains_key(&id)
            && may_hand_over
            && self.replica.hand_over(|voter| wanted.contains_key(&voter), now)
        {
            self.last_hand_over = Some(now);
            return true;
        }
        let is_ready = |id: &NodeId| voters.contains(id) || self.replica.is_up_to_date(*id);
        let mut changes: Vec<(NodeId, ConfChangeType)> = Vec::new();
        if wanted.keys().all(is_ready) {
            let new = wanted.keys().filter(|id| !voters.contains(id));
            changes.extend(new.map(|id| (*id, ConfChangeType::AddNode)));
            let old = self.unwanted.iter().filter(|voter| **voter != id);
            changes.extend(old.map(|id| (*id, ConfChangeType::RemoveNode)));
        } else {
            let is_new = |id: &&NodeId| !voters.contains(id) && !learners.contains(id);
            changes.extend(wanted.keys().filter(is_new).map(|id| (*id, ConfChangeType::AddLearnerNode)));
            let old = learners.intersection(&self.unwanted);
            changes.extend(old.map(|id| (*id, ConfChangeType::RemoveNode)));
        }
        // A replica that has the log falls behind for a moment with each entry, which is no reason to replace it.
        self.catching_up.retain(|id, _| wanted.contains_key(id) && !is_ready(id));
        for id in wanted.keys().filter(|id| !is_ready(id)) {
            self.catching_up.entry(*id).or_insert(now);
        }
        let mut addresses = self.job().replicas.clone();
        addresses.retain(|id, _| voters.contains(id) || learners.contains(id) || wanted.contains_key(id));
        addresses.extend(wanted);
        if addresses != self.job().replicas {
            self.replica.propose(Decision::Replicas(addresses), now);
            return true;
        }
        if !changes.is_empty() {
            self.replica.propose_configuration(&changes, now);
        }
        !changes.is_empty()
    }

    /// Returns the replicas that should vote: one with up to two processes, three with up to four, else five.
    fn wanted_replicas(&mut self, now: Duration) -> Option<BTreeMap<NodeId, String>> {
        self.find_unsuitable(now);
        let leader = self.leader.as_ref()?;
        let id = self.replica.id();
        let job = self.job();
        let leaves =
            |peer: &Peer| peer.departure == Some(Departure::Left) || job.drains.contains_key(&peer.node.host);
        // This process runs, even if the leader has lost the connection to its node.
        let is_leaving = leader.peers.get(&id).is_some_and(leaves);
        let is_suitable = |peer: &&Peer| {
            let is_alive = peer.connection.is_some() || now < peer.since + REPLICA_GRACE;
            let is_candidate = is_alive && peer.departure.is_none() && !leaves(peer);
            is_candidate && peer.node.id != id && !self.unsuitable.contains_key(&peer.node.id)
        };
        let suitable: BTreeMap<NodeId, &Peer> =
            leader.peers.values().filter(is_suitable).map(|peer| (peer.node.id, peer)).collect();
        let count = match suitable.len() + usize::from(!is_leaving) {
            0..=2 => 1,
            3..=4 => 3,
            _ => 5,
        };
        let count = count.min(job.settings.max_voters.max(1) as usize);
        let own = (id, self.address.clone());
        let current = job.replicas.iter().filter(|(id, _)| suitable.contains_key(id));
        let current = current.map(|(id, address)| (*id, address.clone()));
        let others = suitable.values().filter(|peer| peer.connection.is_some());
        let others = others.map(|peer| (peer.node.id, peer.node.address.clone()));
        // A process that leaves, or that is not a node, such as a separate server, is chosen last. A separate server that is
        // the single authority stays.
        let is_first = if self.is_node { !is_leaving } else { job.settings.max_voters <= 1 };
        let (first, last) = if is_first { (Some(own), None) } else { (None, Some(own)) };
        let mut wanted = BTreeMap::new();
        for (id, address) in first.into_iter().chain(current).chain(others).chain(last) {
            if wanted.len() == count {
                break;
            }
            wanted.entry(id).or_insert(address);
        }
        Some(wanted)
    }

    /// Records the nodes that did not get the log in time.
    fn find_unsuitable(&mut self, now: Duration) {
        let is_late = |(id, since): &(&NodeId, &Duration)| {
            now >= **since + CATCH_UP_TIMEOUT && !self.replica.is_up_to_date(**id)
        };
        let late: BTreeSet<NodeId> = self.catching_up.iter().filter(is_late).map(|(id, _)| *id).collect();
        self.catching_up.retain(|id, _| !late.contains(id));
        self.unsuitable.extend(late.into_iter().map(|id| (id, now)));
        self.unsuitable.retain(|_, since| now < *since + UNSUITABLE_TIMEOUT);
    }
}
