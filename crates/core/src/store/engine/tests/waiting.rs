//! Tests of WAIT: which requests wake which waiters, and in which order.

use super::*;

#[test]
fn a_wait_for_present_keys_does_not_block() {
    let mut store = Store::new();
    store.run(0, multi_set(&[(b"a", b""), (b"b", b"")]));
    assert_eq!(store.reply(1, wait(&[b"a", b"b", b"a"])), Reply::Stop);
}

#[test]
fn a_wait_ends_when_the_last_of_its_keys_is_set() {
    let mut store = Store::new();
    store.run(0, set(b"present", b""));
    store.run(1, wait(&[b"a", b"present", b"b"]));
    assert!(store.is_blocked(1));
    store.run(0, set(b"b", b""));
    assert_eq!(store.send(0, set(b"a", b"")), [stop(1)]);
    assert!(!store.is_blocked(1));
}

#[test]
fn every_operation_that_creates_a_key_wakes_its_waiter() {
    for request in [
        set(b"k", b""),
        cas(b"k", b"", b"v"),
        add(b"k", 0),
        append(b"k", b""),
        multi_set(&[(b"other", b""), (b"k", b"")]),
        push(b"k", b""),
    ] {
        let mut store = Store::new();
        store.run(1, wait(&[b"k"]));
        let outputs = store.send(0, request);
        assert!(outputs.contains(&stop(1)), "{request:?}: {outputs:?}");
    }
}

#[test]
fn a_failed_compare_set_wakes_no_waiter() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k"]));
    assert_eq!(store.reply(0, cas(b"k", b"x", b"v")), value(b"x"));
    assert!(store.is_blocked(1));
}

#[test]
fn a_compare_set_replies_before_it_wakes_a_waiter() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k"]));
    let reply = Output::Reply { client: id(0), reply: value(b"v") };
    assert_eq!(store.send(0, cas(b"k", b"", b"v")), [reply, stop(1)]);
}

#[test]
fn reads_and_deletions_wake_no_waiter() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k"]));
    for request in [get(b"k"), check(&[b"k"]), delete(b"k"), multi_get(&[b"k"]), pop(b"k"), queue_len(b"k")] {
        store.reply(0, request);
    }
    assert!(store.is_blocked(1));
}

#[test]
fn all_waiters_of_a_key_are_woken_oldest_first() {
    let mut store = Store::new();
    for client in [3, 1, 2] {
        store.run(client, wait(&[b"k"]));
    }
    assert_eq!(store.send(0, set(b"k", b"v")), [stop(3), stop(1), stop(2)]);
}

#[test]
fn a_wait_that_names_a_key_three_times_gets_one_reply() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k", b"k", b"k"]));
    assert_eq!(store.send(0, set(b"k", b"v")), [stop(1)]);
}

#[test]
fn a_wait_ends_although_a_key_was_deleted_again() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a", b"b"]));
    store.run(0, set(b"a", b""));
    store.reply(0, delete(b"a"));
    assert_eq!(store.send(0, set(b"b", b"")), [stop(1)]);
}

#[test]
fn a_multi_set_wakes_waiters_after_its_last_pair() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a"]));
    assert_eq!(store.send(0, multi_set(&[(b"a", b"1"), (b"b", b"2")])), [stop(1)]);
    assert_eq!(store.reply(1, multi_get(&[b"a", b"b"])), values(&[b"1", b"2"]));
}

#[test]
fn two_consecutive_waits_get_one_reply_each() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a"]));
    assert_eq!(store.send(0, set(b"a", b"")), [stop(1)]);
    store.run(1, wait(&[b"b"]));
    assert_eq!(store.send(0, set(b"a", b"")), []);
    assert_eq!(store.send(0, set(b"b", b"")), [stop(1)]);
}

// ---- CANCEL_WAIT ----

#[test]
fn a_cancel_without_a_wait_gets_a_reply() {
    assert_eq!(Store::new().send(0, CANCEL), [canceled(0)]);
}

#[test]
fn a_cancel_gets_one_reply_and_removes_all_registrations() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a", b"b"]));
    assert_eq!(store.send(1, CANCEL), [canceled(1)]);
    assert_eq!(store.counts(), [0; 5]);
    assert_eq!(store.send(0, multi_set(&[(b"a", b""), (b"b", b"")])), []);
}

#[test]
fn a_cancel_after_the_wake_up_gets_a_reply_of_its_own() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a"]));
    let mut replies = store.send(0, set(b"a", b""));
    replies.extend(store.send(1, CANCEL));
    assert_eq!(replies, [stop(1), canceled(1)]);
}

#[test]
fn after_a_cancel_the_client_can_wait_again() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a"]));
    store.send(1, CANCEL);
    store.run(1, wait(&[b"b"]));
    assert_eq!(store.send(0, set(b"a", b"")), []);
    assert_eq!(store.send(0, set(b"b", b"")), [stop(1)]);
}

#[test]
fn a_cancel_does_not_affect_other_waiters_of_the_same_key() {
    let mut store = Store::new();
    for client in [1, 2, 3] {
        store.run(client, wait(&[b"k"]));
    }
    store.send(2, CANCEL);
    assert_eq!(store.send(0, set(b"k", b"")), [stop(1), stop(3)]);
}

// ---- disconnects ----

#[test]
fn a_disconnected_waiter_is_not_woken() {
    let mut store = Store::new();
    for client in [1, 2, 3] {
        store.run(client, wait(&[b"k"]));
    }
    assert_eq!(store.disconnect(1), []);
    assert_eq!(store.disconnect(3), []);
    assert_eq!(store.send(0, set(b"k", b"")), [stop(2)]);
}

#[test]
fn a_set_wakes_waiters_although_its_client_disconnects() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k"]));
    store.0.handle_request(id(0), set(b"k", b"")).unwrap();
    store.0.handle_disconnect(id(0));
    assert_eq!(store.outputs(), [stop(1)]);
}

#[test]
fn a_disconnect_removes_the_registrations_of_a_waiter() {
    let mut store = Store::new();
    store.run(1, wait(&[b"a", b"b", b"c"]));
    store.run(2, wait(&[b"a"]));
    assert_eq!(store.0.snapshot().awaited, 4);
    store.disconnect(1);
    assert_eq!((store.0.snapshot().awaited, store.0.snapshot().blocked), (1, 1));
}
