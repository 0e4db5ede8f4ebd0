//! Queues. On a store without queues, every queue operation fails with `Unsupported` and changes nothing.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_store::{Awaited, Failure, Result, StoreError};
use rallypoint_testkit::{CALL_TIMEOUT, assert_blocked_for, fails_in_time};

use crate::stores::Fixture;

/// Returns whether the store supports queues. If it does not, asserts that all queue operations are unsupported.
fn supports_queues(fixture: &Fixture) -> bool {
    if !fixture.has_queues {
        let store = fixture.client();
        let before = store.num_keys().unwrap();
        let assert_unsupported = |result: Result<()>| {
            let error = result.unwrap_err();
            assert!(matches!(error.failure(), Some(Failure::Unsupported(_))), "{error:?}");
            assert!(error.to_string().contains("does not support queue_"), "{error}");
        };
        assert_unsupported(store.queue_push("q", b"x"));
        assert_unsupported(store.queue_pop("q").map(drop));
        assert_unsupported(store.try_queue_pop("q").map(drop));
        assert_unsupported(store.queue_len("q").map(drop));
        assert_eq!(store.num_keys().unwrap(), before);
    }
    fixture.has_queues
}

fn assert_empty(result: Result<Vec<u8>>) {
    let error = result.unwrap_err();
    assert!(matches!(&error, StoreError::QueueEmpty { key } if key.ends_with('q')), "{error:?}");
}

pub(crate) fn items_are_popped_in_the_order_in_which_they_were_pushed(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let (store, other) = (fixture.client(), fixture.client());
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

pub(crate) fn try_queue_pop_reports_an_empty_queue(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let store = fixture.client();
    assert_empty(store.try_queue_pop("q"));
    store.queue_push("q", b"x").unwrap();
    store.try_queue_pop("q").unwrap();
    assert_empty(store.try_queue_pop("q"));
    store.queue_push("q", b"y").unwrap();
    assert_eq!(store.try_queue_pop("q").unwrap(), b"y");
}

pub(crate) fn a_pop_waits_for_an_item(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let (consumer, producer) = (fixture.client(), fixture.client());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| consumer.queue_pop("q").unwrap());
        assert_blocked_for(Duration::from_millis(50), &waiting);
        producer.queue_push("other", b"not this one").unwrap();
        assert_blocked_for(Duration::from_millis(50), &waiting);
        producer.queue_push("q", b"x").unwrap();
        assert_eq!(waiting.join().unwrap(), b"x");
    });
    assert_eq!(producer.queue_len("other").unwrap(), 1);
}

pub(crate) fn a_timed_out_pop_takes_no_item(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let (store, other) = (fixture.client(), fixture.client());
    let timeout = Duration::from_millis(120);
    store.set_timeout(Some(timeout));
    let error = fails_in_time(timeout, || store.queue_pop("q"));
    assert_eq!(error.context().unwrap().op.unwrap().name(), "queue_pop");
    let Some(Awaited::Keys(present)) = error.awaited() else { panic!("{error:?}") };
    assert!(present.as_deref().is_none_or(|present| present == [false]), "{error}");
    other.queue_push("q", b"x").unwrap();
    assert_eq!(other.queue_len("q").unwrap(), 1);
    store.set_timeout(Some(CALL_TIMEOUT));
    assert_eq!(store.queue_pop("q").unwrap(), b"x");
}

pub(crate) fn each_item_goes_to_exactly_one_consumer(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    const CONSUMERS: usize = 4;
    const ITEMS: usize = 200;
    let taken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..CONSUMERS {
            let (store, taken) = (fixture.client(), &taken);
            scope.spawn(move || {
                let mut items = Vec::new();
                loop {
                    match store.queue_pop("q").unwrap() {
                        item if item.is_empty() => break,
                        item => items.push(String::from_utf8(item).unwrap().parse::<usize>().unwrap()),
                    }
                }
                assert!(items.is_sorted(), "out of order: {items:?}");
                taken.lock().unwrap().extend(items);
            });
        }
        let producer = fixture.client();
        for item in 0..ITEMS {
            producer.queue_push("q", item.to_string().as_bytes()).unwrap();
        }
        for _ in 0..CONSUMERS {
            producer.queue_push("q", b"").unwrap();
        }
    });
    let taken = taken.into_inner().unwrap();
    assert_eq!(taken.len(), ITEMS);
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), (0..ITEMS).collect());
}

/// Two clients wait for items, and two other clients take items without waiting. A woken client that finds no item must
/// wait again instead of failing with `QueueEmpty`.
pub(crate) fn a_pop_that_loses_its_item_to_another_client_keeps_waiting(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    const ITEMS: usize = 400;
    const END: &[u8] = b"end";
    let (taken, consuming) = (AtomicUsize::new(0), AtomicUsize::new(2));
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..2)
            .map(|_| {
                let (store, taken, consuming) = (fixture.client(), &taken, &consuming);
                scope.spawn(move || {
                    let ended = loop {
                        match store.queue_pop("q") {
                            Ok(item) if item == END => break Ok(()),
                            Ok(_) => drop(taken.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => break Err(error),
                        }
                    };
                    consuming.fetch_sub(1, Ordering::Relaxed);
                    ended
                })
            })
            .collect();
        for _ in 0..2 {
            let (store, taken, consuming) = (fixture.client(), &taken, &consuming);
            scope.spawn(move || {
                while consuming.load(Ordering::Relaxed) > 0 {
                    match store.try_queue_pop("q") {
                        Ok(item) if item == END => store.queue_push("q", END).unwrap(),
                        Ok(_) => drop(taken.fetch_add(1, Ordering::Relaxed)),
                        error => assert_empty(error),
                    }
                }
            });
        }
        let producer = fixture.client();
        for _ in 0..ITEMS {
            producer.queue_push("q", b"x").unwrap();
        }
        rallypoint_testkit::eventually("all items were taken", || {
            taken.load(Ordering::Relaxed) == ITEMS || consuming.load(Ordering::Relaxed) == 0
        });
        producer.queue_push("q", END).unwrap();
        producer.queue_push("q", END).unwrap();
        for consumer in consumers {
            consumer.join().unwrap().unwrap();
        }
    });
    assert_eq!(taken.into_inner(), ITEMS);
}

pub(crate) fn a_queue_is_not_a_key(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let store = fixture.client();
    let before = store.num_keys().unwrap();
    store.queue_push("q", b"x").unwrap();
    assert_eq!(store.num_keys().unwrap(), before);
    assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
    assert!(!store.delete_key("q").unwrap());
    assert_eq!(store.queue_len("q").unwrap(), 1);
    store.set("q", b"a key").unwrap();
    assert_eq!(store.get("q").unwrap(), b"a key");
    assert_eq!(store.queue_pop("q").unwrap(), b"x");
    assert!(store.delete_key("q").unwrap());
}

pub(crate) fn a_queue_with_items_is_present_for_check_and_wait(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let (store, other) = (fixture.client(), fixture.client());
    assert!(!store.check(&["q"]).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.wait(&["q"]));
        assert_blocked_for(Duration::from_millis(50), &waiting);
        other.queue_push("q", b"x").unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(store.check(&["q"]).unwrap());
    store.queue_pop("q").unwrap();
    assert!(!store.check(&["q"]).unwrap());
}

/// As in torch, a value under the same key ends the wait, and the pop fails because the queue has no item.
pub(crate) fn a_key_with_the_name_of_the_queue_ends_a_pop(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    let store = fixture.client();
    store.set("q", b"a key").unwrap();
    assert_empty(store.queue_pop("q"));
    assert_eq!(store.get("q").unwrap(), b"a key");
    store.queue_push("q", b"x").unwrap();
    assert_eq!(store.queue_pop("q").unwrap(), b"x");
}

/// Several threads of one client wait for the same queue, and each item wakes one of them.
pub(crate) fn pops_of_several_threads_of_one_client_lose_no_wakeup(fixture: &Fixture) {
    if !supports_queues(fixture) {
        return;
    }
    const THREADS: usize = 6;
    const ITEMS: usize = 300;
    let (store, producer) = (fixture.client(), fixture.client());
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while store.queue_pop("q").unwrap() == b"x" {
                    taken.fetch_add(1, Ordering::Relaxed);
                    store.add("n", 1).unwrap();
                }
            });
        }
        // The producer pushes an item only after the previous one was taken, so that the threads are blocked when the
        // item arrives. If a wakeup is lost, the item stays in the queue and the test fails.
        for item in 1..=ITEMS {
            producer.queue_push("q", b"x").unwrap();
            rallypoint_testkit::eventually("the item was taken", || taken.load(Ordering::Relaxed) == item);
        }
        for _ in 0..THREADS {
            producer.queue_push("q", b"end").unwrap();
        }
    });
    assert_eq!(producer.queue_len("q").unwrap(), 0);
}
