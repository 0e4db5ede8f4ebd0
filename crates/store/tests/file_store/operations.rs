//! Tests of each operation: its result and the records that it writes. Both are the same as in torch's FileStore, if
//! torch's has the operation.

use std::time::Duration;

use rallypoint_core::Limits;
use rallypoint_core::wire::Op;
use rallypoint_store::{
    DEFAULT_TIMEOUT, Exchange, Failure, FileStore, Oversized, Result, Store, StoreError, StoreKind,
};

use super::fixture::{TestFile, record};

#[test]
fn set_writes_one_record_and_get_reads_it() {
    let file = TestFile::new();
    let store = file.open();
    store.set("k", b"v").unwrap();
    store.set("", b"").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
    assert_eq!(store.get("").unwrap(), b"");
    assert_eq!(file.bytes(), [record("refcount/", "1"), record("/k", "v"), record("/", "")].concat());
}

#[test]
fn an_instance_reads_the_newest_value_of_another_instance() {
    let file = TestFile::new();
    let (first, second) = (file.open(), file.open());
    first.set("k", b"1").unwrap();
    assert_eq!(second.get("k").unwrap(), b"1");
    second.set("k", b"2").unwrap();
    assert_eq!(first.get("k").unwrap(), b"2");
    first.delete_key("k").unwrap();
    assert!(!second.check(&["k"]).unwrap());
}

#[test]
fn add_stores_its_number_as_text() {
    let file = TestFile::new();
    let store = file.open();
    assert_eq!(store.add("n", 5).unwrap(), 5);
    assert_eq!(store.add("n", -7).unwrap(), -2);
    assert_eq!(store.add("z", 0).unwrap(), 0);
    assert_eq!(store.get("n").unwrap(), b"-2");
    for (value, sum) in [("", 1), ("12abc", 13), (" 7", 8), ("1.5", 2), ("0x10", 1)] {
        store.set("n", value.as_bytes()).unwrap();
        assert_eq!(store.add("n", 1).unwrap(), sum, "{value:?}");
    }
}

#[test]
fn add_to_a_value_that_is_not_a_number_or_would_overflow_is_refused() {
    let file = TestFile::new();
    let store = file.open();
    for (value, delta) in
        [("abc", 1), ("99999999999999999999", 1), ("9223372036854775807", 1), ("-2", i64::MIN)]
    {
        store.set("n", value.as_bytes()).unwrap();
        let before = file.bytes();
        let error = store.add("n", delta).unwrap_err();
        assert!(
            matches!(error.failure(), Some(Failure::NotANumber { value: reported, .. }) if **reported == *value.as_bytes()),
            "{error}"
        );
        assert_eq!(file.bytes(), before);
    }
}

#[test]
fn compare_set_returns_and_writes_what_torch_does() {
    let file = TestFile::new();
    let store = file.open();
    store.set("v", b"x").unwrap();
    store.set("empty", b"").unwrap();
    for (key, expected, desired, returned, exchange) in [
        ("absent", "e", "x", "e", Exchange::Absent),
        ("absent", "x", "x", "x", Exchange::Absent),
        ("absent1", "", "x", "x", Exchange::Stored),
        ("absent2", "", "", "", Exchange::Stored),
        ("v", "q", "w", "x", Exchange::Mismatch(b"x".to_vec())),
        ("v", "", "w", "x", Exchange::Mismatch(b"x".to_vec())),
        ("v", "w", "w", "x", Exchange::Mismatch(b"x".to_vec())),
        ("v", "x", "x", "x", Exchange::Stored),
        ("empty", "x", "y", "", Exchange::Mismatch(vec![])),
        ("empty", "", "y", "y", Exchange::Stored),
    ] {
        let before = file.bytes();
        assert_eq!(
            store.compare_set(key, expected.as_bytes(), desired.as_bytes()).unwrap(),
            returned.as_bytes()
        );
        let after = file.bytes();
        let written = match exchange {
            Exchange::Stored => [before.clone(), record(&format!("/{key}"), desired)].concat(),
            _ => before.clone(),
        };
        assert_eq!(after, written, "{key} {expected} {desired}");
        // On a file with the same content, `compare_exchange` must make the same change.
        std::fs::write(file.path(), &before).unwrap();
        assert_eq!(store.compare_exchange(key, expected.as_bytes(), desired.as_bytes()).unwrap(), exchange);
        assert_eq!(file.bytes(), after);
    }
}

#[test]
fn delete_key_always_returns_true_and_writes_a_record() {
    let file = TestFile::new();
    let store = file.open();
    store.set("c", b"5").unwrap();
    assert!(store.delete_key("c").unwrap());
    assert!(store.delete_key("nope").unwrap());
    assert!(!store.check(&["c"]).unwrap());
    assert_eq!(file.records()[2..], [("-/c".into(), "".into()), ("-/nope".into(), "".into())]);
    assert_eq!(store.compare_set("c", b"5", b"6").unwrap(), b"5");
    assert_eq!(store.add("c", 1).unwrap(), 1);
}

#[test]
fn check_and_wait_accept_any_number_of_keys() {
    let file = TestFile::new();
    let store = file.open();
    store.set("k", b"").unwrap();
    assert!(store.check(&["k"]).unwrap());
    assert!(!store.check(&["k", "absent"]).unwrap());
    assert!(store.check(&[]).unwrap());
    store.wait(&["k", "k"]).unwrap();
    store.wait(&[]).unwrap();
}

#[test]
fn internal_keys_are_counted_but_not_listed() {
    let file = TestFile::new();
    let store = file.open();
    store.set("b", b"").unwrap();
    store.set("a", b"").unwrap();
    assert_eq!(store.num_keys().unwrap(), 3);
    assert_eq!(store.list_keys().unwrap(), ["a", "b"]);
    file.open().close().unwrap();
    assert_eq!(store.num_keys().unwrap(), 4);
    assert_eq!(store.list_keys().unwrap(), ["a", "b"]);
}

#[test]
fn append_writes_the_whole_value_again() {
    let file = TestFile::new();
    let store = file.open();
    store.append("k", b"ab").unwrap();
    store.append("k", b"").unwrap();
    store.append("k", b"c").unwrap();
    let appended = ["ab", "ab", "abc"].map(|value| ("/k".into(), value.into()));
    assert_eq!(file.records()[1..], appended);
    assert!(!store.has_extended_api());
}

#[test]
fn multi_set_and_multi_get_keep_the_order() {
    let file = TestFile::new();
    let store = file.open();
    store.multi_set(&[("a", b"1"), ("b", b"2"), ("a", b"3")]).unwrap();
    store.multi_set(&[]).unwrap();
    assert_eq!(store.multi_get(&["b", "a", "b"]).unwrap(), [b"2", b"3", b"2"]);
    assert_eq!(store.multi_get(&[]).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(
        file.records()[1..],
        [("/a", "1"), ("/b", "2"), ("/a", "3")].map(|(k, v)| (k.into(), v.into()))
    );
}

#[test]
fn the_barrier_uses_torchs_keys() {
    let file = TestFile::new();
    let (first, second) = (file.open(), file.open());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.barrier("b", 2));
        second.barrier("b", 2).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(first.get("b/num_members").unwrap(), b"2");
    assert_eq!(first.get("b/last_member").unwrap(), b"1");
}

#[test]
fn queue_operations_are_unsupported() {
    let file = TestFile::new();
    let store = file.open();
    let assert_unsupported = |error: StoreError, op| match error {
        StoreError::Call { context, failure: Failure::Unsupported(None) } => {
            assert_eq!((context.store, context.op), (StoreKind::File, Some(op)));
        }
        other => panic!("{other}"),
    };
    assert_unsupported(store.queue_push("q", b"1").unwrap_err(), Op::QueuePush);
    assert_unsupported(store.queue_pop("q").unwrap_err(), Op::QueuePop);
    assert_unsupported(store.try_queue_pop("q").unwrap_err(), Op::QueuePop);
    assert_unsupported(store.queue_len("q").unwrap_err(), Op::QueueLen);
}

#[test]
fn keys_and_values_beyond_the_record_limits_are_not_written() {
    let file = TestFile::new();
    let mut limits = Limits::default();
    limits.record_key_len = 10;
    limits.record_value_len = 4;
    let store = file.options().limits(limits).open().unwrap();
    let before = file.bytes();
    let long = "123456789";
    assert!(matches!(
        store.set(long, b""),
        Err(StoreError::Call { failure: Failure::TooLarge { what: Oversized::Key, len: 9, limit: 8 }, .. })
    ));
    assert!(matches!(
        store.delete_key(long),
        Err(StoreError::Call { failure: Failure::TooLarge { what: Oversized::Key, .. }, .. })
    ));
    assert!(matches!(
        store.set("k", b"12345"),
        Err(StoreError::Call { failure: Failure::TooLarge { what: Oversized::Value, len: 5, limit: 4 }, .. })
    ));
    assert!(matches!(
        store.multi_set(&[("k", b""), ("l", b"12345")]),
        Err(StoreError::Call { failure: Failure::TooLarge { what: Oversized::Value, .. }, .. })
    ));
    assert_eq!(file.bytes(), before);
    store.set("12345678", b"1234").unwrap();
    store.delete_key("12345678").unwrap();
    store.append("k", b"123").unwrap();
    let error = store.append("k", b"45").unwrap_err();
    assert!(
        matches!(error.failure(), Some(Failure::TooLarge { what: Oversized::Value, len: 5, .. })),
        "{error}"
    );
    // The message must not mention sending, because there is no server.
    assert_eq!(error.to_string(), "value of 5 bytes for k, the limit is 4; nothing was changed");
    assert_eq!(store.get("k").unwrap(), b"123");
}

#[test]
fn a_value_longer_than_one_read_is_returned_whole() {
    let file = TestFile::new();
    let value: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    file.open().set("large", &value).unwrap();
    let store = file.open();
    store.set("after", b"1").unwrap();
    assert_eq!(store.get("large").unwrap(), value);
    assert_eq!(file.open().get("after").unwrap(), b"1");
}

#[test]
fn a_clone_is_another_instance_with_the_same_timeout() {
    let file = TestFile::new();
    let store = file.open();
    store.set_timeout(Some(Duration::from_secs(7)));
    let clone = store.clone_store().unwrap();
    assert_eq!((clone.timeout(), clone.kind()), (Some(Duration::from_secs(7)), StoreKind::File));
    clone.set_timeout(None);
    assert_eq!(store.timeout(), Some(Duration::from_secs(7)));
    clone.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
    assert_eq!(file.records()[1], ("refcount/".into(), "2".into()));
    drop(clone);
    assert_eq!(file.records().last().unwrap(), &("refcount/".into(), "1".into()));
}

#[test]
fn a_store_opened_without_options_has_torchs_timeout_and_debug_prints_no_keys_or_values() {
    let file = TestFile::new();
    let store = FileStore::open(file.path(), None).unwrap();
    assert_eq!((store.timeout(), store.path()), (Some(DEFAULT_TIMEOUT), &*file.path()));
    store.set("secret", b"value").unwrap();
    let debug = format!("{store:?}");
    assert!(debug.contains("store") && !debug.contains("secret") && !debug.contains("value"), "{debug}");
}

#[test]
#[cfg(target_os = "linux")]
fn every_change_is_one_write() {
    let writes = || {
        let counts = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        counts.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse::<u64>().unwrap()
    };
    let file = TestFile::new();
    let store = file.options().num_workers(2).open().unwrap();
    type Change = (&'static str, fn(&FileStore) -> Result<()>);
    let changes: [Change; 5] = [
        ("set", |store| store.set("k", &[7; 100_000])),
        ("add", |store| store.add("n", 1).map(drop)),
        ("compare_set", |store| store.compare_set("n", b"1", b"2").map(drop)),
        ("delete_key", |store| store.delete_key("n").map(drop)),
        ("multi_set", |store| store.multi_set(&[("a", b"1"), ("b", b"2")])),
    ];
    for (name, change) in changes {
        let before = writes();
        change(&store).unwrap();
        assert_eq!(writes() - before, 1, "{name}");
    }
    let before = writes();
    store.compare_set("n", b"1", b"2").unwrap();
    assert_eq!(writes(), before, "a failed compare_set");
    drop(store);
    assert_eq!(writes() - before, 1, "closing");
}
