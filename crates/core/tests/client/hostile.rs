//! Replies that are not the protocol, and bytes that no call asked for.

use std::time::Duration;

use rallypoint_core::WireError;
use rallypoint_core::client::{Failure, Oversized, ready};
use rallypoint_core::wire::{Op, Reply};

use crate::operations::{all, connected, waiting};
use crate::server::{Act, Model, encoded};

const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn a_reply_that_announces_too_much_is_refused_before_it_is_read() {
    for op in [Op::Get, Op::MultiGet, Op::CompareSet, Op::ListKeys] {
        for len in [(64u64 << 20) + 1, 1 << 31, 1 << 62] {
            let (net, client) = connected(Model::ours("a"));
            net.model(|model| model.trap(op, Act::Say(len.to_le_bytes().into())));
            let operation = all().into_iter().find(|operation| operation.op == op).unwrap();
            let failure = operation.run(&client, TIMEOUT).unwrap_err();
            assert!(
                matches!(failure, Failure::TooLarge { what: Oversized::Reply, limit, .. } if limit == 64 << 20),
                "{failure:?}"
            );
            assert!(net.change(|world| world.is_dropped(0)), "the connection is closed");
            ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
        }
    }
}

#[test]
fn a_byte_that_means_nothing_is_a_violation_and_closes_the_connection() {
    for (op, trapped) in
        [(Op::Check, Op::Check), (Op::Wait, Op::Wait), (Op::Get, Op::Wait), (Op::Barrier, Op::Barrier)]
    {
        for byte in [2, 255] {
            let (net, client) = connected(Model::ours("a"));
            net.model(|model| model.trap(trapped, Act::Say(vec![byte])));
            let operation = all().into_iter().find(|operation| operation.op == op).unwrap();
            let failure = operation.run(&client, TIMEOUT).unwrap_err();
            let error = WireError::BadReply { op: trapped, found: byte.into() };
            assert_eq!(failure, Failure::Protocol(None, error));
            assert!(net.change(|world| world.is_dropped(0)));
        }
    }
}

#[test]
fn a_wait_that_nobody_cancelled_ends_only_with_its_keys() {
    for operation in waiting() {
        let (net, client) = connected(Model::ours("a"));
        let waits = if operation.op == Op::Barrier { Op::Barrier } else { Op::Wait };
        net.model(|model| model.trap(waits, Act::Say(encoded(Reply::Canceled))));
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(matches!(failure, Failure::Protocol(None, _)), "{:?}: {failure:?}", operation.op);
    }
}

#[test]
fn a_bad_answer_to_a_cancel_is_a_violation() {
    for operation in waiting() {
        let (net, client) = connected(Model::ours("a"));
        net.model(|model| model.trap(Op::CancelWait, Act::Say(vec![9])));
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert!(matches!(failure, Failure::Protocol(None, _)), "{:?}: {failure:?}", operation.op);
        ready(client.ping(&net.deadline(TIMEOUT))).unwrap();
    }
}

#[test]
fn a_ping_that_is_answered_with_another_number_is_a_violation() {
    for op in [Op::Set, Op::Append, Op::MultiSet, Op::QueuePush, Op::Ping] {
        let (net, client) = connected(Model::ours("a"));
        net.model(|model| model.trap(Op::Ping, Act::Say(encoded(Reply::Nonce(0xDEAD_BEEF)))));
        let operation = all().into_iter().find(|operation| operation.op == op).unwrap();
        let failure = operation.run(&client, TIMEOUT).unwrap_err();
        assert_eq!(failure, Failure::Protocol(None, WireError::WrongNonce { found: 0xDEAD_BEEF }));
    }
}

#[test]
fn bytes_that_come_after_the_answer_are_never_taken_for_another() {
    for pause in [0, 10] {
        for operation in all() {
            let (net, client) = connected(Model::ours("a"));
            net.model(|model| model.trap(operation.op, Act::Twice));
            let _ = operation.run(&client, TIMEOUT);
            net.pass(Duration::from_millis(pause));
            for _ in 0..3 {
                if let Ok(value) = ready(client.get(b"/number", &net.deadline(TIMEOUT))) {
                    assert!(matches!(&*value, b"1" | b"2"), "{:?}: {value:?}", operation.op);
                }
            }
        }
    }
}

#[test]
fn a_reply_that_comes_a_byte_at_a_time_is_put_together() {
    for operation in all() {
        let (net, client) = connected(Model::ours("a"));
        net.model(|model| model.always.push((operation.op, Act::Drip(Duration::from_millis(5)))));
        assert_eq!(operation.run(&client, TIMEOUT), Ok(()), "{:?}", operation.op);
    }
}
