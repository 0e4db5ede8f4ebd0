//! Tests of queues and of the waiters that a push wakes.

use super::*;

/// Returns a store in which clients 1 and 2 have waited for `q`, and one push has woken client 1.
fn woken() -> Store {
    let mut store = Store::new();
    store.run(1, wait(&[b"q"]));
    store.run(2, wait(&[b"q"]));
    assert_eq!(store.send(0, push(b"q", b"i")), [stop(1)]);
    store
}

#[test]
fn items_are_popped_in_push_order() {
    let mut store = Store::new();
    for item in [b"a", b"b", b"c"] {
        store.run(0, push(b"q", item));
    }
    assert_eq!(store.reply(0, queue_len(b"q")), Reply::Number(3));
    assert_eq!(store.reply(0, pop(b"q")), popped(3, b"a"));
    assert_eq!(store.reply(1, pop(b"q")), popped(2, b"b"));
    assert_eq!(store.reply(0, pop(b"q")), popped(1, b"c"));
    assert_eq!(store.reply(0, pop(b"q")), EMPTY_POP);
}

#[test]
fn an_empty_item_can_be_popped() {
    let mut store = Store::new();
    store.run(0, push(b"q", b""));
    assert_eq!(store.reply(0, pop(b"q")), popped(1, b""));
}

#[test]
fn a_queue_is_not_counted_or_listed_as_a_key() {
    let mut store = Store::new();
    store.run(0, push(b"q", b"i"));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(0));
    assert_eq!(store.reply(0, Request::ListKeys), Reply::Keys(vec![]));
    assert_eq!(store.reply(0, get(b"q")), value(b""));
}

#[test]
fn check_and_wait_see_a_queue_while_it_has_items() {
    let mut store = Store::new();
    store.run(0, push(b"q", b"i"));
    assert_eq!(store.reply(0, check(&[b"q"])), Reply::Checked(true));
    assert_eq!(store.reply(0, wait(&[b"q"])), Reply::Stop);
    store.reply(0, pop(b"q"));
    assert_eq!(store.reply(0, check(&[b"q"])), Reply::Checked(false));
    store.run(0, wait(&[b"q"]));
}

#[test]
fn a_key_and_a_queue_of_the_same_name_are_independent() {
    let mut store = Store::new();
    store.run(0, push(b"k", b"item"));
    store.run(0, set(b"k", b"value"));
    assert_eq!(store.reply(0, delete(b"k")), Reply::Number(1));
    assert_eq!(store.reply(0, pop(b"k")), popped(1, b"item"));
}

#[test]
fn a_push_wakes_only_the_oldest_waiter() {
    let store = woken();
    assert!(!store.is_blocked(1));
    assert!(store.is_blocked(2));
}

#[test]
fn each_push_wakes_one_more_waiter() {
    let mut store = woken();
    assert_eq!(store.send(0, push(b"q", b"j")), [stop(2)]);
    assert_eq!(store.reply(2, pop(b"q")), popped(2, b"i"));
    assert_eq!(store.reply(1, pop(b"q")), popped(1, b"j"));
}

#[test]
fn a_pop_by_the_woken_waiter_wakes_no_other() {
    let mut store = woken();
    assert_eq!(store.reply(1, pop(b"q")), popped(1, b"i"));
    assert!(store.is_blocked(2));
}

#[test]
fn a_disconnect_of_the_woken_waiter_wakes_the_next() {
    let mut store = woken();
    assert_eq!(store.disconnect(1), [stop(2)]);
    assert_eq!(store.reply(2, pop(b"q")), popped(1, b"i"));
}

#[test]
fn a_request_of_the_woken_waiter_that_does_not_pop_the_item_wakes_the_next() {
    for request in [PING, CANCEL, get(b"q"), queue_len(b"q"), pop(b"other"), set(b"x", b"")] {
        let mut store = woken();
        assert!(store.send(1, request).contains(&stop(2)), "{request:?}");
    }
}

#[test]
fn a_woken_waiter_that_blocks_again_wakes_the_next() {
    for request in [wait(&[b"other"]), barrier(b"b", 2)] {
        let mut store = woken();
        assert_eq!(store.send(1, request), [stop(2)], "{request:?}");
    }
}

#[test]
fn a_refused_request_of_the_woken_waiter_wakes_the_next() {
    let mut store = woken();
    let outputs = store.send(1, set(SERVER_KEY, b""));
    assert!(outputs.contains(&stop(2)), "{outputs:?}");
}

#[test]
fn a_wait_for_two_keys_counts_a_claimed_item_as_present() {
    let mut store = woken();
    store.run(3, wait(&[b"x", b"q"]));
    store.disconnect(1);
    assert_eq!(store.disconnect(2), []);
    assert_eq!(store.send(0, set(b"x", b"")), [stop(3)]);
}

#[test]
fn a_woken_waiter_finds_an_empty_queue_if_another_client_popped_the_item() {
    let mut store = woken();
    assert_eq!(store.reply(3, pop(b"q")), popped(1, b"i"));
    assert_eq!(store.reply(1, pop(b"q")), EMPTY_POP);
    assert!(store.is_blocked(2));
}

#[test]
fn a_push_after_a_pop_by_another_client_wakes_the_next_waiter() {
    let mut store = woken();
    store.reply(3, pop(b"q"));
    assert_eq!(store.send(0, push(b"q", b"j")), [stop(2)]);
    assert_eq!(store.reply(2, pop(b"q")), popped(1, b"j"));
    assert_eq!(store.reply(1, queue_len(b"q")), Reply::Number(0));
}

#[test]
fn a_pop_by_another_client_and_a_disconnect_leave_no_state() {
    let mut store = woken();
    store.reply(3, pop(b"q"));
    assert_eq!(store.disconnect(1), []);
    store.disconnect(2);
    assert_eq!(store.counts(), [0; 5]);
    store.run(0, push(b"q", b"j"));
    assert_eq!(store.reply(0, queue_len(b"q")), Reply::Number(1));
}

#[test]
fn a_push_does_not_wake_a_client_that_waits_for_another_key() {
    let mut store = Store::new();
    store.run(1, wait(&[b"q"]));
    assert_eq!(store.send(0, push(b"q", b"i")), [stop(1)]);
    assert_eq!(store.reply(1, pop(b"q")), popped(1, b"i"));
    store.run(1, wait(&[b"B"]));
    store.run(0, push(b"q", b"j"));
    assert!(store.is_blocked(1));
    assert_eq!(store.send(0, set(b"B", b"v")), [stop(1)]);
    assert_eq!(store.reply(1, get(b"B")), value(b"v"));
}

#[test]
fn a_waiter_for_two_keys_does_not_keep_the_item_from_other_waiters() {
    let mut store = Store::new();
    store.run(1, wait(&[b"q", b"k"]));
    store.run(2, wait(&[b"q"]));
    assert_eq!(store.send(0, push(b"q", b"i")), [stop(2)]);
    assert_eq!(store.send(0, set(b"k", b"")), [stop(1)]);
}

#[test]
fn a_wait_for_two_keys_sees_a_queue_that_was_emptied_again() {
    let mut store = Store::new();
    store.run(1, wait(&[b"q", b"k"]));
    store.run(0, push(b"q", b"i"));
    store.reply(0, pop(b"q"));
    assert_eq!(store.send(0, set(b"k", b"")), [stop(1)]);
}

#[test]
fn setting_a_key_with_the_name_of_a_queue_wakes_all_waiters() {
    let mut store = Store::new();
    store.run(1, wait(&[b"q"]));
    store.run(2, wait(&[b"q"]));
    assert_eq!(store.send(0, set(b"q", b"v")), [stop(1), stop(2)]);
}

#[test]
fn a_disconnect_after_the_pop_wakes_no_waiter() {
    let mut store = woken();
    store.reply(1, pop(b"q"));
    assert_eq!(store.disconnect(1), []);
    assert!(store.is_blocked(2));
}
