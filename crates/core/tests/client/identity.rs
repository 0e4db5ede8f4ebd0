//! Whether the server is still the same one.

use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::client::{Client, Failure, OnReset, ready};
use rallypoint_core::wire::{Op, Request};

use crate::net::Net;
use crate::operations::{all, connected, prepared, waiting};
use crate::server::Model;

const TIMEOUT: Duration = Duration::from_secs(10);

fn set(net: &Net, client: &Client<Net>, key: &[u8]) -> Result<(), Failure> {
    let request = Request::Set { key, value: b"v"[..].into() };
    ready(client.acknowledged(Some(key), request, &net.deadline(TIMEOUT)))
}

#[test]
fn a_restarted_server_is_noticed_by_every_operation() {
    for (before, after, evidence) in [
        (Model::ours("a"), Model::ours("b"), "it was instance a, now it is b"),
        (Model::ours("a"), Model::torchs(), "it was a rallypoint server and is none now"),
        (Model::torchs(), Model::ours("b"), "it was not a rallypoint server and is one now"),
        (Model::torchs(), Model::torchs(), "none of the keys seen before is there: seen"),
    ] {
        for operation in all() {
            let (net, client) = connected(before.clone());
            set(&net, &client, b"/seen").unwrap();
            let after = after.clone();
            net.change(|world| world.restart(after));
            net.pass(Duration::from_secs(1));
            let failure = operation.run(&client, TIMEOUT).unwrap_err();
            assert_eq!(failure, Failure::Reset(evidence.into()), "{:?}", operation.op);
            // The client stays with it until there is a new client.
            assert_eq!(operation.run(&client, TIMEOUT), Err(failure));
            assert_eq!(net.model(|model| model.count(Op::Set) + model.count(Op::Add)), 0);
        }
    }
}

#[test]
fn a_wait_across_a_restart_does_not_go_on_with_an_empty_store() {
    for operation in waiting() {
        let (net, client) = connected(Model::ours("a"));
        net.after(Duration::from_secs(1), |world| world.restart(Model::ours("b")));
        match operation.run(&client, TIMEOUT).unwrap_err() {
            Failure::Reset(_) => assert_ne!(operation.op, Op::Barrier),
            Failure::Indeterminate(_) => assert_eq!(operation.op, Op::Barrier),
            other => panic!("{:?}: {other:?}", operation.op),
        }
    }
}

#[test]
fn a_client_that_continues_counts_generations() {
    let net = Net::store(prepared(Model::ours("a")));
    let client = Client::new(net.clone(), Limits::default(), OnReset::Continue);
    for (generation, instance) in ["b", "c", "d"].into_iter().enumerate() {
        set(&net, &client, b"/k").unwrap();
        assert_eq!(client.server().generation(), generation as u64);
        net.change(|world| world.restart(Model::ours(instance)));
        net.pass(Duration::from_secs(1));
    }
}

#[test]
fn a_server_whose_connections_break_is_the_same_one() {
    for model in [Model::ours("a"), Model::torchs()] {
        let (net, client) = connected(model);
        set(&net, &client, b"/seen").unwrap();
        for operation in all() {
            net.change(|world| world.close_all());
            net.pass(Duration::from_secs(1));
            assert_eq!(operation.run(&client, TIMEOUT), Ok(()), "{:?}", operation.op);
        }
    }
}

#[test]
fn one_key_that_is_left_of_many_is_enough() {
    let (net, client) = connected(Model::torchs());
    let keys: Vec<_> = (0..20).map(|n| format!("/{n}").into_bytes()).collect();
    keys.iter().for_each(|key| set(&net, &client, key).unwrap());
    net.model(|model| keys[1..].iter().for_each(|key| drop(model.values.remove(key))));
    net.change(|world| world.close_all());
    net.pass(Duration::from_secs(1));
    set(&net, &client, b"/k").unwrap();
}

#[test]
fn keys_that_this_client_deleted_are_not_missed() {
    let (net, client) = connected(Model::torchs());
    set(&net, &client, b"/k").unwrap();
    ready(client.delete_key(b"/k", &net.deadline(TIMEOUT))).unwrap();
    net.change(|world| world.restart(Model::torchs()));
    net.pass(Duration::from_secs(1));
    set(&net, &client, b"/k").unwrap();
}
