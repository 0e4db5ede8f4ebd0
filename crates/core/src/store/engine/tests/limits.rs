//! Tests of limits: a request beyond a limit is refused and changes nothing.

use super::*;
use crate::store::map::entry_cost;

type Pairs = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Returns the counts of a store, its keys and values, and the length of queue `q`.
fn state(store: &mut Store) -> ([usize; 5], Pairs, Reply) {
    let Reply::Keys(keys) = store.reply(1000, Request::ListKeys) else { panic!() };
    let pairs = keys.iter().map(|key| (key.to_vec(), store.value(key))).collect();
    (store.counts(), pairs, store.reply(1000, queue_len(b"q")))
}

fn limit(op: Op, key: &str, what: &'static str, needed: usize, limit: usize) -> Refusal {
    Refusal::Limit { op, key: key.into(), what, needed, limit }
}

/// Sends a request that must be refused and change nothing, and returns the refusal.
fn refused(store: &mut Store, request: Request<'_>) -> Refusal {
    let before = state(store);
    let reason = store.refusal(0, request);
    assert_eq!(state(store), before, "{request:?}");
    reason
}

#[test]
fn an_append_past_value_len_is_refused() {
    let mut store = Store::with(Limits { value_len: 10, ..Limits::default() });
    store.run(0, append(b"/k", b"01234"));
    store.run(0, append(b"/k", b"56789"));
    let reason = limit(Op::Append, "/k", "bytes of value", 11, 10);
    assert_eq!(refused(&mut store, append(b"/k", b"x")), reason);
    assert_eq!(store.value(b"/k"), Some(b"0123456789".to_vec()));
}

#[test]
fn appends_of_4_mib_stop_at_8_mib() {
    let mut store = Store::new();
    let part = vec![b'x'; 4 << 20];
    store.run(0, append(b"k", &part));
    store.run(0, append(b"k", &part));
    for _ in 0..3 {
        assert!(matches!(
            store.refusal(0, append(b"k", &part)),
            Refusal::Limit { what: "bytes of value", .. }
        ));
    }
    assert_eq!(store.value(b"k").map(|value| value.len()), Some(8 << 20));
}

// ---- store_bytes ----

/// Returns a store that has reached `store_bytes` with its only key, `k`.
fn full() -> Store {
    let limits = Limits { store_bytes: entry_cost(1, 100), ..Limits::default() };
    let mut store = Store::with(limits);
    store.run(0, set(b"k", &[b'v'; 100]));
    store
}

#[test]
fn a_full_store_refuses_every_write_that_grows_it() {
    let long = [b'v'; 101];
    for request in [
        set(b"new", b""),
        set(b"k", &long),
        cas(b"new", b"", b""),
        cas(b"k", &long[..100], &long),
        add(b"new", 0),
        append(b"new", b""),
        append(b"k", b"x"),
        multi_set(&[(b"new", b"")]),
        multi_set(&[(b"k", b""), (b"new", &long[..4])]),
        push(b"q", b""),
    ] {
        let reason = refused(&mut full(), request);
        let Refusal::Limit { op, what: "bytes in the store", .. } = reason else {
            panic!("{request:?}: {reason}")
        };
        assert_eq!(op, request.op());
    }
}

#[test]
fn a_full_store_accepts_writes_that_do_not_grow_it() {
    let same = [b'w'; 100];
    for request in [
        set(b"k", &same),
        set(b"k", b""),
        append(b"k", b""),
        multi_set(&[(b"k", &same)]),
        multi_set(&[(b"k", b"1"), (b"k", &same), (b"k", b"2")]),
    ] {
        full().run(0, request);
    }
    assert_eq!(full().reply(0, cas(b"k", &[b'v'; 100], &same)), value(&same));
}

#[test]
fn a_refusal_reports_the_needed_and_the_allowed_bytes() {
    let used = entry_cost(1, 100);
    let reason = limit(Op::Set, "/n", "bytes in the store", used + entry_cost(2, 0), used);
    assert_eq!(full().refusal(0, set(b"/n", b"")), reason);
}

#[test]
fn a_deletion_frees_space() {
    let mut store = full();
    store.reply(0, delete(b"k"));
    store.run(0, set(b"n", &[b'v'; 100]));
}

#[test]
fn a_pop_frees_space() {
    let mut store = Store::with(Limits { store_bytes: entry_cost(1, 10), ..Limits::default() });
    store.run(0, push(b"q", &[b'i'; 10]));
    store.refusal(0, push(b"q", &[b'i'; 10]));
    store.reply(0, pop(b"q"));
    store.run(0, push(b"q", &[b'i'; 10]));
}

#[test]
fn an_emptied_store_counts_zero_bytes() {
    let mut store = Store::new();
    store.run(0, set(b"a", b"1"));
    store.run(0, set(b"a", b"longer"));
    store.run(0, append(b"a", b" still"));
    store.reply(0, add(b"n", 10));
    store.run(0, multi_set(&[(b"m", b"1"), (b"m", b"22")]));
    store.run(0, push(b"q", b"item"));
    store.run(0, push(b"q", b"item"));
    for key in [b"a", b"n", b"m"] {
        store.reply(0, delete(key));
    }
    store.reply(0, pop(b"q"));
    store.reply(0, pop(b"q"));
    assert_eq!(store.counts(), [0; 5]);
}

// ---- keys and items ----

#[test]
fn a_new_key_past_the_limit_is_refused() {
    for request in [
        set(b"c", b""),
        cas(b"c", b"", b""),
        add(b"c", 1),
        append(b"c", b""),
        multi_set(&[(b"a", b"1"), (b"c", b"")]),
    ] {
        let mut store = Store::with(Limits { keys: 2, ..Limits::default() });
        store.run(0, multi_set(&[(b"a", b""), (b"b", b"")]));
        let first = if request.op() == Op::MultiSet { "a" } else { "c" };
        let reason = limit(request.op(), first, "keys in the store", 3, 2);
        assert_eq!(refused(&mut store, request), reason);
    }
}

#[test]
fn existing_keys_are_writable_at_the_key_limit() {
    let mut store = Store::with(Limits { keys: 2, ..Limits::default() });
    store.run(0, multi_set(&[(b"a", b""), (b"b", b"")]));
    store.run(0, set(b"a", b"1"));
    store.run(0, multi_set(&[(b"a", b"2"), (b"b", b"3"), (b"a", b"4")]));
    assert_eq!(store.value(b"a"), Some(b"4".to_vec()));
}

#[test]
fn a_refused_multi_set_wakes_no_waiter() {
    let mut store = Store::with(Limits { keys: 1, ..Limits::default() });
    store.run(1, wait(&[b"a"]));
    store.refusal(0, multi_set(&[(b"a", b""), (b"b", b"")]));
    assert!(store.is_blocked(1));
}

#[test]
fn a_push_past_queue_items_is_refused() {
    let mut store = Store::with(Limits { queue_items: 2, ..Limits::default() });
    store.run(0, push(b"q", b""));
    store.run(0, push(b"other", b""));
    let reason = limit(Op::QueuePush, "q", "items in queues", 3, 2);
    assert_eq!(refused(&mut store, push(b"q", b"")), reason);
    store.reply(0, pop(b"other"));
    store.run(0, push(b"q", b""));
}

// ---- awaited keys ----

#[test]
fn a_wait_past_awaited_per_client_is_refused() {
    let mut store = Store::with(Limits { awaited_per_client: 2, ..Limits::default() });
    let reason = limit(Op::Wait, "a", "awaited keys of one client", 3, 2);
    assert_eq!(refused(&mut store, wait(&[b"a", b"b", b"c"])), reason);
    assert!(!store.is_blocked(0));
}

#[test]
fn present_keys_do_not_count_as_awaited() {
    let mut store = Store::with(Limits { awaited_per_client: 2, ..Limits::default() });
    store.run(0, set(b"a", b""));
    store.run(0, wait(&[b"a", b"b", b"c"]));
    assert!(store.is_blocked(0));
}

#[test]
fn a_wait_past_awaited_total_is_refused_and_other_waits_continue() {
    let mut store = Store::with(Limits { awaited_total: 3, ..Limits::default() });
    store.run(1, wait(&[b"a", b"b"]));
    let reason = limit(Op::Wait, "a", "awaited keys", 4, 3);
    assert_eq!(refused(&mut store, wait(&[b"a", b"c"])), reason);
    store.run(2, wait(&[b"a"]));
    assert_eq!(store.0.snapshot().awaited, 3);
    assert!(store.is_blocked(1));
}

#[test]
fn ended_waits_do_not_count() {
    let mut store = Store::with(Limits { awaited_total: 2, ..Limits::default() });
    store.run(1, wait(&[b"a", b"b"]));
    store.send(1, CANCEL);
    store.run(1, wait(&[b"a", b"b"]));
    store.disconnect(1);
    store.run(2, wait(&[b"a", b"b"]));
    store.send(0, multi_set(&[(b"a", b""), (b"b", b"")]));
    store.run(1, wait(&[b"c", b"d"]));
}

#[test]
fn the_names_of_awaited_keys_count_toward_store_bytes() {
    let mut store = Store::with(Limits { store_bytes: 3_000, ..Limits::default() });
    let long = [b'k'; 1_000];
    store.run(1, wait(&[&long, b"other"]));
    let longer = [b'm'; 2_000];
    assert!(matches!(
        refused(&mut store, wait(&[&longer])),
        Refusal::Limit { op: Op::Wait, what: "bytes in the store", .. }
    ));
    assert!(store.is_blocked(1));
    store.disconnect(1);
    store.run(0, wait(&[&longer]));
    assert!(store.is_blocked(0));
}

#[test]
fn barriers_count_toward_store_bytes_until_they_end() {
    let mut store = Store::with(Limits { store_bytes: 3 * 1256, ..Limits::default() });
    let name = |n: u8| [n; 1000];
    for n in 0..3 {
        store.run(n.into(), barrier(&name(n), 2));
    }
    let reason = store.refusal(3, barrier(&name(3), 2));
    assert!(matches!(reason, Refusal::Limit { op: Op::Barrier, needed: 5024, limit: 3768, .. }), "{reason}");
    // The last arrival completes its barrier, which frees memory instead of needing more.
    assert_eq!(store.send(4, barrier(&name(0), 2)), [stop(4), stop(0)]);
    store.run(3, barrier(&name(3), 2));
}
