use super::*;

#[test]
fn a_node_with_another_range_is_refused_and_both_nodes_are_named() {
    let mut job = TestJob::new(JobSettings::new(2, 2));
    let node = job.add();
    job.connect_with(node, JobSettings::new(1, 4));
    let text = "h0 (pid 1) can't be in the job that h0 (pid 1) has founded: the job has --nnodes 2, this node has \
                --nnodes 1:4\nhint: give all nodes the same options";
    assert_eq!(job.refusal(node).as_deref(), Some(text));
}

#[test]
fn another_command_or_number_of_workers_is_only_a_warning() {
    let mut job = TestJob::new(JobSettings::new(3, 3));
    job.join();
    let commands = job.add();
    job.nodes[commands].node.command = Some(1);
    job.connect(commands);
    let workers = job.add();
    job.nodes[workers].node.workers = Some(8);
    job.connect(workers);
    let warning = |text: &str| Reply::Warning(text.into());
    assert!(job.has(commands, &warning("h0 (pid 1) runs another command than this node")));
    assert!(job.has(workers, &warning("h0 (pid 1) has 1 workers, this node has 8")));
    assert!(job.wait_for_round(0) <= ms(100));
}

#[test]
fn a_node_that_failed_its_check_waits_outside_and_others_see_why() {
    let mut job = TestJob::new(JobSettings::new(2, 2));
    job.join();
    let outside = job.add();
    job.nodes[outside].activity.phase = Phase::Outside("GPU 3 does not respond".into());
    job.connect(outside);
    job.pass(3 * SECOND);
    assert_eq!(
        job.wait_text(0),
        "1 of 2 nodes have joined: h1 (pid 1) stays outside: GPU 3 does not respond"
    );
    let roster = job.roster();
    assert_eq!(roster.nodes[1].waits_for, Some(WaitReason::Outside("GPU 3 does not respond".into())));
    job.report(outside, Phase::Joining { is_fenced: false });
    assert!(job.wait_for_round(0) <= ms(200));
}

#[test]
fn a_wait_for_more_nodes_names_lost_members_and_open_ranks() {
    let mut job = TestJob::new(JobSettings::new(4, 4));
    [0, 1, 2, 3].into_iter().for_each(|rank| _ = job.join_pinned(rank));
    job.wait_for_round(0);
    job.kill(1);
    job.leader.handle_command(Command::Exclude {
        host: "h2".into(),
        time: 60 * SECOND,
        reason: "slow".into(),
    });
    job.pass(5 * SECOND);
    assert_eq!(
        job.wait_text(0),
        "2 of 4 nodes have joined: h1 (pid 1) was killed, h2 (pid 1) is excluded: slow, no node has rank 1"
    );
    assert_eq!(job.roster().missing_ranks, [1]);
}

#[test]
fn the_roster_has_every_node_with_what_it_waits_for_and_since_when() {
    let mut job = TestJob::running(JobSettings::new(3, 3), 3);
    let spare = job.join();
    job.pass(10 * SECOND);
    job.kill(1);
    job.wait_for_round(1);
    job.kill(2);
    job.pass(8 * SECOND);
    let roster = job.roster();
    assert_eq!(roster.waits_for.unwrap().to_string(), "2 of 3 nodes have joined: h2 (pid 1) was killed");
    let lost = roster.nodes.iter().find(|entry| entry.node.host == "h2").unwrap();
    assert_eq!((lost.rank, lost.departure, &lost.phase), (Some(2), Some(Departure::Killed), &None));
    assert!((ms(7900)..ms(8100)).contains(&lost.since), "{:?}", lost.since);
    let waiting = roster.nodes.iter().find(|entry| entry.node == job.nodes[spare].node).unwrap();
    assert!(waiting.is_connected && waiting.since > 18 * SECOND && waiting.heartbeat_age.unwrap() <= SECOND);
    assert!(waiting.waits_for.as_ref().unwrap().to_string().contains("2 of 3 nodes have joined"));
}

#[test]
fn a_node_that_starts_without_a_lease_counts_as_fenced() {
    let mut job = TestJob::running(JobSettings::new(2, 2), 2);
    job.report(1, Phase::Joining { is_fenced: true });
    job.pass(ms(50));
    assert_eq!(job.job.restarts, BTreeMap::from([(crate::job::RestartKind::NodeLoss, 1)]));
}
