use super::*;
use crate::job::RestartKind;

fn limited(restarts: u32) -> JobSettings {
    JobSettings { job_max_restarts: Some(restarts), exclude_after: 0, ..JobSettings::new(1, 3) }
}

#[test]
fn restarts_are_counted_once_for_the_job_and_by_cause() {
    let mut job = TestJob::running(limited(10), 3);
    job.fail_worker(0);
    job.fail_worker(1);
    job.wait_for_round(1);
    job.kill(2);
    job.wait_for_round(2);
    job.restart(2);
    job.wait_for_round(3);
    let restarts = [(RestartKind::WorkerFailure, 1), (RestartKind::NodeLoss, 1), (RestartKind::Growth, 1)];
    assert_eq!(job.job.restarts, BTreeMap::from(restarts));
}

#[test]
fn a_job_closes_when_its_restarts_are_used_up() {
    let mut job = TestJob::running(limited(1), 3);
    job.fail_worker(0);
    job.wait_for_round(1);
    job.kill(2);
    job.pass(SECOND);
    let closing = job.job.closed.clone().unwrap();
    assert_eq!(closing.reason, "--job-max-restarts is used up, and h2 (pid 1) was killed");
    assert!(job.has(0, &Reply::Closed(closing)));
}

#[test]
fn growth_and_operators_use_up_no_restarts() {
    let mut job = TestJob::running(limited(0), 2);
    job.join();
    job.wait_for_round(1);
    job.leader.handle_command(Command::Drain { host: "h2".into(), within: Some(Duration::ZERO) });
    job.wait_for_round(2);
    assert_eq!((job.members(), &job.job.closed), (vec![0, 1], &None));
}

#[test]
fn a_worker_that_fails_because_another_node_was_lost_counts_as_a_lost_node() {
    let mut job = TestJob::running(JobSettings::new(1, 3), 3);
    job.nodes[1].is_alive = false;
    job.fail_worker(0);
    job.pass(SECOND);
    assert_eq!(job.end().unwrap(), "worker 0 of h0 (pid 1) exited with code 1");
    job.wait_for_round(1);
    assert_eq!(job.job.restarts[&RestartKind::NodeLoss], 1);
    assert_eq!(job.job.restarts[&RestartKind::WorkerFailure], 0);
    assert!(job.job.failures.values().all(Vec::is_empty), "{:?}", job.job.failures);
}

#[test]
fn a_host_is_excluded_after_three_failures_within_the_window_if_enough_others_are_there() {
    let mut job = TestJob::running(JobSettings::new(2, 3), 3);
    for round in 1..=3 {
        job.fail_worker(2);
        job.wait_for_round(round);
    }
    assert_eq!(job.members(), [0, 1]);
    job.pass(2 * SECOND);
    assert_eq!(job.wait_text(2), "this node is excluded: it failed 3 times within 600 s");
    let mut job = TestJob::running(JobSettings::new(3, 3), 3);
    for round in 1..=4 {
        job.fail_worker(2);
        job.wait_for_round(round);
    }
    assert_eq!(job.members(), [0, 1, 2]);
}

#[test]
fn failures_outside_the_window_do_not_exclude_a_host() {
    let mut job = TestJob::running(JobSettings::new(2, 3), 3);
    for round in 1..=5 {
        job.fail_worker(2);
        job.wait_for_round(round);
        job.pass(301 * SECOND);
    }
    assert_eq!(job.members(), [0, 1, 2]);
}

#[test]
fn a_host_whose_agent_is_killed_again_and_again_is_excluded() {
    let mut job = TestJob::running(JobSettings::new(2, 3), 3);
    let mut last = 2;
    for round in 0..3 {
        job.kill(last);
        job.wait_for_round(2 * round + 1);
        last = job.restart(2);
        if round < 2 {
            job.wait_for_round(2 * round + 2);
        }
    }
    job.pass(20 * SECOND);
    assert_eq!(job.members(), [0, 1]);
    assert!(job.wait_text(last).contains("it failed 3 times"), "{}", job.wait_text(last));
}

#[test]
fn an_exclusion_expires() {
    let mut job = TestJob::running(JobSettings::new(1, 3), 2);
    let (host, time) = ("h1".to_owned(), 30 * SECOND);
    job.leader.handle_command(Command::Exclude { host, time, reason: "broken fan".into() });
    job.wait_for_round(1);
    assert_eq!(job.members(), [0]);
    job.pass(28 * SECOND);
    assert_eq!(job.members(), [0]);
    job.wait_for_round(2);
    assert_eq!(job.members(), [0, 1]);
}
