//! Time-outs, clones, and what a store says of itself.

use std::time::Duration;

use rallypoint_store::{DEFAULT_TIMEOUT, HashStore, Store, TcpStore};
use rallypoint_testkit::{SOON, fails_in_time};

use crate::stores::World;

pub(crate) fn the_time_out_is_what_was_set(world: &World) {
    let store = world.client();
    assert_eq!(store.timeout(), Some(SOON));
    for timeout in [Duration::from_millis(1), Duration::from_secs(86_400), Duration::from_millis(1500)] {
        store.set_timeout(Some(timeout));
        assert_eq!(store.timeout(), Some(timeout));
    }
    // What no clock can count is as good as without end.
    store.set_timeout(Some(Duration::from_secs((1 << 61) + 1)));
    assert!(store.timeout().is_none() || store.timeout() > Some(Duration::from_secs(1 << 40)));
    store.set_timeout(Some(Duration::MAX));
    assert!(store.timeout() > Some(Duration::from_secs(1 << 40)));
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
}

pub(crate) fn operations_wait_for_the_time_out_of_the_store(world: &World) {
    let store = world.client();
    for millis in [150, 40] {
        let timeout = Duration::from_millis(millis);
        store.set_timeout(Some(timeout));
        fails_in_time(timeout, || store.get("k"));
        fails_in_time(timeout, || store.wait(&["k"]));
    }
}

pub(crate) fn a_clone_is_another_client_of_the_same_store(world: &World) {
    let store = world.client();
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
    assert_eq!(shared, world.shares_timeout, "{:?}", store.timeout());
}

pub(crate) fn a_clone_outlives_the_store_it_was_made_from(world: &World) {
    let store = world.client();
    store.set("k", b"v").unwrap();
    let clone = store.clone_store().unwrap();
    drop(store);
    assert_eq!(clone.get("k").unwrap(), b"v");
    assert_eq!(clone.add("n", 1).unwrap(), 1);
}

pub(crate) fn another_time_out_for_a_while_leaves_the_store_its_own(world: &World) {
    let store = world.client();
    let timeout = Duration::from_millis(80);
    let hasty = store.with_timeout(Some(timeout));
    assert_eq!((hasty.timeout(), store.timeout()), (Some(timeout), Some(SOON)));
    fails_in_time(timeout, || hasty.get("k"));
    hasty.set_timeout(Some(SOON * 2));
    assert_eq!((hasty.timeout(), store.timeout()), (Some(SOON * 2), Some(SOON)));
    hasty.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
    store.set_timeout(Some(SOON * 3));
    assert_eq!((hasty.timeout(), store.timeout()), (Some(SOON * 2), Some(SOON * 3)));
    let keys = store.num_keys().unwrap();
    drop(hasty);
    assert_eq!(store.get("k").unwrap(), b"v");
    // It was no client of its own, so none has left.
    assert_eq!(store.num_keys().unwrap(), keys);
}

pub(crate) fn a_store_says_what_it_is(world: &World) {
    let store = world.client();
    assert_eq!(store.kind().to_string(), world.kind);
    assert_eq!(store.has_extended_api(), world.extended);
    let timeout = Duration::from_millis(1);
    let error = store.wait_for(&["never"], Some(timeout)).unwrap_err();
    let name = error.context().unwrap().place();
    assert!(!name.is_empty() && error.to_string().contains(&name), "{error}");
}

#[test]
fn a_store_waits_for_300_seconds_unless_told_otherwise() {
    let server = TcpStore::serve("127.0.0.1", 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = rallypoint_store::FileStore::open(folder.path().join("store"), None).unwrap();
    let stores: [&dyn Store; 3] = [&server, &HashStore::new(), &file];
    for store in stores {
        assert_eq!(store.timeout(), Some(Duration::from_secs(300)), "{}", store.kind());
    }
    assert_eq!(DEFAULT_TIMEOUT, Duration::from_secs(300));
}
