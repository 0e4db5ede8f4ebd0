//! Values: `set`, `get`, `add`, `check`, `delete_key`, `num_keys`, `list_keys`, `append`, `multi_set` and `multi_get`.

use std::collections::BTreeSet;

use rallypoint_store::Failure;

use crate::stores::Fixture;

pub(crate) fn get_returns_the_value_that_was_set(fixture: &Fixture) {
    let (writer, reader) = (fixture.client(), fixture.client());
    for value in [&b"v"[..], b"", b"\0\xff\n", b"another"] {
        writer.set("k", value).unwrap();
        assert_eq!(reader.get("k").unwrap(), value);
        assert_eq!(writer.get("k").unwrap(), value);
    }
}

pub(crate) fn a_key_may_be_any_text(fixture: &Fixture) {
    let store = fixture.client();
    let long = "k".repeat(4000);
    let keys = ["", "\0", "a b", "/", "//x", "-", "-/x", "schlüssel", "鍵🔑", "refcount/", "init/", &long];
    for (n, key) in keys.iter().enumerate() {
        store.set(key, &[n as u8]).unwrap();
    }
    let other = fixture.client();
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(other.get(key).unwrap(), [n as u8], "{key:?}");
    }
}

pub(crate) fn a_value_of_8_mib_is_returned_whole(fixture: &Fixture) {
    let value: Vec<u8> = (0..8 << 20).map(|n: u32| (n ^ (n >> 8)) as u8).collect();
    fixture.client().set("large", &value).unwrap();
    let store = fixture.client();
    assert!(store.get("large").unwrap() == value);
    assert!(store.compare_set("large", b"x", b"y").unwrap() == value);
    assert!(store.multi_get(&["large"]).unwrap() == [value]);
}

pub(crate) fn add_starts_at_0_and_stores_decimal_text(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    assert_eq!(store.add("n", 5).unwrap(), 5);
    assert_eq!(other.get("n").unwrap(), b"5");
    assert_eq!(other.add("n", -7).unwrap(), -2);
    assert_eq!(store.get("n").unwrap(), b"-2");
    assert_eq!(store.add("zero", 0).unwrap(), 0);
    assert_eq!(store.get("zero").unwrap(), b"0");
    store.set("n", b"7").unwrap();
    assert_eq!(other.add("n", 1).unwrap(), 8);
}

pub(crate) fn add_parses_numbers_like_torch(fixture: &Fixture) {
    let store = fixture.client();
    for (value, sum) in [
        (&b"12abc"[..], 13),
        (b" 7", 8),
        (b"\x0b7", 8),
        (b"+5", 6),
        (b"-3", -2),
        (b"1.5", 2),
        (b"0x10", 1),
        (b"010", 11),
        (b"-9223372036854775808", i64::MIN + 1),
    ] {
        store.set("n", value).unwrap();
        assert_eq!(store.add("n", 1).unwrap(), sum, "{value:?}");
        assert_eq!(store.get("n").unwrap(), sum.to_string().as_bytes());
    }
}

pub(crate) fn add_to_a_value_that_is_not_a_number_is_refused_and_changes_nothing(fixture: &Fixture) {
    let store = fixture.client();
    for value in [&b"abc"[..], b"", b"+", b"--5", b"9223372036854775808", b"\xa0 7"] {
        if value.is_empty() && fixture.empty_is_zero {
            continue;
        }
        store.set("n", value).unwrap();
        let error = store.add("n", 3).unwrap_err();
        assert!(
            matches!(error.failure(), Some(Failure::NotANumber { delta: 3, .. })),
            "{value:?}: {error:?}"
        );
        assert_eq!(store.get("n").unwrap(), value);
    }
    store.set("n", b"abc").unwrap();
    assert!(store.add("n", 3).unwrap_err().to_string().contains("abc"));
}

pub(crate) fn add_never_overflows(fixture: &Fixture) {
    let store = fixture.client();
    for (value, delta) in [(i64::MAX, 1), (i64::MIN, -1), (i64::MAX - 4, 5)] {
        store.set("n", value.to_string().as_bytes()).unwrap();
        let error = store.add("n", delta).unwrap_err();
        assert!(
            matches!(error.failure(), Some(Failure::NotANumber { delta: d, .. }) if *d == delta),
            "{error:?}"
        );
        assert_eq!(store.get("n").unwrap(), value.to_string().as_bytes());
    }
    store.set("n", (i64::MAX - 4).to_string().as_bytes()).unwrap();
    assert_eq!(store.add("n", 4).unwrap(), i64::MAX);
}

pub(crate) fn check_is_true_only_if_all_keys_are_present(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    assert!(!store.check(&["a"]).unwrap());
    other.set("a", b"1").unwrap();
    other.set("b", b"").unwrap();
    assert!(store.check(&["a"]).unwrap());
    assert!(store.check(&["b", "a", "b"]).unwrap());
    assert!(!store.check(&["a", "b", "c"]).unwrap());
}

pub(crate) fn delete_key_removes_that_key_and_no_other(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    store.multi_set(&[("a", b"1"), ("ab", b"2"), ("b", b"3")]).unwrap();
    assert!(other.delete_key("a").unwrap());
    assert!(!store.check(&["a"]).unwrap());
    assert!(store.check(&["ab", "b"]).unwrap());
    // FileStore always returns true, as torch's does.
    assert_eq!(store.delete_key("a").unwrap(), !fixture.reports_deleted);
    assert_eq!(store.delete_key("never").unwrap(), !fixture.reports_deleted);
    store.set("a", b"again").unwrap();
    assert_eq!(other.get("a").unwrap(), b"again");
}

pub(crate) fn num_keys_counts_each_key_once(fixture: &Fixture) {
    let store = fixture.client();
    let before = store.num_keys().unwrap();
    store.set("a", b"1").unwrap();
    store.set("a", b"2").unwrap();
    store.add("n", 1).unwrap();
    store.append("l", b"x").unwrap();
    store.compare_set("c", b"", b"y").unwrap();
    store.compare_set("never", b"expected", b"y").unwrap();
    store.multi_set(&[("a", b"3"), ("b", b"4")]).unwrap();
    assert_eq!(store.num_keys().unwrap(), before + 5);
    store.delete_key("a").unwrap();
    store.delete_key("a").unwrap();
    assert_eq!(store.num_keys().unwrap(), before + 4);
}

pub(crate) fn list_keys_returns_all_keys_and_nothing_else(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    let listed = || store.list_keys().unwrap().into_iter().collect::<BTreeSet<_>>();
    assert_eq!(listed(), BTreeSet::new());
    for key in ["a", "b/c", "", "gone", "鍵"] {
        other.set(key, b"1").unwrap();
    }
    other.delete_key("gone").unwrap();
    assert_eq!(listed(), ["a", "b/c", "", "鍵"].map(String::from).into());
}

pub(crate) fn append_creates_a_value_and_extends_it(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    store.append("l", b"one").unwrap();
    other.append("l", b"").unwrap();
    other.append("l", b", two").unwrap();
    assert_eq!(store.get("l").unwrap(), b"one, two");
    store.set("l", b"new").unwrap();
    store.append("l", b"er").unwrap();
    assert_eq!(other.get("l").unwrap(), b"newer");
    store.append("empty", b"").unwrap();
    assert_eq!(other.get("empty").unwrap(), b"");
    store.delete_key("l").unwrap();
    store.append("l", b"fresh").unwrap();
    assert_eq!(other.get("l").unwrap(), b"fresh");
}

pub(crate) fn multi_set_sets_all_pairs_and_multi_get_keeps_the_requested_order(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    let pairs: [(&str, &[u8]); 4] = [("c", b"3"), ("a", b"1"), ("b", b""), ("a", b"newer")];
    store.multi_set(&pairs).unwrap();
    let values = other.multi_get(&["a", "b", "c", "a"]).unwrap();
    assert_eq!(values, [&b"newer"[..], b"", b"3", b"newer"]);
    let names: Vec<_> = (0..2000).map(|n| format!("many{n}")).collect();
    let values: Vec<_> = (0..2000).map(|n| n.to_string().into_bytes()).collect();
    let pairs: Vec<_> = names.iter().map(String::as_str).zip(values.iter().map(Vec::as_slice)).collect();
    store.multi_set(&pairs).unwrap();
    let keys: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(other.multi_get(&keys).unwrap(), values);
}

pub(crate) fn an_empty_list_of_keys_is_always_present(fixture: &Fixture) {
    let store = fixture.client();
    let before = store.num_keys().unwrap();
    assert!(store.check(&[]).unwrap());
    store.wait(&[]).unwrap();
    assert_eq!(store.multi_get(&[]).unwrap(), Vec::<Vec<u8>>::new());
    store.multi_set(&[]).unwrap();
    assert_eq!(store.num_keys().unwrap(), before);
}
