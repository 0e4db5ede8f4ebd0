//! Grants leases and judges them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Connection, Leader, Peer, View};
use crate::job::{Departure, Round};
use crate::message::{NotServed, Phase, Refusal, Reply};
use crate::node::NodeId;

/// A leader whose checks of leases are further apart than this was suspended.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a leader that was suspended reads before it judges leases again.
const RESUME_GRACE: Duration = Duration::from_secs(1);

impl Leader {
    /// Renews a lease. A lease never outlasts the last contact to a quorum by more than its length, and a node whose
    /// workers do not belong to the running round gets none.
    pub(super) fn handle_heartbeat(
        &mut self,
        connection: Connection,
        id: NodeId,
        number: u64,
        view: View<'_>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.last_heartbeat = Some(view.now);
        let round = view.job.round.as_ref();
        let is_member = round.is_some_and(|round| {
            round.present_member(id).is_some() && peer.activity.last_round == Some(round.number)
        });
        if matches!(peer.activity.phase, Phase::Working | Phase::Finished) && !is_member {
            return;
        }
        // A new leader has no contact yet. The node sends further heartbeats.
        let Some(contact) = view.quorum_contact else { return };
        let expiry = contact + view.job.settings.lease;
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
            let is_over = match round.is_some_and(|round| round.present_member(*id).is_some()) {
                true => peer.expiry <= view.now,
                // A host that has lost power does not close its connections.
                false => {
                    let since =
                        if peer.connection.is_some() { peer.since.max(peer.expiry) } else { peer.since };
                    view.now >= since + settings.reconnect_grace
                }
            };
            is_over.then_some(*id)
        };
        let over: Vec<NodeId> = self.peers.iter().filter_map(is_over).collect();
        over.into_iter().for_each(|id| self.depart(id, Departure::Expired(settings.lease)));
        self.refuse_pins(view);
        // Some decisions become due as time passes.
        self.is_changed = true;
    }

    /// Refuses nodes that pin the rank of another node which is alive. A node that was restarted is not refused because
    /// of its earlier process, because that sends no heartbeats any more.
    fn refuse_pins(&mut self, view: View<'_>) {
        let interval = view.job.settings.heartbeat_interval();
        let mut taken = self.taken_pins(view);
        let mut refused = Vec::new();
        for id in self.queue.values() {
            let peer = &self.peers[id];
            let (Some(rank), Some(connection)) = (peer.node.pin, peer.connection) else { continue };
            let holder = taken.entry(rank).or_insert(*id);
            let holder = self.peers.get(holder).filter(|holder| holder.node.id != *id);
            let is_alive = |holder: &&Peer| holder.last_heartbeat >= Some(peer.since + 2 * interval);
            if let Some(holder) = holder.filter(is_alive) {
                let (node, other) = (peer.node.to_string(), holder.node.to_string());
                refused.push((*id, connection, Refusal::Pinned { rank, node, other }));
            }
        }
        for (id, connection, refusal) in refused {
            self.send(connection, Reply::Refused(refusal));
            self.forget(id);
        }
    }

    /// Returns the pinned ranks of the members of the last round, which their nodes keep until they depart.
    pub(super) fn taken_pins(&self, view: View<'_>) -> BTreeMap<u32, NodeId> {
        let members = view.job.round.iter().flat_map(Round::present);
        members.filter_map(|member| Some((member.node.pin?, member.node.id))).collect()
    }
}
