//! What an error says: which server, which operation and which keys, and of many keys only some.

use std::time::Duration;

use rallypoint_core::wire::{Op, Reply};
use rallypoint_store::{Store, StoreError, TcpStore};

use crate::clock::{SOON, client, open};
use crate::fake::{Act, Fake, OURS, TORCHS, bytes};
use crate::operations::{all, prepare};

type Call = fn(&TcpStore) -> rallypoint_store::Result<()>;

const SET: Call = |store| store.set("k", b"v");
const MULTI_SET: Call = |store| store.multi_set(&[("a", b"1"), ("b", b"2"), ("c", b"3")]);
const COUNT: Call = |store| store.num_keys().map(drop);

/// What a store of this server says when the next request of that kind is met with that.
fn said(op: Op, act: Act, call: Call) -> (StoreError, String) {
    let server = Fake::honest(OURS);
    let store = client(server.port(), SOON);
    server.at_next(op, act);
    let error = call(&store).unwrap_err();
    let text = error.to_string().replace(&format!("127.0.0.1:{}", server.port()), "SERVER");
    (error, text)
}

#[test]
fn a_violation_names_server_operation_and_keys() {
    let (_, text) = said(Op::Check, Act::Say(vec![7]), |store| store.check(&["a", "b"]).map(drop));
    assert_eq!(text, "SERVER broke the protocol during check of a, b: reply byte 0x07 to check");
    let wrong = || Act::Say(bytes(Reply::Nonce(1)));
    let (_, text) = said(Op::Ping, wrong(), MULTI_SET);
    assert!(text.contains(" with 1 during multi_set of a, b, c: not a c10d store server"), "{text}");
    let (_, text) = said(Op::Ping, wrong(), |store| store.ping().map(drop));
    assert!(text.contains(" with 1 during ping: not a c10d"), "{text}");
}

#[test]
fn a_reply_that_is_too_long_names_server_operation_and_keys_and_what_to_do() {
    let long = || Act::Say((1u64 << 40).to_le_bytes().to_vec());
    let (_, text) = said(Op::CompareSet, long(), |store| store.compare_set("k", b"", b"v").map(drop));
    let expected = "the reply of SERVER to compare_set of k has at least 1099511627776 bytes, this client takes 67108864; \
                    use a client with a larger `reply_len`";
    assert_eq!(text, expected);
    let (_, text) = said(Op::ListKeys, long(), |store| store.list_keys().map(drop));
    assert!(text.starts_with("the reply of SERVER to list_keys has at least "), "{text}");
}

#[test]
fn a_refusal_names_server_operation_and_keys() {
    let server = Fake::start(OURS, |seen| match seen.op {
        Op::Set | Op::MultiSet | Op::NumKeys => Act::Refuse,
        _ => Act::Answer,
    });
    let store = client(server.port(), SOON);
    for (call, what) in [(SET, "set of k"), (MULTI_SET, "multi_set of a, b, c"), (COUNT, "num_keys")] {
        let text = call(&store).unwrap_err().to_string();
        let begin =
            format!("{what} was refused by TCP store 127.0.0.1:{}: the server is there but", server.port());
        assert!(text.starts_with(&begin), "{text}");
    }
}

#[test]
fn a_reset_names_server_operation_and_keys() {
    let server = Fake::honest(TORCHS);
    let store = client(server.port(), SOON);
    prepare(&store);
    let server = server.replace(TORCHS);
    for operation in all() {
        let error = (operation.call)(&store).expect_err(operation.name);
        let StoreError::StoreReset { context, .. } = &error else { panic!("{error:?}") };
        let (op, keys) = (&context.op.unwrap(), &context.keys);
        assert_eq!(*op, operation.op());
        assert_eq!(keys.is_empty(), ["num_keys", "list_keys", "ping"].contains(&operation.name), "{error}");
    }
    let at = format!("the store at 127.0.0.1:{} was restarted", server.port());
    for (call, what) in [(SET, "set of k"), (MULTI_SET, "multi_set of a, b, c"), (COUNT, "num_keys")] {
        let text = call(&store).unwrap_err().to_string();
        assert!(text.starts_with(&format!("{what} failed: {at}")), "{text}");
    }
    let text = store.clone_store().err().unwrap().to_string();
    assert!(text.starts_with(&at), "{text}");
}

#[test]
fn a_server_that_cannot_be_reached_is_named_with_what_it_was_wanted_for() {
    let server = Fake::honest(OURS);
    let port = server.port();
    let store = client(port, Duration::from_millis(100));
    drop(server);
    for (call, what) in
        [(SET, " for set of k"), (MULTI_SET, " for multi_set of a, b, c"), (COUNT, " for num_keys")]
    {
        let text = call(&store).unwrap_err().to_string();
        assert!(text.starts_with(&format!("could not connect to 127.0.0.1:{port}{what} within ")), "{text}");
    }
    let text = open("127.0.0.1", port, Duration::from_millis(100)).unwrap_err().to_string();
    assert!(text.starts_with(&format!("could not connect to 127.0.0.1:{port} within ")), "{text}");
}

#[test]
fn of_many_keys_some_are_named() {
    let server = Fake::start(OURS, |seen| if seen.op == Op::MultiSet { Act::Refuse } else { Act::Answer });
    let store = client(server.port(), SOON);
    let names: Vec<_> = (0..1000).map(|n| format!("k{n}")).collect();
    let pairs: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"v"[..])).collect();
    let error = store.multi_set(&pairs).unwrap_err();
    assert!(matches!(&error, StoreError::Refused { context, .. } if context.keys == names));
    let text = error.to_string();
    assert!(text.starts_with("multi_set of k0, k1, k2, ") && text.contains("k15 and 984 more was"), "{text}");
    assert!(text.len() < 400, "{text}");
}
