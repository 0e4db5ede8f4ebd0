//! Tests the effect of each change on a state.

use std::sync::Arc;

use super::super::settings::Settings;
use super::super::tests::{Fixture, complete, node, nodes, open, wall};
use super::*;

fn applied(change: Change, state: &State) -> State {
    apply(change, state, &Fixture::new().view(), &[])
}

fn ranks(state: &State) -> Vec<(String, i64)> {
    state.participants.iter().map(|(node, rank)| (node.addr.to_string(), *rank)).collect()
}

#[test]
fn the_last_call_starts_with_the_node_that_reaches_min_nodes() {
    assert_eq!(applied(Change::AddToParticipants, &State::default()).deadline, None, "1 of at least 2 nodes");
    let enough = applied(Change::AddToParticipants, &open(&["a"]));
    assert_eq!(enough.deadline, wall(60).checked_add(Duration::from_secs(30)));
}

#[test]
fn the_last_call_is_not_extended_by_a_later_node() {
    let fixture = Fixture::with(Settings::new("job", 2, 9));
    let later = apply(Change::AddToParticipants, &open(&["a", "c"]).in_last_call(), &fixture.view(), &[]);
    assert_eq!(later.deadline, Some(wall(30)));
}

#[test]
fn the_last_call_is_canceled_when_fewer_than_min_nodes_remain() {
    let fewer = applied(Change::Withdraw, &open(&["a", "b"]).in_last_call());
    assert_eq!(fewer.deadline, None);
    let dead = apply(
        Change::KeepAlive,
        &open(&["a", "b"]).in_last_call(),
        &Fixture::new().with_dead(["a"]).view(),
        &[],
    );
    assert_eq!(dead.deadline, None);
}

#[test]
fn the_node_that_fills_a_round_completes_it_and_ranks_follow_the_order_of_the_nodes() {
    let full = applied(Change::AddToParticipants, &open(&["c", "a"]));
    assert!(full.complete);
    assert_eq!(full.deadline, None);
    assert_eq!(ranks(&full), [("a".into(), 0), ("b".into(), 1), ("c".into(), 2)]);
    assert_eq!(full.world_size(), 3);
}

#[test]
fn announced_nodes_are_admitted_with_the_writer_up_to_max_nodes() {
    let announced = nodes(["d", "c", "e", "f"]);
    let state = apply(Change::AddToParticipants, &State::default(), &Fixture::new().view(), &announced);
    assert_eq!(ranks(&state), [("b".into(), 0), ("c".into(), 1), ("d".into(), 2)]);
    assert!(state.complete);
}

#[test]
fn announced_nodes_are_admitted_from_the_wait_list_and_the_spares_with_a_new_heartbeat() {
    let state = open(&["a"]).waiting("b").waiting("c");
    let fixture = Fixture::with(Settings::new("job", 2, 9));
    let next = apply(Change::AddToParticipants, &state.spare("d"), &fixture.view(), &nodes(["c", "d"]));
    assert_eq!(next.participants.len(), 4);
    assert!(next.wait_list.is_empty() && next.redundancy_list.is_empty());
    assert_eq!(next.last_heartbeats[&node("c")], wall(60));
    assert_eq!(next.last_heartbeats[&node("a")], wall(0), "a participant keeps its heartbeat");
}

#[test]
fn a_dead_node_is_not_admitted_even_if_it_announced_itself() {
    let next = apply(
        Change::AddToParticipants,
        &open(&["a"]),
        &Fixture::new().with_dead(["c"]).view(),
        &nodes(["c"]),
    );
    assert_eq!(ranks(&next), [("a".into(), 0), ("b".into(), 0)]);
}

#[test]
fn a_full_round_turns_waiting_nodes_into_spares() {
    let full = applied(Change::AddToParticipants, &open(&["a", "c"]).waiting("d"));
    assert!(full.wait_list.is_empty());
    assert_eq!(full.redundancy_list, [node("d")].into());
    let not_full = applied(Change::MarkComplete, &open(&["a", "b"]).waiting("d"));
    assert_eq!(not_full.wait_list, [node("d")].into(), "the next round has room for it");
}

#[test]
fn a_complete_round_ends_and_the_next_opens_when_its_last_node_leaves() {
    let one_left = applied(Change::Withdraw, &complete(&["a", "b"]));
    assert!(one_left.complete);
    assert_eq!(one_left.round, 0);
    let none_left = applied(Change::Withdraw, &complete(&["b"]));
    assert!(!none_left.complete);
    assert_eq!(none_left.round, 1);
}

#[test]
fn a_withdrawal_changes_the_state_even_if_the_node_was_in_no_list() {
    let state = open(&["a"]);
    assert_ne!(applied(Change::Withdraw, &state), state);
}

#[test]
fn a_heartbeat_is_later_than_every_earlier_heartbeat_and_never_repeats() {
    let mut state = open(&["a", "b"]);
    state.last_heartbeats.insert(node("a"), wall(3_600));
    let tick = Duration::from_micros(1);
    let ahead = wall(3_600).checked_add(tick).unwrap();
    let renewed = applied(Change::KeepAlive, &state);
    assert_eq!(renewed.last_heartbeats[&node("b")], ahead, "the clock of `a` is an hour ahead");
    let left = applied(Change::Withdraw, &renewed);
    let rejoined = applied(Change::AddToParticipants, &left);
    assert!(rejoined.last_heartbeats[&node("b")] > ahead, "a node that rejoins repeats no heartbeat");
    let alone = apply(Change::KeepAlive, &rejoined, &Fixture::new().with_dead(["a"]).view(), &[]);
    assert!(alone.last_heartbeats[&node("b")] > rejoined.last_heartbeats[&node("b")]);
}

#[test]
fn keep_alive_renews_only_the_writers_heartbeat() {
    let renewed = applied(Change::KeepAlive, &open(&["a", "b"]));
    assert_eq!(renewed.last_heartbeats[&node("a")], wall(0));
    assert_eq!(renewed.last_heartbeats[&node("b")], wall(60));
}

#[test]
fn closing_records_the_node_and_changes_nothing_else() {
    let closed = applied(Change::MarkClosed, &open(&["a"]));
    assert!(closed.closed);
    assert!(closed.closed_by().unwrap().starts_with("b (pid 1) at "));
    assert_eq!(closed.participants, open(&["a"]).participants);
}

#[test]
fn a_node_is_in_one_list_at_a_time() {
    let waits = applied(Change::AddToWaitList, &complete(&["a"]).spare("b"));
    assert_eq!((waits.wait_list.len(), waits.redundancy_list.len()), (1, 0));
    let stands_by = applied(Change::AddToRedundancyList, &complete(&["a"]).waiting("b"));
    assert_eq!((stands_by.wait_list.len(), stands_by.redundancy_list.len()), (0, 1));
}

#[test]
fn a_restored_round_keeps_its_ranks_and_other_nodes_wait_for_the_next() {
    let mut round = complete(&["a", "b"]).spare("s");
    round.round = 4;
    let mut fixture = Fixture::new();
    fixture.member.round = Some(Arc::new(round.clone()));
    let restored = apply(Change::Restore, &open(&["new", "s"]), &fixture.view(), &[]);
    assert_eq!((restored.round, restored.complete, restored.deadline), (4, true, None));
    assert_eq!(restored.participants, round.participants);
    assert_eq!(restored.wait_list, [node("new")].into());
    assert_eq!(restored.redundancy_list, [node("s")].into());
    assert!(restored.last_heartbeats[&node("b")] > round.last_heartbeats[&node("b")]);
}
