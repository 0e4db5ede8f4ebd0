//! R8: what one of our nodes writes follows from what it replaces. Whatever differs must be the writer's own doing, the
//! end of somebody dead, or a node let in that had asked for it: an update of somebody else's that is lost shows here.

use std::sync::Arc;
use std::time::Duration;

use rallypoint_core::rendezvous::{Extra, NodeDesc, State};

use crate::check::{Checks, Violation, hold};

/// Which list a node is in, with its rank.
fn place(state: &State, node: &NodeDesc) -> (Option<i64>, bool, bool) {
    let rank = state.participants.get(node).copied();
    (rank, state.wait_list.contains(node), state.redundancy_list.contains(node))
}

/// What others keep in the state.
fn foreign(state: &State) -> impl Iterator<Item = (&Arc<str>, &Extra)> {
    state.extra.iter().filter(|(name, _)| !name.starts_with("rallypoint_"))
}

impl Checks {
    pub(crate) fn check_transition(
        &self,
        before: &State,
        after: &State,
        writer: &NodeDesc,
        at: Duration,
    ) -> Result<(), Violation> {
        let full = after.participants.len() as u64 == self.settings.max_nodes;
        let begun = after.complete && (!before.complete || after.round > before.round);
        let idle = !begun || !full || after.wait_list.is_empty();
        hold!(at, "R12", idle, "{writer} completed a full round for which {:?} wait", after.wait_list);
        let newest = before.last_heartbeats.values().max();
        for (node, heartbeat) in &after.last_heartbeats {
            let (old, was) = (place(before, node), before.last_heartbeats.get(node));
            let new = place(after, node);
            if node == writer {
                hold!(at, "R8", was < Some(heartbeat), "{writer} wrote heartbeat {heartbeat} after {was:?}");
                hold!(
                    at,
                    "R8",
                    newest < Some(heartbeat),
                    "{writer} wrote heartbeat {heartbeat} after {newest:?}"
                );
                continue;
            }
            let taken_in = old.0.is_none() && new.0.is_some();
            let taken_out = old.0.is_some() && new == (None, true, false);
            if taken_out {
                let next = self.asked.get(&(before.round + 1)).is_some_and(|asked| asked.contains(node));
                hold!(
                    at,
                    "R8",
                    next && before.complete,
                    "{writer} took {node} out of round {}, which did not ask",
                    before.round
                );
            } else if taken_in {
                // What it asked before the store was emptied is forgotten.
                let asked =
                    self.is_lost || self.asked.get(&after.round).is_some_and(|asked| asked.contains(node));
                hold!(at, "R8", asked, "{writer} let {node} into round {}, which did not ask", after.round);
            } else {
                // Ranks are given out when the round is completed.
                let ranked = after.complete && !before.complete && old.0.is_some() && new.0.is_some();
                let spare =
                    after.complete && full && old == (None, true, false) && new == (None, false, true);
                hold!(
                    at,
                    "R8",
                    ranked || spare || old == new,
                    "{writer} moved {node} from {old:?} to {new:?}"
                );
            }
            let kept = if taken_in || taken_out { newest < Some(heartbeat) } else { was == Some(heartbeat) };
            hold!(at, "R8", kept, "{writer} changed the heartbeat of {node} from {was:?} to {heartbeat}");
        }
        let stay = |node: &&NodeDesc| after.participants.contains_key(*node);
        let stayed = before.participants.keys().filter(stay).count() as u64;
        if before.deadline.is_some() && after.deadline.is_some() && before.deadline != after.deadline {
            let min = self.settings.min_nodes;
            hold!(
                at,
                "R8",
                stayed < min,
                "{writer} moved the end of the last call, with {stayed} nodes of {min}"
            );
        }
        let ended = after.round == before.round || stayed == 0;
        hold!(at, "R8", ended, "{writer} ended round {} with {stayed} nodes in it", before.round);
        let revived = before.closed && after.complete && !before.complete;
        hold!(at, "R8", !revived, "{writer} completed a round of a closed rendezvous");
        hold!(at, "R8", foreign(before).eq(foreign(after)), "{writer} changed what is not ours");
        Ok(())
    }
}
