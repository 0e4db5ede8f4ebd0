//! Decides when a round ends and when the next one starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Leader, NOTICE_INTERVAL, Peer, View};
use crate::job::{Cause, Closing, Decision, Departure, Job, Round};
use crate::message::{Phase, Reply};
use crate::node::{Node, NodeId};
use crate::plan::{Candidate, Shortage, plan};
use crate::roster::{Names, Roster, RosterNode, RosterRound, WaitReason};
use crate::settings::ScaleUp;

impl Leader {
    /// Takes the next decision, if one is due. All earlier decisions must have been applied.
    pub(crate) fn evaluate(&mut self, view: View<'_>) -> Option<Decision> {
        (self.last_evaluation, self.is_changed) = (view.now, false);
        if view.job.closed.is_some() {
            return None;
        }
        let decision = match self.closing.take() {
            Some(closing) => Some(Decision::Close(closing)),
            None => match &view.job.round {
                Some(round) if round.end.is_none() => self.end(round, view),
                _ => self.start(view),
            },
        };
        self.notify(view);
        decision
    }

    // ---- the end of a round ----

    /// Returns the decision that ends the running round, if it has to end.
    fn end(&mut self, round: &Round, view: View<'_>) -> Option<Decision> {
        if self.has_finished(round) {
            let (author, time) = ("the coordinator".into(), String::new());
            let reason = format!("the workers of all nodes have finished round {}", round.number);
            return Some(Decision::Close(Closing { author, time, reason, has_finished: true }));
        }
        let cause = self.cause(round, view)?;
        if view.job.is_budget_used(cause.kind()) {
            let reason = format!("--job-max-restarts is used up, and {cause}");
            let (author, time) = ("the coordinator".into(), String::new());
            return Some(Decision::Close(Closing { author, time, reason, has_finished: false }));
        }
        if let Some(exclusion) = self.exclusion(&cause, view) {
            self.proposals.push_back(exclusion);
        }
        Some(Decision::End { round: round.number, cause })
    }

    /// Returns whether the workers of all nodes of the running round have finished.
    fn has_finished(&self, round: &Round) -> bool {
        round.members.keys().all(|id| match round.departed.get(id) {
            Some(how) => *how == Departure::Finished,
            None => self.peers.get(id).is_some_and(|peer| peer.activity.phase == Phase::Finished),
        })
    }

    fn cause(&mut self, round: &Round, view: View<'_>) -> Option<Cause> {
        let job = view.job;
        let requested = self.causes.drain(..).find(|(number, _)| *number == round.number);
        if let Some((_, cause)) = requested {
            return Some(cause);
        }
        if let Some((id, how)) = round.departed.iter().find(|(_, how)| **how != Departure::Finished) {
            return Some(Cause::NodeLost { node: round.members[id].node.clone(), how: *how });
        }
        let present = || round.present().map(|member| &member.node);
        if !job.drains.is_empty() {
            let is_due = |until: &Option<Duration>| until.is_some_and(|until| until <= view.time);
            if let Some(node) = present().find(|node| job.drains.get(&node.host).is_some_and(is_due)) {
                return Some(Cause::Drained { node: node.clone() });
            }
        }
        if !job.exclusions.is_empty() {
            let excluded = |node: &&Node| job.exclusion(&node.host, view.time).is_some();
            if let Some(node) = present().find(excluded) {
                let reason = job.exclusions[&node.host].reason.clone();
                return Some(Cause::Excluded { node: node.clone(), reason });
            }
        }
        self.growth(round, view)
    }

    /// Returns the cause that ends the round so that waiting nodes can join, if the delay for that is over.
    fn growth(&mut self, round: &Round, view: View<'_>) -> Option<Cause> {
        let settings = &view.job.settings;
        self.waits_for = None;
        let ScaleUp::After(delay) = settings.scale_up else { return None };
        let waiting = self.candidates(view);
        let waiting: Vec<&Peer> =
            waiting.into_iter().filter(|peer| round.present_member(peer.node.id).is_none()).collect();
        // The next round would repeat the work of nodes that have finished.
        let is_finishing = self.peers.values().any(|peer| peer.activity.phase == Phase::Finished);
        if waiting.is_empty() || is_finishing || round.members.len() >= settings.max_nodes as usize {
            self.growth_since = None;
            return None;
        }
        let members = round.members.values().map(|member| candidate(&member.node, Some(member.rank)));
        let candidates: Vec<_> =
            members.chain(waiting.iter().map(|peer| candidate(&peer.node, None))).collect();
        let size = plan(&candidates, settings).map_or(0, |ranks| ranks.len());
        if size <= round.members.len() {
            self.growth_since = None;
            return None;
        }
        let is_returning = waiting.iter().any(|peer| view.job.hosts.contains(&peer.node.host));
        let count = waiting.len() as u32;
        let since = *self.growth_since.get_or_insert(view.now);
        let left = if is_returning { Duration::ZERO } else { (since + delay).saturating_sub(view.now) };
        self.waits_for = Some(WaitReason::NextRound(Some(left)));
        left.is_zero().then_some(Cause::Growth { waiting: count })
    }

    /// Returns the decision that excludes the host of a failed worker, if the host has failed too often and the job has
    /// enough other nodes.
    fn exclusion(&self, cause: &Cause, view: View<'_>) -> Option<Decision> {
        let Cause::WorkerFailed { node, .. } = cause else { return None };
        let settings = &view.job.settings;
        let is_recent = |time: &&Duration| view.time.saturating_sub(**time) < settings.exclude_window;
        let earlier =
            view.job.failures.get(&node.host).map_or(0, |times| times.iter().filter(is_recent).count());
        let failures = earlier as u32 + 1;
        let others = self.peers.values().filter(|peer| {
            peer.connection.is_some()
                && peer.node.host != node.host
                && view.job.exclusion(&peer.node.host, view.time).is_none()
        });
        let is_excluded = settings.exclude_after > 0
            && failures >= settings.exclude_after
            && others.count() >= settings.min_nodes as usize;
        is_excluded.then(|| Decision::Exclude {
            host: node.host.clone(),
            time: settings.exclude_time,
            reason: format!(
                "its workers failed {failures} times within {} s",
                settings.exclude_window.as_secs()
            ),
        })
    }

    // ---- the start of a round ----

    /// Returns the decision that starts the next round, if it can start.
    ///
    /// The members of the last round must have stopped their workers or departed. A node that asks to join has no
    /// workers, so its request is its acknowledgment that the next round may start.
    fn start(&mut self, view: View<'_>) -> Option<Decision> {
        let job = view.job;
        let mut returning = Vec::new();
        let mut previous: BTreeMap<NodeId, u32> = BTreeMap::new();
        if let Some(round) = &job.round {
            let mut running = Vec::new();
            for member in round.present() {
                let id = member.node.id;
                previous.insert(id, member.rank);
                match self.peers.get(&id) {
                    Some(peer) if peer.has_stopped(round.number) => {
                        if !peer.is_joining() && !is_leaving(&member.node, view) {
                            returning.push(&member.node);
                        }
                    }
                    _ => running.push(&member.node),
                }
            }
            if !running.is_empty() {
                self.waits_for = Some(WaitReason::Stopping(Names::new(running)));
                self.stopped_since = None;
                return None;
            }
        }
        let stopped_since = *self.stopped_since.get_or_insert(view.now);
        let joined = self.candidates(view);
        let candidates: Vec<_> =
            joined.iter().map(|peer| candidate(&peer.node, previous.get(&peer.node.id).copied())).collect();
        let settings = &job.settings;
        let ranks = match plan(&candidates, settings) {
            Ok(ranks) => ranks,
            Err(Shortage { usable, joined }) => {
                let (usable, joined) = (usable as u32, joined as u32);
                let (min, max) = (settings.min_nodes, settings.max_nodes);
                self.waits_for = Some(WaitReason::MoreNodes { joined, usable, min, max });
                self.minimum_since = None;
                return None;
            }
        };
        let is_full = ranks.len() + settings.node_unit.max(1) as usize > settings.max_nodes as usize;
        let joined_count = candidates.len() as u32;
        let members: Vec<Node> = ranks.into_iter().map(|index| joined[index].node.clone()).collect();
        if job.round.is_none() {
            let since = *self.minimum_since.get_or_insert(view.now);
            let left = (since + settings.last_call_timeout).saturating_sub(view.now);
            if !is_full && !left.is_zero() {
                self.waits_for =
                    Some(WaitReason::LastCall { joined: joined_count, max: settings.max_nodes, left });
                return None;
            }
        } else if !returning.is_empty() {
            let left = (stopped_since + settings.return_grace).saturating_sub(view.now);
            if !left.is_zero() {
                self.waits_for = Some(WaitReason::Returning { members: Names::new(returning), left });
                return None;
            }
        }
        Some(Decision::Start { round: job.next_round()?, members })
    }

    /// Returns the nodes that can be in the next round, in the order in which they joined.
    fn candidates(&self, view: View<'_>) -> Vec<&Peer> {
        let mut taken = self.taken_pins(view);
        let can_join = |id: &NodeId| {
            let peer = &self.peers[id];
            let is_ready =
                peer.connection.is_some() && peer.expiry > view.now && !is_leaving(&peer.node, view);
            let is_free = |pin| *taken.entry(pin).or_insert(*id) == *id;
            (is_ready && peer.node.pin.is_none_or(is_free)).then_some(peer)
        };
        self.queue.values().filter_map(can_join).collect()
    }

    /// Returns the pinned ranks of the members of the last round, which their nodes keep until they depart.
    fn taken_pins(&self, view: View<'_>) -> BTreeMap<u32, NodeId> {
        let members = view.job.round.iter().flat_map(Round::present);
        members.filter_map(|member| Some((member.node.pin?, member.node.id))).collect()
    }

    // ---- what nodes wait for ----

    /// Tells the waiting nodes what they wait for, if that has changed.
    fn notify(&mut self, view: View<'_>) {
        if self.queue.is_empty() || view.now < self.last_notice + NOTICE_INTERVAL {
            return;
        }
        self.last_notice = view.now;
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
    fn wait_reason(&self, peer: &Peer, taken: &BTreeMap<u32, NodeId>, view: View<'_>) -> Option<WaitReason> {
        let (job, node) = (view.job, &peer.node);
        if let Phase::Outside(reason) = &peer.activity.phase {
            return Some(WaitReason::Outside(reason.clone()));
        }
        if let Some(exclusion) = job.exclusion(&node.host, view.time) {
            let left = exclusion.until.saturating_sub(view.time);
            return Some(WaitReason::Excluded { reason: exclusion.reason.clone(), left });
        }
        if job.drains.contains_key(&node.host) {
            return Some(WaitReason::Drained);
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
            let departure = job.round.as_ref().and_then(|round| round.departed.get(&node.id)).copied();
            let age = |time: Duration| view.now.saturating_sub(time);
            RosterNode {
                node: node.clone(),
                rank,
                phase: peer.map(|peer| peer.activity.phase.clone()),
                departure: departure.filter(|_| rank.is_some()),
                since: peer.map_or(Duration::ZERO, |peer| age(peer.since)),
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

/// Returns whether a node may not be in the next round, because its host is drained or excluded.
fn is_leaving(node: &Node, view: View<'_>) -> bool {
    let Job { drains, .. } = view.job;
    drains.contains_key(&node.host) || view.job.exclusion(&node.host, view.time).is_some()
}

fn candidate(node: &Node, previous_rank: Option<u32>) -> Candidate<'_> {
    Candidate { previous_rank, pin: node.pin, topology: &node.topology }
}
