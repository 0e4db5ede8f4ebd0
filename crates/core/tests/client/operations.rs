//! A table of all operations of a client, for tests that run each of them.

use std::time::Duration;

use rallypoint_core::client::{Client, Deadline, Failure, ready};
use rallypoint_core::wire::{KeyList, Op, PairList, Request};

use crate::net::Net;
use crate::server::Model;

/// An operation and a function that calls it.
pub(crate) struct Operation {
    pub(crate) op: Op,
    /// Whether the client may repeat the request after it lost the reply.
    pub(crate) is_repeatable: bool,
    pub(crate) call: fn(&Client<Net>, &Deadline) -> Result<(), Failure>,
}

impl Operation {
    pub(crate) fn run(&self, client: &Client<Net>, timeout: Duration) -> Result<(), Failure> {
        (self.call)(client, &client.io().deadline(timeout))
    }
}

/// Adds the keys and queue items that must exist so that all of [`all_operations`] succeed without waiting.
pub(crate) fn prepared(model: Model) -> Model {
    let mut model =
        model.with("/present", "value").with("/number", "1").with("/list", "x").with("/doomed", "x");
    (0..8).for_each(|_| model.push("/queue", "item"));
    model
}

/// Returns all operations, with arguments for which a prepared store replies without waiting.
pub(crate) fn all_operations() -> Vec<Operation> {
    let operation = |op, is_repeatable, call| Operation { op, is_repeatable, call };
    vec![
        operation(Op::Set, true, |client, deadline| {
            let request = Request::Set { key: b"/k", value: b"v"[..].into() };
            ready(client.send_acknowledged(Some(b"/k"), request, deadline))
        }),
        operation(Op::Get, true, |client, deadline| ready(client.get(b"/present", deadline)).map(drop)),
        operation(Op::Add, false, |client, deadline| ready(client.add(b"/number", 1, deadline)).map(drop)),
        operation(Op::Check, true, |client, deadline| {
            let keys: [&[u8]; 1] = [b"/present"];
            ready(client.request(Request::Check { keys: KeyList::new(&keys) }, deadline)).map(drop)
        }),
        operation(Op::Wait, true, |client, deadline| {
            ready(client.wait_then(Op::Wait, &[b"/present"], None, deadline)).map(drop)
        }),
        operation(Op::CompareSet, false, |client, deadline| {
            ready(client.compare_set(b"/c", b"", b"v", deadline)).map(drop)
        }),
        operation(Op::DeleteKey, true, |client, deadline| {
            ready(client.delete_key(b"/doomed", deadline)).map(drop)
        }),
        operation(Op::NumKeys, true, |client, deadline| {
            ready(client.request(Request::NumKeys, deadline)).map(drop)
        }),
        operation(Op::Append, false, |client, deadline| ready(client.append(b"/list", b"x", deadline))),
        operation(Op::MultiGet, true, |client, deadline| {
            ready(client.multi_get(&[b"/present", b"/number"], deadline)).map(drop)
        }),
        operation(Op::MultiSet, true, |client, deadline| {
            let pairs: [(&[u8], &[u8]); 2] = [(b"/k", b"v"), (b"/l", b"w")];
            let request = Request::MultiSet { pairs: PairList::new(&pairs) };
            ready(client.send_acknowledged(Some(b"/k"), request, deadline))
        }),
        operation(Op::QueuePush, false, |client, deadline| {
            let request = Request::QueuePush { key: b"/queue", value: b"item"[..].into() };
            ready(client.send_acknowledged(None, request, deadline))
        }),
        operation(Op::QueuePop, false, |client, deadline| {
            ready(client.wait_then_pop(b"/queue", deadline)).map(drop)
        }),
        operation(Op::QueueLen, true, |client, deadline| {
            ready(client.request(Request::QueueLen { key: b"/queue" }, deadline)).map(drop)
        }),
        operation(Op::ListKeys, true, |client, deadline| {
            ready(client.request(Request::ListKeys, deadline)).map(drop)
        }),
        operation(Op::Barrier, false, |client, deadline| ready(client.barrier(b"/alone", 1, deadline))),
        operation(Op::Ping, true, |client, deadline| ready(client.ping(deadline)).map(drop)),
    ]
}

/// Returns the operations that wait, with arguments for which the wait never completes.
pub(crate) fn waiting_operations() -> Vec<Operation> {
    let operation = |op, is_repeatable, call| Operation { op, is_repeatable, call };
    vec![
        operation(Op::Wait, true, |client, deadline| {
            ready(client.wait_then(Op::Wait, &[b"/present", b"/missing"], None, deadline)).map(drop)
        }),
        operation(Op::Get, true, |client, deadline| ready(client.get(b"/missing", deadline)).map(drop)),
        operation(Op::MultiGet, true, |client, deadline| {
            ready(client.multi_get(&[b"/present", b"/missing"], deadline)).map(drop)
        }),
        operation(Op::QueuePop, false, |client, deadline| {
            ready(client.wait_then_pop(b"/empty", deadline)).map(drop)
        }),
        operation(Op::Barrier, false, |client, deadline| ready(client.barrier(b"/two", 2, deadline))),
    ]
}

/// Returns a client that is connected to a prepared store and has identified it.
pub(crate) fn connected(model: Model) -> (Net, Client<Net>) {
    let net = Net::store(prepared(model));
    let client = net.client();
    ready(client.connect(&net.deadline(Duration::from_secs(1)), &mut |_| {})).unwrap();
    ready(client.ping(&net.deadline(Duration::from_secs(1)))).unwrap();
    (net, client)
}
