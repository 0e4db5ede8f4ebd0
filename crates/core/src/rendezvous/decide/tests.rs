//! Tests each decision. Where our decision differs from torch's, the comment of the test describes what a torch node
//! does.

use std::sync::Arc;

use super::super::tests::{Fixture, at, complete, node, nodes, open, wall};
use super::*;

fn join(fixture: &Fixture, state: &State) -> Decision {
    decide(Goal::Join, state, &fixture.view()).0
}

/// The rows are numbered by the results of torch's `_RendezvousJoinOp`, in the order of its checks. Results 5 (a needed
/// spare) and 12 (the end of a last call) have tests of their own.
#[test]
fn a_node_joins_by_the_rows_of_the_torch_join_operation() {
    use Change::*;
    use Decision::{Fail, Finish, Wait, Write};
    let now = Fixture::new;
    let full = || complete(&["a", "c", "d"]);
    let rows = [
        ("1", now(), full().spare("b").closed(), Fail),
        ("2", now(), full().closed(), Fail),
        ("2, in the round", now(), complete(&["a", "b"]).closed(), Fail),
        ("3", now().heartbeat_due(), full().spare("b"), Write(KeepAlive)),
        ("4", now(), full().spare("b"), Wait),
        ("4, however late", now().late_by(900), full().spare("b"), Wait),
        ("6", now(), complete(&["a", "b"]), Finish),
        ("6, however late", now().late_by(900), complete(&["a", "b"]), Finish),
        ("7", now().late_by(1), open(&["b"]), Write(Withdraw)),
        ("7, at the last moment", now().late_by(5), open(&["b"]), Write(Withdraw)),
        ("8", now().late_by(1), complete(&["a", "c"]).waiting("b"), Write(Withdraw)),
        ("9", now().late_by(1), open(&["a"]), Fail),
        ("9, too late to withdraw", now().late_by(6), open(&["b"]), Fail),
        ("not 9, at the deadline", now().late_by(0), open(&["b"]), Wait),
        ("10", now(), complete(&["a", "c"]), Write(AddToWaitList)),
        ("11", now(), full(), Write(AddToRedundancyList)),
        ("13", now(), open(&["a"]), Write(AddToParticipants)),
        ("13, from the wait list", now(), open(&["a"]).waiting("b"), Write(AddToParticipants)),
        ("13, first of all", now(), State::default(), Write(AddToParticipants)),
        ("14, below min", now().heartbeat_due(), open(&["b"]), Write(KeepAlive)),
        ("14, on the wait list", now().heartbeat_due(), complete(&["a", "c"]).waiting("b"), Write(KeepAlive)),
        ("14, in a last call", now().heartbeat_due(), open(&["a", "b"]).in_last_call(), Write(KeepAlive)),
        ("15, below min", now(), open(&["b"]), Wait),
        ("15, on the wait list", now(), complete(&["a", "c"]).waiting("b"), Wait),
        ("15, in a last call", now(), open(&["a", "b"]).in_last_call(), Wait),
    ];
    for (row, fixture, state, decision) in rows {
        assert_eq!(join(&fixture, &state), decision, "row {row}");
    }
}

#[test]
fn a_failed_join_gives_its_reason() {
    let reason = |fixture: Fixture, state: State| decide(Goal::Join, &state, &fixture.view()).1;
    let full = complete(&["a", "c", "d"]).closed();
    assert_eq!(reason(Fixture::new(), full.clone()), Reason::Closed { by: None });
    assert_eq!(reason(Fixture::new(), full.spare("b")), Reason::SpareNotNeeded);
    assert!(reason(Fixture::new().late_by(1), open(&["a"])).is_join_timeout());
}

/// A torch node first removes itself from the redundancy list, and is temporarily in no list.
#[test]
fn a_spare_that_is_needed_moves_directly_to_the_list_that_needs_it() {
    let under_way = complete(&["a", "c"]).spare("b");
    assert_eq!(join(&Fixture::new(), &under_way), Decision::Write(Change::AddToWaitList));
    let starting = open(&["a"]).spare("b");
    assert_eq!(join(&Fixture::new(), &starting), Decision::Write(Change::AddToParticipants));
}

/// A torch node enters such a round, and gets a smaller number of nodes than the nodes that entered the same round
/// before a node left it.
#[test]
fn a_round_that_a_node_has_left_is_not_entered() {
    let broken = complete(&["a", "b", "c"]).without(&nodes(["c"]), 2);
    let (decision, reason) = decide(Goal::Join, &broken, &Fixture::new().view());
    assert_eq!(decision, Decision::Write(Change::Withdraw));
    assert_eq!(reason, Reason::RoundBroken { round: 0, world_size: 3, have: 2 });
}

/// Torch nodes don't record the number of nodes. After the node of the highest group rank has left, only `min_nodes`
/// shows that the round was larger.
#[test]
fn a_torch_round_below_min_nodes_has_lost_a_node_and_is_not_entered() {
    let mut round = complete(&["a", "b", "c"]);
    round.extra.clear();
    let fixture = Fixture::with(Settings::new("job", 3, 3));
    let (decision, reason) = decide(Goal::Join, &round.without(&nodes(["c"]), 3), &fixture.view());
    assert_eq!(decision, Decision::Write(Change::Withdraw));
    assert_eq!(reason, Reason::RoundBroken { round: 0, world_size: 3, have: 2 });
}

/// With the seeds 76,209 and 200,022 of the simulator (`crates/sim`), a node entered such a round: a torch node had
/// completed it, and the node of the highest group rank had left it and waited for the next one.
#[test]
fn a_torch_round_whose_node_of_the_highest_group_rank_now_waits_is_not_entered() {
    let fixture = Fixture::with(Settings::new("job", 2, 4));
    let mut round = complete(&["a", "b", "c"]);
    round.extra.clear();
    let left = round.without(&nodes(["c"]), 2).waiting("c");
    let (decision, _) = decide(Goal::Join, &left, &fixture.view());
    assert_eq!(decision, Decision::Write(Change::Withdraw));
    // The node enters the round if no node waits, if the round is full, or if the number of nodes is recorded.
    assert_eq!(join(&fixture, &round.without(&nodes(["c"]), 2)), Decision::Finish);
    let mut full = complete(&["a", "b", "c", "d"]).waiting("e");
    full.extra.clear();
    assert_eq!(join(&fixture, &full), Decision::Finish);
    assert_eq!(join(&fixture, &complete(&["a", "b"]).waiting("e")), Decision::Finish);
}

/// Torch nodes have no announcements, so a torch node in no list has nothing to retract.
#[test]
fn a_node_that_times_out_retracts_its_announcement_even_if_it_is_in_no_list() {
    let fixture = Fixture::new().late_by(1);
    assert_eq!(join(&fixture, &open(&["a"])), Decision::Fail);
    assert_eq!(join(&fixture.announced(), &open(&["a"])), Decision::Write(Change::Withdraw));
}

/// A torch node on the wait list stays there, because only nodes in no list become spares. So it makes the full round
/// re-form.
#[test]
fn a_node_on_the_wait_list_becomes_a_spare_when_the_round_is_full() {
    let full = complete(&["a", "c", "d"]).waiting("b");
    assert_eq!(join(&Fixture::new(), &full), Decision::Write(Change::AddToRedundancyList));
}

/// A torch node compares the deadline, which may come from the wall clock of another node, with its own wall clock.
#[test]
fn a_last_call_ends_after_it_was_observed_for_its_whole_duration_whatever_the_wall_clocks_show() {
    let state = open(&["a", "b"]).in_last_call();
    for clock in [wall(-3_600), wall(3_600)] {
        let mut fixture = Fixture { wall: clock, ..Fixture::new() };
        assert_eq!(join(&fixture, &state), Decision::Wait, "at the start");
        // The heartbeats of both nodes change, so neither is dead after 29 s.
        for second in 0..30 {
            let mut seen = state.clone();
            seen.last_heartbeats.values_mut().for_each(|heartbeat| *heartbeat = wall(second));
            fixture.member.observe(Some(&Arc::new(seen)), at(second as u64));
        }
        assert_eq!(join(&fixture, &state), Decision::Wait, "29 s of 30");
        fixture.member.observe(Some(&Arc::new(state.clone())), at(30));
        assert_eq!(join(&fixture, &state), Decision::Write(Change::MarkComplete), "30 s of 30");
    }
}

/// A torch node joins an open round with any number of participants, although torch nodes never complete a
/// round with more than `max_nodes` participants.
#[test]
fn an_open_round_that_is_full_by_the_nodes_own_settings_is_not_joined() {
    assert_eq!(join(&Fixture::new(), &open(&["a", "c", "d"])), Decision::Write(Change::AddToRedundancyList));
}

/// A torch node never completes a round with more than `max_nodes` participants.
#[test]
fn a_participant_completes_an_open_round_that_is_full_by_its_own_settings() {
    let (decision, reason) = decide(Goal::Join, &open(&["a", "b", "c", "d"]), &Fixture::new().view());
    assert_eq!((decision, reason), (Decision::Write(Change::MarkComplete), Reason::Full { have: 4 }));
}

/// A torch node writes the removal of dead nodes only together with its next change, such as its heartbeat.
#[test]
fn a_waiting_node_removes_dead_nodes_immediately() {
    let state = open(&["a", "b"]);
    let fixture = Fixture::new().after_observing(&state, 15);
    let (decision, reason) = decide(Goal::Join, &open(&["b"]), &fixture.view());
    assert_eq!(decision, Decision::Write(Change::KeepAlive));
    assert_eq!(reason, Reason::Dead { nodes: nodes(["a"]) });
}

#[test]
fn exit_finishes_when_the_node_is_out_of_the_round() {
    let exit = |fixture: &Fixture, state: &State| decide(Goal::Exit, state, &fixture.view()).0;
    assert_eq!(exit(&Fixture::new(), &open(&["a"])), Decision::Finish);
    assert_eq!(exit(&Fixture::new().late_by(1), &open(&["a"])), Decision::Finish);
    assert_eq!(exit(&Fixture::new(), &complete(&["a", "b"])), Decision::Write(Change::MoveToWaitList));
    assert_eq!(exit(&Fixture::new(), &complete(&["a", "b"]).closed()), Decision::Write(Change::Withdraw));
    assert_eq!(exit(&Fixture::new(), &open(&["a", "b"])), Decision::Write(Change::Withdraw));
    assert_eq!(exit(&Fixture::new().late_by(1), &complete(&["a", "b"])), Decision::Fail);
}

#[test]
fn leave_finishes_when_the_node_is_in_no_list_and_has_no_announcement() {
    let leave = |fixture: &Fixture, state: &State| decide(Goal::Leave, state, &fixture.view()).0;
    assert_eq!(leave(&Fixture::new(), &open(&["a"])), Decision::Finish);
    assert_eq!(leave(&Fixture::new(), &open(&["a"]).spare("b")), Decision::Write(Change::Withdraw));
    assert_eq!(leave(&Fixture::new(), &open(&["a"]).waiting("b")), Decision::Write(Change::Withdraw));
    assert_eq!(leave(&Fixture::new().announced(), &open(&["a"])), Decision::Write(Change::Withdraw));
    assert_eq!(leave(&Fixture::new().late_by(1), &open(&["b"])), Decision::Fail);
}

#[test]
fn a_heartbeat_is_written_when_it_is_due_and_fails_after_its_deadline() {
    let beat = |fixture: &Fixture, state: &State| decide(Goal::KeepAlive, state, &fixture.view());
    let round = complete(&["a", "b"]);
    assert_eq!(beat(&Fixture::new(), &round).0, Decision::Finish);
    let due = beat(&Fixture::new().heartbeat_due(), &round);
    assert_eq!(due, (Decision::Write(Change::KeepAlive), Reason::HeartbeatDue));
    let late = Fixture::new().heartbeat_due().late_by(1);
    assert_eq!(beat(&late, &round), (Decision::Fail, Reason::OperationTimeout));
    assert_eq!(beat(&Fixture::new(), &complete(&["a"])), (Decision::Finish, Reason::Dropped));
    assert!(matches!(beat(&Fixture::new(), &round.closed()), (Decision::Finish, Reason::Closed { .. })));
}

#[test]
fn close_finishes_when_any_node_has_closed_the_rendezvous() {
    let close = |fixture: &Fixture, state: &State| decide(Goal::Close, state, &fixture.view()).0;
    assert_eq!(close(&Fixture::new(), &open(&["a"]).closed()), Decision::Finish);
    assert_eq!(close(&Fixture::new(), &open(&["a"])), Decision::Write(Change::MarkClosed));
    assert_eq!(close(&Fixture::new().late_by(1), &open(&["a"])), Decision::Fail);
}

#[test]
fn a_join_timeout_names_the_participants_and_the_number_of_nodes_needed() {
    let (_, reason) = decide(Goal::Join, &open(&["a"]), &Fixture::new().late_by(1).view());
    let waited = Duration::from_secs(601);
    assert_eq!(reason, Reason::JoinTimeout { participants: nodes(["a"]), need: 2, waited });
    assert!(
        reason.to_string().starts_with("1 of at least 2 nodes joined within 601 s (join_timeout): a (pid ")
    );
}

#[test]
fn a_timeout_on_the_wait_list_names_the_round_under_way() {
    let state = complete(&["a", "c"]).waiting("b");
    let (_, reason) = decide(Goal::Join, &state, &Fixture::new().late_by(1).view());
    let text = reason.to_string();
    assert!(text.starts_with("round 0 is under way with 2 nodes and did not re-form within 601 s"), "{text}");
}

#[test]
fn a_torch_round_that_a_waiting_node_may_have_left_is_not_entered() {
    // Node `c` waits for the next round. It may have left this round, in which it then had the highest group rank.
    let mut state = complete(&["a", "b"]).waiting("c");
    state.extra.clear();
    let (decision, reason) = decide(Goal::Join, &state, &Fixture::new().view());
    assert_eq!(decision, Decision::Write(Change::Withdraw), "{reason}");
}

/// Torch nodes don't compare their `--nnodes`. If the values differ, rounds re-form again and again.
#[test]
fn a_node_with_another_nnodes_is_refused_and_both_values_are_named() {
    let mut job = open(&["a"]);
    job.publish_terms(&State::default(), &node("a"), &Settings::new("job", 2, 3));
    let other = Fixture::with(Settings::new("job", 2, 4));
    let (decision, reason) = decide(Goal::Join, &job, &other.view());
    assert_eq!(decision, Decision::Fail);
    assert_eq!(
        reason.to_string(),
        "node b (pid 1) was started with --nnodes 2:4, but node a (pid 1) started the job with --nnodes 2:3"
    );
    assert_eq!(join(&Fixture::new(), &job), Decision::Write(Change::AddToParticipants));
    // Other nodes have admitted node `b` before it read the terms.
    job.participants.insert(node("b"), 0);
    assert_eq!(join(&other, &job), Decision::Write(Change::Withdraw));
    // All other nodes have left, so the published terms no longer apply.
    job.participants.remove(&node("a"));
    assert_eq!(join(&other, &job), Decision::Wait);
}

#[test]
fn a_node_withdraws_from_a_round_that_was_completed_with_fewer_than_its_min_nodes() {
    let fixture = Fixture::with(Settings::new("job", 3, 4));
    let (decision, reason) = decide(Goal::Join, &complete(&["a", "b"]), &fixture.view());
    assert_eq!(decision, Decision::Write(Change::Withdraw));
    assert_eq!(reason, Reason::TooFewNodes { round: 0, have: 2, need: 3 });
}

#[test]
fn a_round_that_re_forms_with_no_more_nodes_than_before_has_a_short_last_call() {
    let settings = Settings::new("job", 2, 5);
    let mut next = open(&["a", "b"]).in_last_call();
    next.round = 1;
    next.extra = complete(&["a", "b", "c"]).extra;
    let after = |seconds, state: &State| {
        let fixture = Fixture::with(settings.clone()).after_observing(state, seconds);
        join(&fixture, state)
    };
    assert_eq!(after(2, &next), Decision::Wait);
    assert_eq!(after(3, &next), Decision::Write(Change::MarkComplete));
    // The round has more nodes than the one before, so more new nodes may follow.
    let mut larger = next.clone();
    for name in ["c", "d"] {
        larger.participants.insert(node(name), 0);
    }
    assert_eq!(after(3, &larger), Decision::Wait);
    assert_eq!(
        after(3, &open(&["a", "b"]).in_last_call()),
        Decision::Wait,
        "the first round has a long last call"
    );
}

#[test]
fn a_node_restores_its_round_when_the_store_has_lost_it() {
    let mut round = complete(&["a", "b"]);
    round.round = 4;
    let mut fixture = Fixture::new();
    fixture.member.round = Some(Arc::new(round.clone()));
    let keep_alive = |state: &State| decide(Goal::KeepAlive, state, &fixture.view());
    for lost in [State::default(), open(&["new"])] {
        assert_eq!(keep_alive(&lost), (Decision::Write(Change::Restore), Reason::StateLost));
    }
    assert_eq!(keep_alive(&round).0, Decision::Finish);
    // The other nodes have opened the next round without node `b`.
    let mut next = open(&["a"]);
    next.round = 5;
    assert_eq!(keep_alive(&next), (Decision::Finish, Reason::Dropped));
    // After the store lost the round, the other nodes completed another one without node `b`. That one re-forms now.
    let mut since = open(&["a"]);
    (since.round, since.extra) = (1, complete(&["a"]).extra);
    assert_eq!(keep_alive(&since), (Decision::Finish, Reason::Dropped));
}
