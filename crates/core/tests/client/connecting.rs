//! Tests of the first connection, to servers that start late, are silent, are not stores, or have several addresses.

use std::time::Duration;

use rallypoint_core::WireError;
use rallypoint_core::client::{Awaited, ConnectionFault, Failure, ready};
use rallypoint_core::wire::{Op, Request};

use crate::net::{Host, Net};
use crate::operations::{all_operations, connected, prepared};
use crate::server::{Behavior, Model};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Connects a new client. Returns the result, the reported faults, and how long the client took.
fn connect(net: &Net) -> (Result<(), Failure>, Vec<ConnectionFault>, Duration) {
    let (start, mut reported) = (net.now(), Vec::new());
    let result =
        ready(net.client().connect(&net.deadline(TIMEOUT), &mut |fault| reported.push(fault.clone())));
    (result, reported, net.now() - start)
}

fn store() -> Host {
    Host::Store(Box::new(prepared(Model::ours("a"))))
}

#[test]
fn an_unreachable_server_is_retried_until_the_timeout_and_its_fault_is_reported() {
    for (host, fault) in [
        (Host::Refuses, ConnectionFault::Refused),
        (Host::Unreachable, ConnectionFault::ConnectTimeout),
        (Host::Closes, ConnectionFault::Closed),
        (Host::Sends(Vec::new()), ConnectionFault::Silent),
    ] {
        let net = Net::new(vec![host]);
        let (result, reported, took) = connect(&net);
        assert_eq!(result, Err(Failure::Unreachable(vec![("0".into(), fault.clone())])));
        assert!(reported.contains(&fault), "{reported:?}");
        assert!(took >= TIMEOUT && took < TIMEOUT + Duration::from_millis(100), "{fault} took {took:?}");
    }
}

#[test]
fn an_unresolvable_name_is_reported_and_retried() {
    let net = Net::new(vec![store()]);
    net.change(|state| state.is_resolvable = false);
    let (result, reported, took) = connect(&net);
    let fault = ConnectionFault::Unresolvable { host: "node0".into(), reason: "unknown".into() };
    assert_eq!(result, Err(Failure::Unreachable(vec![(String::new(), fault.clone())])));
    assert!(reported.contains(&fault) && took >= TIMEOUT);
    net.after(Duration::from_secs(2), |state| state.is_resolvable = true);
    let (result, _, took) = connect(&net);
    assert!(result.is_ok() && took < Duration::from_millis(2_600), "{took:?}");
}

#[test]
fn a_server_that_starts_late_is_found_within_one_retry_interval() {
    let net = Net::new(vec![Host::Refuses]);
    net.after(Duration::from_secs(4), |state| state.hosts[0] = store());
    let (result, reported, took) = connect(&net);
    assert_eq!(result, Ok(()));
    assert!(took < Duration::from_millis(4_600), "{took:?}");
    assert!(reported.iter().all(|fault| *fault == ConnectionFault::Refused));
}

#[test]
fn every_address_gets_a_share_of_the_timeout() {
    for dead in [Host::Unreachable, Host::Sends(Vec::new()), Host::Refuses, Host::Closes] {
        let net = Net::new(vec![dead, store()]);
        let (result, _, took) = connect(&net);
        assert_eq!(result, Ok(()));
        assert!(took < TIMEOUT * 6 / 10, "{took:?}");
    }
}

#[test]
fn a_server_of_another_protocol_is_reported_immediately_and_does_not_hide_a_store_at_another_address() {
    for (reply, like) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], "an HTTP server"),
        (b"\x15\x03\x01\x00\x02", "a TLS server"),
        (b"SSH-2.0-OpenSSH", "an SSH server"),
        (b"220 mail", "an unknown server (its reply begins with \"220 \")"),
    ] {
        let net = Net::new(vec![Host::Sends(reply.into())]);
        let (result, _, took) = connect(&net);
        let Err(Failure::Protocol(Some(peer), error)) = result else { panic!("{result:?}") };
        assert_eq!((peer.as_str(), error.to_string()), ("0", format!("answered like {like}")));
        assert!(matches!(error, WireError::WrongNonce { .. }) && took < Duration::from_millis(1));
        let net = Net::new(vec![Host::Sends(reply.into()), store()]);
        assert_eq!(connect(&net).0, Ok(()));
    }
}

#[test]
fn an_attempt_that_the_deadline_cuts_short_does_not_hide_the_fault_before_it() {
    let net = Net::new(vec![Host::Refuses]);
    // The last attempt, which begins less than 600 ms before the deadline, gets no reply.
    net.after(TIMEOUT - Duration::from_millis(600), |state| state.hosts[0] = Host::Unreachable);
    let (result, _, took) = connect(&net);
    assert_eq!(result, Err(Failure::Unreachable(vec![("0".into(), ConnectionFault::Refused)])));
    assert!(took >= TIMEOUT && took < TIMEOUT + Duration::from_millis(100), "{took:?}");
    // If several attempts before the deadline have the new fault, that fault is reported.
    let net = Net::new(vec![Host::Refuses]);
    net.after(TIMEOUT / 2, |state| state.hosts[0] = Host::Unreachable);
    let (result, _, _) = connect(&net);
    assert_eq!(result, Err(Failure::Unreachable(vec![("0".into(), ConnectionFault::ConnectTimeout)])));
}

#[test]
fn a_new_client_sends_only_torchs_handshake_until_its_first_operation() {
    let net = Net::store(Model::ours("a"));
    let client = net.client();
    ready(client.connect(&net.deadline(TIMEOUT), &mut |_| {})).unwrap();
    let ops = |net: &Net| net.model(|model| model.requests.iter().map(|(_, op)| *op).collect::<Vec<_>>());
    assert_eq!(ops(&net), [Op::Validate, Op::Ping]);
    ready(client.request(Request::NumKeys, &net.deadline(TIMEOUT))).unwrap();
    assert_eq!(ops(&net)[2..], [Op::Check, Op::Get, Op::NumKeys]);
    // On a later connection, the client sends the requests that identify the server together with the handshake.
    net.change(|state| state.close_all());
    net.advance_clock(Duration::from_secs(1));
    ready(client.request(Request::NumKeys, &net.deadline(TIMEOUT))).unwrap();
    assert_eq!(ops(&net)[5..], [Op::Validate, Op::Ping, Op::Check, Op::Get, Op::NumKeys]);
}

#[test]
fn a_client_sends_no_further_ping_to_a_server_that_closes_on_ping() {
    let mut model = prepared(Model::torch());
    model.permanent_behaviors.push((Op::Ping, Behavior::Refuse));
    let net = Net::store(model);
    let client = net.client();
    for operation in all_operations().into_iter().filter(|operation| operation.op != Op::Ping) {
        assert_eq!(operation.run(&client, TIMEOUT), Ok(()), "{:?}", operation.op);
    }
    assert_eq!(net.model(|model| model.count(Op::Ping)), 1);
}

#[test]
fn an_unsupported_operation_is_reported_and_the_client_still_works() {
    const QUEUES: &str = "2.8 on (with `use_libuv`)";
    for (op, since) in
        [(Op::QueuePush, QUEUES), (Op::QueuePop, QUEUES), (Op::ListKeys, "2.10 on"), (Op::Barrier, "2.12 on")]
    {
        let (net, client) = connected(Model::torch());
        let lacking = [Op::QueuePush, Op::QueuePop, Op::QueueLen, Op::ListKeys, Op::Barrier];
        net.model(|model| model.permanent_behaviors.extend(lacking.map(|op| (op, Behavior::Refuse))));
        let operation = all_operations().into_iter().find(|operation| operation.op == op).unwrap();
        assert_eq!(operation.run(&client, TIMEOUT), Err(Failure::Unsupported(Some(since))), "{op:?}");
        ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    }
}

#[test]
fn a_client_counts_itself_as_a_worker_and_waits_for_the_other_workers() {
    let (net, client) = connected(Model::torch());
    let deadline = net.deadline(TIMEOUT);
    let joined = ready(client.count_worker(&deadline)).unwrap();
    assert_eq!(joined, 1);
    net.after(Duration::from_secs(1), |state| state.set("init/", "3"));
    assert_eq!(ready(client.wait_for_workers(joined, 3, &deadline)), Ok(()));
    let failure = ready(client.wait_for_workers(3, 4, &deadline)).unwrap_err();
    assert_eq!(failure, Failure::Timeout(Awaited::Workers { joined: 3, expected: 4 }));
}
