//! Queues: order, waiting, and that each item goes to one taker. A store without queues says so and changes nothing.

use std::time::Duration;

use rallypoint_store::{Result, StoreError};

use crate::clock::{goes_on_for, times_out_after};
use crate::stores::World;

/// Whether the world has queues. If it hasn't, every operation on them must say so.
fn has_queues(world: &World) -> bool {
    if !world.queues {
        let store = world.client();
        let before = store.num_keys().unwrap();
        let refused = |result: Result<()>| {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::Unsupported { .. }), "{error:?}");
            assert!(error.to_string().contains("does not support queue_"), "{error}");
        };
        refused(store.queue_push("q", b"x"));
        refused(store.queue_pop("q").map(drop));
        refused(store.try_queue_pop("q").map(drop));
        refused(store.queue_len("q").map(drop));
        assert_eq!(store.num_keys().unwrap(), before);
    }
    world.queues
}

fn assert_empty(result: Result<Vec<u8>>) {
    let error = result.unwrap_err();
    assert!(matches!(&error, StoreError::QueueEmpty { key } if key.ends_with('q')), "{error:?}");
}

pub(crate) fn items_come_out_in_the_order_they_went_in(world: &World) {
    if !has_queues(world) {
        return;
    }
    let (store, other) = (world.client(), world.client());
    let items = [&b"first"[..], b"", b"\0\xff", b"last"];
    for item in items {
        store.queue_push("q", item).unwrap();
    }
    assert_eq!(other.queue_len("q").unwrap(), 4);
    assert_eq!(other.queue_pop("q").unwrap(), items[0]);
    assert_eq!(store.try_queue_pop("q").unwrap(), items[1]);
    assert_eq!(other.try_queue_pop("q").unwrap(), items[2]);
    assert_eq!(store.queue_pop("q").unwrap(), items[3]);
    assert_eq!(store.queue_len("q").unwrap(), 0);
    assert_eq!(store.queue_len("never").unwrap(), 0);
}

pub(crate) fn a_pop_that_does_not_wait_says_when_the_queue_is_empty(world: &World) {
    if !has_queues(world) {
        return;
    }
    let store = world.client();
    assert_empty(store.try_queue_pop("q"));
    store.queue_push("q", b"x").unwrap();
    store.try_queue_pop("q").unwrap();
    assert_empty(store.try_queue_pop("q"));
    store.queue_push("q", b"y").unwrap();
    assert_eq!(store.try_queue_pop("q").unwrap(), b"y");
}

pub(crate) fn a_pop_waits_for_an_item(world: &World) {
    if !has_queues(world) {
        return;
    }
    let (consumer, producer) = (world.client(), world.client());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| consumer.queue_pop("q").unwrap());
        goes_on_for(Duration::from_millis(50), &waiting);
        producer.queue_push("other", b"not this one").unwrap();
        goes_on_for(Duration::from_millis(50), &waiting);
        producer.queue_push("q", b"x").unwrap();
        assert_eq!(waiting.join().unwrap(), b"x");
    });
    assert_eq!(producer.queue_len("other").unwrap(), 1);
}

pub(crate) fn a_pop_that_times_out_takes_nothing(world: &World) {
    if !has_queues(world) {
        return;
    }
    let (store, other) = (world.client(), world.client());
    let timeout = Duration::from_millis(120);
    store.set_timeout(timeout);
    let error = times_out_after(timeout, || store.queue_pop("q"));
    let StoreError::Timeout { op, keys, .. } = &error else { panic!("{error:?}") };
    assert_eq!((op.name(), keys.present.as_deref()), ("queue_pop", Some(&[false][..])));
    other.queue_push("q", b"x").unwrap();
    assert_eq!(other.queue_len("q").unwrap(), 1);
    assert_eq!(store.queue_pop("q").unwrap(), b"x");
}

pub(crate) fn a_queue_is_not_a_key(world: &World) {
    if !has_queues(world) {
        return;
    }
    let store = world.client();
    let before = store.num_keys().unwrap();
    store.queue_push("q", b"x").unwrap();
    assert_eq!(store.num_keys().unwrap(), before);
    assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
    assert!(!store.delete_key("q").unwrap());
    assert_eq!(store.queue_len("q").unwrap(), 1);
    store.set("q", b"a key beside it").unwrap();
    assert_eq!(store.get("q").unwrap(), b"a key beside it");
    assert_eq!(store.queue_pop("q").unwrap(), b"x");
    assert!(store.delete_key("q").unwrap());
}

pub(crate) fn check_and_wait_see_a_queue_that_has_items(world: &World) {
    if !has_queues(world) {
        return;
    }
    let (store, other) = (world.client(), world.client());
    assert!(!store.check(&["q"]).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&["q"]));
        goes_on_for(Duration::from_millis(50), &waiting);
        other.queue_push("q", b"x").unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(store.check(&["q"]).unwrap());
    store.queue_pop("q").unwrap();
    assert!(!store.check(&["q"]).unwrap());
}

/// As torch has it: the key ends the wait, and then there is nothing to take.
pub(crate) fn a_pop_ends_at_a_key_of_the_name_of_the_queue(world: &World) {
    if !has_queues(world) {
        return;
    }
    let store = world.client();
    store.set("q", b"a key").unwrap();
    assert_empty(store.queue_pop("q"));
    assert_eq!(store.get("q").unwrap(), b"a key");
    store.queue_push("q", b"x").unwrap();
    assert_eq!(store.queue_pop("q").unwrap(), b"x");
}
