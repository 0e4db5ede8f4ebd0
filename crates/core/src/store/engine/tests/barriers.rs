//! Barriers: rounds of distinct arrivals that are still there. Rows W08 and W09 of the robustness page.

use super::*;

#[test]
fn a_barrier_lets_go_when_the_last_one_arrives() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 3));
    store.tell(2, barrier(b"b", 3));
    assert_eq!(store.ask(3, barrier(b"b", 3)), [stop(3), stop(1), stop(2)]);
}

#[test]
fn a_barrier_of_one_is_passed_at_once() {
    assert_eq!(Store::new().ask(1, barrier(b"b", 1)), [stop(1)]);
}

#[test]
fn a_second_round_starts_from_nobody() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 2));
    store.ask(2, barrier(b"b", 2));
    store.tell(1, barrier(b"b", 2));
    assert!(store.is_blocked(1));
    assert_eq!(store.ask(2, barrier(b"b", 2)), [stop(2), stop(1)]);
}

#[test]
fn one_who_times_out_and_comes_back_alone_does_not_pass() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 2));
    assert_eq!(store.ask(1, CANCEL), [canceled(1)]);
    store.tell(1, barrier(b"b", 2));
    assert!(store.is_blocked(1));
}

#[test]
fn one_who_dies_is_not_counted() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 2));
    store.leave(1);
    store.tell(2, barrier(b"b", 2));
    assert!(store.is_blocked(2));
    assert_eq!(store.ask(3, barrier(b"b", 2)), [stop(3), stop(2)]);
}

#[test]
fn one_who_leaves_leaves_the_others_waiting() {
    let mut store = Store::new();
    for client in [1, 2, 3] {
        store.tell(client, barrier(b"b", 4));
    }
    store.ask(2, CANCEL);
    store.tell(4, barrier(b"b", 4));
    assert_eq!(store.0.snapshot().blocked, 3);
    let outputs = store.ask(2, barrier(b"b", 4));
    for client in [1, 2, 3, 4] {
        assert!(outputs.contains(&stop(client)), "{client}: {outputs:?}");
    }
}

#[test]
fn cancel_after_the_barrier_was_passed_answers_both() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 2));
    let mut answers = store.ask(2, barrier(b"b", 2));
    answers.extend(store.ask(1, CANCEL));
    assert_eq!(answers, [stop(2), stop(1), canceled(1)]);
}

#[test]
fn different_world_sizes_of_one_key_do_not_mix() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 2));
    store.tell(2, barrier(b"b", 3));
    store.tell(3, barrier(b"b", 3));
    assert_eq!(store.ask(4, barrier(b"b", 2)), [stop(4), stop(1)]);
    assert_eq!(store.ask(5, barrier(b"b", 3)), [stop(5), stop(2), stop(3)]);
}

#[test]
fn different_keys_do_not_mix() {
    let mut store = Store::new();
    store.tell(1, barrier(b"a", 2));
    store.tell(2, barrier(b"b", 2));
    assert!(store.is_blocked(1) && store.is_blocked(2));
}

#[test]
fn a_world_size_below_one_is_refused_and_nobody_passes() {
    for world_size in [0, -1, i64::MIN] {
        let mut store = Store::new();
        store.tell(1, barrier(b"b", 2));
        let reason = Refusal::BadWorldSize { key: "b".into(), world_size };
        assert_eq!(store.refusal(2, barrier(b"b", world_size)), reason);
        assert!(store.is_blocked(1));
        assert!(!store.is_blocked(2));
    }
}

#[test]
fn a_world_larger_than_can_ever_come_is_waited_for() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", i64::MAX));
    assert!(store.is_blocked(1));
}

#[test]
fn writing_the_barriers_key_lets_nobody_go() {
    for request in [set(b"b", b""), push(b"b", b""), append(b"b", b""), multi_set(&[(b"b", b"")])] {
        let mut store = Store::new();
        store.tell(1, barrier(b"b", 2));
        store.tell(0, request);
        assert!(store.is_blocked(1), "{request:?}");
    }
}

#[test]
fn a_barrier_is_no_key() {
    let mut store = Store::new();
    store.tell(1, barrier(b"b", 2));
    assert_eq!(store.reply(0, check(&[b"b"])), Reply::Checked(false));
    store.ask(2, barrier(b"b", 2));
    assert_eq!(store.reply(0, check(&[b"b"])), Reply::Checked(false));
    assert_eq!(store.figures(), [0; 5]);
}
