//! Queues, and who is woken for an item: row W07 of the robustness page, and what a woken waiter may do.

use super::*;

/// Clients 1 and 2 wait for `q`; a push has woken client 1.
fn woken() -> Store {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q"]));
    store.tell(2, wait(&[b"q"]));
    assert_eq!(store.ask(0, push(b"q", b"i")), [stop(1)]);
    store
}

#[test]
fn items_come_out_in_the_order_they_went_in() {
    let mut store = Store::new();
    for item in [b"a", b"b", b"c"] {
        store.tell(0, push(b"q", item));
    }
    assert_eq!(store.reply(0, queue_len(b"q")), Reply::Number(3));
    assert_eq!(store.reply(0, pop(b"q")), popped(3, b"a"));
    assert_eq!(store.reply(1, pop(b"q")), popped(2, b"b"));
    assert_eq!(store.reply(0, pop(b"q")), popped(1, b"c"));
    assert_eq!(store.reply(0, pop(b"q")), NOTHING_POPPED);
}

#[test]
fn an_empty_item_is_an_item() {
    let mut store = Store::new();
    store.tell(0, push(b"q", b""));
    assert_eq!(store.reply(0, pop(b"q")), popped(1, b""));
}

#[test]
fn a_queue_is_in_no_count_and_no_list_and_reads_as_empty() {
    let mut store = Store::new();
    store.tell(0, push(b"q", b"i"));
    assert_eq!(store.reply(0, Request::NumKeys), Reply::Number(0));
    assert_eq!(store.reply(0, Request::ListKeys), Reply::Keys(vec![]));
    assert_eq!(store.reply(0, get(b"q")), value(b""));
}

#[test]
fn check_and_wait_see_a_queue_while_it_has_items() {
    let mut store = Store::new();
    store.tell(0, push(b"q", b"i"));
    assert_eq!(store.reply(0, check(&[b"q"])), Reply::Checked(true));
    assert_eq!(store.reply(0, wait(&[b"q"])), Reply::Stop);
    store.reply(0, pop(b"q"));
    assert_eq!(store.reply(0, check(&[b"q"])), Reply::Checked(false));
    store.tell(0, wait(&[b"q"]));
}

#[test]
fn a_key_and_a_queue_of_one_name_are_two_things() {
    let mut store = Store::new();
    store.tell(0, push(b"k", b"item"));
    store.tell(0, set(b"k", b"value"));
    assert_eq!(store.reply(0, delete(b"k")), Reply::Number(1));
    assert_eq!(store.reply(0, pop(b"k")), popped(1, b"item"));
}

#[test]
fn a_push_wakes_one_waiter_the_oldest() {
    let store = woken();
    assert!(!store.is_blocked(1));
    assert!(store.is_blocked(2));
}

#[test]
fn each_push_wakes_one_more() {
    let mut store = woken();
    assert_eq!(store.ask(0, push(b"q", b"j")), [stop(2)]);
    assert_eq!(store.reply(2, pop(b"q")), popped(2, b"i"));
    assert_eq!(store.reply(1, pop(b"q")), popped(1, b"j"));
}

#[test]
fn a_woken_waiter_that_takes_its_item_wakes_nobody() {
    let mut store = woken();
    assert_eq!(store.reply(1, pop(b"q")), popped(1, b"i"));
    assert!(store.is_blocked(2));
}

#[test]
fn when_the_woken_one_dies_the_next_is_woken() {
    let mut store = woken();
    assert_eq!(store.leave(1), [stop(2)]);
    assert_eq!(store.reply(2, pop(b"q")), popped(1, b"i"));
}

#[test]
fn when_the_woken_one_does_something_else_the_next_is_woken() {
    for request in [PING, CANCEL, get(b"q"), queue_len(b"q"), pop(b"other"), set(b"x", b"")] {
        let mut store = woken();
        assert!(store.ask(1, request).contains(&stop(2)), "{request:?}");
    }
}

#[test]
fn when_the_woken_one_blocks_elsewhere_the_next_is_woken() {
    for request in [wait(&[b"other"]), barrier(b"b", 2)] {
        let mut store = woken();
        assert_eq!(store.ask(1, request), [stop(2)], "{request:?}");
    }
}

#[test]
fn when_the_woken_ones_request_is_refused_the_next_is_woken() {
    let mut store = woken();
    let outputs = store.ask(1, set(SERVER_KEY, b""));
    assert!(outputs.contains(&stop(2)), "{outputs:?}");
}

#[test]
fn when_all_the_woken_die_the_last_one_is_woken() {
    let mut store = woken();
    store.tell(3, wait(&[b"x", b"q"]));
    store.leave(1);
    assert_eq!(store.leave(2), []);
    assert_eq!(store.ask(0, set(b"x", b"")), [stop(3)]);
}

#[test]
fn an_item_stolen_from_a_woken_waiter_leaves_it_an_empty_queue() {
    let mut store = woken();
    assert_eq!(store.reply(3, pop(b"q")), popped(1, b"i"));
    assert_eq!(store.reply(1, pop(b"q")), NOTHING_POPPED);
    assert!(store.is_blocked(2));
}

#[test]
fn after_a_steal_the_next_item_wakes_the_next_even_if_the_woken_one_is_in_no_hurry() {
    let mut store = woken();
    store.reply(3, pop(b"q"));
    assert_eq!(store.ask(0, push(b"q", b"j")), [stop(2)]);
    assert_eq!(store.reply(2, pop(b"q")), popped(1, b"j"));
    assert_eq!(store.reply(1, queue_len(b"q")), Reply::Number(0));
}

#[test]
fn a_steal_and_a_death_leave_nothing_behind() {
    let mut store = woken();
    store.reply(3, pop(b"q"));
    assert_eq!(store.leave(1), []);
    store.leave(2);
    assert_eq!(store.figures(), [0; 5]);
    store.tell(0, push(b"q", b"j"));
    assert_eq!(store.reply(0, queue_len(b"q")), Reply::Number(1));
}

#[test]
fn a_client_that_popped_once_is_not_woken_out_of_a_different_wait() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q"]));
    assert_eq!(store.ask(0, push(b"q", b"i")), [stop(1)]);
    assert_eq!(store.reply(1, pop(b"q")), popped(1, b"i"));
    store.tell(1, wait(&[b"B"]));
    store.tell(0, push(b"q", b"j"));
    assert!(store.is_blocked(1));
    assert_eq!(store.ask(0, set(b"B", b"v")), [stop(1)]);
    assert_eq!(store.reply(1, get(b"B")), value(b"v"));
}

#[test]
fn one_who_waits_for_more_than_the_queue_does_not_keep_others_from_the_item() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q", b"k"]));
    store.tell(2, wait(&[b"q"]));
    assert_eq!(store.ask(0, push(b"q", b"i")), [stop(2)]);
    assert_eq!(store.ask(0, set(b"k", b"")), [stop(1)]);
}

#[test]
fn a_queue_that_comes_and_goes_is_seen_by_a_wait_for_more() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q", b"k"]));
    store.tell(0, push(b"q", b"i"));
    store.reply(0, pop(b"q"));
    assert_eq!(store.ask(0, set(b"k", b"")), [stop(1)]);
}

#[test]
fn setting_a_key_of_a_queues_name_wakes_all_its_waiters() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q"]));
    store.tell(2, wait(&[b"q"]));
    assert_eq!(store.ask(0, set(b"q", b"v")), [stop(1), stop(2)]);
}

#[test]
fn a_client_that_dies_after_its_turn_does_not_wake_a_second_time() {
    let mut store = woken();
    store.reply(1, pop(b"q"));
    assert_eq!(store.leave(1), []);
    assert!(store.is_blocked(2));
}
