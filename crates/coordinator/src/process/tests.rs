use super::*;
use crate::message::{Activity, Phase};
use crate::node::Node;
use crate::settings::JobSettings;

const OWN: &str = "h0:1";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn connection(number: u64) -> Connection {
    Connection::from_bits(number)
}

fn node(id: u64) -> Node {
    let host = format!("h{id}");
    Node {
        id: NodeId(id),
        address: format!("{host}:1"),
        host,
        pid: 1,
        workers: Some(1),
        command: Some(0),
        pin: None,
        preferred_rank: None,
        topology: Vec::new(),
    }
}

fn hello(id: u64, group: Option<GroupId>) -> Purpose {
    let activity = Activity { last_round: None, phase: Phase::Joining { is_fenced: false } };
    Purpose::Node(Box::new(Hello { node: node(id), settings: JobSettings::new(1, 3), group, activity }))
}

/// Returns a process that may found the job, as a separate server can.
fn server() -> Process {
    Process::new(OWN, Vec::new(), true, 0, 100, seconds(1))
}

/// Returns the first endpoint of a job as a node, which a leader of this group has served.
fn node_of(group: GroupId) -> Process {
    let mut process = Process::new(OWN, Vec::new(), true, 0, 100, seconds(1));
    process.set_client(Client::new(node(100), JobSettings::new(1, 3), vec!["h1:1".into()]));
    process.with_client(seconds(1), |client| client.join(seconds(1)));
    process.handle_open(0, seconds(1)).unwrap();
    let settings = Box::new(JobSettings::new(1, 3));
    process.handle_reply(0, Reply::Welcome { group, settings, voters: Vec::new() }, seconds(1));
    while process.poll_output().is_some() {}
    process
}

fn announcement(group: u64, age: Duration) -> Purpose {
    let leader = "h9:1".into();
    Purpose::Announcement(Announcement { group: GroupId(group), leader, has_round: true, forced: 0, age })
}

fn redirect(process: &mut Process) -> Option<(Vec<String>, NotServed)> {
    std::iter::from_fn(|| process.poll_output()).find_map(|output| match output {
        Output::Reply(_, Reply::Redirect { addresses, why }) => Some((addresses, why)),
        _ => None,
    })
}

#[test]
fn a_server_founds_a_job_after_a_grace_that_counts_from_the_first_node() {
    let mut server = server();
    server.handle_purpose(connection(1), hello(1, None), seconds(100));
    server.handle_purpose(connection(2), hello(2, None), seconds(101));
    let due = seconds(100) + Duration::from_millis(1500);
    assert_eq!((server.next_timeout(), server.coordinator.is_none()), (Some(due), true));
    server.handle_timeout(due);
    assert!(server.coordinator.as_ref().is_some_and(Coordinator::is_leader));
}

#[test]
fn a_full_job_is_founded_at_once() {
    let mut server = server();
    // The second connection is another attempt of the first node.
    for (number, id) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
        assert!(server.coordinator.is_none());
        server.handle_purpose(connection(number), hello(id, None), seconds(100));
    }
    let closed =
        std::iter::from_fn(|| server.poll_output()).filter(|output| *output == Output::Close(connection(1)));
    assert!(closed.count() == 1 && server.coordinator.is_some());
}

#[test]
fn a_node_of_an_earlier_group_prevents_founding() {
    let mut server = server();
    server.handle_purpose(connection(1), hello(1, None), seconds(100));
    server.handle_purpose(connection(2), hello(2, Some(GroupId(7))), seconds(101));
    assert_eq!(redirect(&mut server), Some((Vec::new(), NotServed::Lost)));
    server.handle_timeout(seconds(200));
    assert!(server.coordinator.is_none() && server.next_timeout().is_none());
}

#[test]
fn a_node_that_a_group_has_served_does_not_found_another_one() {
    let mut process = node_of(GroupId(7));
    process.handle_disconnect(0, rallypoint_core::hub::LinkEnd::Closed, seconds(2));
    for id in 1..=3 {
        process.handle_purpose(connection(id), hello(id, None), seconds(3));
    }
    process.handle_timeout(seconds(10));
    assert!(process.coordinator.is_none());
}

#[test]
fn nodes_that_wait_for_the_founding_are_redirected_when_the_process_joins_a_group() {
    let mut process = Process::new(OWN, Vec::new(), true, 0, 100, seconds(1));
    process.handle_purpose(connection(1), hello(1, None), seconds(1));
    process.announced = Some((
        Announcement {
            group: GroupId(7),
            leader: "h9:1".into(),
            has_round: true,
            forced: 0,
            age: seconds(1),
        },
        seconds(1),
    ));
    process.join_group(GroupId(7), seconds(1));
    assert_eq!(redirect(&mut process), Some((vec!["h9:1".into()], NotServed::NotLeader)));
    assert!(process.waiting.is_empty() && process.coordinator.is_some());
}

#[test]
fn a_process_never_joins_a_group_again_that_it_has_left() {
    let mut process = node_of(GroupId(7));
    process.join_group(GroupId(7), seconds(2));
    assert!(process.coordinator.is_some());
    process.handle_purpose(connection(1), announcement(8, seconds(1000)), seconds(3));
    assert!(process.coordinator.is_none());
    // Its client is still served by a leader of the group.
    process.join_group(GroupId(7), seconds(4));
    assert!(process.coordinator.is_none());
}

#[test]
fn a_group_that_started_no_round_makes_way_and_tells_its_nodes() {
    let mut server = server();
    (1..=3).for_each(|id| server.handle_purpose(connection(id), hello(id, None), seconds(100)));
    server.handle_purpose(connection(9), announcement(8, seconds(1000)), seconds(101));
    assert_eq!(redirect(&mut server), Some((vec!["h9:1".into()], NotServed::NotLeader)));
    assert!(server.coordinator.is_none());
}

#[test]
fn a_younger_group_is_ignored() {
    let mut server = server();
    (1..=3).for_each(|id| server.handle_purpose(connection(id), hello(id, None), seconds(100)));
    (1..=3).for_each(|id| {
        server.handle_request(connection(id), Request::Heartbeat { number: 0 }, seconds(101));
    });
    (0..20).for_each(|tick| server.handle_timeout(seconds(101) + Duration::from_millis(100 * tick)));
    assert!(server.coordinator.as_ref().unwrap().job().round.is_some());
    server.handle_purpose(connection(9), announcement(8, seconds(1)), seconds(104));
    assert!(server.coordinator.is_some() && server.announced.is_none());
}

#[test]
fn an_announcement_counts_for_three_seconds() {
    let mut server = server();
    server.handle_purpose(connection(1), announcement(8, seconds(10)), seconds(100));
    server.handle_purpose(connection(2), hello(1, None), seconds(102));
    assert_eq!(redirect(&mut server), Some((vec!["h9:1".into()], NotServed::NotLeader)));
    server.handle_purpose(connection(3), hello(1, None), seconds(103));
    assert_eq!(redirect(&mut server), Some((Vec::new(), NotServed::Lost)));
}

#[test]
fn a_server_forgets_jobs_that_decided_nothing_and_jobs_that_are_silent() {
    let mut unused = server();
    (1..=3).for_each(|id| unused.handle_purpose(connection(id), hello(id, None), seconds(100)));
    assert!(!unused.is_forgettable(seconds(100)));
    (1..=3).for_each(|id| unused.handle_close(connection(id), seconds(101)));
    (102..110).for_each(|second| {
        (0..10).for_each(|tick| {
            unused.handle_timeout(seconds(second) + Duration::from_millis(100 * tick));
        })
    });
    assert!(unused.is_forgettable(seconds(110)));
    let mut announced = server();
    announced.handle_purpose(connection(1), announcement(8, seconds(10)), seconds(100));
    assert!(!announced.is_forgettable(seconds(3699)) && announced.is_forgettable(seconds(3700)));
}

#[test]
fn force_quorum_is_refused_unless_the_process_has_a_replica_with_a_log() {
    let mut process = node_of(GroupId(7));
    process.handle_purpose(connection(1), Purpose::Operator(Command::ForceQuorum), seconds(2));
    process.join_group(GroupId(7), seconds(2));
    process.handle_purpose(connection(2), Purpose::Operator(Command::ForceQuorum), seconds(2));
    let replies: Vec<_> = std::iter::from_fn(|| process.poll_output()).collect();
    let has = |text: &str| replies.iter().any(|reply| format!("{reply:?}").contains(text));
    assert!(has("this process has no replica") && has("has no log yet"), "{replies:?}");
}

#[test]
fn an_operator_lets_a_server_found_a_lost_job_anew() {
    let mut server = server();
    server.handle_purpose(connection(1), announcement(8, seconds(10)), seconds(100));
    server.handle_purpose(connection(2), hello(1, None), seconds(110));
    assert_eq!(redirect(&mut server), Some((Vec::new(), NotServed::Lost)));
    server.handle_purpose(connection(3), Purpose::Operator(Command::ForceQuorum), seconds(111));
    (1..=3).for_each(|id| server.handle_purpose(connection(3 + id), hello(id, None), seconds(112)));
    assert!(server.coordinator.is_some());
}

#[test]
fn a_group_makes_way_for_one_that_an_operator_has_forced_later() {
    for (forced, makes_way) in [(0, false), (1, true)] {
        let mut server = server();
        (1..=3).for_each(|id| server.handle_purpose(connection(id), hello(id, None), seconds(100)));
        (1..=3).for_each(|id| {
            server.handle_request(connection(id), Request::Heartbeat { number: 0 }, seconds(101));
        });
        (0..20).for_each(|tick| server.handle_timeout(seconds(101) + Duration::from_millis(100 * tick)));
        let (leader, age) = ("h9:1".into(), seconds(1));
        let announcement = Announcement { group: GroupId(8), leader, has_round: true, forced, age };
        server.handle_purpose(connection(9), Purpose::Announcement(announcement), seconds(104));
        assert_eq!(server.coordinator.is_none(), makes_way);
    }
}
