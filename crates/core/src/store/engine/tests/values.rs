//! Keys and values: what each operation answers and leaves behind. Rows V01 to V06 and C12 of the robustness page.

use super::*;
use crate::error::printable;

#[test]
fn a_value_set_is_the_value_got() {
    let mut store = Store::new();
    store.tell(0, set(b"/k", b"v"));
    assert_eq!(store.reply(1, get(b"/k")), value(b"v"));
}

#[test]
fn a_later_set_replaces_the_value() {
    let mut store = Store::new();
    store.tell(0, set(b"/k", b"old"));
    store.tell(1, set(b"/k", b"new"));
    assert_eq!(store.reply(0, get(b"/k")), value(b"new"));
}

#[test]
fn keys_may_be_empty_or_any_bytes_and_values_empty() {
    let mut store = Store::new();
    for key in [&b""[..], b"\0", b"\xff\xfe", b"/k\0"] {
        store.tell(0, set(key, b""));
        assert_eq!(store.value(key), Some(vec![]));
    }
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(4));
}

#[test]
fn a_missing_key_reads_as_empty() {
    assert_eq!(Store::new().reply(0, get(b"/missing")), value(b""));
}

#[test]
fn multi_get_gives_empty_for_the_missing_among_the_present() {
    let mut store = Store::new();
    store.tell(0, set(b"a", b"A"));
    assert_eq!(store.reply(0, multi_get(&[b"a", b"missing", b"a"])), values(&[b"A", b"", b"A"]));
}

#[test]
fn lists_of_nothing_are_answered_as_torch_does() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, wait(&[])), Reply::Stop);
    assert_eq!(store.reply(0, check(&[])), Reply::Checked(true));
    assert_eq!(store.reply(0, multi_get(&[])), values(&[]));
    store.tell(0, multi_set(&[]));
}

#[test]
fn check_asks_for_all_of_its_keys() {
    let mut store = Store::new();
    store.tell(0, set(b"a", b""));
    assert_eq!(store.reply(0, check(&[b"a", b"b"])), Reply::Checked(false));
    store.tell(0, set(b"b", b""));
    assert_eq!(store.reply(0, check(&[b"a", b"b"])), Reply::Checked(true));
}

#[test]
fn ping_answers_its_number() {
    assert_eq!(Store::new().reply(0, Request::Ping { nonce: 0xabcd }), Reply::Nonce(0xabcd));
}

#[test]
fn delete_tells_whether_the_key_was_there() {
    let mut store = Store::new();
    store.tell(0, set(b"k", b"v"));
    assert_eq!(store.reply(0, delete(b"k")), Reply::Number(1));
    assert_eq!(store.reply(0, delete(b"k")), Reply::Number(0));
    assert_eq!(store.value(b"k"), None);
}

#[test]
fn counts_and_lists_name_the_keys_there_are() {
    let mut store = Store::new();
    for key in [b"a", b"b", b"c", b"b"] {
        store.tell(0, set(key, b""));
    }
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(2));
    let Reply::Keys(mut keys) = store.reply(0, Request::ListKeys) else { panic!() };
    keys.sort();
    assert_eq!(keys, [Key::from(&b"b"[..]), Key::from(&b"c"[..])]);
}

#[test]
fn append_makes_a_key_and_then_lengthens_it() {
    let mut store = Store::new();
    store.tell(0, append(b"k", b"ab"));
    store.tell(1, append(b"k", b""));
    store.tell(1, append(b"k", b"c"));
    assert_eq!(store.value(b"k"), Some(b"abc".to_vec()));
}

#[test]
fn an_append_of_nothing_makes_a_key() {
    let mut store = Store::new();
    store.tell(0, append(b"k", b""));
    assert_eq!(store.value(b"k"), Some(vec![]));
}

#[test]
fn a_value_already_answered_is_not_changed_by_an_append() {
    let mut store = Store::new();
    store.tell(0, append(b"k", b"a"));
    store.tell(0, append(b"k", b"b"));
    let answered = store.reply(0, get(b"k"));
    store.tell(0, append(b"k", b"c"));
    assert_eq!(answered, value(b"ab"));
}

#[test]
fn of_one_key_named_twice_in_a_multi_set_the_last_value_stays() {
    let mut store = Store::new();
    store.tell(0, multi_set(&[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]));
    assert_eq!((store.value(b"a"), store.value(b"b")), (Some(b"3".to_vec()), Some(b"2".to_vec())));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(2));
}

// ---- add ----

#[test]
fn add_counts_from_nothing_and_keeps_decimal_text() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, add(b"n", 5)), Reply::Number(5));
    assert_eq!(store.value(b"n"), Some(b"5".to_vec()));
    assert_eq!(store.reply(0, add(b"n", -15)), Reply::Number(-10));
    assert_eq!(store.value(b"n"), Some(b"-10".to_vec()));
}

#[test]
fn add_of_nothing_makes_a_key() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, add(b"n", 0)), Reply::Number(0));
    assert_eq!(store.value(b"n"), Some(b"0".to_vec()));
}

#[test]
fn add_reads_the_number_a_value_begins_with_and_rewrites_it() {
    for (held, sum) in [("7", 8), ("12abc", 13), (" 7", 8), ("1.5", 2), ("0x10", 1), ("-3", -2)] {
        let mut store = Store::new();
        store.tell(0, set(b"n", held.as_bytes()));
        assert_eq!(store.reply(0, add(b"n", 1)), Reply::Number(sum), "{held:?}");
        assert_eq!(store.value(b"n"), Some(sum.to_string().into_bytes()), "{held:?}");
    }
}

#[test]
fn add_to_what_is_no_number_is_refused_and_the_value_unchanged() {
    for held in ["abc", "", "12345678901234567890"] {
        let mut store = Store::new();
        store.tell(0, set(b"/n", held.as_bytes()));
        assert_eq!(store.refusal(0, add(b"/n", 1)), Refusal::NotANumber { key: "/n".into() }, "{held:?}");
        assert_eq!(store.value(b"/n"), Some(held.as_bytes().to_vec()));
    }
}

#[test]
fn add_never_wraps_and_leaves_the_value_unchanged() {
    for (held, delta) in [(i64::MAX, 1), (i64::MIN, -1), (1, i64::MAX), (-2, i64::MIN)] {
        let mut store = Store::new();
        assert_eq!(store.reply(0, add(b"n", held)), Reply::Number(held));
        let reason = Refusal::Overflow { key: "n".into(), held, delta };
        assert_eq!(store.refusal(0, add(b"n", delta)), reason);
        assert_eq!(store.value(b"n"), Some(held.to_string().into_bytes()));
    }
}

#[test]
fn add_reaches_both_ends_of_the_range() {
    let mut store = Store::new();
    store.tell(0, set(b"n", b"1"));
    assert_eq!(store.reply(0, add(b"n", i64::MAX - 1)), Reply::Number(i64::MAX));
    store.tell(0, set(b"n", b"-1"));
    assert_eq!(store.reply(0, add(b"n", i64::MIN + 1)), Reply::Number(i64::MIN));
    assert_eq!(store.value(b"n"), Some(b"-9223372036854775808".to_vec()));
}

// ---- compare_set ----

#[test]
fn compare_set_answers_and_stores_as_torch_does() {
    const ABSENT: Option<&[u8]> = None;
    for (held, expected, answered, stored) in [
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
        if let Some(held) = held {
            store.tell(0, set(b"k", held));
        }
        let reply = store.reply(0, cas(b"k", expected.as_bytes(), b"new"));
        assert_eq!(reply, value(answered.as_bytes()), "{held:?}, {expected:?}");
        let stored = stored.map(|text| text.as_bytes().to_vec());
        assert_eq!(store.value(b"k"), stored, "{held:?}, {expected:?}");
    }
}

#[test]
fn a_connection_can_ask_whether_its_last_compare_set_stored() {
    const YES: Reply = Reply::Checked(true);
    const NO: Reply = Reply::Checked(false);
    let mut store = Store::new();
    assert_eq!(store.reply(0, check(&[STORED_KEY])), NO);
    assert_eq!(store.reply(0, cas(b"k", b"", b"mine")), value(b"mine"));
    assert_eq!(store.reply(0, check(&[STORED_KEY])), YES);
    // The same reply, and yet nothing was stored.
    assert_eq!(store.reply(1, cas(b"k", b"", b"mine")), value(b"mine"));
    assert_eq!(store.reply(1, check(&[STORED_KEY])), NO);
    assert_eq!(store.reply(0, check(&[STORED_KEY, b"k"])), YES);
    assert_eq!(store.reply(0, check(&[STORED_KEY, b"absent"])), NO);
    assert_eq!(store.reply(0, cas(b"absent", b"x", b"x")), value(b"x"));
    assert_eq!(store.reply(0, check(&[STORED_KEY])), NO);
    // It is the connection's, and goes with it.
    assert_eq!(store.reply(0, cas(b"k", b"mine", b"mine")), value(b"mine"));
    store.0.handle_disconnect(id(0));
    assert_eq!(store.reply(0, check(&[STORED_KEY])), NO);
    assert_eq!(store.reply(0, get(STORED_KEY)), value(b""));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(1));
}

// ---- reserved names ----

#[test]
fn the_servers_own_name_reads_as_its_identity() {
    let mut store = Store::new();
    assert_eq!(store.reply(0, get(SERVER_KEY)), value(b"identity"));
    assert_eq!(store.reply(0, multi_get(&[SERVER_KEY, b"a"])), values(&[b"identity", b""]));
    assert_eq!(store.reply(0, check(&[SERVER_KEY])), Reply::Checked(true));
    assert_eq!(store.reply(0, wait(&[SERVER_KEY])), Reply::Stop);
}

#[test]
fn the_servers_own_name_is_in_no_count_and_no_list() {
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
                Refusal::Guarded { op: request.op(), key: printable(key), why: "a reserved name".into() };
            assert_eq!(store.refusal(0, request), reason);
            assert_eq!(store.reply(1, get(key)), before);
            assert_eq!(store.figures(), [0; 5]);
        }
    }
}

#[test]
fn names_that_merely_resemble_the_reserved_are_free() {
    let mut store = Store::new();
    for key in [&b"rallypoint"[..], b"/rallypoint/server", b"Rallypoint/server"] {
        store.tell(0, set(key, b"v"));
    }
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(3));
}

#[test]
fn a_store_without_an_identity_reserves_no_name() {
    let mut store = Store(Engine::new(EngineOptions::default(), ()), BTreeSet::new());
    assert_eq!(store.value(SERVER_KEY), None);
    store.tell(0, set(SERVER_KEY, b"v"));
    assert_eq!(store.value(SERVER_KEY), Some(b"v".to_vec()));
    assert_eq!(store.reply(0, delete(SERVER_KEY)), Reply::Number(1));
}
