use super::*;

#[test]
fn an_operator_excludes_a_host_and_lists_and_removes_the_exclusion() {
    let mut job = TestJob::running(JobSettings::new(1, 3), 2);
    let (host, time) = ("h1".to_owned(), 3600 * SECOND);
    let reply = job.leader.handle_command(Command::Exclude { host, time, reason: "broken fan".into() });
    assert_eq!(reply, Reply::Done("h1 is excluded for 3600 s".into()));
    job.wait_for_round(1);
    assert_eq!(job.members(), [0]);
    job.pass(2 * SECOND);
    assert_eq!(job.wait_text(1), "this node is excluded: broken fan");
    let (reason, left) = job.roster().exclusions["h1"].clone();
    assert!(reason == "broken fan" && left > 3590 * SECOND, "{left:?}");
    job.leader.handle_command(Command::Include { host: "h1".into() });
    job.wait_for_round(2);
    assert_eq!((job.members(), job.roster().exclusions.len()), (vec![0, 1], 0));
}

#[test]
fn a_drained_node_leaves_at_the_next_restart() {
    let mut job = TestJob::running(JobSettings::new(1, 3), 3);
    job.leader.handle_command(Command::Drain { host: "h1".into(), within: None });
    job.pass(60 * SECOND);
    assert_eq!((job.end(), job.has(1, &Reply::Drained)), (None, false));
    job.fail_worker(0);
    job.wait_for_round(1);
    assert_eq!((job.members(), job.has(1, &Reply::Drained)), (vec![0, 2], true));
}

#[test]
fn a_drain_with_a_time_ends_the_round_when_the_time_is_over() {
    let mut job = TestJob::running(JobSettings::new(1, 3), 3);
    job.leader.handle_command(Command::Drain { host: "h1".into(), within: Some(20 * SECOND) });
    let waited = job.wait_for_round(1);
    assert!((20 * SECOND..21 * SECOND).contains(&waited), "{waited:?}");
    assert_eq!((job.members(), job.has(1, &Reply::Drained)), (vec![0, 2], true));
}

#[test]
fn a_spare_that_is_drained_is_told_at_once() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    let spare = job.join();
    job.pass(SECOND);
    job.send(spare, Request::Drain { within: None });
    job.pass(ms(100));
    assert!(job.has(spare, &Reply::Drained));
}

#[test]
fn the_reason_for_closing_reaches_every_node_and_those_that_come_later() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    let spare = job.join();
    job.send(1, Request::Close { time: "12:00".into(), reason: "done".into() });
    job.pass(ms(100));
    let closing = job.job.closed.clone().unwrap();
    assert_eq!(closing.to_string(), "h1 (pid 1) closed the job at 12:00: done");
    let late = job.join();
    for node in [0, 1, spare, late] {
        assert!(job.has(node, &Reply::Closed(closing.clone())), "{node}");
    }
}

#[test]
fn a_job_whose_workers_have_all_finished_is_closed_for_its_spares_too() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    let spare = job.join();
    (0..2).for_each(|node| job.report(node, Phase::Finished));
    job.pass(ms(100));
    let closing = job.job.closed.clone().unwrap();
    assert!(closing.has_finished && job.has(spare, &Reply::Closed(closing)));
}

#[test]
fn more_requests_than_the_limit_are_refused() {
    let mut job = TestJob::new(JobSettings::new(2, 2));
    for host in 0..MAX_REQUESTS {
        job.leader.handle_command(Command::Include { host: host.to_string() });
    }
    let reply = job.leader.handle_command(Command::Include { host: "another".into() });
    let text = "the coordinator has too many pending requests; try again later";
    assert_eq!(reply, Reply::Failed(text.into()));
}
