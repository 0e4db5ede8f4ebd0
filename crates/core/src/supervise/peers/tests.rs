use super::*;
use crate::rendezvous::{LossCause, Lost, NodeDesc};

const NONE: Reports = Reports { finished: 0, ours_finished: 0, lost_finished: 0 };

fn at(millis: u64) -> MonoTime {
    MonoTime::from_start(Duration::from_millis(millis))
}

fn nodes(names: &[&str]) -> Vec<NodeDesc> {
    names.iter().map(|name| NodeDesc::new(*name, 1, 0)).collect()
}

/// A membership in which these nodes are still in the round.
fn round(members: &[&str]) -> Membership {
    Membership { round: Some(0), members: nodes(members), ..Membership::default() }
}

fn with_lost(names: &[&str], have_left: bool) -> Membership {
    let cause = if have_left { LossCause::Left } else { LossCause::NoHeartbeat(Duration::from_secs(15)) };
    let lost = Lost { nodes: nodes(names), cause };
    Membership { lost: Some(lost), ..round(&["a"]) }
}

/// Returns the reason to rejoin of a node in a round that has only nodes of ours.
fn reason(peers: &mut Peers, seen: &Membership, reports: Reports, now: MonoTime) -> Option<Reason> {
    peers.reason_to_reform(seen, Some(&reports), true, now)
}

#[test]
fn an_intact_round_is_no_reason_to_rejoin() {
    assert_eq!(Peers::default().reason_to_reform(&round(&["a", "b", "c"]), None, true, at(0)), None);
}

#[test]
fn a_node_is_lost_if_it_does_not_rejoin_within_the_grace() {
    let mut peers = Peers::default();
    let seen = with_lost(&["b"], false);
    assert_eq!(reason(&mut peers, &seen, NONE, at(0)), None);
    assert_eq!(reason(&mut peers, &seen, NONE, at(1100)), None);
    assert_eq!(reason(&mut peers, &seen, NONE, at(1200)), Some(Reason::NodesLeft(1)));
}

#[test]
fn a_node_that_recorded_its_leaving_is_lost_at_the_second_observation() {
    let mut peers = Peers::default();
    let seen = with_lost(&["b", "c"], true);
    assert_eq!(reason(&mut peers, &seen, NONE, at(0)), None);
    assert_eq!(reason(&mut peers, &seen, NONE, at(10)), Some(Reason::NodesLeft(2)));
}

#[test]
fn a_node_that_is_missing_in_one_observation_is_not_lost() {
    let mut peers = Peers::default();
    assert_eq!(reason(&mut peers, &with_lost(&["b"], true), NONE, at(0)), None);
    assert_eq!(reason(&mut peers, &round(&["a", "b", "c"]), NONE, at(10)), None);
    assert_eq!(reason(&mut peers, &with_lost(&["b"], true), NONE, at(20)), None);
}

#[test]
fn a_node_that_has_finished_is_not_lost() {
    let ours = Reports { finished: 1, ours_finished: 1, lost_finished: 1 };
    let torch = Reports { finished: 1, ..NONE };
    for reports in [ours, torch] {
        let mut peers = Peers::default();
        for (names, lost) in [(&["b"][..], 0), (&["b", "c"], 1)] {
            let expected = (lost > 0).then_some(Reason::NodesLeft(lost));
            reason(&mut peers, &with_lost(names, true), reports, at(0));
            assert_eq!(reason(&mut peers, &with_lost(names, true), reports, at(10)), expected, "{reports:?}");
        }
    }
    let other = Reports { finished: 1, ours_finished: 1, ..NONE };
    assert_eq!(
        other.unfinished(&with_lost(&["b"], true)),
        1,
        "the node that has finished is not the lost one"
    );
}

#[test]
fn a_rejoining_node_counts_as_a_restart_only_in_a_round_with_torch_nodes() {
    let seen = Membership {
        rejoining: nodes(&["c"]),
        waiting: nodes(&["c"]),
        is_round_over: true,
        ..round(&["a", "b"])
    };
    let mixed = |seen: &Membership| Peers::default().reason_to_reform(seen, Some(&NONE), false, at(0));
    assert_eq!(mixed(&seen), Some(Reason::PeerRestarts));
    assert_eq!(reason(&mut Peers::default(), &seen, NONE, at(0)), Some(Reason::RoundOver));
    let with_new_node = Membership { waiting: nodes(&["c", "d"]), ..seen };
    assert_eq!(mixed(&with_new_node), Some(Reason::RoundOver));
}

#[test]
fn a_new_node_that_waits_is_a_reason_to_rejoin() {
    let seen = Membership { waiting: nodes(&["d"]), ..round(&["a", "b", "c"]) };
    assert_eq!(reason(&mut Peers::default(), &seen, NONE, at(0)), Some(Reason::NodesWaiting(1)));
}

#[test]
fn being_dropped_takes_precedence_over_every_other_reason() {
    let seen = Membership { is_dropped: true, is_round_over: true, ..round(&["b"]) };
    assert_eq!(reason(&mut Peers::default(), &seen, NONE, at(0)), Some(Reason::Dropped));
}
