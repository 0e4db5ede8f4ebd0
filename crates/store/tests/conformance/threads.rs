//! Concurrent threads, on one client and on several.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rallypoint_store::Store;
use rallypoint_testkit::assert_blocked_for;

use crate::stores::Fixture;

pub(crate) fn threads_of_one_client_lose_no_update(fixture: &Fixture) {
    const THREADS: i64 = 16;
    const ADDS: i64 = 20;
    let store = fixture.client();
    let sum = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, sum) = (&store, &sum);
            scope.spawn(move || {
                for n in 0..ADDS {
                    sum.fetch_add(store.add("n", 1).unwrap() as usize, Ordering::Relaxed);
                    let (key, value) = (format!("{thread}/{n}"), n.to_string());
                    store.set(&key, value.as_bytes()).unwrap();
                    assert_eq!(store.get(&key).unwrap(), value.as_bytes());
                    assert!(store.check(&[&key]).unwrap());
                }
            });
        }
    });
    let total = (THREADS * ADDS) as usize;
    assert_eq!(store.get("n").unwrap(), total.to_string().as_bytes());
    // Every number from 1 to `total` was returned once.
    assert_eq!(sum.into_inner(), total * (total + 1) / 2);
}

pub(crate) fn concurrent_appends_are_all_kept(fixture: &Fixture) {
    const THREADS: usize = 6;
    const APPENDS: usize = 15;
    let shared = fixture.client();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (own, shared) = (fixture.client(), &shared);
            scope.spawn(move || {
                for n in 0..APPENDS {
                    let store: &dyn Store = if n % 2 == 0 { &*own } else { &**shared };
                    store.append("l", format!("{thread}.{n} ").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = String::from_utf8(shared.get("l").unwrap()).unwrap();
    let mut items: Vec<_> = text.split_whitespace().collect();
    for thread in 0..THREADS {
        let of_thread: Vec<_> = items.iter().filter(|item| item.starts_with(&format!("{thread}."))).collect();
        let in_order: Vec<_> = (0..APPENDS).map(|n| format!("{thread}.{n}")).collect();
        assert_eq!(
            of_thread,
            in_order.iter().map(String::as_str).collect::<Vec<_>>().iter().collect::<Vec<_>>()
        );
    }
    items.sort_unstable();
    items.dedup();
    assert_eq!(items.len(), THREADS * APPENDS);
}

/// While several threads of a client are blocked, one in each kind of wait, another thread can still use the client.
pub(crate) fn a_waiting_thread_does_not_block_other_threads(fixture: &Fixture) {
    let store = fixture.client();
    std::thread::scope(|scope| {
        let mut blocked = vec![
            scope.spawn(|| store.get("late").map(drop)),
            scope.spawn(|| store.wait(&["late"])),
            scope.spawn(|| store.multi_get(&["late", "n"]).map(drop)),
            scope.spawn(|| store.barrier("b", 2)),
        ];
        if fixture.has_queues {
            blocked.push(scope.spawn(|| store.queue_pop("q").map(drop)));
        }
        assert_blocked_for(Duration::from_millis(50), &blocked[0]);
        for n in 1..=50 {
            assert_eq!(store.add("n", 1).unwrap(), n);
            store.set("k", b"v").unwrap();
            assert_eq!(store.get("k").unwrap(), b"v");
        }
        assert!(blocked.iter().all(|thread| !thread.is_finished()), "a wait ended early");
        store.set("late", b"v").unwrap();
        store.barrier("b", 2).unwrap();
        if fixture.has_queues {
            store.queue_push("q", b"x").unwrap();
        }
        for thread in blocked {
            thread.join().unwrap().unwrap();
        }
    });
}
