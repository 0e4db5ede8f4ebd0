use super::*;

/// Lets the leader take a decision that is not applied yet.
fn decide(job: &mut TestJob) -> &Decision {
    job.holds_decisions = true;
    job.pass(SECOND);
    job.pending.as_ref().expect("the leader takes a decision")
}

/// Applies decisions again.
fn apply_all(job: &mut TestJob) {
    job.holds_decisions = false;
    job.apply();
}

#[test]
fn a_member_that_is_lost_while_its_round_starts_departs_afterwards() {
    for leaves in [false, true] {
        let mut job = TestJob::new(JobSettings::new(1, 2));
        (0..2).for_each(|_| _ = job.join());
        assert!(matches!(decide(&mut job), Decision::Start { round: 0, .. }));
        match leaves {
            true => job.send(1, Request::Leave),
            false => job.kill(1),
        }
        apply_all(&mut job);
        assert_eq!(job.members(), [0, 1]);
        assert!(job.wait_for_round(1) <= ms(200));
        assert_eq!(job.members(), [0]);
    }
}

#[test]
fn a_member_gets_no_lease_while_its_departure_is_decided() {
    let mut job = TestJob::running(JobSettings::new(1, 2), 2);
    job.kill(1);
    assert!(matches!(decide(&mut job), Decision::Depart { .. }));
    // The process was stopped, and its port was closed by mistake.
    job.nodes[1].is_alive = true;
    let replies = job.nodes[1].replies.len();
    job.connect(1);
    job.send(1, Request::Heartbeat { number: 9 });
    assert_eq!((job.nodes[1].replies.len(), job.nodes[1].connection), (replies, None));
    apply_all(&mut job);
    job.pass(ms(50));
    // Its workers must end. Then it joins as a new node.
    job.connect(1);
    let ended = job.nodes[1].replies.iter().any(|reply| matches!(reply, Reply::Ended { round: 0, .. }));
    assert!(ended, "{:?}", job.nodes[1].replies);
}

#[test]
fn a_decision_that_is_not_applied_is_taken_again() {
    let mut job = TestJob::running(JobSettings::new(1, 2), 2);
    job.kill(1);
    assert!(matches!(decide(&mut job), Decision::Depart { .. }));
    // The replica dropped the proposal.
    job.pending = None;
    assert!(matches!(decide(&mut job), Decision::Depart { .. }));
}

#[test]
fn the_connection_of_a_node_that_leaves_is_closed_after_its_replica_is_replaced() {
    let mut job = TestJob::running(JobSettings::new(1, 2), 2);
    let connection = job.nodes[1].connection.unwrap();
    job.unwanted.insert(job.nodes[1].node.id);
    job.send(1, Request::Leave);
    job.pass(2 * SECOND);
    assert!(job.job.round.as_ref().unwrap().number == 1 && !job.closed.contains(&connection));
    job.unwanted.clear();
    job.pass(ms(200));
    assert!(job.closed.contains(&connection));
}

#[test]
fn a_member_whose_lease_is_over_departs_and_others_are_dropped_after_the_grace() {
    let mut job = TestJob::running(JobSettings::new(1, 2), 2);
    let spare = job.join();
    job.pass(SECOND);
    (job.nodes[1].is_alive, job.nodes[spare].is_alive) = (false, false);
    let waited = job.wait_for_round(1);
    assert!((4 * SECOND..6 * SECOND).contains(&waited), "{waited:?}");
    assert_eq!(job.members(), [0]);
    job.pass(6 * SECOND);
    assert_eq!(job.leader.peers.len(), 1);
}

#[test]
fn a_leader_that_was_suspended_reads_before_it_judges_leases() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    job.now += 60 * SECOND;
    job.leader.check_leases(view!(job));
    job.pass(SECOND / 2);
    (0..2).for_each(|node| job.send(node, Request::Heartbeat { number: 2 }));
    job.pass(5 * SECOND);
    assert_eq!(job.end(), None);
}

#[test]
fn only_members_are_probed() {
    let mut job = TestJob::running(JobSettings::new(1, 1), 1);
    let spare = job.join();
    let probes = |job: &mut TestJob, index: usize| {
        let connection = job.nodes[index].connection.take().unwrap();
        job.leader.handle_close(connection, view!(job));
        std::iter::from_fn(|| job.leader.poll_output())
            .filter(|output| matches!(output, Output::Probe(..)))
            .count()
    };
    assert_eq!(probes(&mut job, spare), 0);
    assert_eq!(probes(&mut job, 0), 1);
}

#[test]
fn requests_to_end_another_round_are_ignored() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    job.send(0, Request::WorkerFailed { round: 7, local_rank: 0, exit: "exit code 1".into() });
    job.pass(SECOND);
    assert_eq!((job.end(), job.leader.cause.is_none()), (None, true));
}

#[test]
fn a_leader_without_contact_to_a_quorum_grants_no_lease_and_redirects_nobody() {
    let mut job = TestJob::running(JobSettings::new(1, 1), 1);
    let connection = job.nodes[0].connection.unwrap();
    let view = View { quorum_contact: None, ..view!(job) };
    job.leader.handle_request(connection, Request::Heartbeat { number: 5 }, view);
    assert_eq!(job.leader.poll_output(), None);
}

#[test]
fn a_node_that_was_lost_meanwhile_can_not_close_the_job() {
    let mut job = TestJob::running(JobSettings::new(1, 2), 2);
    job.nodes[1].is_alive = false;
    job.wait_for_round(1);
    (job.nodes[1].is_alive, job.nodes[1].returns) = (true, false);
    job.connect(1);
    job.send(1, Request::Close { time: String::new(), reason: "its worker failed".into() });
    job.pass(SECOND);
    assert_eq!(job.job.closed, None);
}
