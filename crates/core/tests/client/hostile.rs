//! Tests of replies that violate the protocol, and of bytes that the client did not request.

use std::time::Duration;

use rallypoint_core::WireError;
use rallypoint_core::client::{Failure, Oversized, ready};
use rallypoint_core::wire::{Op, Reply};

use crate::operations::{all_operations, connected, waiting_operations};
use crate::server::{Behavior, Model, encoded};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_reply_that_announces_too_many_bytes_is_refused_before_it_is_read() {
    for op in [Op::Get, Op::MultiGet, Op::CompareSet, Op::ListKeys] {
        for len in [(64u64 << 20) + 1, 1 << 31, 1 << 62] {
            let (net, client) = connected(Model::ours("a"));
            net.model(|model| model.on_next(op, Behavior::Send(len.to_le_bytes().into())));
            let operation = all_operations().into_iter().find(|operation| operation.op == op).unwrap();
            let failure = operation.run(&client, TIMEOUT).unwrap_err();
            assert!(
                matches!(failure, Failure::TooLarge { what: Oversized::Reply, limit, .. } if limit == 64 << 20),
                "{failure:?}"
            );
            assert!(net.change(|state| state.is_dropped(0)), "the connection is closed");
            ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
        }
    }
}

#[test]
fn an_invalid_reply_byte_is_a_protocol_violation_and_closes_the_connection() {
    for (op, reply_op) in
        [(Op::Check, Op::Check), (Op::Wait, Op::Wait), (Op::Get, Op::Wait), (Op::Barrier, Op::Barrier)]
    {
        for byte in [2, 255] {
            let (net, client) = connected(Model::ours("a"));
            net.model(|model| model.on_next(reply_op, Behavior::Send(vec![byte])));
            let operation = all_operations().into_iter().find(|operation| operation.op == op).unwrap();
            let failure = operation.run(&client, TIMEOUT).unwrap_err();
            let error = WireError::BadReply { op: reply_op, found: byte.into() };
            assert_eq!(failure, Failure::Protocol(None, error));
            assert!(net.change(|state| state.is_dropped(0)));
        }
    }
}

#[test]
fn a_cancel_reply_without_a_cancel_is_a_protocol_violation() {
    for operation in waiting_operations() {
        let (net, client) = connected(Model::ours("a"));
        let waiting_op = if operation.op == Op::Barrier { Op::Barrier } else { Op::Wait };
        net.model(|model| model.on_next(waiting_op, Behavior::Send(encoded(Reply::Canceled))));
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(matches!(failure, Failure::Protocol(None, _)), "{:?}: {failure:?}", operation.op);
    }
}

#[test]
fn an_invalid_reply_to_a_cancel_is_a_protocol_violation() {
    for operation in waiting_operations() {
        let (net, client) = connected(Model::ours("a"));
        net.model(|model| model.on_next(Op::CancelWait, Behavior::Send(vec![9])));
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(matches!(failure, Failure::Protocol(None, _)), "{:?}: {failure:?}", operation.op);
        ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    }
}

#[test]
fn a_ping_reply_with_a_wrong_nonce_is_a_protocol_violation() {
    for op in [Op::Set, Op::Append, Op::MultiSet, Op::QueuePush, Op::Ping] {
        let (net, client) = connected(Model::ours("a"));
        net.model(|model| model.on_next(Op::Ping, Behavior::Send(encoded(Reply::Nonce(0xDEAD_BEEF)))));
        let operation = all_operations().into_iter().find(|operation| operation.op == op).unwrap();
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert_eq!(failure, Failure::Protocol(None, WireError::WrongNonce { found: 0xDEAD_BEEF }));
    }
}

#[test]
fn extra_bytes_after_a_reply_are_never_taken_for_the_next_reply() {
    for pause in [0, 10] {
        for operation in all_operations() {
            let (net, client) = connected(Model::ours("a"));
            net.model(|model| model.on_next(operation.op, Behavior::Duplicate));
            let _ = operation.run(&client, TIMEOUT);
            net.advance_clock(Duration::from_millis(pause));
            for _ in 0..3 {
                if let Ok(value) = ready(client.get(b"/number", &net.deadline(TIMEOUT))) {
                    assert!(matches!(&*value, b"1" | b"2"), "{:?}: {value:?}", operation.op);
                }
            }
        }
    }
}

#[test]
fn a_reply_that_arrives_in_single_bytes_is_decoded() {
    for operation in all_operations() {
        let (net, client) = connected(Model::ours("a"));
        net.model(|model| {
            model.permanent_behaviors.push((operation.op, Behavior::SplitBytes(Duration::from_millis(5))))
        });
        assert_eq!(operation.run(&client, TIMEOUT), Ok(()), "{:?}", operation.op);
    }
}
