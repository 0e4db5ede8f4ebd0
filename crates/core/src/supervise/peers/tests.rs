use super::*;
use crate::rendezvous::{LossCause, Lost, NodeDesc};

const OURS: Reports = Reports { finished: 0, ours_finished: 0, lost_finished: 0, ours: 3 };

fn at(millis: u64) -> MonoTime {
    MonoTime::from_start(Duration::from_millis(millis))
}

fn nodes(names: &[&str]) -> Vec<NodeDesc> {
    names.iter().map(|name| NodeDesc::new(*name, 1, 0)).collect()
}

/// A round of nodes a, b and c of which these are left.
fn round(members: &[&str]) -> Membership {
    Membership { round: Some(0), members: nodes(members), ..Membership::default() }
}

fn losing(names: &[&str], is_final: bool) -> Membership {
    let lost = Lost { nodes: nodes(names), cause: LossCause::Silent(Duration::from_secs(15)), is_final };
    Membership { lost: Some(lost), ..round(&["a"]) }
}

fn events(peers: &mut Peers, seen: &Membership, reports: Reports, now: MonoTime) -> Vec<Event> {
    peers.observe(seen, Some(&reports), now).events
}

#[test]
fn nothing_follows_from_a_round_that_goes_on() {
    assert_eq!(Peers::default().observe(&round(&["a", "b", "c"]), None, at(0)), Findings::default());
}

#[test]
fn a_node_is_lost_if_it_does_not_come_back_in_time() {
    let mut peers = Peers::default();
    let seen = losing(&["b"], false);
    assert_eq!(events(&mut peers, &seen, OURS, at(0)), []);
    assert_eq!(events(&mut peers, &seen, OURS, at(1100)), []);
    let findings = peers.observe(&seen, Some(&OURS), at(1200));
    assert_eq!(findings, Findings { events: vec![Event::NodesLeft(1)], reports_lost: true });
    assert!(!peers.observe(&seen, Some(&OURS), at(1300)).reports_lost, "once is enough");
}

#[test]
fn a_node_that_can_not_come_back_is_lost_at_the_second_look() {
    let mut peers = Peers::default();
    let seen = losing(&["b", "c"], true);
    assert_eq!(events(&mut peers, &seen, OURS, at(0)), []);
    assert_eq!(events(&mut peers, &seen, OURS, at(10)), [Event::NodesLeft(2)]);
}

#[test]
fn a_node_that_was_missing_for_a_moment_is_not_lost() {
    let mut peers = Peers::default();
    assert_eq!(events(&mut peers, &losing(&["b"], true), OURS, at(0)), []);
    assert_eq!(events(&mut peers, &round(&["a", "b", "c"]), OURS, at(10)), []);
    assert_eq!(events(&mut peers, &losing(&["b"], true), OURS, at(20)), []);
}

#[test]
fn a_node_that_has_finished_is_not_lost() {
    let named = Reports { finished: 1, ours_finished: 1, lost_finished: 1, ours: 3 };
    let torchs = Reports { finished: 1, ours: 2, ..Reports::default() };
    for reports in [named, torchs] {
        let mut peers = Peers::default();
        for (names, lost) in [(&["b"][..], 0), (&["b", "c"], 1)] {
            let expected: &[Event] = if lost == 0 { &[] } else { &[Event::NodesLeft(lost)] };
            events(&mut peers, &losing(names, true), reports, at(0));
            assert_eq!(events(&mut peers, &losing(names, true), reports, at(10)), expected, "{reports:?}");
        }
    }
    let other = Reports { finished: 1, ours_finished: 1, ..OURS };
    assert_eq!(unfinished(&losing(&["b"], true), &other), 1, "that another node has finished is no excuse");
}

#[test]
fn a_node_of_torchs_that_starts_over_has_failed_and_one_of_ours_would_have_said_so() {
    let seen = Membership {
        returned: nodes(&["c"]),
        waiting: nodes(&["c"]),
        is_round_over: true,
        ..round(&["a", "b"])
    };
    let mixed = Reports { ours: 2, ..OURS };
    assert_eq!(events(&mut Peers::default(), &seen, mixed, at(0)), [Event::PeerRestarts]);
    let over = [Event::NodesWaiting(1), Event::RoundOver];
    assert_eq!(events(&mut Peers::default(), &seen, OURS, at(0)), over);
    let with_newcomer = Membership { waiting: nodes(&["c", "d"]), ..seen };
    let over = [Event::NodesWaiting(2), Event::RoundOver];
    assert_eq!(events(&mut Peers::default(), &with_newcomer, mixed, at(0)), over);
}

#[test]
fn a_newcomer_that_waits_does_not_end_the_round() {
    let seen = Membership { waiting: nodes(&["d"]), ..round(&["a", "b", "c"]) };
    assert_eq!(events(&mut Peers::default(), &seen, OURS, at(0)), [Event::NodesWaiting(1)]);
}

#[test]
fn a_node_that_was_dropped_knows_nothing_else() {
    let seen = Membership { is_dropped: true, is_round_over: true, ..round(&["b"]) };
    assert_eq!(events(&mut Peers::default(), &seen, OURS, at(0)), [Event::Dropped]);
}

#[test]
fn a_closed_rendezvous_is_judged_by_how_many_have_finished() {
    let seen = Membership { is_closed: true, ..losing(&["b"], true) };
    let finished = Reports { finished: 2, ..OURS };
    assert_eq!(events(&mut Peers::default(), &seen, finished, at(0)), [Event::Closed { finished: 2 }]);
    assert_eq!(Peers::default().observe(&seen, None, at(0)), Findings::default(), "it is asked again");
}
