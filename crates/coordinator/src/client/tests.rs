mod requests;

use super::*;
use crate::node::NodeId;

const START: Duration = Duration::from_secs(100);
const VOTERS: [&str; 2] = ["b:1", "leader:1"];

fn client() -> Client {
    let node = Node {
        id: NodeId(1),
        host: "a".into(),
        pid: 1,
        address: "a:1".into(),
        workers: Some(1),
        command: Some(0),
        pin: None,
        preferred_rank: None,
        topology: Vec::new(),
    };
    let mut client = Client::new(node, JobSettings::new(1, 2), vec!["leader:1".into(), "c:1".into()]);
    client.join(START);
    client
}

fn outputs(client: &mut Client) -> Vec<Output> {
    std::iter::from_fn(|| client.poll_output()).collect()
}

/// Returns the addresses that the client connects to until `end`, if no connection opens.
fn attempts(client: &mut Client, end: Duration) -> Vec<String> {
    let mut addresses = Vec::new();
    while let Some(now) = client.next_timeout().filter(|time| *time <= end) {
        client.handle_timeout(now);
        for output in outputs(client) {
            if let Output::Connect(_, address) = output {
                addresses.push(address);
            }
        }
    }
    addresses
}

/// Opens the first connection and lets the leader serve the node at `now`.
fn serve(client: &mut Client, now: Duration) -> Link {
    let link = match outputs(client)[..] {
        [Output::Connect(link, _)] => link,
        ref other => panic!("{other:?}"),
    };
    client.handle_open(link, now).expect("the connection was asked for");
    let settings = Box::new(client.settings().clone());
    let voters = VOTERS.map(str::to_owned).to_vec();
    client.handle_reply(link, Reply::Welcome { group: GroupId(1), settings, voters }, now);
    link
}

/// Returns the numbers of the heartbeats among the outputs.
fn heartbeats(client: &mut Client) -> Vec<u64> {
    let number = |output| match output {
        Output::Send(_, Request::Heartbeat { number }) => Some(number),
        _ => None,
    };
    outputs(client).into_iter().filter_map(number).collect()
}

#[test]
fn a_heartbeat_follows_the_hello_so_a_new_connection_renews_the_lease_without_another_round_trip() {
    let mut client = client();
    let link = serve(&mut client, START);
    let [number] = heartbeats(&mut client)[..] else { panic!("one heartbeat") };
    client.handle_reply(link, Reply::Granted { number, lease: Duration::from_secs(5) }, START);
    assert_eq!(client.deadline(), Some(START + Duration::from_millis(4700)));
}

#[test]
fn heartbeats_without_a_reply_follow_each_other_faster_until_one_is_granted() {
    let mut client = client();
    let link = serve(&mut client, START);
    assert_eq!(heartbeats(&mut client), [0]);
    let mut sent = Vec::new();
    while let Some(now) = client.next_timeout().filter(|time| *time <= START + Duration::from_secs(1)) {
        client.handle_timeout(now);
        sent.extend(heartbeats(&mut client).into_iter().map(|number| (number, (now - START).as_millis())));
    }
    assert_eq!(sent, [(1, 500), (2, 750), (3, 1000)]);
    let now = START + Duration::from_millis(1100);
    client.handle_reply(link, Reply::Granted { number: 3, lease: Duration::from_secs(5) }, now);
    assert_eq!(
        client.next_timeout(),
        Some(START + Duration::from_secs(2)),
        "a whole interval after the last one"
    );
}

#[test]
fn a_node_that_does_not_hear_its_leader_tries_the_leader_first_and_each_address_once() {
    let mut client = client();
    serve(&mut client, START);
    outputs(&mut client);
    let addresses = attempts(&mut client, START + SILENCE_TIMEOUT + 2 * ATTEMPT_INTERVAL);
    assert_eq!(addresses, ["leader:1", "b:1", "c:1"]);
}

#[test]
fn a_client_waits_for_a_slow_process_that_has_its_hello_and_tries_only_other_addresses() {
    let mut client = client();
    let link = match outputs(&mut client)[..] {
        [Output::Connect(link, _)] => link,
        ref other => panic!("{other:?}"),
    };
    client.handle_open(link, START).expect("the connection was asked for");
    outputs(&mut client);
    let addresses = attempts(&mut client, START + Duration::from_millis(1900));
    assert!(!addresses.is_empty() && addresses.iter().all(|address| address == "c:1"), "{addresses:?}");
}
