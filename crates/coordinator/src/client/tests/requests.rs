//! Requests, leases and changes of the leader.

use super::*;

const GROUP: GroupId = GroupId(1);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn new_client() -> Client {
    let node = Node {
        id: NodeId(1),
        host: "h0".into(),
        pid: 1,
        address: "h0:1".into(),
        workers: Some(1),
        command: Some(0),
        pin: None,
        preferred_rank: None,
        topology: Vec::new(),
    };
    Client::new(node, JobSettings::new(1, 2), vec!["h1:1".into()])
}

fn outputs(client: &mut Client) -> Vec<Output> {
    std::iter::from_fn(|| client.poll_output()).collect()
}

fn requests(client: &mut Client) -> Vec<Request> {
    let requests = outputs(client).into_iter().filter_map(|output| match output {
        Output::Send(_, request) => Some(request),
        _ => None,
    });
    requests.filter(|request| !matches!(request, Request::Heartbeat { .. })).collect()
}

fn events(client: &mut Client) -> Vec<Event> {
    let events = outputs(client).into_iter().filter_map(|output| match output {
        Output::Event(event) => Some(event),
        _ => None,
    });
    events.collect()
}

/// Opens the connection that the client asks for, and returns it.
fn open(client: &mut Client, now: Duration) -> Link {
    client.handle_timeout(now);
    let link = outputs(client).into_iter().find_map(|output| match output {
        Output::Connect(link, _) => Some(link),
        _ => None,
    });
    let link = link.expect("the client connects");
    client.handle_open(link, now).expect("the client says hello");
    link
}

fn welcome(client: &mut Client, link: Link, group: GroupId, now: Duration) {
    let settings = Box::new(JobSettings::new(1, 2));
    client.handle_reply(link, Reply::Welcome { group, settings, voters: Vec::new() }, now);
}

fn start(round: u64) -> Reply {
    Reply::Started(Assignment {
        group: GROUP,
        round,
        rank: 0,
        world_size: 1,
        master: "h0:1".into(),
        lost: 0,
        restarts: BTreeMap::new(),
    })
}

/// Returns a client that is served, and its connection. It has sent the heartbeat 0.
fn served(now: Duration) -> (Client, Link) {
    let mut client = new_client();
    client.join(now);
    let link = open(&mut client, now);
    welcome(&mut client, link, GROUP, now);
    (client, link)
}

/// Returns a client that works in round 0.
fn working(now: Duration) -> (Client, Link) {
    let (mut client, link) = served(now);
    client.handle_reply(link, Reply::Granted { number: 0, lease: seconds(5) }, now);
    client.handle_reply(link, start(0), now);
    assert_eq!(client.activity().phase, Phase::Working);
    outputs(&mut client);
    (client, link)
}

#[test]
fn the_deadline_counts_from_the_time_at_which_the_heartbeat_was_sent() {
    let (mut client, link) = served(seconds(10));
    client.handle_reply(link, Reply::Granted { number: 0, lease: seconds(5) }, seconds(12));
    assert_eq!(client.deadline(), Some(seconds(10) + Duration::from_millis(4950 - 250)));
}

#[test]
fn a_grant_is_never_longer_than_the_lease_of_the_job() {
    let (mut client, link) = served(seconds(10));
    client.handle_reply(link, Reply::Granted { number: 0, lease: Duration::MAX }, seconds(10));
    assert_eq!(client.deadline(), Some(seconds(10) + Duration::from_millis(4950 - 250)));
}

#[test]
fn a_request_without_a_leader_is_sent_to_the_next_one() {
    let (mut client, link) = working(seconds(1));
    client.handle_close(link, seconds(2));
    client.drain(None);
    client.worker_failed(0, "exit code 1");
    assert_eq!(requests(&mut client), []);
    let link = {
        client.handle_timeout(seconds(3));
        let connect = outputs(&mut client);
        let Some(Output::Connect(link, _)) = connect.into_iter().next() else { panic!("no connection") };
        client.handle_open(link, seconds(3)).unwrap();
        link
    };
    welcome(&mut client, link, GROUP, seconds(3));
    let failed = Request::WorkerFailed { round: 0, local_rank: 0, exit: "exit code 1".into() };
    assert_eq!(requests(&mut client), [Request::Drain { within: None }, failed]);
}

#[test]
fn a_request_that_the_leader_has_handled_is_not_sent_again() {
    let (mut client, link) = working(seconds(1));
    client.drain(None);
    client.handle_timeout(seconds(2));
    client.handle_reply(link, Reply::Granted { number: 1, lease: seconds(5) }, seconds(2));
    client.handle_close(link, seconds(3));
    outputs(&mut client);
    let link = open(&mut client, seconds(4));
    welcome(&mut client, link, GROUP, seconds(4));
    assert_eq!(requests(&mut client), []);
}

#[test]
fn a_request_that_the_leader_may_not_have_handled_is_sent_again() {
    let (mut client, link) = working(seconds(1));
    client.drain(None);
    client.handle_close(link, seconds(2));
    outputs(&mut client);
    let link = open(&mut client, seconds(3));
    welcome(&mut client, link, GROUP, seconds(3));
    assert_eq!(requests(&mut client), [Request::Drain { within: None }]);
}

#[test]
fn a_node_without_a_lease_starts_no_workers_and_counts_as_fenced() {
    let (mut client, link) = served(seconds(1));
    client.handle_reply(link, start(0), seconds(1));
    assert_eq!(client.activity().phase, Phase::Joining { is_fenced: true });
    assert!(!events(&mut client).iter().any(|event| matches!(event, Event::Started(_))));
}

#[test]
fn a_node_that_works_is_not_served_by_another_group() {
    let (mut client, link) = working(seconds(1));
    let deadline = client.deadline();
    client.handle_close(link, seconds(2));
    outputs(&mut client);
    let link = open(&mut client, seconds(3));
    welcome(&mut client, link, GroupId(2), seconds(3));
    assert_eq!((client.group(), client.deadline(), client.leader()), (Some(GROUP), deadline, None));
    assert!(outputs(&mut client).contains(&Output::Close(link)));
}

#[test]
fn settings_that_are_out_of_range_are_not_accepted() {
    let mut client = new_client();
    client.join(seconds(1));
    let link = open(&mut client, seconds(1));
    let settings = Box::new(JobSettings { lease: Duration::MAX, ..JobSettings::new(1, 2) });
    let welcome = Reply::Welcome { group: GROUP, settings, voters: Vec::new() };
    client.handle_reply(link, welcome, seconds(1));
    assert_eq!((client.leader(), client.group()), (None, None));
}

#[test]
fn a_node_has_left_when_the_leader_closes_the_connection() {
    let (mut client, link) = served(seconds(1));
    client.leave();
    assert_eq!(requests(&mut client), [Request::Leave]);
    client.handle_close(link, seconds(2));
    assert_eq!(events(&mut client), [Event::Left]);
}

#[test]
fn a_node_that_leaves_follows_the_leader_that_takes_over() {
    let (mut client, link) = served(seconds(1));
    client.leave();
    let why = NotServed::NotLeader;
    client.handle_reply(link, Reply::Redirect { addresses: vec!["h2:1".into()], why }, seconds(2));
    let connect = outputs(&mut client).into_iter().find_map(|output| match output {
        Output::Connect(link, address) => Some((link, address)),
        _ => None,
    });
    let (link, address) = connect.expect("the client connects");
    assert_eq!(address, "h2:1");
    let hello = client.handle_open(link, seconds(2)).unwrap();
    assert_eq!(hello.activity.phase, Phase::Outside("the node leaves".into()));
    welcome(&mut client, link, GROUP, seconds(2));
    assert_eq!(requests(&mut client), [Request::Leave]);
    client.handle_close(link, seconds(3));
    assert_eq!(events(&mut client), [Event::Left]);
}

#[test]
fn a_node_that_no_leader_serves_leaves_at_once() {
    let mut client = new_client();
    client.join(seconds(1));
    outputs(&mut client);
    client.leave();
    assert_eq!(events(&mut client), [Event::Left]);
}

#[test]
fn the_workers_are_killed_before_the_guard_does_it() {
    let (mut client, _) = working(seconds(10));
    let deadline = client.deadline().unwrap();
    let due = deadline - SELF_FENCE_MARGIN;
    client.handle_timeout(due - Duration::from_millis(1));
    outputs(&mut client);
    assert!(client.next_timeout().unwrap() <= due);
    client.handle_timeout(due);
    assert!(events(&mut client).contains(&Event::LeaseOver { round: 0 }));
}
