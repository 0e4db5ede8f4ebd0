//! Tests the operations of one pursuit, step by step.

use bytes::Bytes;

use super::super::settings::Settings;
use super::super::tests::{at, complete, node, nodes, open, wall};
use super::*;

/// A driver of node `b` in a job with `--nnodes 2:3`.
struct Driver {
    member: Member,
    pursuit: Pursuit,
    operation: Operation,
    now: MonoTime,
    random: u64,
}

impl Driver {
    fn to(goal: Goal) -> Driver {
        Driver::of(Member::new(node("b"), Settings::new("job", 2, 3)), goal)
    }

    fn of(mut member: Member, goal: Goal) -> Driver {
        let (pursuit, operation) = Pursuit::start(goal, &mut member, at(0));
        Driver { member, pursuit, operation, now: at(0), random: 0 }
    }

    fn report(&mut self, outcome: Outcome) -> Operation {
        let moment = Moment { mono: self.now, wall: wall(0), random: self.random };
        self.operation = self.pursuit.handle(&mut self.member, outcome, moment);
        self.operation.clone()
    }

    fn read(&mut self, state: &State) -> Operation {
        self.report(Outcome::Cell(cell(state)))
    }

    /// Reports this state, and then the announcements of these nodes.
    fn announced(&mut self, state: &State, names: &[&str]) -> Operation {
        if let Operation::Announce { .. } = self.read(state) {
            assert_eq!(self.report(Outcome::Done), Operation::Read);
            self.read(state);
        }
        assert!(matches!(self.operation, Operation::ReadAnnounced { .. }), "{:?}", self.operation);
        self.report(Outcome::Nodes(names.iter().map(|name| node(name)).collect()))
    }

    fn lost_to(&mut self, state: &State) -> Operation {
        self.report(Outcome::Written { won: false, cell: cell(state) })
    }

    fn won(&mut self, state: &State) -> Operation {
        self.report(Outcome::Written { won: true, cell: cell(state) })
    }

    fn paused(&mut self) -> Operation {
        self.report(Outcome::Paused { is_woken: false })
    }

    /// Advances the time by `seconds` seconds and reports a failure.
    fn fail(&mut self, fault: Fault, seconds: u64) -> Operation {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.report(Outcome::Failed(fault))
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.pursuit.poll_notice()).collect()
    }

    /// Observes this state once a second for `seconds` seconds, while the heartbeat of node `b` changes. Then reports
    /// it as read.
    fn watch(&mut self, state: &State, seconds: u64) -> Operation {
        for second in 0..seconds {
            self.now = at(second);
            self.member.observe(Some(&Arc::new(with_heartbeat(state, second))), self.now);
        }
        self.now = at(seconds);
        self.read(&with_heartbeat(state, seconds))
    }
}

/// Returns the state with `second` as the heartbeat of node `b`.
fn with_heartbeat(state: &State, second: u64) -> State {
    let mut state = state.clone();
    state.last_heartbeats.insert(node("b"), wall(second as i64));
    state
}

fn cell(state: &State) -> Cell {
    Cell { state: Some(Arc::new(state.clone())), token: Bytes::from_static(b"token") }
}

fn pause(operation: &Operation) -> Duration {
    match operation {
        Operation::Pause { timeout, .. } => *timeout,
        other => panic!("no pause: {other:?}"),
    }
}

fn written(operation: Operation) -> State {
    match operation {
        Operation::Write { state, .. } => Arc::unwrap_or_clone(state),
        other => panic!("no write: {other:?}"),
    }
}

fn is_write(operation: &Operation) -> bool {
    matches!(operation, Operation::Write { .. })
}

fn is_reached(operation: &Operation) -> bool {
    matches!(operation, Operation::End(End::Reached { .. }))
}

fn participants(state: &State) -> Vec<NodeDesc> {
    state.participants.keys().cloned().collect()
}

#[test]
fn a_joining_node_announces_itself_and_then_reads_the_state_and_the_announcements() {
    let mut driver = Driver::to(Goal::Join);
    assert_eq!(driver.operation, Operation::Read, "the node may still be in a round");
    assert_eq!(driver.read(&open(&["a"])), Operation::Announce { round: 0 }, "the node is in no round");
    assert_eq!(driver.pursuit.goal(), Goal::Join);
    assert_eq!(
        driver.report(Outcome::Done),
        Operation::Read,
        "another node may have admitted this one by now"
    );
    assert_eq!(driver.read(&open(&["a"])), Operation::ReadAnnounced { round: 0 });
    let Operation::Write { token, state, signals } = driver.report(Outcome::Nodes(nodes(["b", "c"]).into()))
    else {
        panic!("no write")
    };
    assert_eq!(token, cell(&open(&["a"])).token, "the write replaces the state that was read");
    assert_eq!(participants(&state), nodes(["a", "b", "c"]));
    assert_eq!(signals, [Signal::PhaseOver(Phase { round: 0, complete: false })]);
}

#[test]
fn a_node_announces_itself_once_and_reads_no_announcements_after_it_was_admitted() {
    let mut driver = Driver::to(Goal::Join);
    driver.announced(&State::default(), &["b"]);
    assert!(matches!(driver.lost_to(&open(&["a"])), Operation::Pause { .. }));
    assert_eq!(driver.paused(), Operation::Read);
    assert_eq!(driver.read(&open(&["a"])), Operation::ReadAnnounced { round: 0 });
    driver.report(Outcome::Nodes(nodes(["b"]).into()));
    driver.lost_to(&open(&["a", "c"]));
    driver.paused();
    assert!(matches!(driver.read(&open(&["a", "b"]).in_last_call()), Operation::Pause { .. }));
}

#[test]
fn a_node_defers_to_earlier_announcements_four_times_per_round() {
    let mut driver = Driver::to(Goal::Join);
    for _ in 0..MAX_DEFERRALS {
        let deferral = driver.announced(&State::default(), &["a", "b"]);
        assert_eq!(pause(&deferral), BACKOFF_INTERVAL + STAGGER_INTERVAL);
        assert_eq!(driver.paused(), Operation::Read);
    }
    assert!(is_write(&driver.announced(&State::default(), &["a", "b"])));
}

#[test]
fn an_announcement_of_a_participant_causes_no_delay() {
    let mut driver = Driver::to(Goal::Join);
    assert!(is_write(&driver.announced(&open(&["a"]), &["a", "b", "c"])));
}

#[test]
fn a_heartbeat_is_due_one_interval_after_its_last_change_whichever_node_wrote_it() {
    let mut driver = Driver::to(Goal::Join);
    driver.read(&State::default());
    let admitted = open(&["a", "b"]).in_last_call();
    for second in 3..8 {
        driver.now = at(second);
        let mut seen = admitted.clone();
        seen.last_heartbeats.insert(node("a"), wall(second as i64));
        driver.pursuit.pending = Pending::Read;
        assert!(matches!(driver.read(&seen), Operation::Pause { .. }), "nothing is due after {second} s");
    }
    driver.now = at(8);
    driver.pursuit.pending = Pending::Read;
    assert!(is_write(&driver.read(&admitted)), "the heartbeat is due");
}

#[test]
fn lost_writes_back_off_to_at_most_20_writes_in_the_first_second() {
    for random in [0, 4_095] {
        let mut driver = Driver::to(Goal::Join);
        driver.random = random;
        let (mut longest, mut first_second) = (Duration::ZERO, 0);
        let mut passed = Duration::ZERO;
        for _ in 0..20 {
            assert!(is_write(&driver.announced(&State::default(), &["b"])));
            let backoff = pause(&driver.lost_to(&State::default()));
            assert!(backoff >= longest && backoff <= MAX_BACKOFF_INTERVAL, "{backoff:?} after {longest:?}");
            longest = backoff;
            first_second += u32::from(passed < Duration::from_secs(1));
            passed += backoff;
            driver.paused();
        }
        assert!(first_second <= 20, "{first_second} writes in the first second");
    }
}

/// Returns a driver of a node in this round whose heartbeat is due. Its first write is pending.
fn heartbeat_due(round: &State) -> Driver {
    let mut driver = Driver::to(Goal::KeepAlive);
    driver.member.observe(Some(&Arc::new(round.clone())), at(0));
    driver.now = at(5);
    driver.pursuit.deadline = at(600);
    written(driver.read(round));
    driver
}

#[test]
fn a_heartbeat_whose_write_is_lost_is_retried_immediately_every_other_time() {
    let round = complete(&["a", "b"]);
    let mut driver = heartbeat_due(&round);
    for _ in 0..3 {
        written(driver.lost_to(&round));
        assert!(matches!(driver.lost_to(&round), Operation::Pause { .. }));
        assert_eq!(driver.paused(), Operation::Read);
        written(driver.read(&round));
    }
}

/// With a backoff in addition to the long round trip, nodes near the store would always write first.
#[test]
fn a_heartbeat_whose_write_is_lost_over_a_slow_link_is_always_retried_immediately() {
    let round = complete(&["a", "b"]);
    let mut driver = heartbeat_due(&round);
    for _ in 0..20 {
        driver.now = driver.now.after(SLOW_WRITE_INTERVAL);
        written(driver.lost_to(&round));
    }
    driver.now = driver.now.after(SLOW_WRITE_INTERVAL / 2);
    assert!(is_write(&driver.lost_to(&round)), "after a fast write, every other retry is immediate");
    assert!(matches!(driver.lost_to(&round), Operation::Pause { .. }));
}

#[test]
fn a_lost_write_finishes_the_join_if_the_winner_completed_the_round() {
    let mut driver = Driver::to(Goal::Join);
    driver.announced(&open(&["a"]), &["b"]);
    let end = driver.lost_to(&complete(&["a", "b"]));
    let Operation::End(End::Reached { state, reason }) = end else { panic!("{end:?}") };
    assert_eq!(*state, complete(&["a", "b"]));
    assert_eq!(reason, Reason::InRound { round: 0, world_size: 2 });
    assert_eq!(driver.member.announcement, None, "no node is admitted to a complete round");
}

#[test]
fn a_lost_write_changes_only_the_observations() {
    let mut driver = Driver::to(Goal::Join);
    driver.announced(&open(&["a"]), &["b"]);
    let mut wanted = driver.member.clone();
    let winner = open(&["a", "c"]);
    wanted.observe(Some(&Arc::new(winner.clone())), at(0));
    driver.lost_to(&winner);
    assert_eq!(driver.member, wanted);
}

#[test]
fn a_pause_lasts_no_longer_than_the_last_call() {
    let state = open(&["a", "b"]).in_last_call();
    let mut driver = Driver::to(Goal::Join);
    driver.member.settings.last_call_timeout = Duration::from_millis(2_300);
    let mut pauses = Vec::new();
    for millis in [0, 1_000, 2_000, 2_299] {
        driver.now = MonoTime::from_start(Duration::from_millis(millis));
        driver.pursuit.goal = Goal::Join;
        driver.pursuit.pending = Pending::Read;
        pauses.push(pause(&driver.read(&state)).as_millis());
    }
    assert_eq!(pauses, [1_000, 1_000, 300, 10]);
    driver.now = MonoTime::from_start(Duration::from_millis(2_300));
    driver.paused();
    assert!(written(driver.read(&state)).complete, "the last call is over");
}

#[test]
fn a_pause_lasts_no_longer_than_the_join_timeout() {
    let mut driver = Driver::to(Goal::Join);
    driver.pursuit.goal = Goal::Join;
    driver.now = MonoTime::from_start(Duration::from_millis(599_700));
    let timeout = pause(&driver.read(&open(&["b"])));
    assert_eq!(timeout, Duration::from_millis(301));
    driver.now = driver.now.after(timeout);
    driver.paused();
    assert!(!written(driver.read(&open(&["b"]))).has(&node("b")), "the join timeout has passed");
    let end = driver.won(&State::default());
    let Operation::End(End::Failed(Reason::JoinTimeout { participants, .. })) = end else {
        panic!("{end:?}")
    };
    assert_eq!(participants, nodes(["b"]), "the participants before the withdrawal");
}

#[test]
fn a_spare_polls_once_a_second_without_a_timeout() {
    let mut driver = Driver::to(Goal::Join);
    driver.now = at(10_000);
    assert_eq!(pause(&driver.read(&complete(&["a", "c", "d"]).spare("b"))), POLL_INTERVAL);
    assert_eq!(driver.notices(), [Notice::Spare(Reason::Spare { have: 3 })]);
}

#[test]
fn a_former_spare_ends_with_spare_not_needed_if_the_rendezvous_closes_before_it_joins() {
    let waiting = complete(&["a", "c"]).waiting("b");
    let mut driver = Driver::to(Goal::Join);
    driver.read(&complete(&["a", "c", "d"]).spare("b"));
    driver.paused();
    driver.read(&waiting);
    driver.paused();
    assert_eq!(driver.read(&waiting.clone().closed()), Operation::End(End::Failed(Reason::SpareNotNeeded)));
    let mut driver = Driver::to(Goal::Join);
    driver.read(&waiting);
    driver.paused();
    let closed = Reason::Closed { by: None };
    assert_eq!(driver.read(&waiting.closed()), Operation::End(End::Failed(closed)));
}

#[test]
fn a_leaving_node_retracts_its_announcement_first_and_remembers_it_until_its_write_wins() {
    let mut driver = Driver::to(Goal::Join);
    driver.read(&open(&["a"]));
    assert_eq!(driver.member.announcement, Some(0));
    let mut driver = Driver::of(driver.member, Goal::Leave);
    let retract = Operation::Retract { round: 0, nodes: nodes(["b"]) };
    assert_eq!(driver.read(&open(&["a"])), retract);
    assert!(
        matches!(driver.fail(Fault::Outage, 1), Operation::Pause { .. }),
        "the node does not know whether its announcement was retracted"
    );
    driver.paused();
    assert_eq!(driver.read(&open(&["a"])), retract);
    written(driver.report(Outcome::Done));
    assert!(
        matches!(driver.lost_to(&open(&["a", "c"])), Operation::Pause { .. }),
        "the withdrawal is not written yet"
    );
    driver.paused();
    assert_eq!(driver.read(&open(&["a", "c"])), retract);
    written(driver.report(Outcome::Done));
    assert!(is_reached(&driver.won(&open(&["a", "c"]))));
    assert_eq!(driver.member.announcement, None);
}

#[test]
fn an_announcement_for_a_round_that_is_not_open_yet_is_retracted_from_that_round() {
    let mut driver = Driver::to(Goal::Leave);
    driver.member.announcement = Some(1);
    let retract = Operation::Retract { round: 1, nodes: nodes(["b"]) };
    assert_eq!(driver.read(&complete(&["a"])), retract);
}

#[test]
fn an_announcement_for_a_complete_round_needs_no_retraction() {
    let mut driver = Driver::to(Goal::Leave);
    driver.member.announcement = Some(0);
    assert!(is_write(&driver.read(&complete(&["a", "b"]))));
}

#[test]
fn a_rejoining_node_moves_all_announced_nodes_of_its_round_to_the_wait_list() {
    let mut driver = Driver::to(Goal::Join);
    let round = complete(&["a", "b", "c", "d"]);
    let next = written(driver.announced(&round, &["b", "c", "stranger"]));
    assert_eq!(driver.member.announcement, Some(1));
    assert_eq!(participants(&next), nodes(["a", "d"]));
    assert_eq!(next.wait_list, nodes(["b", "c"]).into_iter().collect());
    assert!(
        next.complete && next.last_heartbeats[&node("c")] > wall(0),
        "an announcement renews the heartbeat"
    );
    assert!(matches!(driver.won(&next), Operation::Pause { .. }), "the node waits for the next round");
    assert_eq!(driver.pursuit.goal(), Goal::Join);
    assert_eq!(driver.member.announcement, Some(1));
}

#[test]
fn a_rejoining_node_lets_a_node_with_an_earlier_announcement_move_both_to_the_wait_list() {
    let mut driver = Driver::to(Goal::Join);
    let round = complete(&["a", "b", "c"]);
    assert_eq!(pause(&driver.announced(&round, &["a", "b"])), BACKOFF_INTERVAL + STAGGER_INTERVAL);
    driver.paused();
    let moved = round.without(&nodes(["a", "b"]), 2).waiting("a").waiting("b");
    assert!(matches!(driver.read(&moved), Operation::Pause { .. }));
    assert_eq!(driver.pursuit.goal(), Goal::Join);
}

#[test]
fn a_node_that_was_admitted_to_the_next_round_in_the_meantime_stays_in_it() {
    let mut driver = Driver::to(Goal::Join);
    driver.announced(&complete(&["a", "b"]), &["a", "b"]);
    driver.paused();
    let next = State { round: 1, ..complete(&["a", "b"]) };
    assert!(is_reached(&driver.read(&next)));
}

#[test]
fn a_node_whose_announced_round_is_over_announces_itself_for_the_open_round() {
    let mut driver = Driver::to(Goal::Join);
    assert_eq!(driver.read(&open(&["a"])), Operation::Announce { round: 0 });
    driver.fail(Fault::Outage, 1);
    driver.paused();
    let next = State { round: 1, ..open(&["a"]) };
    assert_eq!(driver.read(&next), Operation::Announce { round: 1 });
}

#[test]
fn a_round_whose_nodes_all_rejoin_is_over() {
    let mut driver = Driver::to(Goal::Join);
    let next = written(driver.announced(&complete(&["a", "b"]), &["b", "a"]));
    assert_eq!((next.round, next.complete, next.wait_list.len()), (1, false, 2));
    let operation = driver.won(&next);
    assert_eq!(
        operation,
        Operation::ReadAnnounced { round: 1 },
        "announcements are read again for the next round"
    );
    let next = written(driver.report(Outcome::Nodes(nodes(["b", "a"]).into())));
    assert_eq!((next.participants.len(), next.wait_list.len()), (2, 0));
}

#[test]
fn the_announcement_of_a_dead_node_for_the_next_round_is_retracted() {
    let mut driver = Driver::to(Goal::KeepAlive);
    driver.pursuit.deadline = at(600);
    let operation = driver.watch(&complete(&["a", "b"]), 15);
    assert_eq!(operation, Operation::Retract { round: 1, nodes: nodes(["a"]) });
    assert!(!written(driver.report(Outcome::Done)).has(&node("a")));
}

#[test]
fn dead_nodes_are_removed_and_their_announcements_retracted() {
    let mut driver = Driver::to(Goal::Join);
    driver.pursuit.goal = Goal::Join;
    let operation = driver.watch(&open(&["a", "b"]).in_last_call(), 15);
    assert_eq!(operation, Operation::Retract { round: 0, nodes: nodes(["a"]) });
    assert!(!written(driver.report(Outcome::Done)).has(&node("a")));
}

#[test]
fn a_round_is_returned_as_it_was_read_even_if_a_node_in_it_seems_dead() {
    let mut driver = Driver::to(Goal::Join);
    driver.pursuit.goal = Goal::Join;
    let end = driver.watch(&complete(&["a", "b"]), 20);
    let Operation::End(End::Reached { state, .. }) = end else { panic!("{end:?}") };
    assert_eq!(state.participants.len(), 2);
}

#[test]
fn keep_alive_is_due_when_a_heartbeat_is_due_a_node_is_dead_or_the_store_has_lost_the_round() {
    let mut member = Driver::to(Goal::KeepAlive).member;
    let round = complete(&["a", "b"]);
    member.observe(Some(&Arc::new(round.clone())), at(0));
    assert_eq!(member.until_keep_alive(at(0)), Duration::from_secs(5));
    assert_eq!(member.until_keep_alive(at(4)), Duration::from_secs(1), "without another observation");
    for second in 0..=12 {
        member.observe(Some(&Arc::new(with_heartbeat(&round, second))), at(second));
    }
    assert_eq!(member.until_keep_alive(at(12)), Duration::from_secs(3), "until `a` is dead");
    member.round = Some(Arc::new(round));
    member.observe(None, at(13));
    assert_eq!(member.until_keep_alive(at(13)), Duration::ZERO, "the store has lost the round");
}

#[test]
fn a_node_whose_round_has_too_few_nodes_withdraws_before_its_join_fails() {
    let mut driver = Driver::to(Goal::Join);
    driver.pursuit.goal = Goal::Join;
    driver.member.settings.min_nodes = 3;
    let state = written(driver.read(&complete(&["a", "b"])));
    assert!(!state.has(&node("b")));
    let reason = Reason::TooFewNodes { round: 0, have: 2, need: 3 };
    assert_eq!(driver.won(&state), Operation::End(End::Failed(reason)));
}

#[test]
fn a_stale_signal_is_not_waited_for_again() {
    let mut driver = Driver::to(Goal::Join);
    let waiting = complete(&["a", "c"]).waiting("b");
    let phase = Phase { round: 0, complete: true };
    let wake = |operation: Operation| match operation {
        Operation::Pause { wake, .. } => wake,
        other => panic!("no pause: {other:?}"),
    };
    assert_eq!(wake(driver.read(&waiting)), Some(phase));
    driver.report(Outcome::Paused { is_woken: true });
    assert_eq!(wake(driver.read(&waiting)), None);
}

#[test]
fn an_outage_is_tolerated_until_store_outage_timeout_and_a_lost_host_is_replaced() {
    let mut driver = Driver::to(Goal::Join);
    driver.member.settings.store_outage_timeout = Duration::from_secs(10);
    let pause = Operation::Pause { timeout: RETRY_INTERVAL, wake: None };
    assert_eq!(driver.fail(Fault::Outage, 3), pause);
    assert_eq!(driver.paused(), Operation::Read);
    assert_eq!(driver.fail(Fault::Outage, 3), Operation::Host);
    assert_eq!(driver.report(Outcome::Done), pause);
    let lasted = Duration::from_secs(6);
    assert_eq!(driver.notices(), [Notice::Failing { fault: Fault::Outage, lasted }]);
    driver.paused();
    assert_eq!(driver.fail(Fault::Outage, 4), Operation::End(End::Outage(Duration::from_secs(10))));
}

#[test]
fn a_reply_ends_an_outage() {
    let mut driver = Driver::to(Goal::Join);
    driver.fail(Fault::Outage, 6);
    driver.report(Outcome::Done);
    driver.paused();
    driver.notices();
    driver.read(&open(&["a"]));
    assert_eq!(driver.notices(), [Notice::StoreAnswers { lasted: Duration::from_secs(6) }]);
    assert!(driver.member.outage.lasted(driver.now).is_zero());
}

#[test]
fn a_failed_heartbeat_is_retried_until_its_timeout() {
    let mut driver = Driver::to(Goal::KeepAlive);
    assert!(matches!(driver.fail(Fault::Outage, 1), Operation::Pause { .. }));
    driver.paused();
    assert_eq!(driver.fail(Fault::Outage, 3), Operation::Pause { timeout: RETRY_INTERVAL, wake: None });
    driver.paused();
    driver.read(&complete(&["a", "b"]));
    assert_eq!(driver.fail(Fault::Outage, 2), Operation::End(End::Error));
}

#[test]
fn a_keep_alive_that_timed_out_takes_over_the_store_of_a_lost_host_and_ends() {
    let mut driver = Driver::to(Goal::KeepAlive);
    assert_eq!(driver.fail(Fault::Outage, 6), Operation::Host);
    assert_eq!(driver.report(Outcome::Done), Operation::End(End::Error));
}

#[test]
fn a_spare_tolerates_an_outage_after_the_join_timeout() {
    let mut driver = Driver::to(Goal::Join);
    driver.read(&complete(&["a", "c", "d"]).spare("b"));
    driver.now = at(10_000);
    driver.paused();
    assert!(matches!(driver.fail(Fault::Outage, 1), Operation::Pause { .. }));
}

#[test]
fn a_corrupt_state_is_read_again_for_10_s() {
    let mut driver = Driver::to(Goal::Join);
    for _ in 0..9 {
        assert!(matches!(driver.fail(Fault::Corrupt, 1), Operation::Pause { .. }));
        assert_eq!(driver.paused(), Operation::Read);
    }
    assert_eq!(driver.notices().len(), 1);
    assert_eq!(driver.fail(Fault::Corrupt, 1), Operation::End(End::Outage(Duration::from_secs(10))));
}

#[test]
fn a_call_of_a_join_ends_withdraw_grace_after_its_deadline_and_a_heartbeat_has_its_whole_timeout() {
    let timeout = |driver: &Driver, now| driver.pursuit.call_timeout(&driver.member, now);
    let joining = Driver::to(Goal::Join);
    assert_eq!(timeout(&joining, at(0)), Duration::from_secs(10));
    assert_eq!(timeout(&joining, at(600)), WITHDRAW_GRACE);
    let heartbeat = Driver::to(Goal::KeepAlive);
    assert_eq!(timeout(&heartbeat, at(2)), heartbeat.member.settings.heartbeat_timeout);
    let mut spare = Driver::to(Goal::Join);
    spare.read(&complete(&["a", "c", "d"]).spare("b"));
    assert_eq!(timeout(&spare, at(900)), Duration::from_secs(10));
}

#[test]
fn a_write_that_removes_a_dead_node_wakes_other_nodes_and_is_reported_after_it_has_won() {
    let (before, after) = (complete(&["a", "b", "c"]), complete(&["a", "b", "c"]).without(&nodes(["c"]), 2));
    assert_eq!(signals(&node("b"), &before, &after), [Signal::NextRoundWanted { round: 0 }]);
    let mut driver = heartbeat_due(&before);
    assert_eq!(driver.notices(), []);
    driver.won(&after);
    assert_eq!(driver.notices(), [Notice::Removed { nodes: nodes(["c"]), round: Some(0) }]);
}

#[test]
fn waiting_nodes_are_woken_when_a_phase_ends_or_a_node_waits_for_the_next_round() {
    let (open_round, round) = (open(&["a", "b"]), complete(&["a", "b"]));
    assert_eq!(
        signals(&node("b"), &open_round, &round),
        [Signal::PhaseOver(Phase { round: 0, complete: false })]
    );
    assert_eq!(
        signals(&node("b"), &round, &round.clone().closed()),
        [Signal::PhaseOver(Phase { round: 0, complete: true }), Signal::NextRoundWanted { round: 0 }]
    );
    assert_eq!(
        signals(&node("d"), &round, &round.clone().waiting("d")),
        [Signal::NextRoundWanted { round: 0 }]
    );
    assert_eq!(signals(&node("b"), &round, &round), []);
}

#[test]
fn the_keys_of_the_round_before_last_are_stale_once_a_round_is_complete() {
    let mut driver = Driver::to(Goal::Join);
    let (before, after) =
        (State { round: 4, ..open(&["a"]) }, State { round: 4, ..complete(&["a", "b", "c"]) });
    driver.announced(&before, &["b", "c"]);
    driver.won(&after);
    assert_eq!(driver.member.stale_round, Some(2));
}
