//! Waits: what ends them, how long they take, and what they report at their timeout.

use std::time::Duration;

use rallypoint_store::{Awaited, Store, StoreError};
use rallypoint_testkit::{assert_blocked_for, fails_in_time, fails_within};

use crate::stores::Fixture;

const SHORT_TIMEOUT: Duration = Duration::from_millis(120);

/// Runs `wait` in another thread, calls `act` while that thread is blocked, and returns the result of `wait`.
fn while_waiting<T: Send>(wait: impl FnOnce() -> T + Send, act: impl FnOnce()) -> T {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(wait);
        assert_blocked_for(Duration::from_millis(50), &waiting);
        act();
        waiting.join().unwrap()
    })
}

/// Asserts that a timed-out wait reports which of its keys are present.
///
/// A server on a busy machine may reply after the timeout. Then the error must be an outage. The client's tests in
/// virtual time check that a reply before the timeout is used.
#[track_caller]
fn assert_reports_presence(fixture: &Fixture, error: &StoreError, present: &[bool]) {
    let Some(Awaited::Keys(Some(reported))) = error.awaited() else {
        assert!(fixture.has_server && error.is_outage(), "{error}");
        return;
    };
    assert!(reported == present, "{error}");
    let count = present.iter().filter(|is_present| **is_present).count();
    assert_eq!(error.missing_keys().len(), present.len() - count);
    let counts = format!("({count} of {} keys present", present.len());
    assert!(count == 0 || error.to_string().contains(&counts), "{error}");
}

pub(crate) fn get_waits_for_the_value(fixture: &Fixture) {
    let (waiter, other) = (fixture.client(), fixture.client());
    let got = while_waiting(|| waiter.get("k").unwrap(), || other.set("k", b"v").unwrap());
    assert_eq!(got, b"v");
}

pub(crate) fn multi_get_waits_for_the_last_value(fixture: &Fixture) {
    let (waiter, other) = (fixture.client(), fixture.client());
    other.set("a", b"1").unwrap();
    let got = while_waiting(
        || waiter.multi_get(&["c", "a", "b"]).unwrap(),
        || {
            other.set("b", b"2").unwrap();
            other.set("c", b"3").unwrap();
        },
    );
    assert_eq!(got, [b"3", b"1", b"2"]);
}

pub(crate) fn wait_ends_when_the_last_key_is_set(fixture: &Fixture) {
    let (waiter, other) = (fixture.client(), fixture.client());
    other.set("a", b"1").unwrap();
    waiter.wait(&["a", "a"]).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.wait(&["a", "b", "c", "b"]));
        assert_blocked_for(Duration::from_millis(50), &waiting);
        other.set("b", b"2").unwrap();
        assert_blocked_for(Duration::from_millis(50), &waiting);
        other.set("c", b"3").unwrap();
        waiting.join().unwrap().unwrap();
    });
}

pub(crate) fn every_operation_that_creates_a_key_ends_a_wait(fixture: &Fixture) {
    type Create = fn(&dyn Store);
    let operations: [(&str, Create); 5] = [
        ("set", |store| store.set("set", b"").unwrap()),
        ("add", |store| assert_eq!(store.add("add", 0).unwrap(), 0)),
        ("append", |store| store.append("append", b"x").unwrap()),
        ("compare_set", |store| assert_eq!(store.compare_set("compare_set", b"", b"x").unwrap(), b"x")),
        ("multi_set", |store| store.multi_set(&[("other", b""), ("multi_set", b"x")]).unwrap()),
    ];
    let (waiter, other) = (fixture.client(), fixture.client());
    for (key, create) in operations {
        while_waiting(|| waiter.wait(&[key]), || create(&*other)).unwrap();
    }
}

pub(crate) fn a_timed_out_wait_reports_which_keys_were_present(fixture: &Fixture) {
    let store = fixture.client();
    store.multi_set(&[("a", b"1"), ("c", b"3")]).unwrap();
    let error = fails_in_time(SHORT_TIMEOUT, || store.wait_for(&["a", "b", "c", "d"], Some(SHORT_TIMEOUT)));
    let context = error.context().unwrap();
    assert_eq!(context.op.unwrap().name(), "wait");
    assert!(context.waited >= SHORT_TIMEOUT, "{context:?}");
    assert_reports_presence(fixture, &error, &[true, false, true, false]);
    for missing in ["b", "d"] {
        assert!(error.missing_keys().iter().any(|key| key.ends_with(missing)), "{error}");
    }
}

pub(crate) fn a_timed_out_wait_for_20000_keys_reports_which_were_present(fixture: &Fixture) {
    let store = fixture.client();
    let names: Vec<_> = (0..20_000).map(|n| format!("many/{n}")).collect();
    let is_missing = |n: usize| [0, 300, 301, 8_191, 16_384].contains(&n) || n >= 19_998;
    let present = (0..names.len()).filter(|n| !is_missing(*n));
    store.multi_set(&present.map(|n| (names[n].as_str(), &b"1"[..])).collect::<Vec<_>>()).unwrap();
    let keys: Vec<_> = names.iter().map(String::as_str).collect();
    let timeout = Duration::from_secs(1);
    store.set_timeout(Some(timeout));
    type Wait = fn(&dyn Store, &[&str]) -> rallypoint_store::Result<()>;
    let waits: [Wait; 2] = [|store, keys| store.wait(keys), |store, keys| store.multi_get(keys).map(drop)];
    for wait in waits {
        let error = fails_within(timeout, timeout, || wait(&*store, &keys));
        assert_reports_presence(
            fixture,
            &error,
            &(0..names.len()).map(|n| !is_missing(n)).collect::<Vec<_>>(),
        );
    }
}

pub(crate) fn every_wait_ends_at_its_timeout(fixture: &Fixture) {
    let store = fixture.client();
    store.set("there", b"1").unwrap();
    store.set_timeout(Some(SHORT_TIMEOUT));
    type Wait = fn(&dyn Store) -> rallypoint_store::Result<()>;
    let waits: [(&str, Vec<bool>, Wait); 4] = [
        ("get", vec![false], |store| store.get("k").map(drop)),
        ("multi_get", vec![true, false], |store| store.multi_get(&["there", "k"]).map(drop)),
        ("wait", vec![false], |store| store.wait(&["k"])),
        ("wait", vec![true, false], |store| store.wait_for(&["there", "k"], Some(SHORT_TIMEOUT))),
    ];
    for (name, present, wait) in waits {
        let error = fails_in_time(SHORT_TIMEOUT, || wait(&*store));
        let context = error.context().unwrap();
        assert_eq!(context.op.unwrap().name(), name, "{error}");
        assert_reports_presence(fixture, &error, &present);
    }
}

pub(crate) fn a_timeout_changes_nothing_and_the_client_still_works(fixture: &Fixture) {
    let store = fixture.client();
    let before = store.num_keys().unwrap();
    for _ in 0..3 {
        fails_in_time(Duration::from_millis(20), || store.wait_for(&["k"], Some(Duration::from_millis(20))));
        assert_eq!(store.num_keys().unwrap(), before);
    }
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
    assert_eq!(store.add("n", 2).unwrap(), 2);
}

pub(crate) fn a_timeout_of_1_ns_suffices_for_a_present_key(fixture: &Fixture) {
    let store = fixture.client();
    store.set("k", b"v").unwrap();
    let error = store.wait_for(&["k", "never"], Some(Duration::from_nanos(1))).unwrap_err();
    assert_reports_presence(fixture, &error, &[true, false]);
    if let Err(error) = store.wait_for(&["k"], Some(Duration::from_nanos(1))) {
        assert!(fixture.has_server && error.is_outage(), "{error:?}");
    }
}

pub(crate) fn calls_without_a_timeout_wait_until_they_succeed(fixture: &Fixture) {
    let (waiter, other) = (fixture.client(), fixture.client());
    waiter.set_timeout(None);
    assert_eq!(waiter.timeout(), None);
    std::thread::scope(|scope| {
        let mut calls = vec![
            scope.spawn(|| waiter.get("k").map(drop)),
            scope.spawn(|| waiter.multi_get(&["k"]).map(drop)),
            scope.spawn(|| waiter.wait(&["k"])),
            scope.spawn(|| waiter.wait_for(&["k"], None)),
            scope.spawn(|| waiter.barrier("b", 2)),
            scope.spawn(|| waiter.barrier_for("b2", 2, None)),
        ];
        if fixture.has_queues {
            calls.push(scope.spawn(|| waiter.queue_pop("q").map(drop)));
        }
        for call in &calls {
            assert_blocked_for(Duration::from_millis(60), call);
        }
        // Operations that do not wait also work without a timeout.
        assert_eq!(waiter.add("n", 1).unwrap(), 1);
        other.set("k", b"v").unwrap();
        other.barrier("b", 2).unwrap();
        other.barrier("b2", 2).unwrap();
        if fixture.has_queues {
            other.queue_push("q", b"x").unwrap();
        }
        for call in calls {
            call.join().unwrap().unwrap();
        }
    });
}

pub(crate) fn a_deleted_key_is_waited_for_again(fixture: &Fixture) {
    let (waiter, other) = (fixture.client(), fixture.client());
    other.set("k", b"old").unwrap();
    assert_eq!(waiter.get("k").unwrap(), b"old");
    other.delete_key("k").unwrap();
    let got = while_waiting(|| waiter.get("k").unwrap(), || other.set("k", b"new").unwrap());
    assert_eq!(got, b"new");
}

pub(crate) fn one_set_wakes_all_waiters(fixture: &Fixture) {
    let clients: Vec<_> = (0..12).map(|_| fixture.client()).collect();
    let other = fixture.client();
    std::thread::scope(|scope| {
        let waits: Vec<_> = clients.iter().map(|client| scope.spawn(|| client.get("k").unwrap())).collect();
        assert_blocked_for(Duration::from_millis(50), &waits[0]);
        other.set("k", b"v").unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap(), b"v");
        }
    });
}

/// While another client repeatedly sets and deletes a key, a `get` returns a value that was set, or keeps waiting.
pub(crate) fn get_never_returns_a_value_that_was_never_set(fixture: &Fixture) {
    if !fixture.wakes_on_every_change {
        // Without these wakeups, every read of a `get` could find the key deleted, and the `get` would never return.
        return;
    }
    let (waiter, other) = (fixture.client(), fixture.client());
    for round in 0..100 {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.get("k").unwrap());
            while !waiting.is_finished() {
                other.set("k", b"v").unwrap();
                other.delete_key("k").unwrap();
            }
            assert_eq!(waiting.join().unwrap(), b"v", "round {round}");
        });
    }
}
