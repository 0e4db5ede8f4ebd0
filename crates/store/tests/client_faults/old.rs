//! Servers of older torch releases: they close the connection on an operation that they don't have.

use rallypoint_core::wire::Op;
use rallypoint_store::{Store, StoreError};

use crate::clock::{SOON, client};
use crate::fake::{Act, Fake, OURS, TORCHS};
use crate::operations::{all, prepare};

/// The operations that came after the oldest release.
const NEWER: [Op; 5] = [Op::QueuePush, Op::QueuePop, Op::QueueLen, Op::ListKeys, Op::Barrier];

fn lacking(ops: &'static [Op]) -> Fake {
    Fake::start(TORCHS, move |seen| if ops.contains(&seen.op) { Act::Refuse } else { Act::Answer })
}

#[test]
fn a_server_without_ping_is_used_without_ping() {
    let server = lacking(&[Op::Ping]);
    let store = client(server.port(), SOON);
    prepare(&store);
    for operation in all() {
        (operation.call)(&store).expect(operation.name);
    }
    assert_eq!((server.count(Op::Ping), server.connections()), (1, 2));
    // The next connection does without from the start.
    server.close(2);
    store.set("k", b"v").unwrap();
    assert_eq!(server.value("/k").unwrap(), b"v");
    assert_eq!((server.count(Op::Ping), server.connections()), (1, 3));
}

#[test]
fn a_server_of_ours_that_closes_the_first_connection_is_used_with_ping() {
    let server = Fake::start(OURS, |seen| match (seen.op, seen.nth) {
        (Op::Ping, 1) => Act::Refuse,
        _ => Act::Answer,
    });
    let store = client(server.port(), SOON);
    server.close(2);
    store.set("k", b"v").unwrap();
    // One in the handshake of the third connection, one behind the `set`.
    assert_eq!((server.count(Op::Ping), server.connections()), (3, 3));
}

#[test]
fn an_operation_that_the_server_lacks_is_named_and_the_client_goes_on() {
    for operation in all().into_iter().filter(|operation| NEWER.contains(&operation.op())) {
        let server = lacking(&NEWER);
        let store = client(server.port(), SOON);
        let error = (operation.call)(&store).unwrap_err();
        assert!(
            matches!(&error, StoreError::Unsupported { context, .. } if context.op == Some(operation.op())),
            "{error:?}"
        );
        store.set("k", b"v").unwrap();
        assert_eq!(store.num_keys().unwrap(), 1);
    }
}

#[test]
fn a_connection_that_breaks_on_a_newer_operation_does_not_make_the_server_old() {
    for operation in all().into_iter().filter(|operation| NEWER.contains(&operation.op())) {
        let server = Fake::honest(TORCHS);
        let store = client(server.port(), SOON);
        prepare(&store);
        server.at_next(operation.op(), Act::Close);
        match (operation.call)(&store) {
            Ok(()) if operation.repeatable => {}
            Err(StoreError::Indeterminate { context, .. }) if !operation.repeatable => {
                let op = context.op.unwrap();
                assert_eq!(op, operation.op());
            }
            other => panic!("{}: {other:?}", operation.name),
        }
        assert_eq!(server.value("rallypoint/probe"), None);
    }
}
