//! Barriers: the native ones of some stores, which are reusable, and the generic one of all other stores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_store::{Awaited, StoreError};
use rallypoint_testkit::{CALL_TIMEOUT, fails_in_time};

use crate::stores::Fixture;

const SHORT_TIMEOUT: Duration = Duration::from_millis(120);

/// Runs `n` clients through a barrier. Asserts that no client passes before all have arrived.
fn pass_barrier(fixture: &Fixture, key: &str, n: usize) {
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..n {
            let (store, arrived) = (fixture.client(), &arrived);
            scope.spawn(move || {
                arrived.fetch_add(1, Ordering::SeqCst);
                store.barrier(key, n as u64).unwrap();
                assert_eq!(arrived.load(Ordering::SeqCst), n, "passed too early");
            });
        }
    });
}

pub(crate) fn no_client_passes_a_barrier_before_the_last_client_arrives(fixture: &Fixture) {
    for (n, key) in [(2, "two"), (5, "five"), (5, "other"), (12, "twelve")] {
        pass_barrier(fixture, key, n);
    }
}

pub(crate) fn a_barrier_with_world_size_1_passes_immediately(fixture: &Fixture) {
    let store = fixture.client();
    store.barrier("alone", 1).unwrap();
    store.barrier_for("alone too", 1, Some(CALL_TIMEOUT)).unwrap();
}

pub(crate) fn a_barrier_with_world_size_0_is_refused_and_changes_nothing(fixture: &Fixture) {
    let store = fixture.client();
    let before = store.num_keys().unwrap();
    let error = store.barrier("b", 0).unwrap_err();
    assert!(matches!(&error, StoreError::InvalidArgument(_)), "{error:?}");
    assert_eq!(store.num_keys().unwrap(), before);
    assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
}

pub(crate) fn a_barrier_fails_at_its_timeout(fixture: &Fixture) {
    let store = fixture.client();
    let error = fails_in_time(SHORT_TIMEOUT, || store.barrier_for("b", 20, Some(SHORT_TIMEOUT)));
    match error.awaited() {
        Some(Awaited::Arrivals(world_size)) if fixture.has_native_barrier => {
            let context = error.context().unwrap();
            assert_eq!((context.keys[0].as_str(), *world_size), ("b", 20));
            assert!(context.waited >= SHORT_TIMEOUT);
        }
        Some(Awaited::Keys(_)) if !fixture.has_native_barrier => {
            assert!(error.missing_keys()[0].ends_with("b/last_member"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // `barrier` uses the timeout of the store.
    store.set_timeout(Some(SHORT_TIMEOUT));
    fails_in_time(SHORT_TIMEOUT, || store.barrier("other", 20));
    store.set_timeout(Some(CALL_TIMEOUT));
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
}

pub(crate) fn a_native_barrier_is_reusable(fixture: &Fixture) {
    if !fixture.has_native_barrier {
        return;
    }
    const N: usize = 4;
    const ROUNDS: usize = 25;
    let arrived = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..N {
            let (store, arrived) = (fixture.client(), &arrived);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    store.barrier("b", N as u64).unwrap();
                    let arrived = arrived.load(Ordering::SeqCst);
                    assert!(arrived >= round * N, "{arrived} had arrived when round {round} ended");
                }
            });
        }
    });
}

pub(crate) fn a_native_barrier_does_not_count_an_arrival_that_timed_out(fixture: &Fixture) {
    if !fixture.has_native_barrier {
        return;
    }
    let (a, b) = (fixture.client(), fixture.client());
    fails_in_time(SHORT_TIMEOUT, || a.barrier_for("b", 2, Some(SHORT_TIMEOUT)));
    // After the timed-out arrival, neither the same client nor another client passes the barrier alone.
    fails_in_time(SHORT_TIMEOUT, || a.barrier_for("b", 2, Some(SHORT_TIMEOUT)));
    fails_in_time(SHORT_TIMEOUT, || b.barrier_for("b", 2, Some(SHORT_TIMEOUT)));
    pass_barrier(fixture, "b", 2);
}

pub(crate) fn a_native_barrier_is_not_a_key(fixture: &Fixture) {
    if !fixture.has_native_barrier {
        return;
    }
    let store = fixture.client();
    store.set("b", b"a key").unwrap();
    let before = store.num_keys().unwrap();
    fails_in_time(SHORT_TIMEOUT, || store.barrier_for("b", 2, Some(SHORT_TIMEOUT)));
    pass_barrier(fixture, "b", 2);
    assert_eq!(store.num_keys().unwrap(), before);
    assert_eq!(store.get("b").unwrap(), b"a key");
}

pub(crate) fn a_generic_barrier_uses_torchs_keys(fixture: &Fixture) {
    if fixture.has_native_barrier {
        return;
    }
    pass_barrier(fixture, "b", 3);
    let store = fixture.client();
    assert_eq!(store.get("b/num_members").unwrap(), b"3");
    assert_eq!(store.get("b/last_member").unwrap(), b"1");
    // A second use does not wait, as in torch.
    store.barrier_for("b", 3, Some(CALL_TIMEOUT)).unwrap();
}
