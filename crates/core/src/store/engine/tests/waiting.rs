//! Waiting: who is woken, by what, and when. Rows W01, W03 to W07 and W11 of the robustness page.

use super::*;

#[test]
fn a_wait_for_present_keys_is_answered_at_once() {
    let mut store = Store::new();
    store.tell(0, multi_set(&[(b"a", b""), (b"b", b"")]));
    assert_eq!(store.reply(1, wait(&[b"a", b"b", b"a"])), Reply::Stop);
}

#[test]
fn a_wait_is_answered_when_the_last_of_its_keys_comes() {
    let mut store = Store::new();
    store.tell(0, set(b"there", b""));
    store.tell(1, wait(&[b"a", b"there", b"b"]));
    assert!(store.is_blocked(1));
    store.tell(0, set(b"b", b""));
    assert_eq!(store.ask(0, set(b"a", b"")), [stop(1)]);
    assert!(!store.is_blocked(1));
}

#[test]
fn every_way_of_making_a_key_wakes() {
    for request in [
        set(b"k", b""),
        cas(b"k", b"", b"v"),
        add(b"k", 0),
        append(b"k", b""),
        multi_set(&[(b"other", b""), (b"k", b"")]),
        push(b"k", b""),
    ] {
        let mut store = Store::new();
        store.tell(1, wait(&[b"k"]));
        let outputs = store.ask(0, request);
        assert!(outputs.contains(&stop(1)), "{request:?}: {outputs:?}");
    }
}

#[test]
fn a_failed_compare_set_on_a_missing_key_wakes_nobody() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    assert_eq!(store.reply(0, cas(b"k", b"x", b"v")), value(b"x"));
    assert!(store.is_blocked(1));
}

#[test]
fn a_compare_set_that_makes_the_awaited_key_wakes() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    let made = Output::Reply { client: id(0), reply: value(b"v") };
    assert_eq!(store.ask(0, cas(b"k", b"", b"v")), [made, stop(1)]);
}

#[test]
fn reading_and_deleting_wake_nobody() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    for request in [get(b"k"), check(&[b"k"]), delete(b"k"), multi_get(&[b"k"]), pop(b"k"), queue_len(b"k")] {
        store.reply(0, request);
    }
    assert!(store.is_blocked(1));
}

#[test]
fn all_who_wait_for_a_key_are_woken_oldest_first() {
    let mut store = Store::new();
    for client in [3, 1, 2] {
        store.tell(client, wait(&[b"k"]));
    }
    assert_eq!(store.ask(0, set(b"k", b"v")), [stop(3), stop(1), stop(2)]);
}

#[test]
fn a_key_named_twice_is_waited_for_once_it_comes() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k", b"k", b"k"]));
    assert_eq!(store.ask(0, set(b"k", b"v")), [stop(1)]);
}

#[test]
fn a_wait_whose_keys_come_and_go_is_still_answered() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a", b"b"]));
    store.tell(0, set(b"a", b""));
    store.reply(0, delete(b"a"));
    assert_eq!(store.ask(0, set(b"b", b"")), [stop(1)]);
}

#[test]
fn a_multi_set_wakes_only_after_all_of_it_is_there() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a"]));
    assert_eq!(store.ask(0, multi_set(&[(b"a", b"1"), (b"b", b"2")])), [stop(1)]);
    assert_eq!(store.reply(1, multi_get(&[b"a", b"b"])), values(&[b"1", b"2"]));
}

#[test]
fn two_waits_one_after_the_other_get_one_answer_each() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a"]));
    assert_eq!(store.ask(0, set(b"a", b"")), [stop(1)]);
    store.tell(1, wait(&[b"b"]));
    assert_eq!(store.ask(0, set(b"a", b"")), []);
    assert_eq!(store.ask(0, set(b"b", b"")), [stop(1)]);
}

// ---- cancel ----

#[test]
fn cancel_without_a_wait_is_answered() {
    assert_eq!(Store::new().ask(0, CANCEL), [canceled(0)]);
}

#[test]
fn cancel_of_a_wait_answers_once_and_leaves_no_registration() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a", b"b"]));
    assert_eq!(store.ask(1, CANCEL), [canceled(1)]);
    assert_eq!(store.figures(), [0; 5]);
    assert_eq!(store.ask(0, multi_set(&[(b"a", b""), (b"b", b"")])), []);
}

#[test]
fn cancel_wait_after_wake_up_answers_both() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a"]));
    let mut answers = store.ask(0, set(b"a", b""));
    answers.extend(store.ask(1, CANCEL));
    assert_eq!(answers, [stop(1), canceled(1)]);
}

#[test]
fn after_a_cancel_the_client_can_wait_again() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a"]));
    store.ask(1, CANCEL);
    store.tell(1, wait(&[b"b"]));
    assert_eq!(store.ask(0, set(b"a", b"")), []);
    assert_eq!(store.ask(0, set(b"b", b"")), [stop(1)]);
}

#[test]
fn cancel_leaves_those_who_wait_for_the_same_keys() {
    let mut store = Store::new();
    for client in [1, 2, 3] {
        store.tell(client, wait(&[b"k"]));
    }
    store.ask(2, CANCEL);
    assert_eq!(store.ask(0, set(b"k", b"")), [stop(1), stop(3)]);
}

// ---- going away ----

#[test]
fn a_waiter_that_is_gone_is_not_woken_and_the_others_are() {
    let mut store = Store::new();
    for client in [1, 2, 3] {
        store.tell(client, wait(&[b"k"]));
    }
    assert_eq!(store.leave(1), []);
    assert_eq!(store.leave(3), []);
    assert_eq!(store.ask(0, set(b"k", b"")), [stop(2)]);
}

#[test]
fn a_setter_that_is_gone_has_woken_all_the_same() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    store.0.handle_request(id(0), set(b"k", b"")).unwrap();
    store.0.handle_disconnect(id(0));
    assert_eq!(store.outputs(), [stop(1)]);
}

#[test]
fn a_waiter_that_is_gone_is_in_no_register() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a", b"b", b"c"]));
    store.tell(2, wait(&[b"a"]));
    assert_eq!(store.0.snapshot().awaited, 4);
    store.leave(1);
    assert_eq!((store.0.snapshot().awaited, store.0.snapshot().blocked), (1, 1));
}
