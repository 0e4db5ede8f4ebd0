use super::*;
use crate::settings::ScaleUp;

#[test]
fn the_first_round_of_an_elastic_job_waits_for_the_last_call() {
    let mut job = TestJob::new(JobSettings::new(2, 4));
    job.join();
    job.pass(5 * SECOND);
    job.join();
    let waited = job.wait_for_round(0);
    assert!((30 * SECOND..31 * SECOND).contains(&waited), "{waited:?}");
    assert_eq!(job.wait_text(0), "2 of at most 4 nodes have joined, last call for more");
}

#[test]
fn a_full_world_and_a_world_of_fixed_size_form_without_delay() {
    for settings in [JobSettings::new(1, 3), JobSettings::new(3, 3)] {
        let mut job = TestJob::new(settings);
        (0..3).for_each(|_| _ = job.join());
        assert!(job.wait_for_round(0) <= ms(100));
    }
}

#[test]
fn a_world_that_can_not_hold_another_unit_is_full() {
    let mut job = TestJob::new(JobSettings { node_unit: 2, ..JobSettings::new(2, 5) });
    (0..4).for_each(|_| _ = job.join());
    assert!(job.wait_for_round(0) <= ms(100));
}

#[test]
fn after_a_loss_the_survivors_form_a_round_without_a_last_call_and_without_grace_for_the_lost() {
    let mut job = TestJob::running(JobSettings::new(2, 4), 3);
    job.kill(1);
    assert!(job.wait_for_round(1) <= ms(200));
    assert_eq!(job.members(), [0, 2]);
}

#[test]
fn survivors_get_the_return_grace_before_a_spare_takes_a_place() {
    let mut job = TestJob::running(JobSettings::new(2, 3), 3);
    let spare = job.join();
    job.pass(SECOND);
    job.nodes[1].returns = false;
    job.fail_worker(0);
    job.pass(ms(100));
    job.report(1, Phase::Outside("a check runs".into()));
    let waited = job.wait_for_round(1);
    assert!((ms(900)..ms(1200)).contains(&waited), "{waited:?}");
    assert_eq!(job.members(), [0, spare, 2]);
}

#[test]
fn a_survivor_that_returns_within_the_grace_keeps_its_place() {
    let mut job = TestJob::running(JobSettings::new(2, 3), 3);
    job.join();
    job.nodes[1].returns = false;
    job.fail_worker(0);
    job.pass(ms(100));
    job.report(1, Phase::Outside("a check runs".into()));
    job.pass(ms(500));
    job.report(1, Phase::Joining { is_fenced: false });
    assert!(job.wait_for_round(1) <= ms(200));
    assert_eq!(job.members(), [0, 1, 2]);
}

#[test]
fn a_survivor_whose_connection_is_reset_keeps_its_place() {
    let mut job = TestJob::running(JobSettings::new(2, 3), 3);
    job.join();
    job.nodes[1].returns = false;
    job.fail_worker(0);
    job.pass(ms(100));
    job.report(1, Phase::Joining { is_fenced: false });
    job.reset(1);
    job.pass(ms(500));
    job.connect(1);
    job.wait_for_round(1);
    assert_eq!(job.members(), [0, 1, 2]);
}

#[test]
fn spares_wait_without_disturbing_the_round() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    let spare = job.join();
    job.pass(60 * SECOND);
    assert_eq!((job.end(), job.members()), (None, vec![0, 1]));
    assert_eq!(job.wait_text(spare), "this node is a spare: 2 nodes run, which is the maximum");
}

#[test]
fn a_spare_takes_the_place_and_the_rank_of_a_lost_member() {
    let mut job = TestJob::running(JobSettings::new(3, 3), 3);
    let spare = job.join();
    job.pass(SECOND);
    job.kill(1);
    assert!(job.wait_for_round(1) <= ms(200));
    assert_eq!(job.members(), [0, spare, 2]);
}

#[test]
fn survivors_keep_their_ranks() {
    let mut job = TestJob::running(JobSettings::new(2, 4), 4);
    job.kill(0);
    job.wait_for_round(1);
    assert_eq!(job.members(), [3, 1, 2]);
}

#[test]
fn pins_are_absolute_in_a_world_of_fixed_size() {
    let mut job = TestJob::new(JobSettings::new(3, 3));
    [2, 0, 1].into_iter().for_each(|rank| _ = job.join_pinned(rank));
    job.wait_for_round(0);
    assert_eq!(job.members(), [1, 2, 0]);
    job.kill(0);
    let returned = job.restart(0);
    job.wait_for_round(1);
    assert_eq!(job.members(), [1, 2, returned]);
}

#[test]
fn pins_are_preferences_in_an_elastic_world() {
    let mut job = TestJob::new(JobSettings::new(2, 8));
    job.join_pinned(7);
    job.join_pinned(0);
    job.wait_for_round(0);
    assert_eq!(job.members(), [1, 0]);
}

#[test]
fn a_node_with_a_pinned_rank_waits_until_its_earlier_process_has_departed() {
    let mut job = TestJob::new(JobSettings::new(2, 2));
    job.join_pinned(0);
    job.join_pinned(1);
    job.wait_for_round(0);
    job.nodes[1].is_alive = false;
    let returned = job.restart(1);
    job.pass(3 * SECOND);
    assert_eq!(job.refusal(returned), None);
    assert_eq!(job.wait_text(returned), "h1 (pid 1) still holds the rank of this node");
    job.wait_for_round(1);
    assert_eq!(job.members(), [0, returned]);
}

#[test]
fn a_node_that_pins_the_rank_of_a_live_node_is_refused_by_name() {
    let mut job = TestJob::new(JobSettings::new(3, 3));
    job.join_pinned(0);
    let second = job.join_pinned(0);
    job.pass(4 * SECOND);
    let text = "h1 (pid 1) and h0 (pid 1) both pin rank 0\nhint: give each node a different --node-rank";
    assert_eq!(job.refusal(second).as_deref(), Some(text));
    assert_eq!(job.refusal(0), None);
}

#[test]
fn a_pin_beyond_the_largest_world_is_refused() {
    let mut job = TestJob::new(JobSettings::new(1, 3));
    let node = job.join_pinned(3);
    assert!(job.refusal(node).unwrap().contains("rank 3 is pinned, but a round has at most 3 nodes"));
}

#[test]
fn ranks_are_contiguous_within_a_topology_group_and_units_are_whole() {
    let topology = vec!["rack".to_owned()];
    let mut job = TestJob::new(JobSettings { node_unit: 2, topology, ..JobSettings::new(2, 6) });
    for rack in ["a", "b", "a", "c", "b"] {
        let index = job.add();
        job.nodes[index].node.topology = vec![rack.to_owned()];
        job.connect(index);
    }
    job.wait_for_round(0);
    assert_eq!(job.members(), [0, 2, 1, 4]);
}

#[test]
fn newcomers_end_the_round_once_after_the_delay() {
    let mut job = TestJob::running(JobSettings::new(2, 8), 2);
    job.join();
    job.pass(4 * SECOND);
    job.join();
    let waited = job.wait_for_round(1);
    assert!((ms(5800)..ms(6300)).contains(&waited), "{waited:?}");
    assert_eq!(job.members(), [0, 1, 2, 3]);
    job.pass(60 * SECOND);
    assert_eq!(job.job.round.as_ref().unwrap().number, 1);
}

#[test]
fn a_member_that_returns_is_let_in_at_once() {
    let mut job = TestJob::running(JobSettings::new(1, 3), 3);
    job.kill(2);
    job.wait_for_round(1);
    let returned = job.restart(2);
    assert!(job.wait_for_round(2) <= ms(200));
    assert_eq!(job.members(), [0, 1, returned]);
}

#[test]
fn scale_up_can_be_disabled_and_immediate() {
    let never = JobSettings { scale_up: ScaleUp::Never, ..JobSettings::new(2, 8) };
    let mut job = TestJob::running(never, 2);
    let newcomer = job.join();
    job.pass(60 * SECOND);
    assert_eq!((job.end(), job.members()), (None, vec![0, 1]));
    assert_eq!(job.wait_text(newcomer), "a round runs; this node is in the next one");
    let now = JobSettings { scale_up: ScaleUp::After(Duration::ZERO), ..JobSettings::new(2, 8) };
    let mut job = TestJob::running(now, 2);
    job.join();
    assert!(job.wait_for_round(1) <= ms(200));
}

#[test]
fn newcomers_that_can_not_enlarge_the_world_do_not_end_the_round() {
    let mut job = TestJob::running(JobSettings { node_unit: 2, ..JobSettings::new(2, 4) }, 2);
    job.join();
    job.pass(60 * SECOND);
    assert_eq!(job.end(), None);
}
