//! The typed snapshot of a job.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Leader, Peer, View};
use crate::node::{Node, NodeId};
use crate::roster::{Roster, RosterNode, RosterRound};

impl Leader {
    /// Returns a snapshot of the job.
    pub(crate) fn roster(
        &self,
        term: u64,
        leader: &str,
        voters: &BTreeSet<NodeId>,
        view: View<'_>,
    ) -> Roster {
        let job = view.job;
        let taken = self.taken_pins(view);
        let members = job.round.iter().flat_map(|round| round.members.values());
        let mut nodes: Vec<(Option<u32>, RosterNode)> = Vec::new();
        let describe = |node: &Node, rank: Option<u32>| {
            let peer = self.peers.get(&node.id);
            let departed = job.round.as_ref().and_then(|round| round.departed.get(&node.id));
            let departed = departed.filter(|_| rank.is_some());
            let age = |time: Duration| view.now.saturating_sub(time);
            let departed_for =
                departed.map_or(Duration::ZERO, |departed| view.time.saturating_sub(departed.time));
            RosterNode {
                node: node.clone(),
                rank,
                phase: peer.map(|peer| peer.activity.phase.clone()),
                departure: departed.map(|departed| departed.how),
                since: peer.map_or(departed_for, |peer| age(peer.since)),
                is_connected: peer.is_some_and(|peer| peer.connection.is_some()),
                heartbeat_age: peer.and_then(|peer| peer.last_heartbeat).map(age),
                lease_left: peer.map_or(Duration::ZERO, |peer| peer.expiry.saturating_sub(view.now)),
                waits_for: peer.and_then(|peer| self.wait_reason(peer, &taken, view)),
            }
        };
        nodes.extend(members.map(|member| (Some(member.rank), describe(&member.node, Some(member.rank)))));
        nodes.sort_by_key(|(rank, _)| *rank);
        let is_member = |id: &NodeId| job.round.as_ref().is_some_and(|round| round.members.contains_key(id));
        let mut others: Vec<&Peer> = self.peers.values().filter(|peer| !is_member(&peer.node.id)).collect();
        others.sort_by_key(|peer| (peer.place.is_none(), peer.place));
        let others = others.into_iter().map(|peer| describe(&peer.node, None));
        let time_left = |until: Duration| until.saturating_sub(view.time);
        let exclusions = job.exclusions.iter().filter(|(_, exclusion)| exclusion.until > view.time);
        Roster {
            group: view.group,
            term,
            leader: leader.to_owned(),
            voters: voters.iter().filter_map(|id| job.replicas.get(id).cloned()).collect(),
            settings: job.settings.clone(),
            round: job.round.as_ref().map(|round| RosterRound {
                number: round.number,
                world_size: round.members.len() as u32,
                end: round.end.clone(),
            }),
            waits_for: self.waits_for.clone(),
            nodes: nodes.into_iter().map(|(_, node)| node).chain(others).collect(),
            missing_ranks: self.missing_ranks(view),
            closed: job.closed.clone(),
            restarts: job.restarts.clone(),
            exclusions: exclusions
                .map(|(host, exclusion)| {
                    (host.clone(), (exclusion.reason.clone(), time_left(exclusion.until)))
                })
                .collect(),
        }
    }
}
