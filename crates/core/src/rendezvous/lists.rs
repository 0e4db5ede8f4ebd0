//! The lists of the shared state: which node is in which, and what it changes when a node comes or goes.

use std::collections::BTreeSet;

use super::state::{Extra, NodeDesc, State};
use super::time::WallTime;

/// How many nodes a round was completed with, as `round:nodes`. Torch's nodes carry it along without looking at it.
const WORLD_ATTR: &str = "rallypoint_world";
/// How many have left so far.
const LEAVERS_ATTR: &str = "rallypoint_left";
/// The newest heartbeat there was, while no node that is here has it.
const NEWEST_ATTR: &str = "rallypoint_newest";
/// Who closed the rendezvous, and when.
const CLOSED_BY_ATTR: &str = "rallypoint_closed_by";

impl State {
    /// The round that nodes may announce themselves for: the next one to be open.
    pub(super) fn next_open_round(&self) -> u64 {
        self.round.saturating_add(u64::from(self.complete))
    }

    /// All nodes in it, each once.
    pub fn all_nodes(&self) -> BTreeSet<&NodeDesc> {
        self.lists().chain(self.last_heartbeats.keys()).collect()
    }

    /// The nodes of all lists, one list after the other.
    pub(super) fn lists(&self) -> impl Iterator<Item = &NodeDesc> {
        self.participants.keys().chain(&self.wait_list).chain(&self.redundancy_list)
    }

    /// Whether a node is in one of the lists.
    pub fn has(&self, node: &NodeDesc) -> bool {
        self.participants.contains_key(node)
            || self.wait_list.contains(node)
            || self.redundancy_list.contains(node)
    }

    /// The state without these nodes.
    pub fn without(&self, removed: &[NodeDesc], min_nodes: u64) -> State {
        let mut next = self.clone();
        let mut lost_participant = false;
        for node in removed {
            lost_participant |= next.participants.remove(node).is_some();
            next.wait_list.remove(node);
            next.redundancy_list.remove(node);
            next.last_heartbeats.remove(node);
        }
        if lost_participant {
            if next.complete && next.participants.is_empty() {
                next.complete = false;
                next.round += 1;
            }
            if !next.complete && (next.participants.len() as u64) < min_nodes {
                next.deadline = None;
            }
        }
        next
    }

    /// Whether this state is older than `round`, a complete round that a node has returned from. If so, the store has lost
    /// that round. If other nodes have completed a round since then, they have gone on without the node.
    pub(super) fn is_behind(&self, round: &State) -> bool {
        !self.closed && !self.complete && self.round <= round.round && self.last_recorded_world().is_none()
    }

    /// Restores this state in place of `other`: the nodes of `other` that are not in it go to its wait list. All nodes get a
    /// new heartbeat, because the store has lost the ones they sent.
    pub(super) fn restored(mut self, other: &State, heartbeat: WallTime) -> State {
        for node in other.last_heartbeats.keys() {
            if !self.has(node) {
                self.wait_list.insert(node.clone());
                self.last_heartbeats.insert(node.clone(), heartbeat);
            }
        }
        self.last_heartbeats.values_mut().for_each(|last| *last = heartbeat);
        self
    }

    /// Puts a node into the open round. That it asked for it is a sign of life.
    pub(super) fn admit(&mut self, node: &NodeDesc, heartbeat: WallTime) {
        self.wait_list.remove(node);
        self.redundancy_list.remove(node);
        self.participants.insert(node.clone(), 0);
        self.last_heartbeats.insert(node.clone(), heartbeat);
    }

    /// Ends the open round: ranks in the order of the nodes.
    ///
    /// If it is full, whoever waits is a spare from now on. Left on the wait list until they see it themselves, they
    /// would make the round start over, and with many of them again and again.
    pub(super) fn mark_complete(&mut self, max_nodes: u64) {
        if self.participants.len() as u64 >= max_nodes {
            self.redundancy_list.append(&mut self.wait_list);
        }
        self.complete = true;
        self.deadline = None;
        for (rank, (_, assigned)) in (0..).zip(self.participants.iter_mut()) {
            *assigned = rank;
        }
        self.record_world_size(self.participants.len() as u64);
    }

    fn record_world_size(&mut self, nodes: u64) {
        self.set_text(WORLD_ATTR, format!("{}:{nodes}", self.round));
    }

    /// Writes down how large the complete round is, if a torch node completed it, as long as that can be known: once the
    /// highest rank has left, nothing else tells. Whoever waits may have been in it, unless it is full; rather too large,
    /// so that nobody enters it any more, than too small. Since somebody waits, all start over anyway.
    pub(super) fn preserve_world_size(&mut self, before: &State, max_nodes: u64) {
        if self.complete && before.complete && self.round == before.round && self.recorded_world().is_none() {
            self.record_world_size(before.world_size().max(before.max_world_size(max_nodes)));
        }
    }

    /// How many nodes the complete round may have had, if those who wait were in it.
    pub(super) fn max_world_size(&self, max_nodes: u64) -> u64 {
        ((self.participants.len() + self.wait_list.len()) as u64).min(max_nodes)
    }

    pub(super) fn mark_closed(&mut self, node: &NodeDesc, at: WallTime) {
        self.closed = true;
        self.set_text(CLOSED_BY_ATTR, format!("{} (pid {}) at {at}", node.addr, node.pid));
    }

    /// How many of ours have left so far.
    pub fn leavers(&self) -> i64 {
        match self.extra.get(LEAVERS_ATTR) {
            Some(Extra::Int(count)) => *count,
            _ => 0,
        }
    }

    /// Counts one more that has left. It also makes the state differ if the node was only about to be let in: a node that read
    /// its announcement before it was taken back has read a state that is replaced now, and can't act on it any more.
    pub(super) fn count_leaver(&mut self) {
        let before = self.leavers();
        self.extra.insert(LEAVERS_ATTR.into(), Extra::Int(before.wrapping_add(1)));
    }

    /// The newest heartbeat that was ever here, as far as our nodes have written it down.
    pub(super) fn newest_heartbeat(&self) -> Option<WallTime> {
        let recorded = match self.extra.get(NEWEST_ATTR) {
            Some(Extra::Time(newest)) => Some(*newest),
            _ => None,
        };
        self.last_heartbeats.values().copied().max().max(recorded)
    }

    /// Keeps the newest earlier heartbeat if the node that wrote it has left.
    pub(super) fn preserve_newest_heartbeat(&mut self, before: Option<WallTime>) {
        let current = self.last_heartbeats.values().copied().max();
        match before {
            Some(newest) if before > current => self.extra.insert(NEWEST_ATTR.into(), Extra::Time(newest)),
            _ => self.extra.remove(NEWEST_ATTR),
        };
    }

    /// How many nodes the complete round was completed with, as far as that can be known.
    ///
    /// Our nodes write it down, with the first write into a round that a torch node completed. Before that the highest rank
    /// tells, unless that one has left.
    pub fn world_size(&self) -> u64 {
        let have = self.participants.len() as u64;
        let highest = self.participants.values().max().map_or(0, |rank| rank.saturating_add(1).max(0) as u64);
        self.recorded_world().unwrap_or(0).max(highest).max(have)
    }

    /// What stands there of the size of this round.
    pub(super) fn recorded_world(&self) -> Option<u64> {
        self.last_recorded_world().filter(|(round, _)| *round == self.round).map(|(_, world)| world)
    }

    /// Returns the last round whose size one of our nodes has written down, and its size.
    pub(super) fn last_recorded_world(&self) -> Option<(u64, u64)> {
        let (round, world) = self.text(WORLD_ATTR)?.split_once(':')?;
        Some((round.parse().ok()?, world.parse().ok()?))
    }

    /// Who closed it, where one of our nodes did.
    pub fn closed_by(&self) -> Option<String> {
        self.text(CLOSED_BY_ATTR).map(str::to_owned)
    }

    /// The text of an attribute that torch does not know.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        if let Some(Extra::Text(text)) = self.extra.get(name) { Some(text) } else { None }
    }

    pub(super) fn set_text(&mut self, name: &str, text: String) {
        self.extra.insert(name.into(), Extra::Text(text.into()));
    }
}

#[cfg(test)]
mod tests;
