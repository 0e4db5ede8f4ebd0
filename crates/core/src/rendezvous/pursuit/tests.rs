//! The operations of a node, one by one, and what it does when the store fails.

use super::super::fixtures::{at, complete, node, nodes, open, wall};
use super::super::settings::Settings;
use super::*;

/// Node `b` of a job of two to three nodes.
struct Driver {
    member: Member,
    pursuit: Pursuit,
    operation: Operation,
    now: MonoTime,
}

impl Driver {
    fn to(goal: Goal) -> Driver {
        let mut member = Member::new(node("b"), Settings::new("job", 2, 3));
        let (pursuit, operation) = Pursuit::start(goal, &mut member, at(0));
        Driver { member, pursuit, operation, now: at(0) }
    }

    fn report(&mut self, outcome: Outcome) -> &Operation {
        let moment = Moment { mono: self.now, wall: wall(0), random: 0 };
        self.operation = self.pursuit.handle(&mut self.member, outcome, moment);
        &self.operation
    }

    fn read(&mut self, state: &State) -> &Operation {
        self.report(Outcome::Cell(cell(state)))
    }

    fn fail(&mut self, fault: Fault, seconds: u64) -> &Operation {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.report(Outcome::Failed(fault))
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.pursuit.poll_notice()).collect()
    }
}

fn cell(state: &State) -> Cell {
    Cell { state: Some(Arc::new(state.clone())), token: Bytes::from_static(b"token") }
}

#[test]
fn a_node_announces_itself_then_reads_the_state_and_then_the_announcements() {
    let mut driver = Driver::to(Goal::Join);
    assert_eq!(driver.operation, Operation::Read, "whether it has to leave a round first");
    assert_eq!(*driver.read(&open(&["a"])), Operation::Read, "it has not; it joins");
    assert_eq!(driver.pursuit.goal(), Goal::Join);
    assert_eq!(*driver.read(&open(&["a"])), Operation::Announce { round: 0 });
    assert_eq!(*driver.report(Outcome::Announced { is_supported: true }), Operation::Read);
    assert_eq!(*driver.read(&open(&["a"])), Operation::ReadAnnounced { round: 0 });
    let Operation::Write { state, signals, .. } = driver.report(Outcome::Nodes(nodes(["b", "c"]).into()))
    else {
        panic!("no write")
    };
    assert_eq!(state.participants.len(), 3);
    assert_eq!(*signals, [Signal::Over(Phase { round: 0, complete: false })]);
}

#[test]
fn a_store_without_announcements_is_not_asked_for_them() {
    let mut driver = Driver::to(Goal::Join);
    driver.read(&open(&["a"]));
    driver.read(&open(&["a"]));
    assert_eq!(*driver.report(Outcome::Announced { is_supported: false }), Operation::Read);
    assert!(matches!(driver.read(&open(&["a"])), Operation::Write { .. }));
}

#[test]
fn a_node_announces_itself_once_and_does_not_ask_who_else_has_if_it_was_let_in() {
    let mut driver = Driver::to(Goal::Join);
    driver.read(&open(&[]));
    driver.read(&open(&[]));
    driver.report(Outcome::Announced { is_supported: true });
    driver.read(&open(&[]));
    driver.report(Outcome::Nodes(nodes(["b"]).into()));
    assert!(matches!(
        driver.report(Outcome::Written { won: false, cell: cell(&open(&["a"])) }),
        Operation::Pause { .. }
    ));
    assert_eq!(*driver.report(Outcome::Paused { is_woken: false }), Operation::Read);
    assert!(matches!(driver.read(&open(&["a", "b"]).called()), Operation::Pause { .. }));
}

#[test]
fn announcements_are_taken_back_before_the_state_is_written() {
    let mut driver = Driver::to(Goal::Leave);
    driver.member.announcement = Some(0);
    let retract = Operation::Retract { round: 0, nodes: nodes(["b"]) };
    assert_eq!(*driver.read(&open(&["a", "b"])), retract);
    assert!(matches!(driver.report(Outcome::Done), Operation::Write { .. }));
}

#[test]
fn a_signal_that_was_wrong_is_not_waited_for_again() {
    let mut driver = Driver::to(Goal::Join);
    let waiting = complete(&["a", "c"]).waiting("b");
    driver.member.beat = Some(at(0));
    driver.read(&waiting);
    let phase = Phase { round: 0, complete: true };
    let wake = |operation: &Operation| match operation {
        Operation::Pause { wake, .. } => *wake,
        other => panic!("no pause: {other:?}"),
    };
    assert_eq!(wake(driver.read(&waiting)), Some(phase));
    driver.report(Outcome::Paused { is_woken: true });
    assert_eq!(wake(driver.read(&waiting)), None);
}

#[test]
fn an_outage_is_tolerated_until_it_has_lasted_too_long_and_a_gone_host_is_replaced() {
    let mut driver = Driver::to(Goal::Join);
    driver.member.settings.store_outage_timeout = Duration::from_secs(10);
    let pause = Operation::Pause { most: OUTAGE_RETRY_INTERVAL, wake: None };
    assert_eq!(*driver.fail(Fault::Outage, 3), pause);
    assert_eq!(*driver.report(Outcome::Paused { is_woken: false }), Operation::Read);
    assert_eq!(*driver.fail(Fault::Outage, 3), Operation::Host);
    assert_eq!(*driver.report(Outcome::Done), pause);
    assert_eq!(driver.notices(), [Notice::StoreSilent { lasted: Duration::from_secs(6) }]);
    driver.report(Outcome::Paused { is_woken: false });
    assert_eq!(*driver.fail(Fault::Outage, 4), Operation::End(End::Outage(Duration::from_secs(10))));
}

#[test]
fn an_answer_ends_an_outage() {
    let mut driver = Driver::to(Goal::Join);
    driver.fail(Fault::Outage, 6);
    driver.report(Outcome::Done);
    driver.report(Outcome::Paused { is_woken: false });
    driver.notices();
    driver.read(&open(&["a"]));
    assert_eq!(driver.notices(), [Notice::StoreAnswers { lasted: Duration::from_secs(6) }]);
    assert!(driver.member.outage.lasted(driver.now).is_zero());
}

#[test]
fn a_heartbeat_is_tried_again_without_a_pause_until_its_time_is_up() {
    let mut driver = Driver::to(Goal::KeepAlive);
    assert_eq!(*driver.fail(Fault::Outage, 1), Operation::Read);
    assert_eq!(*driver.fail(Fault::Outage, 4), Operation::End(End::Error));
}

#[test]
fn a_state_that_can_not_be_read_is_read_again_for_10_s() {
    let mut driver = Driver::to(Goal::Join);
    for _ in 0..10 {
        let pause = Operation::Pause { most: CORRUPT_RETRY_INTERVAL, wake: None };
        assert_eq!(*driver.fail(Fault::Corrupt, 1), pause);
        assert_eq!(*driver.report(Outcome::Paused { is_woken: false }), Operation::Read);
    }
    assert_eq!(driver.notices(), [Notice::StateUnreadable]);
    assert_eq!(*driver.fail(Fault::Corrupt, 1), Operation::End(End::Error));
}

#[test]
fn each_call_of_a_join_has_the_time_that_is_left_and_each_call_of_a_heartbeat_its_whole_time() {
    let timeout = |driver: &Driver, now| driver.pursuit.call_timeout(&driver.member, now);
    let joining = Driver::to(Goal::Join);
    assert_eq!(timeout(&joining, at(0)), Duration::from_secs(10));
    assert_eq!(timeout(&joining, at(600)), ROLLBACK);
    let heartbeat = Driver::to(Goal::KeepAlive);
    assert_eq!(timeout(&heartbeat, at(2)), heartbeat.member.settings.heartbeat_timeout);
    let mut spare = Driver::to(Goal::Join);
    spare.read(&State::default());
    spare.read(&complete(&["a", "c", "d"]).spare("b"));
    assert_eq!(timeout(&spare, at(900)), Duration::from_secs(10));
    assert_eq!(spare.notices(), [Notice::Spare(Reason::Spare { have: 3 })]);
}

#[test]
fn a_write_that_removes_a_dead_node_wakes_the_others_and_is_noticed_once_it_has_won() {
    let (before, after) = (complete(&["a", "b", "c"]), complete(&["a", "b", "c"]).without(&nodes(["c"]), 2));
    assert_eq!(signals(&node("b"), &before, &after), [Signal::Wanted { round: 0 }]);
    let mut driver = Driver::to(Goal::KeepAlive);
    driver.read(&before);
    driver.pursuit.write(&driver.member, Bytes::new(), Arc::new(after.clone()));
    assert_eq!(driver.notices(), []);
    driver.report(Outcome::Written { won: true, cell: cell(&after) });
    assert_eq!(driver.notices(), [Notice::Removed { nodes: nodes(["c"]), round: Some(0) }]);
}

#[test]
fn nodes_are_woken_when_a_round_ends_or_a_node_waits_for_the_next_one() {
    let (open_round, round) = (open(&["a", "b"]), complete(&["a", "b"]));
    assert_eq!(signals(&node("b"), &open_round, &round), [Signal::Over(Phase { round: 0, complete: false })]);
    assert_eq!(
        signals(&node("b"), &round, &round.clone().closed()),
        [Signal::Over(Phase { round: 0, complete: true }), Signal::Wanted { round: 0 }]
    );
    assert_eq!(signals(&node("d"), &round, &round.clone().waiting("d")), [Signal::Wanted { round: 0 }]);
    assert_eq!(signals(&node("b"), &round, &round), []);
}

#[test]
fn the_keys_of_the_round_before_last_are_stale_once_a_round_is_complete() {
    let mut driver = Driver::to(Goal::Join);
    driver.member.stale = None;
    let (before, after) =
        (State { round: 4, ..open(&["a"]) }, State { round: 4, ..complete(&["a", "b", "c"]) });
    driver.read(&State::default());
    driver.read(&before);
    driver.pursuit.write(&driver.member, Bytes::new(), Arc::new(after.clone()));
    driver.report(Outcome::Written { won: true, cell: cell(&after) });
    assert_eq!(driver.member.stale, Some(2));
}
