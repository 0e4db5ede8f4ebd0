//! Servers that break the protocol: K09 and K3. The connection is closed and never used again, the error says what came,
//! and the client goes on over another.

use std::time::Duration;

use rallypoint_core::WireError;
use rallypoint_core::wire::{Op, Reply};
use rallypoint_store::{Oversize, Store, StoreError, TcpStore, Violation};

use crate::clock::{SOON, TRIES, client, fails_after, open};
use crate::fake::{Act, Fake, OURS, TORCHS, bytes};
use crate::timing::fails_in_time;

/// A length with nothing behind it.
fn announced(len: u64) -> Vec<u8> {
    len.to_le_bytes().to_vec()
}

/// A client that is connected.
fn connected(server: &Fake) -> TcpStore {
    let store = client(server.port(), SOON);
    store.set("k", b"v").unwrap();
    store
}

/// The client still works, and not over the connection that was misused.
fn assert_poisoned(server: &Fake, store: &TcpStore) {
    assert_eq!(store.get("k").unwrap(), b"v");
    assert_eq!(server.connections(), 2);
}

type Call = fn(&TcpStore) -> rallypoint_store::Result<()>;

#[test]
fn a_reply_that_announces_too_much_is_refused_at_once() {
    let calls: [(Op, Call); 5] = [
        (Op::Get, |store| store.get("k").map(drop)),
        (Op::CompareSet, |store| store.compare_set("c", b"", b"x").map(drop)),
        (Op::MultiGet, |store| store.multi_get(&["k"]).map(drop)),
        (Op::ListKeys, |store| store.list_keys().map(drop)),
        (Op::QueuePop, |store| store.try_queue_pop("q").map(drop)),
    ];
    for (op, call) in calls {
        for len in [(64 << 20) + 1, 1 << 31, 1 << 62, u64::MAX] {
            // The count, then the length of the first item, where a count comes first.
            let reply = match op {
                Op::ListKeys | Op::QueuePop => [announced(1), announced(len)].concat(),
                _ => announced(len),
            };
            let server = Fake::honest(OURS);
            let store = connected(&server);
            server.at_next(op, Act::Say(reply));
            let error = call(&store).unwrap_err();
            let StoreError::TooLarge(Oversize::Reply { context, len: named, limit }) = &error else {
                panic!("{op}: {error:?}")
            };
            assert_eq!((context.op, &context.peer), (Some(op), &format!("127.0.0.1:{}", server.port())));
            assert_eq!(context.keys.len(), usize::from(op != Op::ListKeys), "{error}");
            assert!(*named > 64 << 20 && *limit == 64 << 20, "{error}");
            assert_poisoned(&server, &store);
        }
    }
}

#[test]
fn a_list_that_announces_too_many_or_fewer_than_none_is_refused() {
    for count in [1 << 31, 1 << 62, i64::MAX, -1, i64::MIN] {
        let server = Fake::honest(OURS);
        let store = connected(&server);
        server.at_next(Op::ListKeys, Act::Say(count.to_le_bytes().to_vec()));
        let error = store.list_keys().unwrap_err();
        match error {
            StoreError::TooLarge(Oversize::Reply { .. }) if count > 0 => {}
            StoreError::Protocol { .. } if count < 0 => {}
            other => panic!("{count}: {other:?}"),
        }
        assert_poisoned(&server, &store);
    }
}

#[test]
fn a_byte_that_means_nothing_is_a_violation() {
    let calls: [(Op, Call); 6] = [
        (Op::Wait, |store| store.wait(&["k"])),
        (Op::Wait, |store| store.get("k").map(drop)),
        (Op::Wait, |store| store.multi_get(&["k"]).map(drop)),
        (Op::Wait, |store| store.queue_pop("q").map(drop)),
        (Op::Barrier, |store| store.barrier("b", 1)),
        (Op::Check, |store| store.check(&["k"]).map(drop)),
    ];
    for identity in [OURS, TORCHS] {
        for (op, call) in calls {
            // That it was cancelled means nothing either, where nobody has cancelled it.
            let bytes = if op == Op::Check { vec![7] } else { vec![7, 1] };
            for byte in bytes {
                let server = Fake::honest(identity);
                let store = connected(&server);
                server.at_next(op, Act::Say(vec![byte]));
                let error = call(&store).unwrap_err();
                let StoreError::Protocol {
                    violation: Violation::Malformed(WireError::BadReplyByte { found, .. }),
                    ..
                } = &error
                else {
                    panic!("{op}: {error:?}")
                };
                assert_eq!(*found, byte);
                assert_poisoned(&server, &store);
            }
        }
    }
}

/// After a time-out the answer to the cancel may be garbage, too.
#[test]
fn a_bad_answer_to_a_cancel_is_a_violation() {
    let server = Fake::start(TORCHS, |seen| match seen.op {
        Op::CancelWait => Act::Say(vec![9]),
        _ => Act::Answer,
    });
    let timeout = Duration::from_millis(50);
    let calls: [Call; 2] = [
        |store| store.wait_for(&["missing"], Some(Duration::from_millis(50))),
        |store| store.barrier_for("b", 2, Some(Duration::from_millis(50))),
    ];
    for call in calls {
        let store = connected(&server);
        let connections = server.connections();
        // On a busy machine the answer may come too late to be looked at.
        let heard = (0..TRIES).any(|_| match fails_after(timeout, "it", || call(&store)) {
            StoreError::Protocol {
                violation: Violation::Malformed(WireError::BadReplyByte { found: 9, .. }),
                ..
            } => true,
            StoreError::Timeout { .. } | StoreError::Indeterminate { .. } => false,
            other => panic!("{other:?}"),
        });
        assert!(heard);
        assert_eq!(store.get("k").unwrap(), b"v");
        assert!(server.connections() > connections);
    }
}

#[test]
fn a_ping_that_is_answered_with_another_number_is_a_violation() {
    let calls: [Call; 5] = [
        |store| store.set("l", b"w"),
        |store| store.append("l", b"w"),
        |store| store.multi_set(&[("l", b"w")]),
        |store| store.queue_push("q", b"w"),
        |store| store.ping().map(drop),
    ];
    for call in calls {
        let server = Fake::honest(OURS);
        let store = connected(&server);
        server.at_next(Op::Ping, Act::Say(bytes(Reply::Nonce(0xDEAD_BEEF))));
        let error = call(&store).unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::Protocol { violation: Violation::WrongNonce { found: 0xDEAD_BEEF, .. }, .. }
            ),
            "{error:?}"
        );
        assert_poisoned(&server, &store);
    }
}

/// More than was asked for: whose answer it is nobody can say, so the connection is not used again.
#[test]
fn bytes_that_nobody_asked_for_are_never_taken_for_an_answer() {
    let server = Fake::honest(OURS);
    let store = connected(&server);
    let number = |n: i64| n.to_le_bytes().to_vec();
    // In one write, so that they are there when the answer is.
    server.at_next(Op::NumKeys, Act::Say([number(1), number(41)].concat()));
    assert_eq!(store.num_keys().unwrap(), 1);
    assert_eq!(store.queue_len("q").unwrap(), 0);
    assert_eq!(store.add("n", 1).unwrap(), 1);
    assert_eq!(server.connections(), 2);
}

/// The same, where the bytes come a moment later than the answer.
#[test]
fn bytes_that_come_after_the_answer_are_never_taken_for_another() {
    let server = Fake::honest(OURS);
    let store = connected(&server);
    for _ in 0..20 {
        // Says the answer, and then says more, in two writes.
        server.at_next(Op::QueueLen, Act::Twice);
        assert_eq!(store.queue_len("q").unwrap(), 0);
        server.wait_until_said();
        let connections = server.connections();
        assert_eq!(store.num_keys().unwrap(), 1);
        assert_eq!(server.connections(), connections + 1);
    }
}

#[test]
fn a_reply_that_is_cut_short_is_asked_for_again() {
    let server = Fake::honest(OURS);
    let store = connected(&server);
    let value = vec![7; 100_000];
    store.set("k", &value).unwrap();
    for cut in [1, 7, 8, 9, 50_000, 100_007] {
        server.at_next(Op::Get, Act::Cut(cut));
        assert!(store.get("k").unwrap() == value, "cut at {cut}");
    }
}

#[test]
fn a_reply_that_comes_a_byte_at_a_time_is_put_together() {
    let server = Fake::start(OURS, |_| Act::Drip(Duration::from_millis(1)));
    let store = client(server.port(), SOON);
    store.set("k", b"value").unwrap();
    assert_eq!(store.get("k").unwrap(), b"value");
    assert_eq!(store.add("n", -1).unwrap(), -1);
    assert_eq!(store.multi_get(&["k", "n"]).unwrap(), [b"value".to_vec(), b"-1".to_vec()]);
    let mut keys = store.list_keys().unwrap();
    keys.sort();
    assert_eq!(keys, ["k", "n"]);
    assert_eq!(server.connections(), 1);
}

/// Bytes that keep coming don't make the time longer.
#[test]
fn a_reply_that_drips_ends_with_the_time_out() {
    let server = Fake::honest(OURS);
    let store = connected(&server);
    let value = vec![7; 1000];
    store.set("long", &value).unwrap();
    let timeout = Duration::from_millis(300);
    store.set_timeout(Some(timeout));
    let is_fair = |error: &StoreError| matches!(error, StoreError::NoAnswer { .. });
    let error = fails_in_time(timeout, "get", is_fair, || {
        server.at_next(Op::Get, Act::Drip(Duration::from_millis(20)));
        store.get("long")
    });
    assert!(
        matches!(&error, StoreError::NoAnswer { context, .. } if context.op == Some(Op::Get)),
        "{error:?}"
    );
    store.set_timeout(Some(SOON));
    assert!(store.get("long").unwrap() == value);
}

#[test]
fn what_is_no_store_at_all_is_named_at_once() {
    let answers: [&[u8]; 3] = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
    ];
    for answer in answers {
        let server = Fake::start(TORCHS, move |seen| match seen.op {
            Op::Validate => Act::Say(answer.to_vec()),
            _ => Act::Ignore,
        });
        let error = open("127.0.0.1", server.port(), SOON).unwrap_err();
        assert!(
            matches!(error, StoreError::Protocol { violation: Violation::WrongNonce { .. }, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("not a c10d store server"), "{error}");
    }
}
