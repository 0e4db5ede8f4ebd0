//! Clients come, go, and leave their slots to others.

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
fn a_new_client_in_an_old_slot_inherits_no_wait() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"k"]));
    let newer = ClientId::new(1, 2);
    store.0.handle_request(newer, PING);
    assert_eq!(store.outputs(), [Output::Reply { client: newer, reply: Reply::Nonce(1) }]);
    assert_eq!(store.ask(0, set(b"k", b"")), []);
}

#[test]
fn a_new_client_in_an_old_slot_inherits_no_latch() {
    let mut store = Store::new();
    store.tell(0, set(b"k", b"v"));
    store.reply(1, wait(&[b"k"]));
    store.reply(0, delete(b"k"));
    let newer = ClientId::new(1, 2);
    store.0.handle_request(newer, get(b"k"));
    assert_eq!(store.outputs(), [Output::Reply { client: newer, reply: value(b"") }]);
}

#[test]
fn a_new_client_in_an_old_slot_ends_the_old_ones_claim() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"q"]));
    store.tell(2, wait(&[b"q"]));
    assert_eq!(store.ask(0, push(b"q", b"i")), [stop(1)]);
    store.0.handle_request(ClientId::new(1, 2), PING);
    assert!(store.outputs().contains(&stop(2)));
}

#[test]
fn a_late_disconnect_of_the_old_does_not_touch_the_new() {
    let mut store = Store::new();
    let newer = ClientId::new(1, 2);
    store.0.handle_request(newer, wait(&[b"k"]));
    store.0.handle_disconnect(id(1));
    assert!(store.0.is_blocked(newer));
    assert!(!store.is_blocked(1));
}

#[test]
fn a_disconnect_of_one_who_never_asked_is_nothing() {
    let mut store = Store::new();
    assert_eq!(store.leave(77), []);
}

#[test]
fn a_client_is_known_by_its_slot_and_which_of_those_who_had_it() {
    let client = ClientId::new(3, 9);
    assert_eq!((client.index(), client.generation(), client.to_string()), (3, 9, "3.9".to_string()));
}
