//! Success means that it is there: K03 and K2.

use std::time::Duration;

use rallypoint_core::wire::Op;
use rallypoint_store::{Oversize, Result, Store, StoreError, TcpStore};

use crate::child::Server;
use crate::clock::{SOON, client, fails_after};
use crate::fake::{Act, Fake, OURS};

const TIMEOUT: Duration = Duration::from_millis(300);

type Write = fn(&TcpStore) -> Result<()>;

/// The operations that get no reply of their own.
const WRITES: [(&str, Op, Write); 4] = [
    ("set", Op::Set, |store| store.set("k", b"v")),
    ("multi_set", Op::MultiSet, |store| store.multi_set(&[("k", b"v")])),
    ("append", Op::Append, |store| store.append("k", b"v")),
    ("queue_push", Op::QueuePush, |store| store.queue_push("q", b"v")),
];

#[test]
fn no_write_succeeds_on_a_server_that_is_gone() {
    for (name, _, write) in WRITES {
        let mut server = Server::start();
        let store = client(server.port(), TIMEOUT);
        store.set("before", b"1").unwrap();
        server.kill();
        fails_after(TIMEOUT, name, || write(&store));
    }
}

#[test]
fn no_write_succeeds_on_a_server_that_is_stopped() {
    let server = Server::start();
    let store = client(server.port(), TIMEOUT);
    server.freeze();
    for (name, _, write) in WRITES {
        let error = fails_after(TIMEOUT, name, || write(&store));
        assert!(!matches!(error, StoreError::ConnectionLost { .. }), "{error:?}");
    }
}

/// The server takes the bytes and dies before it has read them.
#[test]
fn no_write_succeeds_whose_bytes_nobody_has_handled() {
    for (name, op, write) in WRITES {
        let server = Fake::start(OURS, move |seen| if seen.op == op { Act::Refuse } else { Act::Answer });
        let store = client(server.port(), SOON);
        let error = write(&store).unwrap_err();
        let repeatable = matches!(op, Op::Set | Op::MultiSet);
        match error {
            StoreError::Refused { context, .. } if repeatable => assert_eq!(context.op, Some(op)),
            StoreError::Indeterminate { context, .. } if !repeatable => assert_eq!(context.op, Some(op)),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(server.value("/k"), None);
    }
}

#[test]
fn a_write_that_succeeded_is_there_for_everybody() {
    let server = Server::start();
    let (writer, reader) = (client(server.port(), SOON), client(server.port(), SOON));
    for n in 0..200 {
        writer.set("k", n.to_string().as_bytes()).unwrap();
        assert_eq!(reader.get("k").unwrap(), n.to_string().as_bytes());
        writer.append("l", b"x").unwrap();
        assert_eq!(reader.get("l").unwrap().len(), n + 1);
        writer.queue_push("q", b"x").unwrap();
        assert_eq!(reader.queue_len("q").unwrap(), n as u64 + 1);
    }
}

#[test]
fn what_is_too_large_is_refused_before_anything_is_sent_and_the_connection_survives() {
    let server = Fake::honest(OURS);
    let store = client(server.port(), SOON);
    let before = server.count(Op::Ping);
    let large = vec![0; (8 << 20) + 1];
    let long = "k".repeat(8192);
    for (name, result) in [
        ("set", store.set("k", &large)),
        ("append", store.append("k", &large)),
        ("queue_push", store.queue_push("k", &large)),
        ("compare_set", store.compare_set("k", b"", &large).map(drop)),
        ("compare_set", store.compare_set("k", &large, b"").map(drop)),
        ("multi_set", store.multi_set(&[("a", b"1"), ("k", &large)])),
    ] {
        let error = result.unwrap_err();
        let StoreError::TooLarge(Oversize::Value { key, len, limit }) = &error else {
            panic!("{name}: {error:?}")
        };
        assert_eq!((key.as_str(), *len, *limit), ("k", (8 << 20) + 1, 8 << 20));
    }
    for result in [store.set(&long, b"v"), store.get(&long).map(drop), store.wait(&["k", &long])] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, StoreError::TooLarge(Oversize::Key { len: 8193, limit: 8192, .. })),
            "{error:?}"
        );
    }
    let error = store.check(&vec!["k"; 131_073]).unwrap_err();
    assert!(
        matches!(error, StoreError::TooLarge(Oversize::Keys { count: 131_073, limit: 131_072 })),
        "{error:?}"
    );
    let pairs: Vec<(&str, &[u8])> = vec![("k", &large[..8 << 20]); 9];
    let error = store.multi_set(&pairs).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge(Oversize::Request { .. })), "{error:?}");
    assert_eq!(server.count(Op::Ping), before);
    store.set("k", &large[1..]).unwrap();
    assert_eq!(server.value("/k").unwrap().len(), 8 << 20);
    assert_eq!(server.connections(), 1);
}
