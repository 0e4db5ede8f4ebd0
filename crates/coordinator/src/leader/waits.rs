//! What nodes wait for, and which nodes are missing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::rounds::is_candidate;
use super::{Leader, Peer, View};
use crate::message::{Phase, Reply};
use crate::node::NodeId;
use crate::roster::{Names, WaitReason};

/// The interval at which waiting nodes are told what they wait for, if it has changed.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of open ranks that are listed.
const MAX_MISSING_RANKS: usize = 100;

impl Leader {
    pub(super) fn is_notice_due(&self, view: View<'_>) -> bool {
        self.last_notice.is_none_or(|last| view.now >= last + NOTICE_INTERVAL)
    }

    /// Tells the waiting nodes what they wait for, if that has changed.
    pub(super) fn notify(&mut self, view: View<'_>) {
        // A node without a lease does not count yet.
        let has_lease = |id: &NodeId| self.peers[id].expiry > view.now;
        if !self.is_notice_due(view) || !self.queue.values().any(has_lease) {
            return;
        }
        self.last_notice = Some(view.now);
        let taken = self.taken_pins(view);
        for id in self.queue.values().copied().collect::<Vec<_>>() {
            let reason = self.wait_reason(&self.peers[&id], &taken, view);
            if let Some(peer) = self.peers.get_mut(&id)
                && reason.is_some()
                && peer.notice != reason
            {
                peer.notice.clone_from(&reason);
                self.send_to(id, Reply::Waiting(reason.expect("the reason was checked")));
            }
        }
    }

    /// Returns what a node waits for.
    pub(super) fn wait_reason(
        &self,
        peer: &Peer,
        taken: &BTreeMap<u32, NodeId>,
        view: View<'_>,
    ) -> Option<WaitReason> {
        let (job, node) = (view.job, &peer.node);
        let obstacle = self.obstacle(peer, view);
        if obstacle.is_some() {
            return obstacle;
        }
        peer.place?;
        let holder = node.pin.and_then(|pin| taken.get(&pin)).filter(|holder| **holder != node.id);
        if let Some(holder) = holder.and_then(|holder| self.peers.get(holder)) {
            return Some(WaitReason::EarlierProcess(holder.node.to_string()));
        }
        match &job.round {
            Some(round) if round.end.is_none() && self.waits_for.is_none() => {
                Some(match round.members.len() >= job.settings.max_nodes as usize {
                    true => WaitReason::Spare { max: job.settings.max_nodes },
                    false => WaitReason::NextRound(None),
                })
            }
            _ => self.waits_for.clone(),
        }
    }

    /// Returns what keeps a node itself from joining.
    fn obstacle(&self, peer: &Peer, view: View<'_>) -> Option<WaitReason> {
        let (job, host) = (view.job, &peer.node.host);
        if let Phase::Outside(reason) = &peer.activity.phase {
            return Some(WaitReason::Outside(reason.clone()));
        }
        if let Some(exclusion) = job.exclusion(host, view.time) {
            let left = exclusion.until.saturating_sub(view.time);
            return Some(WaitReason::Excluded { reason: exclusion.reason.clone(), left });
        }
        job.drains.contains_key(host).then_some(WaitReason::Drained)
    }

    /// Returns the nodes that are expected in the next round and have not joined, each with what keeps it from joining:
    /// the members of the last round, nodes that are connected, and ranks that other nodes leave open.
    pub(super) fn find_missing(&self, view: View<'_>) -> Names {
        let hosts: BTreeSet<&str> = self.peers.values().map(|peer| peer.node.host.as_str()).collect();
        let joined = self.peers.values().filter(|peer| is_candidate(peer, view));
        let joined: BTreeSet<&str> = joined.map(|peer| peer.node.host.as_str()).collect();
        let round = view.job.round.as_ref();
        let departed = round.into_iter().flat_map(|round| {
            let nodes = round.departed.iter().map(|(id, departed)| (&round.members[id].node, departed.how));
            nodes.filter(|(node, _)| !hosts.contains(node.host.as_str()))
        });
        let departed = departed.map(|(node, how)| format!("{node} {how}"));
        let connected = self.peers.values().filter_map(|peer| {
            let why = match self.obstacle(peer, view) {
                Some(WaitReason::Outside(reason)) => format!("stays outside: {reason}"),
                Some(WaitReason::Excluded { reason, .. }) => format!("is excluded: {reason}"),
                Some(WaitReason::Drained) => "is drained".into(),
                _ if joined.contains(peer.node.host.as_str()) || peer.connection.is_some() => return None,
                _ => "is not connected".into(),
            };
            Some(format!("{} {why}", peer.node))
        });
        let ranks = self.missing_ranks(view).into_iter().map(|rank| format!("no node has rank {rank}"));
        departed.chain(connected).chain(ranks).collect()
    }

    /// Returns the first ranks that no node has pinned, if all nodes of a job of fixed size pin their ranks.
    pub(super) fn missing_ranks(&self, view: View<'_>) -> Vec<u32> {
        let pins: Option<BTreeSet<u32>> = self.peers.values().map(|peer| peer.node.pin).collect();
        let settings = &view.job.settings;
        match pins.filter(|pins| settings.is_fixed_size() && !pins.is_empty()) {
            Some(pins) => {
                let ranks = (0..settings.max_nodes).filter(|rank| !pins.contains(rank));
                ranks.take(MAX_MISSING_RANKS).collect()
            }
            None => Vec::new(),
        }
    }
}
