use super::super::settings::Settings;
use super::super::tests::{complete, node, nodes};
use super::*;

fn seen(state: &State) -> Membership {
    let joined = JoinedRound::of(&complete(&["a", "b", "c"]));
    Member::new(node("b"), Settings::new("job", 2, 3)).membership(Some(&joined), state)
}

#[test]
fn a_round_is_intact_until_a_new_node_waits() {
    let all = complete(&["a", "b", "c"]);
    let seen_all = seen(&all);
    assert_eq!((&seen_all.members, seen_all.world_size()), (&nodes(["a", "b", "c"]), 3));
    assert!(seen_all.is_intact() && !seen_all.is_round_over);
    let with_new_node = seen(&all.clone().waiting("d"));
    assert_eq!((with_new_node.num_nodes_waiting(), with_new_node.is_round_over), (1, false));
    assert!(!with_new_node.is_intact());
}

#[test]
fn a_node_of_the_round_that_waits_is_rejoining_and_one_in_no_list_is_lost() {
    let state = complete(&["a", "b", "c"]).without(&nodes(["a", "c"]), 2).waiting("a");
    let seen = seen(&state);
    assert_eq!((&seen.rejoining, seen.is_round_over), (&nodes(["a"]), true));
    let lost = seen.lost.clone().unwrap();
    assert_eq!(lost.nodes, nodes(["c"]));
    assert!(
        seen.has_left_round(&node("a"))
            && seen.has_left_round(&node("c"))
            && !seen.has_left_round(&node("b"))
    );
    assert_eq!(
        lost.to_string(),
        "c (pid 1): no heartbeat for 15 s (keep_alive_interval × keep_alive_max_attempt)"
    );
}

#[test]
fn a_node_that_recorded_its_leaving_is_lost_for_good() {
    let mut state = complete(&["a", "b", "c"]).without(&nodes(["c"]), 2);
    state.count_leaver();
    let lost = seen(&state).lost.unwrap();
    assert_eq!((lost.cause, lost.to_string()), (LossCause::Left, "c (pid 1): left".into()));
}

#[test]
fn a_node_that_is_missing_in_its_round_was_dropped_and_reports_a_waiting_node() {
    let without_me = complete(&["a", "b", "c"]).without(&nodes(["b"]), 2);
    let later = State { round: 1, ..complete(&["a", "c"]) };
    for state in [without_me, later] {
        let seen = seen(&state);
        assert!(seen.is_dropped, "{state:?}");
        assert_eq!(seen.num_nodes_waiting(), 1);
    }
}

#[test]
fn no_node_counts_as_missing_in_a_closed_rendezvous() {
    let seen = seen(&complete(&["b"]).closed());
    assert!(seen.is_closed && seen.is_intact() && !seen.is_dropped && !seen.is_round_over);
}
