//! What a wait has seen is there for the read that follows it: row W02 of the robustness page.

use super::*;

/// Client 1 waits for `a` and `b`; `a` comes as `first` and goes again, then `b` comes.
fn waited(store: &mut Store) {
    store.tell(1, wait(&[b"a", b"b"]));
    store.tell(0, set(b"a", b"first"));
    store.reply(0, delete(b"a"));
    assert_eq!(store.ask(0, set(b"b", b"B")), [stop(1)]);
}

#[test]
fn a_get_after_a_wait_finds_a_key_deleted_meanwhile() {
    let mut store = Store::new();
    waited(&mut store);
    assert_eq!(store.reply(1, get(b"a")), value(b"first"));
}

#[test]
fn a_multi_get_after_a_wait_finds_a_key_deleted_meanwhile() {
    let mut store = Store::new();
    waited(&mut store);
    assert_eq!(store.reply(1, multi_get(&[b"b", b"a", b"c"])), values(&[b"B", b"first", b""]));
}

#[test]
fn a_get_after_a_wait_prefers_the_value_there_is_now() {
    let mut store = Store::new();
    waited(&mut store);
    store.tell(0, set(b"a", b"second"));
    assert_eq!(store.reply(1, get(b"a")), value(b"second"));
}

#[test]
fn a_key_present_when_the_wait_began_is_latched_too() {
    let mut store = Store::new();
    store.tell(0, set(b"a", b"A"));
    store.tell(1, wait(&[b"a", b"b"]));
    store.reply(0, delete(b"a"));
    assert_eq!(store.ask(0, set(b"b", b"B")), [stop(1)]);
    assert_eq!(store.reply(1, get(b"a")), value(b"A"));
}

#[test]
fn a_key_deleted_between_a_wait_answered_at_once_and_the_get_is_latched_too() {
    let mut store = Store::new();
    store.tell(0, set(b"a", b"A"));
    assert_eq!(store.reply(1, wait(&[b"a"])), Reply::Stop);
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(1, get(b"a")), value(b"A"));
}

#[test]
fn more_keys_than_are_looked_through_one_by_one_are_latched_too() {
    let mut store = Store::new();
    let names: Vec<String> = (0..100).map(|at| format!("key {at}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    store.tell(1, wait(&keys));
    for key in &keys {
        store.0.handle_request(id(0), set(key, key)).unwrap();
        store.0.handle_request(id(0), delete(key)).unwrap();
    }
    assert!(store.outputs().contains(&stop(1)));
    let asked = [&keys[..], &[b"never awaited", SERVER_KEY]].concat();
    let answered = [&keys[..], &[b"", b"identity"]].concat();
    assert_eq!(store.reply(1, multi_get(&asked)), values(&answered));
}

#[test]
fn a_latch_is_for_the_next_request_only() {
    let mut store = Store::new();
    waited(&mut store);
    store.reply(1, PING);
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn a_latch_serves_one_get() {
    let mut store = Store::new();
    waited(&mut store);
    assert_eq!(store.reply(1, get(b"a")), value(b"first"));
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn a_latch_is_its_waiters_own() {
    let mut store = Store::new();
    waited(&mut store);
    assert_eq!(store.reply(2, get(b"a")), value(b""));
}

#[test]
fn a_latch_does_not_make_a_key_present() {
    let mut store = Store::new();
    waited(&mut store);
    assert_eq!(store.reply(1, check(&[b"a"])), Reply::Checked(false));
}

#[test]
fn a_latch_does_not_answer_a_second_wait() {
    let mut store = Store::new();
    waited(&mut store);
    store.tell(1, wait(&[b"a"]));
    assert!(store.is_blocked(1));
}

#[test]
fn a_latch_does_not_take_part_in_a_compare_set() {
    let mut store = Store::new();
    waited(&mut store);
    assert_eq!(store.reply(1, cas(b"a", b"first", b"new")), value(b"first"));
    assert_eq!(store.value(b"a"), None);
}

#[test]
fn what_a_cancelled_wait_has_seen_is_forgotten() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a", b"b"]));
    store.tell(0, set(b"a", b"A"));
    store.reply(0, delete(b"a"));
    assert_eq!(store.ask(1, CANCEL), [canceled(1)]);
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn what_a_refused_wait_has_seen_is_forgotten() {
    let mut store = Store::with(Limits { awaited_per_client: 1, ..Limits::default() });
    store.tell(0, set(b"a", b"A"));
    store.refusal(1, wait(&[b"a", b"b", b"c"]));
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(1, get(b"a")), value(b""));
}

#[test]
fn a_latched_value_is_not_changed_by_an_append() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a", b"b"]));
    store.tell(0, append(b"a", b"1"));
    store.tell(0, append(b"a", b"2"));
    store.reply(0, delete(b"a"));
    assert_eq!(store.ask(0, set(b"b", b"")), [stop(1)]);
    assert_eq!(store.reply(1, get(b"a")), value(b"1"));
}

#[test]
fn of_one_key_named_twice_in_a_multi_set_the_last_value_is_latched() {
    let mut store = Store::new();
    store.tell(1, wait(&[b"a"]));
    assert_eq!(store.ask(0, multi_set(&[(b"a", b"never held"), (b"a", b"held")])), [stop(1)]);
    store.reply(0, delete(b"a"));
    assert_eq!(store.reply(1, get(b"a")), value(b"held"));
}

#[test]
fn what_idle_clients_have_seen_is_bounded_and_given_back() {
    let mut store = Store::with(Limits { latched_bytes: 1_000, ..Limits::default() });
    let large = [b'x'; 400];
    for client in 1..=5 {
        store.tell(0, set(b"k", &large));
        assert_eq!(store.reply(client, wait(&[b"k"])), Reply::Stop);
    }
    store.reply(0, delete(b"k"));
    let seen: Vec<_> = (1..=5).map(|client| store.reply(client, get(b"k")) == value(&large)).collect();
    assert_eq!(seen, [true, true, false, false, false]);
    // Those two have let go: there is room again.
    store.tell(0, set(b"k", &large));
    assert_eq!(store.reply(1, wait(&[b"k"])), Reply::Stop);
    store.reply(0, delete(b"k"));
    assert_eq!(store.reply(1, get(b"k")), value(&large));
}
