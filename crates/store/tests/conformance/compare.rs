//! Compare-and-set: all outcomes, and atomicity.

use std::time::Duration;

use rallypoint_store::{Exchange, Store};
use rallypoint_testkit::fails_in_time;

use crate::stores::Fixture;

/// The stored value, the expected value, the desired value, the value that torch's `compare_set` returns, the outcome
/// of `compare_exchange`, and the value that is stored afterwards.
type Case = (Option<&'static str>, &'static str, &'static str, &'static str, Exchange, Option<&'static str>);

fn cases() -> Vec<Case> {
    let mismatch = |value: &str| Exchange::Mismatch(value.as_bytes().to_vec());
    vec![
        (None, "", "new", "new", Exchange::Stored, Some("new")),
        (None, "", "", "", Exchange::Stored, Some("")),
        // As in torch, `compare_set` returns `expected` although the key is absent and nothing is stored.
        (None, "x", "new", "x", Exchange::Absent, None),
        (None, "x", "", "x", Exchange::Absent, None),
        (Some("y"), "y", "new", "new", Exchange::Stored, Some("new")),
        (Some("y"), "y", "", "", Exchange::Stored, Some("")),
        (Some("y"), "y", "y", "y", Exchange::Stored, Some("y")),
        (Some("y"), "x", "new", "y", mismatch("y"), Some("y")),
        (Some("y"), "", "new", "y", mismatch("y"), Some("y")),
        (Some(""), "", "new", "new", Exchange::Stored, Some("new")),
        (Some(""), "x", "new", "", mismatch(""), Some("")),
    ]
}

fn prepare(store: &dyn Store, initial: Option<&str>) {
    match initial {
        Some(value) => store.set("c", value.as_bytes()).unwrap(),
        None => drop(store.delete_key("c").unwrap()),
    }
}

fn assert_stored(store: &dyn Store, expected: Option<&str>, case: &Case) {
    assert_eq!(store.check(&["c"]).unwrap(), expected.is_some(), "{case:?}");
    if let Some(value) = expected {
        assert_eq!(store.get("c").unwrap(), value.as_bytes(), "{case:?}");
    }
}

pub(crate) fn compare_set_returns_what_torch_returns(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    for case in cases() {
        let (initial, expected, desired, returned, _, after) = case.clone();
        prepare(&*other, initial);
        let value = store.compare_set("c", expected.as_bytes(), desired.as_bytes()).unwrap();
        assert_eq!(value, returned.as_bytes(), "{case:?}");
        assert_stored(&*other, after, &case);
    }
}

pub(crate) fn compare_exchange_distinguishes_all_outcomes(fixture: &Fixture) {
    let (store, other) = (fixture.client(), fixture.client());
    for case in cases() {
        let (initial, expected, desired, _, outcome, after) = case.clone();
        prepare(&*other, initial);
        let exchange = store.compare_exchange("c", expected.as_bytes(), desired.as_bytes()).unwrap();
        assert_eq!(exchange, outcome, "{case:?}");
        assert_stored(&*other, after, &case);
    }
}

pub(crate) fn compare_exchange_of_a_value_for_itself_distinguishes_absent_from_stored(fixture: &Fixture) {
    let store = fixture.client();
    assert_eq!(store.compare_exchange("c", b"x", b"x").unwrap(), Exchange::Absent);
    assert!(!store.check(&["c"]).unwrap());
    store.set("c", b"x").unwrap();
    assert_eq!(store.compare_exchange("c", b"x", b"x").unwrap(), Exchange::Stored);
    assert_eq!(store.compare_exchange("c", b"w", b"w").unwrap(), Exchange::Mismatch(b"x".to_vec()));
}

/// Each successful exchange increments the number that the previous one stored. If two threads succeeded with the same
/// expected number, the final number would be too small.
pub(crate) fn exactly_one_thread_wins_each_exchange(fixture: &Fixture) {
    const THREADS: u32 = 4;
    const WINS: u32 = 25;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let store = fixture.client();
            scope.spawn(move || {
                let (mut current, mut wins) = (Vec::new(), 0);
                while wins < WINS {
                    let number: u32 = String::from_utf8(current.clone()).unwrap().parse().unwrap_or(0);
                    let next = (number + 1).to_string().into_bytes();
                    match store.compare_exchange("c", &current, &next).unwrap() {
                        Exchange::Stored => {
                            wins += 1;
                            current = next;
                        }
                        Exchange::Mismatch(value) => current = value,
                        Exchange::Absent => panic!("no client deletes the key"),
                    }
                }
            });
        }
    });
    assert_eq!(fixture.client().get("c").unwrap(), (THREADS * WINS).to_string().as_bytes());
}

pub(crate) fn a_failed_compare_set_wakes_no_waiter(fixture: &Fixture) {
    let (waiter, other) = (fixture.client(), fixture.client());
    let timeout = Duration::from_millis(150);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fails_in_time(timeout, || waiter.wait_for(&["c"], Some(timeout))));
        while !waiting.is_finished() {
            assert_eq!(other.compare_set("c", b"expected", b"desired").unwrap(), b"expected");
        }
        let error = waiting.join().unwrap();
        assert!(error.awaited().is_some(), "{error:?}");
    });
    assert!(!other.check(&["c"]).unwrap());
}

/// `compare_set` returns the same value whether it stored `desired` or found it already stored. A caller that uses the
/// key as a lock needs the difference.
pub(crate) fn an_unexpected_value_that_equals_the_desired_one_is_a_mismatch(fixture: &Fixture) {
    let (first, second) = (fixture.client(), fixture.client());
    assert_eq!(first.compare_exchange("lock", b"", b"taken").unwrap(), Exchange::Stored);
    assert_eq!(
        second.compare_exchange("lock", b"", b"taken").unwrap(),
        Exchange::Mismatch(b"taken".to_vec())
    );
    assert_eq!(first.compare_set("lock", b"", b"taken").unwrap(), b"taken");
}
