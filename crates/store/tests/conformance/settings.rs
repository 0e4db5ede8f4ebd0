//! Timeouts, clones, and the properties that a store reports.

use std::time::Duration;

use rallypoint_store::{DEFAULT_TIMEOUT, HashStore, Store, TcpStore};
use rallypoint_testkit::{CALL_TIMEOUT, fails_in_time};

use crate::stores::Fixture;

pub(crate) fn timeout_returns_what_set_timeout_was_given(fixture: &Fixture) {
    let store = fixture.client();
    assert_eq!(store.timeout(), Some(CALL_TIMEOUT));
    for timeout in [Duration::from_millis(1), Duration::from_secs(86_400), Duration::from_millis(1500)] {
        store.set_timeout(Some(timeout));
        assert_eq!(store.timeout(), Some(timeout));
    }
    // A timeout beyond the range of a store is reduced to the longest one that the store can represent.
    for timeout in [Duration::from_secs((1 << 61) + 1), Duration::MAX] {
        store.set_timeout(Some(timeout));
        assert!(store.timeout() > Some(Duration::from_secs(1 << 40)));
    }
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
}

pub(crate) fn operations_use_the_timeout_of_the_store(fixture: &Fixture) {
    let store = fixture.client();
    for millis in [150, 40] {
        let timeout = Duration::from_millis(millis);
        store.set_timeout(Some(timeout));
        fails_in_time(timeout, || store.get("k"));
        fails_in_time(timeout, || store.wait(&["k"]));
    }
}

pub(crate) fn a_clone_is_another_client_of_the_same_store(fixture: &Fixture) {
    let store = fixture.client();
    store.set_timeout(Some(Duration::from_millis(12_345)));
    store.set("k", b"v").unwrap();
    let clone = store.clone_store().unwrap();
    assert_eq!(clone.timeout(), Some(Duration::from_millis(12_345)));
    assert_eq!(clone.kind(), store.kind());
    assert_eq!(clone.get("k").unwrap(), b"v");
    clone.set("l", b"w").unwrap();
    assert_eq!(store.get("l").unwrap(), b"w");
    clone.set_timeout(Some(Duration::from_millis(54_321)));
    let shared = store.timeout() == Some(Duration::from_millis(54_321));
    assert_eq!(shared, fixture.shares_timeout, "{:?}", store.timeout());
}

pub(crate) fn a_clone_outlives_the_original(fixture: &Fixture) {
    let store = fixture.client();
    store.set("k", b"v").unwrap();
    let clone = store.clone_store().unwrap();
    drop(store);
    assert_eq!(clone.get("k").unwrap(), b"v");
    assert_eq!(clone.add("n", 1).unwrap(), 1);
}

pub(crate) fn with_timeout_leaves_the_timeout_of_the_store_unchanged(fixture: &Fixture) {
    let store = fixture.client();
    let timeout = Duration::from_millis(80);
    let short = store.with_timeout(Some(timeout));
    assert_eq!((short.timeout(), store.timeout()), (Some(timeout), Some(CALL_TIMEOUT)));
    fails_in_time(timeout, || short.get("k"));
    short.set_timeout(Some(CALL_TIMEOUT * 2));
    assert_eq!((short.timeout(), store.timeout()), (Some(CALL_TIMEOUT * 2), Some(CALL_TIMEOUT)));
    short.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
    store.set_timeout(Some(CALL_TIMEOUT * 3));
    assert_eq!((short.timeout(), store.timeout()), (Some(CALL_TIMEOUT * 2), Some(CALL_TIMEOUT * 3)));
    let keys = store.num_keys().unwrap();
    drop(short);
    assert_eq!(store.get("k").unwrap(), b"v");
    // The store that `with_timeout` of a FileStore returns is not counted as another instance. Dropping it therefore
    // does not write the number of closed instances, which would be another key.
    assert_eq!(store.num_keys().unwrap(), keys);
}

pub(crate) fn a_store_reports_its_kind(fixture: &Fixture) {
    let store = fixture.client();
    assert_eq!(store.kind().to_string(), fixture.kind);
    assert_eq!(store.has_extended_api(), fixture.has_extended_api);
    let timeout = Duration::from_millis(1);
    let error = store.wait_for(&["never"], Some(timeout)).unwrap_err();
    let name = error.context().unwrap().store_name();
    assert!(!name.is_empty() && error.to_string().contains(&name), "{error}");
}

#[test]
fn the_default_timeout_is_300_s() {
    let tcp = TcpStore::serve("127.0.0.1", 0).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = rallypoint_store::FileStore::open(directory.path().join("store"), None).unwrap();
    let stores: [&dyn Store; 3] = [&tcp, &HashStore::new(), &file];
    for store in stores {
        assert_eq!(store.timeout(), Some(Duration::from_secs(300)), "{}", store.kind());
    }
    assert_eq!(DEFAULT_TIMEOUT, Duration::from_secs(300));
}
