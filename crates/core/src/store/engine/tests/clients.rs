//! Clients connect, disconnect, and leave their numbers to others.

use super::*;

#[test]
fn a_request_while_blocked_is_refused_and_the_wait_stands() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    assert_eq!(store.refusal(1, set(b"x", b"")), Refusal::Blocked { op: Op::Set });
    assert_eq!(store.value(b"x"), None);
    assert_eq!(store.ask(0, set(b"k", b"")), [stop(1)]);
}

#[test]
fn a_new_client_with_an_old_number_inherits_no_wait() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    store.leave(1);
    assert_eq!(store.reply(1, PING), Reply::Nonce(1));
    assert_eq!(store.ask(0, set(b"k", b"")), []);
}

#[test]
fn a_new_client_with_an_old_number_inherits_no_latch() {
    let mut store = Store::new();
    store.tell(0, set(b"k", b"v"));
    store.reply(1, wait(&[b"k"]));
    store.reply(0, delete(b"k"));
    store.leave(1);
    assert_eq!(store.reply(1, get(b"k")), value(b""));
}

#[test]
fn a_disconnect_ends_the_claim_of_a_woken_client() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q"]));
    store.tell(2, wait(&[b"q"]));
    assert_eq!(store.ask(0, push(b"q", b"i")), [stop(1)]);
    assert_eq!(store.leave(1), [stop(2)]);
}

#[test]
fn a_disconnect_of_an_unknown_client_does_nothing() {
    let mut store = Store::new();
    assert_eq!(store.leave(77), []);
}
