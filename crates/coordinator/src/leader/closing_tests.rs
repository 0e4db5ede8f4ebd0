use super::*;
use crate::job::Entry;
use crate::settings::JobSettings;

const NOW: Duration = Duration::from_secs(100);

fn node(id: u64) -> Node {
    Node {
        id: NodeId(id),
        host: format!("host{id}"),
        pid: 1,
        address: format!("host{id}:1"),
        workers: Some(1),
        command: Some(0),
        pin: None,
        preferred_rank: None,
        topology: Vec::new(),
    }
}

/// A job whose first round has the nodes 1 and 2. Node 2 is lost if `is_lost`.
fn job(is_lost: bool) -> Job {
    let mut job = Job::new(JobSettings::new(1, 2), "host1".into());
    let start = Decision::Start { round: 0, members: vec![node(1), node(2)] };
    job.apply(Entry { time: NOW, decision: start });
    if is_lost {
        let how = Departure::Expired(job.settings.lease);
        let lost = Decision::Depart { round: 0, members: vec![(NodeId(2), how)] };
        job.apply(Entry { time: NOW, decision: lost });
    }
    job
}

/// Returns the decision after node 2 has asked to close the job.
fn decision_after_close(job: &Job) -> Option<Decision> {
    let unwanted = BTreeSet::new();
    let view =
        View { job, group: GroupId(1), time: NOW, now: NOW, quorum_contact: Some(NOW), unwanted: &unwanted };
    let mut leader = Leader::new(view);
    let connection = Connection::from_bits(7);
    let activity = Activity { last_round: Some(0), phase: Phase::Working };
    let settings = job.settings.clone();
    leader.handle_hello(
        connection,
        Hello { node: node(2), settings, group: Some(GroupId(1)), activity },
        view,
    );
    let close = Request::Close { time: String::new(), reason: "its worker failed".into() };
    leader.handle_request(connection, close, view);
    leader.evaluate(view)
}

#[test]
fn a_member_can_close_the_job_and_a_node_that_was_lost_meanwhile_can_not() {
    assert!(matches!(decision_after_close(&job(false)), Some(Decision::Close(_))));
    let decision = decision_after_close(&job(true));
    assert!(!matches!(decision, Some(Decision::Close(_))), "{decision:?}");
}
