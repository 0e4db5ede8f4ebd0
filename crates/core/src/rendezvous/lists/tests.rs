//! Tests how a state changes when nodes join and leave, and the recorded number of nodes of a round.

use super::super::tests::{complete, node, nodes, open, wall};
use super::*;

#[test]
fn a_removed_node_is_in_no_list_and_has_no_heartbeat() {
    let state = open(&["a"]).waiting("b").spare("c").without(&nodes(["a", "b", "c", "d"]), 1);
    assert!(state.all_nodes().is_empty());
    assert_eq!(state.round, 0, "an open round stays open");
}

#[test]
fn a_round_that_loses_a_node_stays_complete_until_its_last_node_leaves() {
    let state = complete(&["a", "b"]).without(&nodes(["a"]), 2);
    assert!(state.complete && state.round == 0);
    let state = state.without(&nodes(["b"]), 2);
    assert!(!state.complete && state.round == 1);
}

#[test]
fn a_spare_that_leaves_does_not_end_the_round() {
    let state = complete(&["a"]).spare("b").without(&nodes(["b"]), 1);
    assert!(state.complete && state.round == 0);
}

#[test]
fn the_world_size_of_a_round_is_the_number_of_nodes_it_was_completed_with() {
    let state = complete(&["a", "b", "c"]);
    assert_eq!(state.world_size(), 3);
    assert_eq!(state.without(&nodes(["a", "c"]), 2).world_size(), 3);
}

#[test]
fn the_world_size_of_a_torch_round_follows_from_its_highest_group_rank() {
    let mut state = complete(&["a", "b", "c"]);
    state.extra.clear();
    assert_eq!(state.without(&nodes(["a"]), 2).world_size(), 3);
    assert_eq!(state.without(&nodes(["c"]), 2).world_size(), 2, "as far as the state shows it");
}

#[test]
fn the_world_size_of_a_torch_round_is_recorded_while_it_is_known() {
    let mut state = complete(&["a", "b", "c"]);
    state.extra.clear();
    let mut left = state.without(&nodes(["c"]), 2);
    left.preserve_world_size(&state, 3);
    assert_eq!(left.world_size(), 3);
    let fewer = left.without(&nodes(["b"]), 2);
    assert_eq!(fewer.world_size(), 3);
    let mut open = open(&["a"]);
    open.preserve_world_size(&open.clone(), 3);
    assert!(open.extra.is_empty(), "an open round has no world size yet");
}

#[test]
fn the_recorded_world_size_of_another_round_is_ignored() {
    let state = complete(&["a", "b", "c"]).without(&nodes(["a", "b", "c"]), 1);
    let later = State { complete: true, participants: [(node("a"), 0)].into(), ..state };
    assert_eq!(later.world_size(), 1);
}

#[test]
fn the_recorded_world_size_of_a_torch_round_is_never_too_small() {
    let mut before = complete(&["a", "b"]);
    before.extra.clear();
    let written = |before: &State| {
        let mut next = before.clone();
        next.preserve_world_size(before, 3);
        next.recorded_world()
    };
    assert_eq!(written(&before), Some(2));
    assert_eq!(written(&before.clone().waiting("c")), Some(3), "c may have been in the round");
    assert_eq!(written(&before.waiting("c").waiting("d")), Some(3), "at most `max_nodes`");
}

#[test]
fn malformed_values_in_our_attributes_are_ignored() {
    let mut state = complete(&["a", "b"]);
    for wrong in ["", ":", "0", "0:x", "x:2", "0:-1", "18446744073709551616:1"] {
        state.extra.insert(WORLD_ATTR.into(), Extra::Text(wrong.into()));
        assert_eq!(state.world_size(), 2, "{wrong:?}");
    }
    state.extra.insert(WORLD_ATTR.into(), Extra::Bool(true));
    state.extra.insert(LEAVERS_ATTR.into(), Extra::None);
    state.extra.insert(NEWEST_ATTR.into(), Extra::Int(1));
    state.count_leaver();
    assert_eq!((state.world_size(), state.newest_heartbeat()), (2, Some(wall(0))));
}

#[test]
fn the_newest_heartbeat_is_recorded_while_its_node_is_not_in_the_state() {
    let mut state = open(&["a", "b"]);
    state.last_heartbeats.insert(node("b"), wall(50));
    let mut left = state.without(&nodes(["b"]), 1);
    left.preserve_newest_heartbeat(state.newest_heartbeat());
    assert_eq!(left.newest_heartbeat(), Some(wall(50)));
    left.last_heartbeats.insert(node("a"), wall(51));
    left.preserve_newest_heartbeat(Some(wall(50)));
    assert_eq!(left.newest_heartbeat(), Some(wall(51)));
    assert!(left.extra.is_empty(), "a node in the state has a newer heartbeat");
}
