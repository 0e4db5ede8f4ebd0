//! Barriers: a store's own, which serves round after round, and the generic one that all other stores have.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_store::{Awaited, StoreError};
use rallypoint_testkit::{SOON, fails_in_time};

use crate::stores::World;

const SHORT: Duration = Duration::from_millis(120);

/// Lets `n` clients meet at a barrier. Whoever passes must find that all had come.
fn meet(world: &World, key: &str, n: usize) {
    let come = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..n {
            let (store, come) = (world.client(), &come);
            scope.spawn(move || {
                come.fetch_add(1, Ordering::SeqCst);
                store.barrier(key, n as u64).unwrap();
                assert_eq!(come.load(Ordering::SeqCst), n, "passed too early");
            });
        }
    });
}

pub(crate) fn nobody_passes_before_the_last_has_come(world: &World) {
    for (n, key) in [(2, "two"), (5, "five"), (5, "other"), (12, "twelve")] {
        meet(world, key, n);
    }
}

pub(crate) fn a_barrier_of_one_passes_at_once(world: &World) {
    let store = world.client();
    store.barrier("alone", 1).unwrap();
    store.barrier_for("alone too", 1, Some(SOON)).unwrap();
}

pub(crate) fn a_barrier_of_nobody_is_refused_and_changes_nothing(world: &World) {
    let store = world.client();
    let before = store.num_keys().unwrap();
    let error = store.barrier("b", 0).unwrap_err();
    assert!(matches!(&error, StoreError::InvalidArgument(_)), "{error:?}");
    assert_eq!(store.num_keys().unwrap(), before);
    assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
}

pub(crate) fn a_barrier_that_times_out_says_so_in_time(world: &World) {
    let store = world.client();
    let error = fails_in_time(SHORT, || store.barrier_for("b", 20, Some(SHORT)));
    match error.awaited() {
        Some(Awaited::Arrivals(world_size)) if world.own_barrier => {
            let context = error.context().unwrap();
            assert_eq!((context.keys[0].as_str(), *world_size), ("b", 20));
            assert!(context.waited >= SHORT);
        }
        Some(Awaited::Keys(_)) if !world.own_barrier => {
            assert!(error.missing_keys()[0].ends_with("b/last_member"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // The store's own time-out serves where none is given.
    store.set_timeout(Some(SHORT));
    fails_in_time(SHORT, || store.barrier("other", 20));
    store.set_timeout(Some(SOON));
    store.set("k", b"v").unwrap();
    assert_eq!(store.get("k").unwrap(), b"v");
}

pub(crate) fn an_own_barrier_serves_round_after_round(world: &World) {
    if !world.own_barrier {
        return;
    }
    const N: usize = 4;
    const ROUNDS: usize = 25;
    let come = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..N {
            let (store, come) = (world.client(), &come);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    come.fetch_add(1, Ordering::SeqCst);
                    store.barrier("b", N as u64).unwrap();
                    let come = come.load(Ordering::SeqCst);
                    assert!(come >= round * N, "{come} had come when round {round} ended");
                }
            });
        }
    });
}

pub(crate) fn whoever_left_an_own_barrier_does_not_count(world: &World) {
    if !world.own_barrier {
        return;
    }
    let (a, b) = (world.client(), world.client());
    fails_in_time(SHORT, || a.barrier_for("b", 2, Some(SHORT)));
    // Neither the one who left nor the same one coming again makes two.
    fails_in_time(SHORT, || a.barrier_for("b", 2, Some(SHORT)));
    fails_in_time(SHORT, || b.barrier_for("b", 2, Some(SHORT)));
    meet(world, "b", 2);
}

pub(crate) fn an_own_barrier_is_not_a_key(world: &World) {
    if !world.own_barrier {
        return;
    }
    let store = world.client();
    store.set("b", b"a key of that name").unwrap();
    let before = store.num_keys().unwrap();
    fails_in_time(SHORT, || store.barrier_for("b", 2, Some(SHORT)));
    meet(world, "b", 2);
    assert_eq!(store.num_keys().unwrap(), before);
    assert_eq!(store.get("b").unwrap(), b"a key of that name");
}

pub(crate) fn a_generic_barrier_uses_the_keys_that_torch_uses(world: &World) {
    if world.own_barrier {
        return;
    }
    meet(world, "b", 3);
    let store = world.client();
    assert_eq!(store.get("b/num_members").unwrap(), b"3");
    assert_eq!(store.get("b/last_member").unwrap(), b"1");
    // Used again it lets everybody through, as torch's does.
    store.barrier_for("b", 3, Some(SOON)).unwrap();
}
