//! Computes the state that follows from a decision. Every state that a node writes is the result of [`apply`] on the
//! state that it replaces.

use std::time::Duration;

use super::decide::{Change, View};
use super::member::Member;
use super::state::{NodeDesc, State};
use super::time::WallTime;

/// Returns `state` after the node of `view` has made `change`.
///
/// Every write removes the dead nodes. `announced` are the nodes that have announced themselves for the next open
/// round. The writer admits them together with itself, or moves them from the current round to the wait list together
/// with itself. So nodes that join or rejoin at the same time need one write together instead of one write each.
pub(super) fn apply(change: Change, state: &State, view: &View<'_>, announced: &[NodeDesc]) -> State {
    let (Member { me, settings, round, .. }, dead) = (view.member, view.dead);
    let newest = round.as_ref().and_then(|round| round.newest_heartbeat());
    let stamp = stamp(state.newest_heartbeat().max(newest), view);
    let mut next = state.without(dead, settings.min_nodes);
    match change {
        Change::KeepAlive => {}
        Change::AddToParticipants => {
            next.admit(me, stamp);
            for node in announced {
                if next.participants.len() as u64 >= settings.max_nodes {
                    break;
                }
                // An announced node on the wait list is admitted, too: when a round re-forms, all of its nodes are on
                // the wait list.
                if !next.participants.contains_key(node) && !dead.contains(node) {
                    next.admit(node, stamp);
                }
            }
            if next.participants.len() as u64 >= settings.max_nodes {
                next.mark_complete(settings.max_nodes);
            }
        }
        Change::AddToWaitList => {
            next.redundancy_list.remove(me);
            next.wait_list.insert(me.clone());
        }
        Change::AddToRedundancyList => {
            next.wait_list.remove(me);
            next.redundancy_list.insert(me.clone());
        }
        Change::MoveToWaitList => {
            let with_me = announced.iter().filter(|node| *node != me && !dead.contains(node)).chain([me]);
            let in_round = |node: &&NodeDesc| next.participants.contains_key(*node);
            let leaving: Vec<_> = with_me.filter(in_round).cloned().collect();
            next = next.without(&leaving, settings.min_nodes);
            for node in leaving {
                // The announcement shows that the node is alive.
                next.last_heartbeats.insert(node.clone(), stamp);
                next.wait_list.insert(node);
            }
        }
        Change::Withdraw => {
            next = next.without(std::slice::from_ref(me), settings.min_nodes);
            next.count_leaver();
        }
        Change::MarkComplete => next.mark_complete(settings.max_nodes),
        Change::MarkClosed => next.mark_closed(me, view.wall),
        Change::Restore => {
            if let Some(round) = round {
                next = round.without(dead, settings.min_nodes).restored(&next, stamp);
            }
        }
    }
    if next.has(me) {
        next.last_heartbeats.insert(me.clone(), stamp);
        next.publish_terms(state, me, settings);
    }
    next.preserve_newest_heartbeat(state.newest_heartbeat().max(next.newest_heartbeat()));
    next.preserve_world_size(state, settings.max_nodes);
    let enough = next.participants.len() as u64 >= settings.min_nodes;
    next.deadline = match (next.complete, enough) {
        (false, true) => next.deadline.or_else(|| stamp.checked_add(settings.last_call(&next).0)),
        _ => None,
    };
    next
}

/// Returns the time to write as a heartbeat. It is later than every heartbeat so far, for two reasons. Torch nodes
/// whose clocks are ahead must not count this node as dead. And no value may repeat, because a node counts as alive
/// only while its heartbeat changes.
fn stamp(newest: Option<WallTime>, view: &View<'_>) -> WallTime {
    let after = newest.and_then(|newest| newest.checked_add(Duration::from_micros(1)));
    after.map_or(view.wall, |after| view.wall.max(after))
}

#[cfg(test)]
mod tests;
