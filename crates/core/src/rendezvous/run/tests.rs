//! One node on its way, step by step: what it does next when it is told this or that.

use bytes::Bytes;

use super::super::fixtures::{at, complete, node, nodes, open, wall};
use super::super::settings::Settings;
use super::*;

/// Node `b` of a job of two to three nodes, towards a goal.
struct Way {
    member: Member,
    run: Run,
    now: MonoTime,
}

impl Way {
    fn to(goal: Goal) -> Way {
        let member = Member::new(node("b"), Settings::new("job", 2, 3));
        Way { member, run: Run::new(goal, at(0), at(600)), now: at(0) }
    }

    fn cell(state: &State) -> Cell {
        Cell { state: Some(Arc::new(state.clone())), token: Bytes::from_static(b"token") }
    }

    fn read(&mut self, state: &State) -> Step {
        self.run.handle_cell(&mut self.member, Way::cell(state), self.now, wall(0))
    }

    fn announced(&mut self, state: &State, announced: &[&str]) -> Step {
        let announced: Vec<_> = announced.iter().map(|name| node(name)).collect();
        self.run.handle_announced(&mut self.member, Way::cell(state), announced, self.now, wall(0))
    }

    fn lost_to(&mut self, state: &State, random: u64) -> Step {
        self.run.handle_written(&mut self.member, false, Way::cell(state), random, self.now, wall(0))
    }

    fn won(&mut self, state: &State) -> Step {
        self.run.handle_written(&mut self.member, true, Way::cell(state), 0, self.now, wall(0))
    }

    fn paused(&mut self) -> Step {
        self.run.handle_pause(&self.member, self.now)
    }
}

fn pause(step: &Step) -> Duration {
    match step {
        Step::Pause { most, .. } => *most,
        other => panic!("no pause: {other:?}"),
    }
}

fn written(step: Step) -> (State, Option<(u64, Vec<NodeDesc>)>) {
    match step {
        Step::Write { state, retract, .. } => (state, retract),
        other => panic!("no write: {other:?}"),
    }
}

#[test]
fn a_node_announces_itself_before_it_writes_itself_in() {
    let mut way = Way::to(Goal::Join);
    assert_eq!(way.run.start(&mut way.member), Step::Read);
    assert_eq!(way.read(&State::default()), Step::Announce { round: 0 });
    let (state, _) = written(way.announced(&State::default(), &["b", "c"]));
    assert_eq!(state.participants.keys().cloned().collect::<Vec<_>>(), nodes(["b", "c"]));
}

#[test]
fn what_is_to_be_replaced_is_what_was_read() {
    let mut way = Way::to(Goal::Join);
    way.read(&State::default());
    let Step::Write { token, .. } = way.announced(&open(&["a"]), &[]) else { panic!("no write") };
    assert_eq!(token, Way::cell(&open(&["a"])).token);
}

#[test]
fn who_is_not_first_in_line_lets_the_others_go_first_but_not_for_ever() {
    let mut way = Way::to(Goal::Join);
    way.read(&State::default());
    for _ in 0..MOST_DEFERRALS {
        let step = way.announced(&State::default(), &["a", "b"]);
        assert_eq!(pause(&step), FIRST_PAUSE + STAGGER);
        assert_eq!(way.paused(), Step::Announce { round: 0 });
    }
    assert!(matches!(way.announced(&State::default(), &["a", "b"]), Step::Write { .. }));
}

#[test]
fn who_is_in_the_round_already_is_not_ahead_in_line() {
    let mut way = Way::to(Goal::Join);
    way.read(&open(&["a"]));
    assert!(matches!(way.announced(&open(&["a"]), &["a", "b", "c"]), Step::Write { .. }));
}

#[test]
fn whose_heartbeat_is_due_lets_nobody_go_first() {
    let mut way = Way::to(Goal::Join);
    let state = open(&[]).waiting("b");
    way.read(&state);
    assert!(matches!(way.announced(&state, &["a", "b"]), Step::Write { .. }), "it was never written");
}

#[test]
fn who_was_let_in_has_a_heartbeat_from_when_it_asked() {
    let mut way = Way::to(Goal::Join);
    way.read(&State::default());
    way.now = at(3);
    assert!(matches!(way.read(&open(&["a", "b"]).called()), Step::Pause { .. }), "nothing is due yet");
    assert_eq!(way.member.beat, Some(at(0)));
    way.now = at(5);
    assert!(matches!(way.read(&open(&["a", "b"]).called()), Step::Write { .. }), "the heartbeat is due");
}

#[test]
fn after_a_lost_write_it_pauses_longer_each_time_and_writes_less_than_twenty_times_a_second() {
    for random in [0, 4_095] {
        let mut way = Way::to(Goal::Join);
        way.read(&State::default());
        let (mut longest, mut first_second) = (Duration::ZERO, 0);
        let mut passed = Duration::ZERO;
        for _ in 0..20 {
            assert!(matches!(way.announced(&State::default(), &["b"]), Step::Write { .. }));
            let most = pause(&way.lost_to(&State::default(), random));
            assert!(most >= longest && most <= LONGEST_PAUSE, "{most:?} after {longest:?}");
            longest = most;
            first_second += u32::from(passed < Duration::from_secs(1));
            passed += most;
            way.paused();
        }
        assert!(first_second <= 20, "{first_second} writes in the first second");
    }
}

#[test]
fn a_heartbeat_that_was_lost_is_tried_again_at_once_every_other_time() {
    let mut way = Way::to(Goal::KeepAlive);
    let round = complete(&["a", "b"]);
    written(way.read(&round));
    for _ in 0..3 {
        written(way.lost_to(&round, 0));
        assert!(matches!(way.lost_to(&round, 0), Step::Pause { .. }));
        assert_eq!(way.paused(), Step::Read);
        written(way.read(&round));
    }
}

/// It takes as long as a pause would to get there, and others who are near would be quicker again and again.
#[test]
fn a_heartbeat_from_far_away_that_was_lost_is_tried_again_at_once_each_time() {
    let mut way = Way::to(Goal::KeepAlive);
    let round = complete(&["a", "b"]);
    written(way.read(&round));
    for _ in 0..20 {
        way.now = way.now.after(FAR);
        written(way.lost_to(&round, 0));
    }
    way.now = way.now.after(FAR / 2);
    assert!(matches!(way.lost_to(&round, 0), Step::Write { .. }), "every other time, near as it is now");
    assert!(matches!(way.lost_to(&round, 0), Step::Pause { .. }));
}

#[test]
fn what_the_winner_wrote_may_be_all_that_was_wanted() {
    let mut way = Way::to(Goal::Join);
    way.read(&open(&["a"]));
    way.announced(&open(&["a"]), &["b"]);
    let step = way.lost_to(&complete(&["a", "b"]), 0);
    let Step::End(End::Reached { state, reason }) = step else { panic!("{step:?}") };
    assert_eq!(*state, complete(&["a", "b"]));
    assert_eq!(reason, Reason::InRound { round: 0, world_size: 2 });
}

#[test]
fn a_lost_write_changes_nothing_but_what_was_seen() {
    let mut way = Way::to(Goal::Join);
    way.read(&open(&["a"]));
    way.announced(&open(&["a"]), &["b"]);
    let mut wanted = way.member.clone();
    let winner = Arc::new(open(&["a", "c"]));
    wanted.watch.observe(&winner, at(0), &wanted.settings);
    way.lost_to(&winner, 0);
    assert_eq!(way.member, wanted);
}

#[test]
fn a_pause_lasts_no_longer_than_the_last_call() {
    let called = open(&["a", "b"]).called();
    let mut way = Way::to(Goal::Join);
    way.member.settings.last_call_timeout = Duration::from_millis(2_300);
    let mut pauses = Vec::new();
    for millis in [0, 1_000, 2_000, 2_299] {
        way.now = MonoTime::from_start(Duration::from_millis(millis));
        way.member.beat = Some(way.now);
        pauses.push(pause(&way.read(&called)).as_millis());
    }
    assert_eq!(pauses, [1_000, 1_000, 300, 10]);
    way.now = MonoTime::from_start(Duration::from_millis(2_300));
    assert!(written(way.read(&called)).0.complete, "it is over");
}

#[test]
fn a_pause_lasts_no_longer_than_the_time_to_join() {
    let mut way = Way::to(Goal::Join);
    way.now = MonoTime::from_start(Duration::from_millis(599_700));
    way.member.beat = Some(way.now);
    let most = pause(&way.read(&open(&["b"])));
    assert_eq!(most, Duration::from_millis(301));
    way.now = way.now.after(most);
    let (state, _) = written(way.read(&open(&["b"])));
    assert!(!state.has(&node("b")), "its time is up");
}

#[test]
fn a_spare_looks_once_a_second_however_late_it_is() {
    let mut way = Way::to(Goal::Join);
    way.now = at(10_000);
    way.member.beat = Some(way.now);
    assert_eq!(pause(&way.read(&complete(&["a", "c", "d"]).spare("b"))), POLL);
}

#[test]
fn a_spare_that_was_called_ends_well_if_the_job_is_over_before_it_is_in() {
    let closed = |mut state: State| {
        state.closed = true;
        state
    };
    let mut way = Way::to(Goal::Join);
    way.member.beat = Some(way.now);
    way.read(&complete(&["a", "c", "d"]).spare("b"));
    way.read(&complete(&["a", "c"]).waiting("b"));
    assert!(matches!(way.read(&closed(complete(&["a", "c"]).waiting("b"))), Step::End(End::Graceful(_))));
    let mut way = Way::to(Goal::Join);
    way.member.beat = Some(way.now);
    way.read(&complete(&["a", "c"]).waiting("b"));
    assert!(matches!(way.read(&closed(complete(&["a", "c"]).waiting("b"))), Step::End(End::Closed(_))));
}

#[test]
fn who_leaves_takes_its_announcement_back_first_and_knows_of_it_until_its_write_is_won() {
    let mut way = Way::to(Goal::Join);
    way.read(&open(&["a"]));
    assert_eq!(way.member.announcement, Some(0));
    way.run = Run::new(Goal::Leave, at(0), at(30));
    for _ in 0..2 {
        let (_, retract) = written(way.read(&open(&["a"])));
        assert_eq!(retract, Some((0, nodes(["b"]))));
        assert_eq!(way.run.handle_failure(), Step::Read, "who knows what came of it");
    }
    written(way.read(&open(&["a"])));
    assert!(matches!(way.lost_to(&open(&["a", "c"]), 0), Step::Pause { .. }), "it is to be written yet");
    written(way.read(&open(&["a", "c"])));
    let step = way.won(&open(&["a", "c"]));
    assert!(matches!(step, Step::End(End::Reached { .. })), "{step:?}");
    assert_eq!(way.member.announcement, None);
}

#[test]
fn an_announcement_for_a_round_that_is_not_open_yet_is_taken_back_there() {
    let mut way = Way::to(Goal::Leave);
    way.member.announcement = Some(1);
    let (_, retract) = written(way.read(&complete(&["a"])));
    assert_eq!(retract, Some((1, nodes(["b"]))));
}

#[test]
fn an_announcement_for_a_round_that_is_complete_counts_for_nothing() {
    let mut way = Way::to(Goal::Leave);
    way.member.announcement = Some(0);
    let (_, retract) = written(way.read(&complete(&["a", "b"])));
    assert_eq!(retract, None);
}

#[test]
fn who_starts_over_takes_those_along_who_have_announced_themselves_for_the_next_round() {
    let mut way = Way::to(Goal::Exit);
    let round = complete(&["a", "b", "c", "d"]);
    assert_eq!(way.read(&round), Step::Announce { round: 1 });
    let (next, retract) = written(way.announced(&round, &["b", "c", "stranger"]));
    assert_eq!(next.participants.keys().cloned().collect::<Vec<_>>(), nodes(["a", "d"]));
    assert_eq!(next.wait_list, nodes(["b", "c"]).into_iter().collect());
    assert!(next.complete && next.last_heartbeats[&node("c")] > wall(0), "that it asked is a sign of life");
    assert_eq!(retract, None, "it wants to be in the next round");
    assert!(matches!(way.won(&next), Step::End(End::Reached { .. })));
    assert_eq!(way.member.announcement, Some(1));
}

#[test]
fn who_is_not_first_in_line_to_start_over_is_mostly_taken_along() {
    let mut way = Way::to(Goal::Exit);
    let round = complete(&["a", "b", "c"]);
    way.member.beat = Some(at(0));
    way.read(&round);
    let step = way.announced(&round, &["a", "b"]);
    assert_eq!(pause(&step), FIRST_PAUSE + STAGGER);
    assert_eq!(way.paused(), Step::Announce { round: 1 }, "it looks at both again");
    way.now = at(1);
    let taken = complete(&["a", "b", "c"]).without(&nodes(["a", "b"]), 2).waiting("a").waiting("b");
    assert!(matches!(way.announced(&taken, &["a", "b"]), Step::End(End::Reached { .. })));
    assert_eq!(way.member.beat, Some(at(0)), "whoever took it along has written a heartbeat for it");
}

#[test]
fn who_was_let_out_and_into_the_next_round_meanwhile_stays_in_that() {
    let mut way = Way::to(Goal::Exit);
    way.read(&complete(&["a", "b"]));
    let next = State { round: 1, ..complete(&["a", "b"]) };
    assert!(matches!(way.announced(&next, &["a", "b"]), Step::End(End::Reached { .. })));
}

#[test]
fn a_list_of_another_round_than_the_one_to_be_open_lets_nobody_in() {
    let mut way = Way::to(Goal::Join);
    way.read(&open(&["a"]));
    let next = State { round: 1, ..open(&["a"]) };
    assert_eq!(way.announced(&next, &["b", "c"]), Step::Announce { round: 1 });
    let (state, _) = written(way.announced(&next, &["b"]));
    assert_eq!(state.participants.keys().cloned().collect::<Vec<_>>(), nodes(["a", "b"]));
}

#[test]
fn a_round_whose_nodes_all_start_over_is_over() {
    let mut way = Way::to(Goal::Exit);
    let round = complete(&["a", "b"]);
    way.read(&round);
    let (next, _) = written(way.announced(&round, &["b", "a"]));
    assert_eq!((next.round, next.complete, next.wait_list.len()), (1, false, 2));
    way.run = Run::new(Goal::Join, at(0), at(600));
    assert_eq!(way.read(&next), Step::Announce { round: 1 }, "who else wants to be in it is read again");
    let (next, _) = written(way.announced(&next, &["b", "a"]));
    assert_eq!((next.participants.len(), next.wait_list.len()), (2, 0));
}

#[test]
fn a_dead_node_of_a_round_is_not_let_into_the_next_because_it_had_asked() {
    let mut way = Way::to(Goal::KeepAlive);
    let round = complete(&["a", "b"]);
    for second in 0..=15 {
        way.now = at(second);
        way.member.beat = Some(way.now);
        way.read(&round);
    }
    let (next, retract) = written(way.read(&round));
    assert!(!next.has(&node("a")));
    assert_eq!(retract, Some((1, nodes(["a"]))));
}

#[test]
fn the_dead_are_put_out_and_their_announcements_taken_back() {
    let mut way = Way::to(Goal::Join);
    let state = open(&["a", "b"]).called();
    for second in 0..15 {
        way.now = at(second);
        way.member.beat = Some(way.now);
        way.read(&state);
    }
    way.now = at(15);
    assert!(way.member.watch.silence(&node("a")) < Duration::from_secs(15));
    let (next, retract) = written(way.read(&state));
    assert!(!next.has(&node("a")));
    assert_eq!(retract, Some((0, nodes(["a"]))));
}

#[test]
fn a_round_is_returned_as_it_was_read_even_if_somebody_in_it_seems_dead() {
    let mut way = Way::to(Goal::KeepAlive);
    for second in 0..=20 {
        way.now = at(second);
        way.member.beat = Some(way.now);
        way.read(&complete(&["a", "b"]));
    }
    way.run = Run::new(Goal::Join, at(20), at(600));
    let step = way.read(&complete(&["a", "b"]));
    let Step::End(End::Reached { state, .. }) = step else { panic!("{step:?}") };
    assert_eq!(state.participants.len(), 2);
}

#[test]
fn there_is_a_duty_when_the_heartbeat_is_due_or_somebody_is_dead() {
    let mut way = Way::to(Goal::KeepAlive);
    assert!(way.member.has_duty(at(0)), "it has never shown itself");
    way.member.beat = Some(at(0));
    assert!(!way.member.has_duty(at(4)));
    assert!(way.member.has_duty(at(5)));
    for second in 0..=15 {
        let state = Arc::new(complete(&["a", "b"]));
        way.member.watch.observe(&state, at(second), &way.member.settings);
    }
    way.member.beat = Some(at(15));
    assert!(way.member.has_duty(at(15)), "`a` is to be put out");
}

#[test]
fn a_node_that_is_refused_withdraws_before_it_ends() {
    let mut way = Way::to(Goal::Join);
    way.member.settings.min_nodes = 3;
    let (state, _) = written(way.read(&complete(&["a", "b"])));
    assert!(!state.has(&node("b")));
    match way.won(&state) {
        Step::End(End::Refused(reason)) => assert!(reason.is_refusal(), "{reason:?}"),
        other => panic!("not refused: {other:?}"),
    }
}
