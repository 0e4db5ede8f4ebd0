//! Tests of barriers: a round counts each connected client once.

use super::*;

#[test]
fn the_last_arrival_releases_all_clients() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 3));
    store.run(2, barrier(b"b", 3));
    assert_eq!(store.send(3, barrier(b"b", 3)), [stop(3), stop(1), stop(2)]);
}

#[test]
fn a_barrier_with_world_size_1_does_not_block() {
    assert_eq!(Store::new().send(1, barrier(b"b", 1)), [stop(1)]);
}

#[test]
fn a_second_round_starts_empty() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 2));
    store.send(2, barrier(b"b", 2));
    store.run(1, barrier(b"b", 2));
    assert!(store.is_blocked(1));
    assert_eq!(store.send(2, barrier(b"b", 2)), [stop(2), stop(1)]);
}

#[test]
fn a_client_that_cancels_and_arrives_again_counts_once() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 2));
    assert_eq!(store.send(1, CANCEL), [canceled(1)]);
    store.run(1, barrier(b"b", 2));
    assert!(store.is_blocked(1));
}

#[test]
fn a_disconnected_client_is_not_counted() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 2));
    store.disconnect(1);
    store.run(2, barrier(b"b", 2));
    assert!(store.is_blocked(2));
    assert_eq!(store.send(3, barrier(b"b", 2)), [stop(3), stop(2)]);
}

#[test]
fn a_canceled_arrival_leaves_the_other_clients_blocked() {
    let mut store = Store::new();
    for client in [1, 2, 3] {
        store.run(client, barrier(b"b", 4));
    }
    store.send(2, CANCEL);
    store.run(4, barrier(b"b", 4));
    assert_eq!(store.0.snapshot().blocked, 3);
    let outputs = store.send(2, barrier(b"b", 4));
    for client in [1, 2, 3, 4] {
        assert!(outputs.contains(&stop(client)), "{client}: {outputs:?}");
    }
}

#[test]
fn a_cancel_after_the_release_gets_a_reply_of_its_own() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 2));
    let mut replies = store.send(2, barrier(b"b", 2));
    replies.extend(store.send(1, CANCEL));
    assert_eq!(replies, [stop(2), stop(1), canceled(1)]);
}

#[test]
fn barriers_with_different_world_sizes_are_independent() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 2));
    store.run(2, barrier(b"b", 3));
    store.run(3, barrier(b"b", 3));
    assert_eq!(store.send(4, barrier(b"b", 2)), [stop(4), stop(1)]);
    assert_eq!(store.send(5, barrier(b"b", 3)), [stop(5), stop(2), stop(3)]);
}

#[test]
fn barriers_with_different_keys_are_independent() {
    let mut store = Store::new();
    store.run(1, barrier(b"a", 2));
    store.run(2, barrier(b"b", 2));
    assert!(store.is_blocked(1) && store.is_blocked(2));
}

#[test]
fn a_world_size_below_1_is_refused_and_releases_no_client() {
    for world_size in [0, -1, i64::MIN] {
        let mut store = Store::new();
        store.run(1, barrier(b"b", 2));
        let reason = Refusal::BadWorldSize { key: "b".into(), world_size };
        assert_eq!(store.refusal(2, barrier(b"b", world_size)), reason);
        assert!(store.is_blocked(1));
        assert!(!store.is_blocked(2));
    }
}

#[test]
fn the_largest_world_size_is_accepted() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", i64::MAX));
    assert!(store.is_blocked(1));
}

#[test]
fn a_write_to_the_key_of_a_barrier_releases_no_client() {
    for request in [set(b"b", b""), push(b"b", b""), append(b"b", b""), multi_set(&[(b"b", b"")])] {
        let mut store = Store::new();
        store.run(1, barrier(b"b", 2));
        store.run(0, request);
        assert!(store.is_blocked(1), "{request:?}");
    }
}

#[test]
fn a_barrier_is_not_a_key() {
    let mut store = Store::new();
    store.run(1, barrier(b"b", 2));
    assert_eq!(store.reply(0, check(&[b"b"])), Reply::Checked(false));
    store.send(2, barrier(b"b", 2));
    assert_eq!(store.reply(0, check(&[b"b"])), Reply::Checked(false));
    assert_eq!(store.counts(), [0; 5]);
}
