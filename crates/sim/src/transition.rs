//! R8: every write of a node of ours follows from the state that it replaces.
//!
//! A write may change the writer's own entries, remove dead nodes, admit or move nodes that have announced themselves,
//! and complete the round. Any other difference means that an update of another node was lost.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{Extra, NodeDesc, State};

use crate::check::{Checks, Violation, require};

/// Returns the position of a node in a state: its group rank if it is a participant, whether it is on the wait list,
/// and whether it is on the redundancy list.
fn position(state: &State, node: &NodeDesc) -> (Option<i64>, bool, bool) {
    let rank = state.participants.get(node).copied();
    (rank, state.wait_list.contains(node), state.redundancy_list.contains(node))
}

/// Returns the attributes that nodes of ours must preserve: those whose names do not start with our prefix.
fn foreign_attributes(state: &State) -> impl Iterator<Item = (&Arc<str>, &Extra)> {
    state.extra.iter().filter(|(name, _)| !name.starts_with("rallypoint_"))
}

impl Checks {
    /// Checks a write by `writer`, a node of ours, that replaced `before` by `after`. The write must follow R8. If
    /// it completes a full round, it must not leave nodes on the wait list (R12).
    pub(crate) fn check_transition(
        &self,
        before: &State,
        after: &State,
        writer: &NodeDesc,
        at: Duration,
    ) -> Result<(), Violation> {
        let full = after.participants.len() as u64 == self.settings.max_nodes;
        let is_completed = after.complete && (!before.complete || after.round > before.round);
        let may_leave_waiting = !is_completed || !full;
        require!(
            at,
            "R12",
            may_leave_waiting || after.wait_list.is_empty(),
            "{writer} completed a full round and left {:?} on the wait list",
            after.wait_list
        );
        let newest = before.last_heartbeats.values().max();
        for (node, heartbeat) in &after.last_heartbeats {
            let (old, old_heartbeat) = (position(before, node), before.last_heartbeats.get(node));
            let new = position(after, node);
            if node == writer {
                require!(
                    at,
                    "R8",
                    old_heartbeat < Some(heartbeat),
                    "{writer} wrote heartbeat {heartbeat}, not later than its previous one, {old_heartbeat:?}"
                );
                require!(
                    at,
                    "R8",
                    newest < Some(heartbeat),
                    "{writer} wrote heartbeat {heartbeat}, not later than that of another node, {newest:?}"
                );
                continue;
            }
            let is_admitted = old.0.is_none() && new.0.is_some();
            let is_moved_out = old.0.is_some() && new == (None, true, false);
            if is_moved_out {
                let has_announced =
                    self.announced.get(&(before.round + 1)).is_some_and(|announced| announced.contains(node));
                require!(
                    at,
                    "R8",
                    has_announced && before.complete,
                    "{writer} moved {node} out of round {} unannounced, or before it was complete",
                    before.round
                );
            } else if is_admitted {
                // After the store was emptied, the record may lack announcements: `record_completed` deletes those for
                // completed rounds, and the round numbers start from 0 again.
                let has_announced = self.is_state_lost
                    || self.announced.get(&after.round).is_some_and(|announced| announced.contains(node));
                require!(
                    at,
                    "R8",
                    has_announced,
                    "{writer} admitted {node} to round {} without an announcement",
                    after.round
                );
            } else {
                // The write that completes a round assigns the group ranks, and turns waiting nodes into spares if the
                // round is full.
                let ranked = after.complete && !before.complete && old.0.is_some() && new.0.is_some();
                let spare =
                    after.complete && full && old == (None, true, false) && new == (None, false, true);
                require!(
                    at,
                    "R8",
                    ranked || spare || old == new,
                    "{writer} moved {node} from {old:?} to {new:?}"
                );
            }
            let is_heartbeat_valid = if is_admitted || is_moved_out {
                newest < Some(heartbeat)
            } else {
                old_heartbeat == Some(heartbeat)
            };
            require!(
                at,
                "R8",
                is_heartbeat_valid,
                "{writer} changed the heartbeat of {node} from {old_heartbeat:?} to {heartbeat}"
            );
        }
        let remains = |node: &&NodeDesc| after.participants.contains_key(*node);
        let remaining = before.participants.keys().filter(remains).count() as u64;
        if before.deadline.is_some() && after.deadline.is_some() && before.deadline != after.deadline {
            let min = self.settings.min_nodes;
            require!(
                at,
                "R8",
                remaining < min,
                "{writer} moved the end of the last call although {remaining} nodes remained and {min} are enough"
            );
        }
        require!(
            at,
            "R8",
            after.round == before.round || remaining == 0,
            "{writer} ended round {} with {remaining} nodes in it",
            before.round
        );
        let completes_closed = before.closed && after.complete && !before.complete;
        require!(at, "R8", !completes_closed, "{writer} completed a round of a closed rendezvous");
        require!(
            at,
            "R8",
            foreign_attributes(before).eq(foreign_attributes(after)),
            "{writer} changed an attribute that is not ours"
        );
        Ok(())
    }
}
