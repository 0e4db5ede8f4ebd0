//! Behavior that only `PrefixStore` has: the names of its keys in the underlying store, and its isolation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rallypoint_store::{HashStore, PrefixStore, Store};

/// Returns a root store, and a prefix store `a` whose underlying store is a prefix store `b` over the root.
fn nested() -> (HashStore, PrefixStore) {
    let root = HashStore::new();
    let underlying = PrefixStore::new("b", Arc::new(root.clone()));
    (root, PrefixStore::new("a", Arc::new(underlying)))
}

fn keys(store: &dyn Store) -> BTreeSet<String> {
    store.list_keys().unwrap().into_iter().collect()
}

#[test]
fn the_prefix_of_the_underlying_store_comes_first() {
    let (root, nested) = nested();
    nested.set("k", b"v").unwrap();
    nested.add("n", 1).unwrap();
    nested.append("l", b"x").unwrap();
    nested.compare_set("c", b"", b"y").unwrap();
    nested.multi_set(&[("m", b"z")]).unwrap();
    assert_eq!(keys(&root), ["b/a/k", "b/a/n", "b/a/l", "b/a/c", "b/a/m"].map(String::from).into());
    nested.queue_push("q", b"item").unwrap();
    assert_eq!(root.queue_len("b/a/q").unwrap(), 1);
    assert_eq!(root.try_queue_pop("b/a/q").unwrap(), b"item");
    assert_eq!(nested.prefix(), "a");
    assert_eq!(nested.underlying_store().get("a/k").unwrap(), b"v");
}

#[test]
fn the_barrier_uses_torchs_keys() {
    let (root, nested) = nested();
    nested.barrier("bar", 1).unwrap();
    assert_eq!(keys(&root), ["b/a/bar/num_members", "b/a/bar/last_member"].map(String::from).into());
    assert_eq!(root.get("b/a/bar/num_members").unwrap(), b"1");
    assert_eq!(root.get("b/a/bar/last_member").unwrap(), b"1");
}

#[test]
fn nothing_outside_the_prefix_can_be_read_written_or_listed() {
    let root = HashStore::new();
    let part = PrefixStore::new("p", Arc::new(root.clone()));
    for key in ["k", "p", "p2/k", "/p/k", "pk", "q/p/k"] {
        root.set(key, b"outside").unwrap();
    }
    root.queue_push("k", b"item").unwrap();
    let before = keys(&root);
    assert!(!part.check(&["k"]).unwrap());
    assert!(part.wait_for(&["k"], Some(Duration::from_millis(5))).is_err());
    assert!(!part.delete_key("k").unwrap());
    assert_eq!(part.queue_len("k").unwrap(), 0);
    assert!(part.try_queue_pop("k").is_err());
    assert_eq!(part.compare_set("k", b"outside", b"x").unwrap(), b"outside");
    assert_eq!(keys(&part), BTreeSet::new());
    assert_eq!(keys(&root), before);
    part.set("k", b"inside").unwrap();
    assert_eq!((root.get("k").unwrap(), root.get("p/k").unwrap()), (b"outside".to_vec(), b"inside".to_vec()));
    assert_eq!(keys(&part), ["k".to_owned()].into());
}

#[test]
fn num_keys_and_the_timeout_are_those_of_the_underlying_store() {
    let (root, nested) = nested();
    root.set("outside", b"1").unwrap();
    nested.set("k", b"v").unwrap();
    assert_eq!(nested.num_keys().unwrap(), 2);
    nested.set_timeout(Some(Duration::from_secs(7)));
    assert_eq!(root.timeout(), Some(Duration::from_secs(7)));
}

#[test]
fn an_empty_prefix_still_adds_a_slash() {
    let root = HashStore::new();
    let part = PrefixStore::new("", Arc::new(root.clone()));
    root.set("k", b"outside").unwrap();
    part.set("k", b"inside").unwrap();
    assert_eq!(root.get("/k").unwrap(), b"inside");
    assert_eq!(keys(&part), ["k".to_owned()].into());
}
