use proptest::prelude::*;

use super::*;
use crate::message::{Activity, Announcement, Command, Hello};

const CONNECTIONS: u64 = 4;

fn open(purpose: Purpose) -> Open {
    Open { version: PROTOCOL_VERSION, host: "h9".into(), run_id: "job".into(), purpose }
}

fn replies(service: &mut Service) -> Vec<Reply> {
    let messages = std::iter::from_fn(|| service.poll_action()).filter_map(|action| match action {
        Action::Send(Peer::Client(_), message) => serde_json::from_slice(&message).ok(),
        _ => None,
    });
    messages.collect()
}

fn connection(number: u64) -> Peer {
    Peer::Client(ConnectionId::from_bits(number))
}

#[test]
fn another_version_is_refused_and_both_hosts_are_named() {
    let mut net = Net::running(JobSettings::new(1, 1), 1);
    let message = br#"{"version":2,"host":"h9","something":"else"}"#;
    net.hosts[0].service.handle_message(connection(99), message, net.now).unwrap();
    let replies = replies(&mut net.hosts[0].service);
    let [Reply::Refused(refusal)] = replies.as_slice() else { panic!("{replies:?}") };
    assert!(
        refusal
            .to_string()
            .starts_with("h9 has version 2 of the coordinator's protocol, and h0 has version 1")
    );
}

#[test]
fn a_server_keeps_no_job_for_messages_that_found_none() {
    let mut net = Net::new(JobSettings::new(1, 1));
    net.add_server();
    let service = &mut net.hosts[0].service;
    let group = GroupId(1);
    for (number, purpose) in
        [Purpose::Probe, Purpose::Operator(Command::Roster), Purpose::Replica { group, from: "h9:1".into() }]
            .into_iter()
            .enumerate()
    {
        let message = serde_json::to_vec(&open(purpose)).unwrap();
        service.handle_message(connection(number as u64), &message, SECOND).unwrap();
    }
    assert!(service.jobs.is_empty());
}

#[test]
fn a_server_forgets_the_jobs_of_nodes_that_are_gone_before_it_has_founded_them() {
    let mut net = Net::new(JobSettings::new(2, 2));
    net.add_server();
    let node = net.add_node();
    net.pass(SECOND);
    assert_eq!(net.hosts[0].service.jobs.len(), 1);
    net.kill(node);
    net.pass(SECOND);
    assert_eq!(net.hosts[0].service.next_timeout(net.now), None);
    net.hosts[0].service.handle_timeout(net.now);
    assert!(net.hosts[0].service.jobs.is_empty() && net.hosts[0].service.links.is_empty());
}

/// Generates times from zero to the largest one.
fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        3 => (0..10_000u64).prop_map(Duration::from_millis),
        1 => Just(Duration::MAX),
        1 => Just(JobSettings::MAX_TIME),
    ]
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        any::<bool>().prop_map(|is_fenced| Phase::Joining { is_fenced }),
        Just(Phase::Working),
        Just(Phase::Finished),
        Just(Phase::Outside("reason".into())),
    ]
}

fn activity() -> impl Strategy<Value = Activity> {
    let round = prop_oneof![Just(None), (0..3u64).prop_map(Some), Just(Some(u64::MAX))];
    (round, phase()).prop_map(|(last_round, phase)| Activity { last_round, phase })
}

prop_compose! {
    fn any_settings()(
        numbers in prop::collection::vec(prop_oneof![0..4u32, Just(u32::MAX)], 5),
        times in prop::collection::vec(time(), 6),
        is_plain in any::<bool>(),
    ) -> JobSettings {
        match is_plain {
            true => JobSettings::new(1, 3),
            false => JobSettings {
                node_unit: numbers[2],
                max_voters: numbers[3],
                exclude_after: numbers[4],
                lease: times[0],
                last_call_timeout: times[1],
                return_grace: times[2],
                reconnect_grace: times[3],
                exclude_window: times[4],
                exclude_time: times[5],
                ..JobSettings::new(numbers[0], numbers[1])
            },
        }
    }
}

prop_compose! {
    fn hello()(
        host in 0..6usize,
        pin in prop::option::of(0..4u32),
        settings in any_settings(),
        group in prop::option::of(0..3u64),
        activity in activity(),
    ) -> Purpose {
        let node = Node { pin, ..node(host) };
        Purpose::Node(Box::new(Hello { node, settings, group: group.map(GroupId), activity }))
    }
}

fn host() -> impl Strategy<Value = String> {
    (0..4).prop_map(|host| format!("h{host}"))
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (host(), time()).prop_map(|(host, time)| Command::Exclude { host, time, reason: String::new() }),
        host().prop_map(|host| Command::Include { host }),
        (host(), prop::option::of(time())).prop_map(|(host, within)| Command::Drain { host, within }),
        Just(Command::ForceQuorum),
        Just(Command::Roster),
    ]
}

fn purpose() -> impl Strategy<Value = Purpose> {
    let announcement = (0..3u64, any::<bool>(), time()).prop_map(|(group, has_round, age)| {
        let leader = "h9:1".into();
        Purpose::Announcement(Announcement { group: GroupId(group), leader, has_round, forced: 0, age })
    });
    prop_oneof![
        6 => hello(),
        1 => Just(Purpose::Probe),
        1 => announcement,
        2 => command().prop_map(Purpose::Operator),
        1 => (0..3u64).prop_map(|group| Purpose::Replica { group: GroupId(group), from: "h9:1".into() }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => (0..3u64).prop_map(|number| Request::Heartbeat { number }),
        3 => activity().prop_map(Request::Report),
        1 => (0..3u64).prop_map(|round| Request::WorkerFailed { round, local_rank: 0, exit: String::new() }),
        1 => prop::option::of(time()).prop_map(|within| Request::Drain { within }),
        1 => Just(Request::Leave),
        1 => Just(Request::Close { time: String::new(), reason: String::new() }),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Open(u64, Purpose),
    Request(u64, Request),
    Bytes(u64, Vec<u8>),
    Close(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..CONNECTIONS, purpose()).prop_map(|(connection, purpose)| Step::Open(connection, purpose)),
        8 => (0..CONNECTIONS, request()).prop_map(|(connection, request)| Step::Request(connection, request)),
        1 => (0..CONNECTIONS, prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(connection, bytes)| Step::Bytes(connection, bytes)),
        1 => (0..CONNECTIONS).prop_map(Step::Close),
        4 => (0..4000u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_messages_of_peers_end_the_process(
        is_server in any::<bool>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut net = Net::new(JobSettings::new(1, 3));
        if is_server {
            net.add_server();
        } else {
            net.add_node();
        }
        net.pass(3 * SECOND);
        let service = &mut net.hosts[0].service;
        let mut now = net.now;
        // A hub closes a connection after an invalid message, so each later message is on a new one.
        let mut connections: Vec<u64> = (0..CONNECTIONS).map(|number| 1000 + number).collect();
        for step in steps {
            let (number, message) = match step {
                Step::Open(number, purpose) => {
                    connections[number as usize] += CONNECTIONS;
                    (number, serde_json::to_vec(&open(purpose)).unwrap())
                }
                Step::Request(number, request) => (number, serde_json::to_vec(&request).unwrap()),
                Step::Bytes(number, bytes) => (number, bytes),
                Step::Close(number) => {
                    service.handle_close(connection(connections[number as usize]), LinkEnd::Closed, now);
                    continue;
                }
                Step::Pass(ms) => {
                    for _ in 0..ms / 50 {
                        now += Duration::from_millis(50);
                        service.handle_timeout(now);
                    }
                    continue;
                }
            };
            let peer = connection(connections[number as usize]);
            if service.handle_message(peer, &message, now).is_err() {
                service.handle_close(peer, LinkEnd::Closed, now);
            }
            while service.poll_action().is_some() {}
        }
    }
}
