//! Tests of latches: a read right after a WAIT finds the values that the WAIT saw, even if their keys were deleted.

use super::*;

/// Makes client 1 wait for `a` and `b`. Meanwhile, client 0 sets `a` to `first`, deletes `a`, and then sets `b`.
fn wait_and_delete(store: &mut Store) {
    store.run(1, wait(&[b"a", b"b"]));
    store.run(0, set(b"a", b"first"));
    store.reply(0, delete(b"a"));
    assert_eq!(store.send(0, set(b"b", b"B")), [stop(1)]);
}

#[test]
fn a_get_after_a_wait_returns_the_value_of_a_deleted_key() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    assert_eq!(store.reply(1, get(b"a")), value(b"first"));
}

#[test]
fn a_multi_get_after_a_wait_returns_the_value_of_a_deleted_key() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    assert_eq!(store.reply(1, multi_get(&[b"b", b"a", b"c"])), values(&[b"B", b"first", b""]));
}

#[test]
fn a_get_after_a_wait_prefers_the_current_value() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    store.run(0, set(b"a", b"second"));
    assert_eq!(store.reply(1, get(b"a")), value(b"second"));
}

#[test]
fn a_key_that_is_present_at_the_start_of_a_wait_is_latched() {
    let mut store = Store::new();
    store.run(0, set(b"a", b"A"));
    store.run(1, wait(&[b"a", b"b"]));
    store.reply(0, delete(b"a"));
    assert_eq!(store.send(0, set(b"b", b"B")), [stop(1)]);
    assert_eq!(store.reply(1, get(b"a")), value(b"A"));
}

#[test]
fn a_wait_that_does_not_block_latches_its_keys() {
    let mut store = Store::new();
    store.run(0, set(b"a", b"A"));
    assert_eq!(store.reply(1, wait(&[b"a"])), Reply::Stop);
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(1, get(b"a")), value(b"A"));
}

#[test]
fn a_wait_latches_100_keys() {
    let mut store = Store::new();
    let names: Vec<String> = (0..100).map(|at| format!("key {at}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    store.run(1, wait(&keys));
    for key in &keys {
        store.0.handle_request(id(0), set(key, key)).unwrap();
        store.0.handle_request(id(0), delete(key)).unwrap();
    }
    assert!(store.outputs().contains(&stop(1)));
    let requested = [&keys[..], &[b"never awaited", SERVER_KEY]].concat();
    let expected = [&keys[..], &[b"", b"identity"]].concat();
    assert_eq!(store.reply(1, multi_get(&requested)), values(&expected));
}

#[test]
fn a_latch_ends_with_the_next_request() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    store.reply(1, PING);
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn a_latch_serves_one_get() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    assert_eq!(store.reply(1, get(b"a")), value(b"first"));
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn a_latch_is_visible_to_its_waiter_only() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    assert_eq!(store.reply(2, get(b"a")), value(b""));
}

#[test]
fn a_latch_does_not_make_a_key_present() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    assert_eq!(store.reply(1, check(&[b"a"])), Reply::Checked(false));
}

#[test]
fn a_latch_does_not_satisfy_a_second_wait() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    store.run(1, wait(&[b"a"]));
    assert!(store.is_blocked(1));
}

#[test]
fn compare_set_ignores_latches() {
    let mut store = Store::new();
    wait_and_delete(&mut store);
    assert_eq!(store.reply(1, cas(b"a", b"first", b"new")), value(b"first"));
    assert_eq!(store.value(b"a"), None);
}

#[test]
fn a_canceled_wait_leaves_no_latch() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a", b"b"]));
    store.run(0, set(b"a", b"A"));
    store.reply(0, delete(b"a"));
    assert_eq!(store.send(1, CANCEL), [canceled(1)]);
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn a_refused_wait_leaves_no_latch() {
    let mut store = Store::with(Limits { awaited_per_client: 1, ..Limits::default() });
    store.run(0, set(b"a", b"A"));
    store.refusal(1, wait(&[b"a", b"b", b"c"]));
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn an_append_does_not_change_a_latched_value() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a", b"b"]));
    store.run(0, append(b"a", b"1"));
    store.run(0, append(b"a", b"2"));
    store.reply(0, delete(b"a"));
    assert_eq!(store.send(0, set(b"b", b"")), [stop(1)]);
    assert_eq!(store.reply(1, get(b"a")), value(b"1"));
}

#[test]
fn a_multi_set_latches_the_last_value_of_a_repeated_key() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a"]));
    assert_eq!(store.send(0, multi_set(&[(b"a", b"first"), (b"a", b"last")])), [stop(1)]);
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(1, get(b"a")), value(b"last"));
}

#[test]
fn latched_bytes_are_bounded_and_released() {
    let mut store = Store::with(Limits { latched_bytes: 1_000, ..Limits::default() });
    let large = [b'x'; 400];
    for client in 1..=5 {
        store.run(0, set(b"k", &large));
        assert_eq!(store.reply(client, wait(&[b"k"])), Reply::Stop);
    }
    store.reply(0, delete(b"k"));
    let seen: Vec<_> = (1..=5).map(|client| store.reply(client, get(b"k")) == value(&large)).collect();
    assert_eq!(seen, [true, true, false, false, false]);
    // The GETs have ended the latches, so client 1 can latch the value again.
    store.run(0, set(b"k", &large));
    assert_eq!(store.reply(1, wait(&[b"k"])), Reply::Stop);
    store.reply(0, delete(b"k"));
    assert_eq!(store.reply(1, get(b"k")), value(&large));
}
