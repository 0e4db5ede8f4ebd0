//! Decides when a round ends and when the next one starts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Leader, Peer, View};
use crate::job::{Cause, Closing, Decision, Departure, Round, RoundMember};
use crate::message::Phase;
use crate::node::{Node, NodeId};
use crate::plan::{Candidate, Shortage, plan};
use crate::roster::{Names, WaitReason};
use crate::settings::ScaleUp;

impl Leader {
    /// Takes the next decision, if one is due. All earlier decisions must have been applied.
    pub(crate) fn evaluate(&mut self, view: View<'_>) -> Option<Decision> {
        (self.last_evaluation, self.is_changed) = (view.now, false);
        if view.job.closed.is_some() {
            return None;
        }
        let decision = self.forget_departed(view);
        let decision = decision.or_else(|| self.requests.pop_front());
        let decision = decision.or_else(|| match &view.job.round {
            Some(round) if round.end.is_none() => self.end(round, view),
            _ => self.start(view),
        });
        // The next decision may be due as soon as this one is applied.
        self.is_changed |= decision.is_some();
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
        Some(Decision::End { round: round.number, cause })
    }

    /// Returns whether the workers of all nodes of the running round have finished. Nodes without workers don't count,
    /// and a round that has only such nodes never finishes.
    fn has_finished(&self, round: &Round) -> bool {
        let has_workers = |member: &&RoundMember| member.node.workers != Some(0);
        let mut working = round.members.values().filter(has_workers).peekable();
        working.peek().is_some()
            && working.all(|member| match round.departed.get(&member.node.id) {
                Some(departed) => departed.how == Departure::Finished,
                None => {
                    let peer = self.peers.get(&member.node.id);
                    peer.is_some_and(|peer| peer.activity.phase == Phase::Finished)
                }
            })
    }

    fn cause(&mut self, round: &Round, view: View<'_>) -> Option<Cause> {
        let job = view.job;
        if let Some(cause) = self.cause.take() {
            return Some(cause);
        }
        let mut departed = round.departed.iter();
        if let Some((id, departed)) = departed.find(|(_, departed)| departed.how != Departure::Finished) {
            return Some(Cause::NodeLost { node: round.members[id].node.clone(), how: departed.how });
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
                        if !is_candidate(peer, view) && !is_leaving(&member.node, view) {
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
        if let Some(exclusion) = self.exclusion(view) {
            return Some(exclusion);
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
                if self.is_notice_due(view) {
                    self.missing = self.find_missing(view);
                }
                let missing = self.missing.clone();
                self.waits_for = Some(WaitReason::MoreNodes { joined, usable, min, max, missing });
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

    /// Returns the decision that excludes a host that has failed too often, if the job has enough other nodes.
    fn exclusion(&self, view: View<'_>) -> Option<Decision> {
        let settings = &view.job.settings;
        if settings.exclude_after == 0 {
            return None;
        }
        let is_recent = |time: &&Duration| view.time.saturating_sub(**time) < settings.exclude_window;
        let is_usable = |host: &str| view.job.exclusion(host, view.time).is_none();
        view.job.failures.iter().find_map(|(host, times)| {
            let failures = times.iter().filter(is_recent).count();
            let others = self.peers.values().filter(|peer| {
                peer.connection.is_some() && peer.node.host != *host && is_usable(&peer.node.host)
            });
            let is_due = failures >= settings.exclude_after as usize
                && is_usable(host)
                && others.count() >= settings.min_nodes as usize;
            is_due.then(|| Decision::Exclude {
                host: host.clone(),
                time: settings.exclude_time,
                reason: format!("it failed {failures} times within {} s", settings.exclude_window.as_secs()),
            })
        })
    }

    /// Returns the nodes that can be in the next round, in the order in which they joined. A pinned rank is not free
    /// until its earlier holder has departed.
    fn candidates(&self, view: View<'_>) -> Vec<&Peer> {
        let mut taken = self.taken_pins(view);
        let can_join = |id: &NodeId| {
            let peer = &self.peers[id];
            let is_free = |pin| *taken.entry(pin).or_insert(*id) == *id;
            (is_candidate(peer, view) && peer.node.pin.is_none_or(is_free)).then_some(peer)
        };
        self.queue.values().filter_map(can_join).collect()
    }
}

/// Returns whether a node can be in the next round, apart from its pinned rank.
pub(super) fn is_candidate(peer: &Peer, view: View<'_>) -> bool {
    peer.place.is_some()
        && peer.connection.is_some()
        && peer.expiry > view.now
        && !is_leaving(&peer.node, view)
}

/// Returns whether a node may not be in the next round, because its host is drained or excluded.
pub(super) fn is_leaving(node: &Node, view: View<'_>) -> bool {
    view.job.drains.contains_key(&node.host) || view.job.exclusion(&node.host, view.time).is_some()
}

fn candidate(node: &Node, previous_rank: Option<u32>) -> Candidate<'_> {
    let Node { pin, preferred_rank, topology, .. } = node;
    Candidate { previous_rank, pin: *pin, preferred_rank: *preferred_rank, topology }
}
