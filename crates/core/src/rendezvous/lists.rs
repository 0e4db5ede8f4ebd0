//! The lists of the shared state, and how the state changes when a node joins or leaves.

use std::collections::BTreeSet;

use super::state::{Extra, NodeDesc, State};
use super::time::WallTime;

// Nodes of ours add the following attributes to the state. Torch nodes preserve them without reading them.

/// The number of nodes that a round was completed with, as `round:nodes`.
const WORLD_ATTR: &str = "rallypoint_world";
/// How many times nodes of ours have withdrawn from the rendezvous.
const LEAVERS_ATTR: &str = "rallypoint_left";
/// The newest heartbeat so far, if the node that wrote it is no longer in the state.
const NEWEST_ATTR: &str = "rallypoint_newest";
/// The node that closed the rendezvous, and the time.
const CLOSED_BY_ATTR: &str = "rallypoint_closed_by";

impl State {
    /// Returns the round that nodes announce themselves for: the current round if it is open, else the next one.
    pub(super) fn next_open_round(&self) -> u64 {
        self.round.saturating_add(u64::from(self.complete))
    }

    /// Returns every node in the state once.
    pub fn all_nodes(&self) -> BTreeSet<&NodeDesc> {
        self.lists().chain(self.last_heartbeats.keys()).collect()
    }

    /// Iterates over the nodes of all three lists.
    pub(super) fn lists(&self) -> impl Iterator<Item = &NodeDesc> {
        self.participants.keys().chain(&self.wait_list).chain(&self.redundancy_list)
    }

    /// Returns whether `node` is in one of the lists.
    pub fn has(&self, node: &NodeDesc) -> bool {
        self.participants.contains_key(node)
            || self.wait_list.contains(node)
            || self.redundancy_list.contains(node)
    }

    /// Returns the state without the nodes in `removed`. A complete round whose last node is removed ends, and the next
    /// one opens.
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

    /// Returns whether this state is older than `round`, a complete round that a node has joined. If so, the store has
    /// lost that round.
    ///
    /// A recorded number of nodes shows that nodes of ours have completed a round since the store lost its state. Those
    /// nodes have dropped the node that joined `round`, so this state does not count as older.
    pub(super) fn is_behind(&self, round: &State) -> bool {
        !self.closed && !self.complete && self.round <= round.round && self.last_recorded_world().is_none()
    }

    /// Returns this state, whose round the store has lost, as a replacement for `other`, the state that is in the store
    /// now. The nodes that are only in `other` are added to the wait list. All nodes get a new heartbeat, because the
    /// store has lost the recent ones.
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

    /// Adds a node to the open round, with a new heartbeat.
    pub(super) fn admit(&mut self, node: &NodeDesc, heartbeat: WallTime) {
        self.wait_list.remove(node);
        self.redundancy_list.remove(node);
        self.participants.insert(node.clone(), 0);
        self.last_heartbeats.insert(node.clone(), heartbeat);
    }

    /// Completes the open round. The group ranks follow the order of the nodes.
    ///
    /// If the round is full, the waiting nodes become spares with the same write. If each waiting node had to become a
    /// spare by itself, the nodes that are still on the wait list would make the round re-form.
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

    /// Records the number of nodes of a round that a torch node completed, while `before` still shows that number. Once
    /// the node of the highest group rank has left, the state does not show it any more.
    ///
    /// A waiting node may have been in the round, so the recorded number can be too large. Then no further node enters
    /// the round. That does no harm, because the round re-forms anyway when a node waits. With a number that is too
    /// small, nodes would enter a round that has lost a node.
    pub(super) fn preserve_world_size(&mut self, before: &State, max_nodes: u64) {
        if self.complete && before.complete && self.round == before.round && self.recorded_world().is_none() {
            self.record_world_size(before.world_size().max(before.max_world_size(max_nodes)));
        }
    }

    /// Returns the largest number of nodes with which the current round may have been completed: all waiting nodes may
    /// have been in it.
    pub(super) fn max_world_size(&self, max_nodes: u64) -> u64 {
        ((self.participants.len() + self.wait_list.len()) as u64).min(max_nodes)
    }

    pub(super) fn mark_closed(&mut self, node: &NodeDesc, at: WallTime) {
        self.closed = true;
        self.set_text(CLOSED_BY_ATTR, format!("{} (pid {}) at {at}", node.addr, node.pid));
    }

    /// Returns how many times nodes of ours have withdrawn from the rendezvous. A node may withdraw and join again.
    pub fn leavers(&self) -> i64 {
        match self.extra.get(LEAVERS_ATTR) {
            Some(Extra::Int(count)) => *count,
            _ => 0,
        }
    }

    /// Counts one more withdrawal.
    ///
    /// This changes the state even if the leaving node is in no list and has only announced itself. A node that read
    /// the announcement before it was retracted can't admit the leaving node any more: its compare-and-set fails.
    pub(super) fn count_leaver(&mut self) {
        let before = self.leavers();
        self.extra.insert(LEAVERS_ATTR.into(), Extra::Int(before.wrapping_add(1)));
    }

    /// Returns the newest heartbeat so far: of a node in the state, or the recorded one of a node that has left.
    pub(super) fn newest_heartbeat(&self) -> Option<WallTime> {
        let recorded = match self.extra.get(NEWEST_ATTR) {
            Some(Extra::Time(newest)) => Some(*newest),
            _ => None,
        };
        self.last_heartbeats.values().copied().max().max(recorded)
    }

    /// Records `before`, the newest heartbeat so far, if no node in the state has a heartbeat that is as new. Deletes
    /// the record otherwise.
    pub(super) fn preserve_newest_heartbeat(&mut self, before: Option<WallTime>) {
        let current = self.last_heartbeats.values().copied().max();
        match before {
            Some(newest) if before > current => self.extra.insert(NEWEST_ATTR.into(), Extra::Time(newest)),
            _ => self.extra.remove(NEWEST_ATTR),
        };
    }

    /// Returns the number of nodes that the complete round was completed with, as far as the state shows it.
    ///
    /// Nodes of ours record the number when they complete a round, and with their first write after a torch node has
    /// completed one. Before that, the number follows from the highest group rank, unless the node of that rank has
    /// left.
    pub fn world_size(&self) -> u64 {
        let have = self.participants.len() as u64;
        let highest = self.participants.values().max().map_or(0, |rank| rank.saturating_add(1).max(0) as u64);
        self.recorded_world().unwrap_or(0).max(highest).max(have)
    }

    /// Returns the recorded number of nodes of the current round.
    pub(super) fn recorded_world(&self) -> Option<u64> {
        self.last_recorded_world().filter(|(round, _)| *round == self.round).map(|(_, world)| world)
    }

    /// Returns the last round whose number of nodes was recorded, and that number.
    pub(super) fn last_recorded_world(&self) -> Option<(u64, u64)> {
        let (round, world) = self.text(WORLD_ATTR)?.split_once(':')?;
        Some((round.parse().ok()?, world.parse().ok()?))
    }

    /// Returns the node that closed the rendezvous and the time, for people to read. Torch nodes don't record it.
    pub fn closed_by(&self) -> Option<String> {
        self.text(CLOSED_BY_ATTR).map(str::to_owned)
    }

    /// Returns the text of an attribute that torch does not have.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        if let Some(Extra::Text(text)) = self.extra.get(name) { Some(text) } else { None }
    }

    pub(super) fn set_text(&mut self, name: &str, text: String) {
        self.extra.insert(name.into(), Extra::Text(text.into()));
    }
}

#[cfg(test)]
mod tests;
