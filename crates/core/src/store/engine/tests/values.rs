//! Tests of reads and writes of values, and of reserved keys.

use super::*;
use crate::error::printable;

#[test]
fn get_returns_the_value_that_was_set() {
    let mut store = Store::new();
    store.run(0, set(b"/k", b"v"));
    assert_eq!(store.reply(1, get(b"/k")), value(b"v"));
}

#[test]
fn a_later_set_replaces_the_value() {
    let mut store = Store::new();
    store.run(0, set(b"/k", b"old"));
    store.run(1, set(b"/k", b"new"));
    assert_eq!(store.reply(0, get(b"/k")), value(b"new"));
}

#[test]
fn keys_are_arbitrary_bytes_and_values_may_be_empty() {
    let mut store = Store::new();
    for key in [&b""[..], b"\0", b"\xff\xfe", b"/k\0"] {
        store.run(0, set(key, b""));
        assert_eq!(store.value(key), Some(vec![]));
    }
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(4));
}

#[test]
fn a_missing_key_reads_as_empty() {
    assert_eq!(Store::new().reply(0, get(b"/missing")), value(b""));
}

#[test]
fn multi_get_returns_empty_values_for_missing_keys() {
    let mut store = Store::new();
    store.run(0, set(b"a", b"A"));
    assert_eq!(store.reply(0, multi_get(&[b"a", b"missing", b"a"])), values(&[b"A", b"", b"A"]));
}

#[test]
fn empty_lists_get_the_replies_of_torch() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, wait(&[])), Reply::Stop);
    assert_eq!(store.reply(0, check(&[])), Reply::Checked(true));
    assert_eq!(store.reply(0, multi_get(&[])), values(&[]));
    store.run(0, multi_set(&[]));
}

#[test]
fn check_is_true_only_if_all_keys_are_present() {
    let mut store = Store::new();
    store.run(0, set(b"a", b""));
    assert_eq!(store.reply(0, check(&[b"a", b"b"])), Reply::Checked(false));
    store.run(0, set(b"b", b""));
    assert_eq!(store.reply(0, check(&[b"a", b"b"])), Reply::Checked(true));
}

#[test]
fn ping_returns_its_nonce() {
    assert_eq!(Store::new().reply(0, Request::Ping { nonce: 0xabcd }), Reply::Nonce(0xabcd));
}

#[test]
fn delete_reports_whether_the_key_existed() {
    let mut store = Store::new();
    store.run(0, set(b"k", b"v"));
    assert_eq!(store.reply(0, delete(b"k")), Reply::Number(1));
    assert_eq!(store.reply(0, delete(b"k")), Reply::Number(0));
    assert_eq!(store.value(b"k"), None);
}

#[test]
fn num_keys_and_list_keys_reflect_deletions() {
    let mut store = Store::new();
    for key in [b"a", b"b", b"c", b"b"] {
        store.run(0, set(key, b""));
    }
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(2));
    let Reply::Keys(mut keys) = store.reply(0, Request::ListKeys) else { panic!() };
    keys.sort();
    assert_eq!(keys, [Key::from(&b"b"[..]), Key::from(&b"c"[..])]);
}

#[test]
fn append_creates_a_key_and_then_extends_its_value() {
    let mut store = Store::new();
    store.run(0, append(b"k", b"ab"));
    store.run(1, append(b"k", b""));
    store.run(1, append(b"k", b"c"));
    assert_eq!(store.value(b"k"), Some(b"abc".to_vec()));
}

#[test]
fn an_empty_append_creates_a_key() {
    let mut store = Store::new();
    store.run(0, append(b"k", b""));
    assert_eq!(store.value(b"k"), Some(vec![]));
}

#[test]
fn an_append_does_not_change_an_earlier_reply() {
    let mut store = Store::new();
    store.run(0, append(b"k", b"a"));
    store.run(0, append(b"k", b"b"));
    let reply = store.reply(0, get(b"k"));
    store.run(0, append(b"k", b"c"));
    assert_eq!(reply, value(b"ab"));
}

#[test]
fn multi_set_stores_the_last_value_of_a_repeated_key() {
    let mut store = Store::new();
    store.run(0, multi_set(&[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]));
    assert_eq!((store.value(b"a"), store.value(b"b")), (Some(b"3".to_vec()), Some(b"2".to_vec())));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(2));
}

// ---- add ----

#[test]
fn add_starts_at_zero_and_stores_decimal_text() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, add(b"n", 5)), Reply::Number(5));
    assert_eq!(store.value(b"n"), Some(b"5".to_vec()));
    assert_eq!(store.reply(0, add(b"n", -15)), Reply::Number(-10));
    assert_eq!(store.value(b"n"), Some(b"-10".to_vec()));
}

#[test]
fn add_of_zero_creates_a_key() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, add(b"n", 0)), Reply::Number(0));
    assert_eq!(store.value(b"n"), Some(b"0".to_vec()));
}

#[test]
fn add_parses_the_decimal_prefix_of_a_value() {
    for (current, sum) in [("7", 8), ("12abc", 13), (" 7", 8), ("1.5", 2), ("0x10", 1), ("-3", -2)] {
        let mut store = Store::new();
        store.run(0, set(b"n", current.as_bytes()));
        assert_eq!(store.reply(0, add(b"n", 1)), Reply::Number(sum), "{current:?}");
        assert_eq!(store.value(b"n"), Some(sum.to_string().into_bytes()), "{current:?}");
    }
}

#[test]
fn add_to_a_value_that_does_not_parse_is_refused_and_changes_nothing() {
    for current in ["abc", "", "12345678901234567890"] {
        let mut store = Store::new();
        store.run(0, set(b"/n", current.as_bytes()));
        assert_eq!(store.refusal(0, add(b"/n", 1)), Refusal::NotANumber { key: "/n".into() }, "{current:?}");
        assert_eq!(store.value(b"/n"), Some(current.as_bytes().to_vec()));
    }
}

#[test]
fn add_that_overflows_is_refused_and_changes_nothing() {
    for (current, delta) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
        let mut store = Store::new();
        assert_eq!(store.reply(0, add(b"n", current)), Reply::Number(current));
        let reason = Refusal::Overflow { key: "n".into(), value: current, delta };
        assert_eq!(store.refusal(0, add(b"n", delta)), reason);
        assert_eq!(store.value(b"n"), Some(current.to_string().into_bytes()));
    }
}

#[test]
fn add_reaches_both_ends_of_the_range() {
    let mut store = Store::new();
    store.run(0, set(b"n", b"1"));
    assert_eq!(store.reply(0, add(b"n", i64::MAX - 1)), Reply::Number(i64::MAX));
    store.run(0, set(b"n", b"-1"));
    assert_eq!(store.reply(0, add(b"n", i64::MIN + 1)), Reply::Number(i64::MIN));
    assert_eq!(store.value(b"n"), Some(b"-9223372036854775808".to_vec()));
}

// ---- compare_set ----

#[test]
fn compare_set_replies_and_stores_like_torch() {
    const ABSENT: Option<&[u8]> = None;
    for (current, expected, replied, stored) in [
        (ABSENT, "", "new", Some("new")),
        (ABSENT, "x", "x", None),
        (Some(b"x"), "x", "new", Some("new")),
        (Some(b"x"), "y", "x", Some("x")),
        (Some(b"x"), "", "x", Some("x")),
        (Some(b""), "", "new", Some("new")),
        (Some(b""), "x", "", Some("")),
        (Some(b"new"), "x", "new", Some("new")),
    ] {
        let mut store = Store::new();
        if let Some(current) = current {
            store.run(0, set(b"k", current));
        }
        let reply = store.reply(0, cas(b"k", expected.as_bytes(), b"new"));
        assert_eq!(reply, value(replied.as_bytes()), "{current:?}, {expected:?}");
        let stored = stored.map(|text| text.as_bytes().to_vec());
        assert_eq!(store.value(b"k"), stored, "{current:?}, {expected:?}");
    }
}

#[test]
fn a_check_of_the_stored_key_reports_whether_the_clients_last_compare_set_succeeded() {
    const YES: Reply = Reply::Checked(true);
    const NO: Reply = Reply::Checked(false);
    let mut store = Store::new();
    assert_eq!(store.reply(0, check(&[STORED_KEY])), NO);
    assert_eq!(store.reply(0, cas(b"k", b"", b"mine")), value(b"mine"));
    assert_eq!(store.reply(0, check(&[STORED_KEY])), YES);
    // Client 1 gets the same reply, but its compare-and-set failed.
    assert_eq!(store.reply(1, cas(b"k", b"", b"mine")), value(b"mine"));
    assert_eq!(store.reply(1, check(&[STORED_KEY])), NO);
    assert_eq!(store.reply(0, check(&[STORED_KEY, b"k"])), YES);
    assert_eq!(store.reply(0, check(&[STORED_KEY, b"absent"])), NO);
    assert_eq!(store.reply(0, cas(b"absent", b"x", b"x")), value(b"x"));
    assert_eq!(store.reply(0, check(&[STORED_KEY])), NO);
    // After a disconnect, STORED_KEY is absent although the last compare-and-set succeeded.
    assert_eq!(store.reply(0, cas(b"k", b"mine", b"mine")), value(b"mine"));
    store.0.handle_disconnect(id(0));
    assert_eq!(store.reply(0, check(&[STORED_KEY])), NO);
    assert_eq!(store.reply(0, get(STORED_KEY)), value(b""));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(1));
}

// ---- reserved keys ----

#[test]
fn the_server_key_reads_as_the_identity() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, get(SERVER_KEY)), value(b"identity"));
    assert_eq!(store.reply(0, multi_get(&[SERVER_KEY, b"a"])), values(&[b"identity", b""]));
    assert_eq!(store.reply(0, check(&[SERVER_KEY])), Reply::Checked(true));
    assert_eq!(store.reply(0, wait(&[SERVER_KEY])), Reply::Stop);
}

#[test]
fn the_server_key_is_neither_counted_nor_listed() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(0));
    assert_eq!(store.reply(0, Request::ListKeys), Reply::Keys(vec![]));
}

#[test]
fn reserved_names_are_read_only() {
    for key in [SERVER_KEY, STORED_KEY, b"rallypoint/", b"rallypoint/other"] {
        let pair = [(&b"free"[..], &b"v"[..]), (key, b"v")];
        for request in [
            set(key, b"v"),
            cas(key, b"", b"v"),
            cas(key, b"identity", b"v"),
            cas(key, b"else", b"v"),
            add(key, 1),
            append(key, b"v"),
            delete(key),
            multi_set(&pair),
            push(key, b"v"),
        ] {
            let mut store = Store::new();
            let before = store.reply(0, get(key));
            let reason =
                Refusal::Guarded { op: request.op(), key: printable(key), why: "reserved key".into() };
            assert_eq!(store.refusal(0, request), reason);
            assert_eq!(store.reply(1, get(key)), before);
            assert_eq!(store.counts(), [0; 5]);
        }
    }
}

#[test]
fn names_similar_to_reserved_names_are_writable() {
    let mut store = Store::new();
    for key in [&b"rallypoint"[..], b"/rallypoint/server", b"Rallypoint/server"] {
        store.run(0, set(key, b"v"));
    }
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(3));
}

#[test]
fn a_store_without_an_identity_reserves_no_name() {
    let mut store = Store(Engine::new(EngineOptions::default(), ()), BTreeSet::new());
    assert_eq!(store.value(SERVER_KEY), None);
    store.run(0, set(SERVER_KEY, b"v"));
    assert_eq!(store.value(SERVER_KEY), Some(b"v".to_vec()));
    assert_eq!(store.reply(0, delete(SERVER_KEY)), Reply::Number(1));
}
