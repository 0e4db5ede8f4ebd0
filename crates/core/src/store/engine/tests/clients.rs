//! Tests of blocked clients, disconnects, and reused client ids.

use super::*;

#[test]
fn a_request_of_a_blocked_client_is_refused_and_its_wait_continues() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k"]));
    assert_eq!(store.refusal(1, set(b"x", b"")), Refusal::Blocked { op: Op::Set });
    assert_eq!(store.value(b"x"), None);
    assert_eq!(store.send(0, set(b"k", b"")), [stop(1)]);
}

#[test]
fn a_client_with_a_reused_id_inherits_no_wait() {
    let mut store = Store::new();
    store.run(1, wait(&[b"k"]));
    store.disconnect(1);
    assert_eq!(store.reply(1, PING), Reply::Nonce(1));
    assert_eq!(store.send(0, set(b"k", b"")), []);
}

#[test]
fn a_client_with_a_reused_id_inherits_no_latch() {
    let mut store = Store::new();
    store.run(0, set(b"k", b"v"));
    store.reply(1, wait(&[b"k"]));
    store.reply(0, delete(b"k"));
    store.disconnect(1);
    assert_eq!(store.reply(1, get(b"k")), value(b""));
}

#[test]
fn a_disconnect_ends_the_claim_of_a_woken_client() {
    let mut store = Store::new();
    store.run(1, wait(&[b"q"]));
    store.run(2, wait(&[b"q"]));
    assert_eq!(store.send(0, push(b"q", b"i")), [stop(1)]);
    assert_eq!(store.disconnect(1), [stop(2)]);
}

#[test]
fn a_disconnect_of_an_unknown_client_does_nothing() {
    let mut store = Store::new();
    assert_eq!(store.disconnect(77), []);
}
