//! Tests of how the client detects that its server was restarted.

use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::{Client, Failure, OnReset, ready};
use rallypoint_core::wire::{Op, Request};

use crate::net::Net;
use crate::operations::{all_operations, connected, prepared, waiting_operations};
use crate::server::Model;

const TIMEOUT: Duration = Duration::from_secs(10);

fn set(net: &Net, client: &Client<Net>, key: &[u8]) -> Result<(), Failure> {
    let request = Request::Set { key, value: b"v"[..].into() };
    ready(client.send_acknowledged(Some(key), request, &net.deadline(TIMEOUT)))
}

#[test]
fn every_operation_reports_a_restarted_server() {
    for (before, after, evidence) in [
        (Model::ours("a"), Model::ours("b"), "it was instance a, now it is b"),
        (Model::ours("a"), Model::torch(), "it was a rallypoint server and is not one now"),
        (Model::torch(), Model::ours("b"), "it was not a rallypoint server and is one now"),
        (Model::torch(), Model::torch(), "none of the keys seen before exists: seen"),
    ] {
        for operation in all_operations() {
            let (net, client) = connected(before.clone());
            set(&net, &client, b"/seen").unwrap();
            let after = after.clone();
            net.change(|state| state.restart(after));
            net.advance_clock(Duration::from_secs(1));
            let failure = operation.run(&client, TIMEOUT).unwrap_err();
            assert_eq!(failure, Failure::Reset(evidence.into()), "{:?}", operation.op);
            // The reset is permanent for this client.
            assert_eq!(operation.run(&client, TIMEOUT), Err(failure));
            assert_eq!(net.model(|model| model.count(Op::Set) + model.count(Op::Add)), 0);
        }
    }
}

#[test]
fn a_wait_fails_when_the_server_is_restarted_without_its_data() {
    for operation in waiting_operations() {
        let (net, client) = connected(Model::ours("a"));
        net.after(Duration::from_secs(1), |state| state.restart(Model::ours("b")));
        match operation.run(&client, TIMEOUT).unwrap_err() {
            Failure::Reset(_) => assert_ne!(operation.op, Op::Barrier),
            Failure::Indeterminate(_) => assert_eq!(operation.op, Op::Barrier),
            other => panic!("{:?}: {other:?}", operation.op),
        }
    }
}

#[test]
fn with_on_reset_continue_each_reset_increments_the_generation() {
    let net = Net::store(prepared(Model::ours("a")));
    let client = Client::new(net.clone(), Limits::default(), OnReset::Continue);
    for (generation, instance) in ["b", "c", "d"].into_iter().enumerate() {
        set(&net, &client, b"/k").unwrap();
        assert_eq!(client.server().generation(), generation as u64);
        net.change(|state| state.restart(Model::ours(instance)));
        net.advance_clock(Duration::from_secs(1));
    }
}

#[test]
fn broken_connections_alone_are_not_a_reset() {
    for model in [Model::ours("a"), Model::torch()] {
        let (net, client) = connected(model);
        set(&net, &client, b"/seen").unwrap();
        for operation in all_operations() {
            net.change(|state| state.close_all());
            net.advance_clock(Duration::from_secs(1));
            assert_eq!(operation.run(&client, TIMEOUT), Ok(()), "{:?}", operation.op);
        }
    }
}

#[test]
fn one_remaining_key_shows_that_a_torch_server_was_not_restarted() {
    let (net, client) = connected(Model::torch());
    let keys: Vec<_> = (0..20).map(|n| format!("/{n}").into_bytes()).collect();
    keys.iter().for_each(|key| set(&net, &client, key).unwrap());
    net.model(|model| keys[1..].iter().for_each(|key| drop(model.values.remove(key))));
    net.change(|state| state.close_all());
    net.advance_clock(Duration::from_secs(1));
    set(&net, &client, b"/k").unwrap();
}

#[test]
fn keys_deleted_by_this_client_are_no_evidence_of_a_reset() {
    let (net, client) = connected(Model::torch());
    set(&net, &client, b"/k").unwrap();
    ready(client.delete_key(b"/k", &net.deadline(TIMEOUT))).unwrap();
    net.change(|state| state.restart(Model::torch()));
    net.advance_clock(Duration::from_secs(1));
    set(&net, &client, b"/k").unwrap();
}
