//! What must not be repeated is sent once and ends as indeterminate; what may be is sent again: K02 and K4.

use std::time::Duration;

use rallypoint_core::wire::Op;
use rallypoint_store::{Store, StoreError};

use crate::clock::{SOON, client, eventually, fails_after};
use crate::fake::{Act, Fake, OURS, TORCHS};
use crate::operations::{all, at_once, prepare};
use crate::timing::fails_in_time;

/// The request an operation is known by on the wire.
fn wire_op(name: &str) -> Op {
    let name = match name {
        "compare_exchange" => "compare_set",
        "try_queue_pop" => "queue_pop",
        other => other,
    };
    *Op::ALL.iter().find(|op| op.name() == name).unwrap()
}

/// The server carries out the request or doesn't, and closes the connection before its reply is sent, or half sent.
#[test]
fn an_answer_that_is_lost_makes_one_more_request_or_none() {
    for identity in [OURS, TORCHS] {
        let server = Fake::honest(identity);
        let store = client(server.port(), SOON);
        prepare(&store);
        for (act, operation) in [Act::Close, Act::Refuse, Act::Half]
            .into_iter()
            .flat_map(|act| all().into_iter().map(move |operation| (act.clone(), operation)))
        {
            let op = wire_op(operation.name);
            let before = server.count(op);
            server.at_next(op, act.clone());
            let result = (operation.call)(&store);
            match (&result, operation.repeatable) {
                (Ok(()), true) => {
                    assert!(server.count(op) > before + 1, "{} was not repeated", operation.name)
                }
                (Err(StoreError::Indeterminate { context, .. }), false) => {
                    let (lost, peer) = (context.op.unwrap(), &context.peer);
                    // Whether one of torch's servers has barriers is tried with a barrier of another name.
                    let probes = usize::from(op == Op::Barrier && identity == TORCHS);
                    assert_eq!((lost, server.count(op)), (op, before + 1 + probes), "{}", operation.name);
                    assert_eq!(peer, &format!("127.0.0.1:{}", server.port()));
                }
                // Gone it is, but by whom?
                (Err(StoreError::Indeterminate { context, .. }), true)
                    if context.op == Some(Op::DeleteKey) => {}
                other => panic!("{} with {act:?}: {other:?}", operation.name),
            }
            // The client goes on over another connection.
            assert_eq!(store.get("there").unwrap(), b"value", "{} with {act:?}", operation.name);
        }
    }
}

#[test]
fn an_indeterminate_call_was_carried_out_once_or_not_at_all() {
    for (act, sum) in [(Act::Close, 8), (Act::Refuse, 7)] {
        let server = Fake::honest(OURS);
        let store = client(server.port(), SOON);
        store.set("n", b"7").unwrap();
        server.at_next(Op::Add, act);
        let error = store.add("n", 1).unwrap_err();
        assert!(error.to_string().contains("may or may not have been applied"), "{error}");
        assert_eq!(server.value("/n").unwrap(), sum.to_string().as_bytes());
        assert_eq!(server.count(Op::Add), 1);
    }
}

/// A server that is silent may still carry out what it was sent.
#[test]
fn no_answer_at_all_is_indeterminate_too() {
    let timeout = Duration::from_millis(250);
    let server = Fake::honest(OURS);
    let store = client(server.port(), timeout);
    prepare(&store);
    for operation in all().into_iter().filter(|operation| !operation.repeatable) {
        let op = wire_op(operation.name);
        let before = server.count(op);
        // On a busy machine there may be no connection in time after one that was given up.
        let is_fair = |error: &StoreError| matches!(error, StoreError::Indeterminate { .. });
        let error = fails_in_time(timeout, operation.name, is_fair, || {
            server.at_next(op, Act::Ignore);
            (operation.call)(&store)
        });
        let StoreError::Indeterminate { context, reason } = &error else {
            panic!("{}: {error:?}", operation.name)
        };
        assert_eq!(context.op, Some(op));
        assert!(reason.contains("no answer"), "{error}");
        eventually("it was sent", || server.count(op) > before);
        // As often as it was called, which is more than once if the machine was busy.
        assert!((before + 1..=before + crate::clock::TRIES as usize).contains(&server.count(op)));
    }
}

#[test]
fn what_was_not_sent_is_not_indeterminate() {
    let server = Fake::honest(OURS);
    let timeout = Duration::from_millis(200);
    let store = client(server.port(), timeout);
    store.set("k", b"v").unwrap();
    drop(server);
    at_once(all(), |operation| {
        let error = fails_after(timeout, operation.name, || (operation.call)(&store));
        assert!(matches!(error, StoreError::Unreachable { .. }), "{}: {error:?}", operation.name);
    });
}

/// A delete that is repeated and finds nothing can't know who did it; one that was never sent does.
#[test]
fn a_repeated_delete_says_what_it_knows() {
    let server = Fake::honest(OURS);
    let store = client(server.port(), SOON);
    store.set("k", b"v").unwrap();
    server.at_next(Op::DeleteKey, Act::Close);
    let error = store.delete_key("k").unwrap_err();
    assert!(
        matches!(&error, StoreError::Indeterminate { context, .. } if context.keys == ["k"]),
        "{error:?}"
    );
    store.set("k", b"v").unwrap();
    server.at_next(Op::DeleteKey, Act::Refuse);
    assert!(store.delete_key("k").unwrap());
    assert_eq!(server.count(Op::DeleteKey), 4);
}

#[test]
fn a_request_that_is_closed_on_each_time_is_given_up_before_the_time_is_up() {
    let server = Fake::start(OURS, |seen| if seen.op == Op::NumKeys { Act::Refuse } else { Act::Answer });
    let store = client(server.port(), SOON);
    let error = store.num_keys().unwrap_err();
    assert!(
        matches!(&error, StoreError::Refused { context, .. } if context.op == Some(Op::NumKeys)),
        "{error:?}"
    );
    assert_eq!(server.count(Op::NumKeys), 3);
    store.set("k", b"v").unwrap();
}
