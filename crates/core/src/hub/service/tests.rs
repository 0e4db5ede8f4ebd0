//! Tests of the interface between a hub and a service, with a service that records what it gets and returns messages.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::hub::{Action, HubOptions};

const NOW: Duration = Duration::ZERO;

#[derive(Default)]
struct Recorder {
    calls: Vec<String>,
    actions: VecDeque<ServiceAction<String>>,
    timeout: Option<Duration>,
}

impl Service for Recorder {
    type Event = String;

    fn handle_message(&mut self, peer: Peer, message: &[u8], _: Duration) -> Result<(), String> {
        let text = String::from_utf8(message.to_vec()).map_err(|_| "not UTF-8")?;
        self.calls.push(text);
        self.actions.push_back(ServiceAction::Send(peer, [b"re: ", message].concat()));
        if message == b"close" {
            self.actions.push_back(ServiceAction::Close(peer));
        }
        Ok(())
    }

    fn handle_open(&mut self, link: LinkId, _: Duration) {
        self.calls.push(format!("open {link}"));
    }

    fn handle_close(&mut self, peer: Peer, end: LinkEnd, _: Duration) {
        let kind = if matches!(peer, Peer::Link(_)) { "link" } else { "client" };
        self.calls.push(format!("{kind} {end:?}"));
    }

    fn handle_timeout(&mut self, _: Duration) {
        self.timeout = None;
        self.actions.push_back(ServiceAction::Event("timeout".into()));
    }

    fn next_timeout(&self, _: Duration) -> Option<Duration> {
        self.timeout
    }

    fn poll_action(&mut self) -> Option<ServiceAction<String>> {
        self.actions.pop_front()
    }
}

type TestHub = Hub<(), Recorder>;

fn hub() -> TestHub {
    Hub::with_service(HubOptions::default(), (), Recorder::default())
}

/// Carries out the actions of the hub. `input` arrives on connection `id`. Returns the bytes that the hub sends.
fn run(hub: &mut TestHub, id: ConnectionId, input: &[u8]) -> Vec<u8> {
    let (mut input, mut sent) = (input, Vec::new());
    hub.handle_readable(id, false);
    while let Some(action) = hub.poll_action(NOW) {
        match action {
            Action::Read { id, .. } => hub.handle_bytes(id, std::mem::take(&mut input), true, NOW),
            Action::Send(id) => {
                let (slices, count) = hub.transmit(id);
                let bytes = slices[..count].concat();
                hub.handle_sent(id, bytes.len(), true, NOW);
                sent.extend(bytes);
            }
            Action::Close(_) | Action::Connect(_) => {}
        }
    }
    sent
}

fn encoded(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

fn value(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn open_client(hub: &mut TestHub) -> ConnectionId {
    let id = hub.handle_open("192.0.2.1:5000".parse().unwrap(), NOW).unwrap();
    run(hub, id, &encoded(&[Request::Validate { magic: MAGIC }]));
    id
}

fn open_link(hub: &mut TestHub) -> ConnectionId {
    hub.service().actions.push_back(ServiceAction::Connect(7, "node1:29400".into()));
    let Some(Action::Connect(id)) = hub.poll_action(NOW) else { panic!("the hub opens no connection") };
    assert_eq!(hub.link_address(id), Some("node1:29400"));
    id
}

#[test]
fn a_client_gets_the_replies_of_the_service_between_those_of_the_store() {
    let mut hub = hub();
    let id = open_client(&mut hub);
    let requests = encoded(&[
        Request::Ping { nonce: 1 },
        Request::Message { message: b"hi"[..].into() },
        Request::NumKeys,
    ]);
    let sent = run(&mut hub, id, &requests);
    assert_eq!(sent, [&1u32.to_le_bytes()[..], &value("re: hi"), &0i64.to_le_bytes()].concat());
    hub.handle_end(id);
    run(&mut hub, id, b"");
    assert_eq!(hub.service().calls, ["hi", "client Closed"]);
}

#[test]
fn a_client_that_sends_no_message_is_unknown_to_the_service() {
    let mut hub = hub();
    let id = open_client(&mut hub);
    hub.handle_end(id);
    run(&mut hub, id, b"");
    assert_eq!(hub.service().calls, [""; 0]);
}

#[test]
fn an_invalid_message_closes_the_connection() {
    let mut hub = hub();
    let id = open_client(&mut hub);
    run(&mut hub, id, &encoded(&[Request::Message { message: b"\xff"[..].into() }]));
    let event = hub.poll_event().map(|event| format!("{event:?}")).unwrap_or_default();
    assert!(event.contains("not UTF-8"), "{event}");
    assert_eq!(hub.service().calls, ["client Closed"]);
}

#[test]
fn without_a_service_a_message_is_an_unknown_operation() {
    let mut hub = Hub::new(HubOptions::default(), ());
    let id = hub.handle_open("192.0.2.1:5000".parse().unwrap(), NOW).unwrap();
    let requests = [Request::Validate { magic: MAGIC }, Request::Message { message: b"hi"[..].into() }];
    hub.handle_bytes(id, &encoded(&requests), true, NOW);
    let event = hub.poll_event().map(|event| format!("{event:?}")).unwrap_or_default();
    assert!(event.contains("UnknownOp { code: 64 }"), "{event}");
}

#[test]
fn a_link_sends_messages_only_after_the_server_has_shown_that_it_has_a_service() {
    let mut hub = hub();
    let id = open_link(&mut hub);
    hub.handle_connected(id, NOW);
    let handshake = [Request::Validate { magic: MAGIC }, Request::Get { key: SERVER_KEY }];
    assert_eq!(run(&mut hub, id, b""), encoded(&handshake));
    let identity = value("version=1 capabilities=in-order,messages value_len=5");
    let (first, second) = identity.split_at(11);
    run(&mut hub, id, first);
    assert_eq!(hub.service().calls, [""; 0]);
    let input = [second, &value("one"), &value("two")].concat();
    let replies = [b"re: one", b"re: two"].map(|message| Request::Message { message: message[..].into() });
    assert_eq!(run(&mut hub, id, &input), encoded(&replies));
    assert_eq!(hub.service().calls, ["open 7", "one", "two"]);
    hub.handle_failure(id, NOW);
    assert_eq!(hub.service().calls.last().unwrap(), "link Closed");
}

#[test]
fn a_link_to_a_server_without_a_service_ends() {
    for identity in ["", "version=1 capabilities=in-order", "version=1 capabilities=messages-of-another-kind"]
    {
        let mut hub = hub();
        let id = open_link(&mut hub);
        hub.handle_connected(id, NOW);
        run(&mut hub, id, &value(identity));
        assert_eq!(hub.service().calls, ["link NoService"], "{identity}");
    }
}

#[test]
fn a_link_that_is_refused_or_late_ends() {
    let mut hub = hub();
    let id = open_link(&mut hub);
    hub.handle_not_connected(id, true, NOW);
    let id = open_link(&mut hub);
    hub.handle_connected(id, NOW);
    hub.handle_timeout(LINK_TIMEOUT);
    assert_eq!(hub.service().calls, ["link Refused", "link Closed"]);
    assert_eq!(hub.poll_event(), None, "a host that is down is no reason for a warning");
}

#[test]
fn the_service_closes_a_connection_after_its_messages_are_sent() {
    let mut hub = hub();
    let id = open_client(&mut hub);
    run(&mut hub, id, &encoded(&[Request::Message { message: b"hi"[..].into() }]));
    let peer = Peer::Client(id);
    hub.service().actions.extend([ServiceAction::Send(peer, b"bye".into()), ServiceAction::Close(peer)]);
    assert_eq!(run(&mut hub, id, b""), value("bye"));
    assert_eq!(hub.service().calls, ["hi"]);
}

#[test]
fn the_service_gets_no_message_of_a_connection_after_it_has_closed_it() {
    let mut hub = hub();
    let id = open_client(&mut hub);
    let requests = [b"close", b"later"].map(|message| Request::Message { message: message[..].into() });
    assert_eq!(run(&mut hub, id, &encoded(&requests)), value("re: close"));
    assert_eq!(hub.service().calls, ["close"]);
}

#[test]
fn the_service_gets_its_timeouts_and_passes_events_to_the_program() {
    let mut hub = hub();
    let time = Duration::from_millis(20);
    hub.service().timeout = Some(time);
    assert_eq!(hub.poll_timeout(NOW), Some(time));
    hub.handle_timeout(time / 2);
    hub.handle_timeout(time);
    assert_eq!(hub.poll_action(time), None);
    assert_eq!((hub.poll_service_event(), hub.poll_service_event()), (Some("timeout".into()), None));
    assert_eq!(hub.poll_timeout(time), None);
}
