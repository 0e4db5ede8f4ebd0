//! Time-outs: each is kept, whatever stands in the way, is spent asleep, and says what was waited for.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rallypoint_core::wire::Op;
use rallypoint_store::{Awaited, Cancellation, FileStore, Result, Store, StoreError};
use rallypoint_testkit::fails_in_time;

use super::bed::{Bed, Held, SOON, push, record, times_out_after, times_out_within};

const TIMEOUT: Duration = Duration::from_millis(250);

type Operation = (&'static str, fn(&FileStore) -> Result<()>);

/// Those that only read, on keys that are there.
const READING: [Operation; 6] = [
    ("get", |store| store.get("k").map(drop)),
    ("check", |store| store.check(&["k"]).map(drop)),
    ("wait", |store| store.wait(&["k"])),
    ("multi_get", |store| store.multi_get(&["k", "k"]).map(drop)),
    ("num_keys", |store| store.num_keys().map(drop)),
    ("list_keys", |store| store.list_keys().map(drop)),
];

/// Those that write.
const WRITING: [Operation; 6] = [
    ("delete_key", |store| store.delete_key("k").map(drop)),
    ("set", |store| store.set("k", b"w")),
    ("add", |store| store.add("n", 1).map(drop)),
    ("compare_set", |store| store.compare_set("k", b"v", b"w").map(drop)),
    ("append", |store| store.append("k", b"w")),
    ("multi_set", |store| store.multi_set(&[("k", b"w")])),
];

#[test]
fn a_get_of_one_second_takes_one_second() {
    let bed = Bed::new();
    let store = bed.options().timeout(Duration::from_secs(1)).open().unwrap();
    let error = times_out_after(Duration::from_secs(1), || store.get("absent"));
    let said = error.to_string();
    assert_eq!(error.context().unwrap().op, Some(Op::Get), "{said}");
    assert!(said.contains("absent") && said.contains(&bed.path().display().to_string()), "{said}");
}

#[test]
fn a_wait_that_ends_says_which_keys_were_there() {
    let bed = Bed::new();
    let store = bed.open();
    store.set("there", b"1").unwrap();
    let wait = times_out_after(TIMEOUT, || store.wait_for(&["absent", "there", "absent2"], Some(TIMEOUT)));
    assert_eq!(wait.missing_keys(), ["absent", "absent2"]);
    assert_eq!(wait.awaited(), Some(&Awaited::Keys(Some(vec![false, true, false]))));
    assert!(wait.context().unwrap().waited >= TIMEOUT);
}

#[test]
fn waiting_for_many_keys_is_as_idle_as_for_one() {
    let bed = Bed::new();
    let store = bed.open();
    let names: Vec<_> = (0..20_000).map(|n| format!("key {n}")).collect();
    let mut keys: Vec<_> = names.iter().map(String::as_str).collect();
    store.multi_set(&keys.iter().map(|key| (*key, &b"1"[..])).collect::<Vec<_>>()).unwrap();
    keys.push("absent");
    let second = Duration::from_secs(1);
    // The first and the last look at all keys are half of the work in a debug build.
    let error = times_out_within(second, 0.5, || store.wait_for(&keys, Some(second)));
    assert_eq!(error.missing_keys(), ["absent"]);
}

#[test]
fn a_get_returns_once_another_sets_the_key() {
    static LOOKED: AtomicU32 = AtomicU32::new(0);
    let count = OnWait(|| {
        LOOKED.fetch_add(1, Ordering::SeqCst);
    });
    let bed = Bed::new();
    let (one, two) = (bed.options().cancellation(Some(Arc::new(count) as _)).open().unwrap(), bed.open());
    one.set_timeout(None);
    std::thread::scope(|scope| {
        let get = scope.spawn(|| one.get("k"));
        // It has looked in vain, more than once, and waits.
        let deadline = Instant::now() + SOON;
        while LOOKED.load(Ordering::SeqCst) < 3 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        two.set("k", b"v").unwrap();
        assert_eq!(get.join().unwrap().unwrap(), b"v");
    });
}

#[test]
fn a_writer_does_not_wait_longer_than_its_time_out_for_a_held_lock() {
    for (name, operation) in WRITING {
        let bed = Bed::new();
        let store = bed.open();
        store.set("k", b"v").unwrap();
        store.set_timeout(Some(TIMEOUT));
        let before = bed.bytes();
        let held = Held::shared(&bed.path());
        let error = times_out_after(TIMEOUT, || operation(&store));
        assert!(
            matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
            "{name}: {error}"
        );
        drop(held);
        assert_eq!(bed.bytes(), before, "{name}");
        operation(&store).unwrap();
    }
}

#[test]
fn a_reader_does_not_wait_longer_than_its_time_out_for_a_held_lock() {
    for (name, operation) in READING {
        let bed = Bed::with(&record("/k", "v"));
        let store = bed.open();
        store.set_timeout(Some(TIMEOUT));
        // What this store has not read yet, so that it needs the lock.
        bed.open().set("new", b"1").unwrap();
        let held = Held::exclusive(&bed.path());
        let error = times_out_after(TIMEOUT, || operation(&store));
        assert!(
            matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
            "{name}: {error}"
        );
        drop(held);
        operation(&store).unwrap();
    }
}

/// Runs a function each time a call waits, and never cancels the call.
#[derive(Debug)]
struct OnWait(fn());

impl Cancellation for OnWait {
    fn is_cancelled(&self) -> bool {
        false
    }

    fn on_wait(&self) {
        (self.0)();
    }
}

#[test]
fn a_reader_that_has_read_all_there_is_needs_no_lock() {
    let bed = Bed::new();
    let store = bed.open();
    store.set("k", b"v").unwrap();
    let _held = Held::exclusive(&bed.path());
    for (name, operation) in READING {
        operation(&store).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn opening_keeps_its_time_out_too() {
    let bed = Bed::with(b"");
    let _held = Held::shared(&bed.path());
    let error = times_out_after(TIMEOUT, || bed.options().timeout(TIMEOUT).open());
    assert!(
        matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
        "{error}"
    );
}

#[test]
fn one_thread_that_waits_for_the_lock_does_not_hold_up_another() {
    let bed = Bed::new();
    let store = bed.open();
    store.set("k", b"v").unwrap();
    let held = Held::exclusive(&bed.path());
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| store.set("slow", b"1"));
        let error = times_out_after(TIMEOUT, || store.wait_for(&["absent"], Some(TIMEOUT)));
        assert!(error.awaited().is_some(), "{error}");
        drop(held);
        slow.join().unwrap().unwrap();
    });
}

#[test]
fn an_unlinked_file_is_waited_for_and_then_an_error_in_time() {
    let names = READING.iter().chain(&WRITING[..1]);
    for (name, operation) in names {
        let bed = Bed::with(&record("/k", "v"));
        let store = bed.open();
        store.set_timeout(Some(TIMEOUT));
        fs::remove_file(bed.path()).unwrap();
        let error = times_out_after(TIMEOUT, || operation(&store));
        assert!(
            matches!(error, StoreError::FileTimeout { obstacle: "there is no such file", .. }),
            "{name}: {error}"
        );
        assert!(!bed.path().exists(), "{name} must not make the file");
    }
}

#[test]
fn an_unlinked_file_is_an_error_within_a_twentieth_of_two_seconds() {
    let bed = Bed::new();
    let store = bed.options().timeout(Duration::from_secs(2)).open().unwrap();
    fs::remove_file(bed.path()).unwrap();
    times_out_after(Duration::from_secs(2), || store.get("k"));
}

#[test]
fn set_add_and_compare_set_make_the_file_anew_as_torchs_do() {
    for (name, operation) in &WRITING[1..] {
        let bed = Bed::new();
        let store = bed.open();
        store.set("old", b"1").unwrap();
        fs::remove_file(bed.path()).unwrap();
        operation(&store).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bed.path().exists(), "{name}");
        assert!(!store.check(&["old"]).unwrap(), "{name} must not remember what was in the file before");
    }
}

#[test]
fn a_file_that_comes_back_in_time_is_read() {
    let bed = Bed::new();
    let store = bed.open();
    fs::remove_file(bed.path()).unwrap();
    std::thread::scope(|scope| {
        let get = scope.spawn(|| store.get("k"));
        bed.open().set("k", b"v").unwrap();
        assert_eq!(get.join().unwrap().unwrap(), b"v");
    });
}

#[test]
fn a_folder_that_is_missing_is_waited_for() {
    let bed = Bed::new();
    let path = bed.path().join("store");
    let options = rallypoint_store::FileStoreOptions::new(&path).timeout(TIMEOUT);
    let error = times_out_after(TIMEOUT, || options.clone().open());
    assert!(matches!(error, StoreError::FileTimeout { obstacle: "there is no such file", .. }), "{error}");
    fs::create_dir(bed.path()).unwrap();
    options.open().unwrap();
}

#[test]
fn a_file_that_takes_long_to_read_makes_no_call_longer_and_is_read_on_by_the_next() {
    let bed = Bed::new();
    let store = bed.open();
    let records: Vec<_> = (0..1_000_000).flat_map(|n| record(&format!("/{n}"), "v")).collect();
    push(&bed.path(), &records);
    let timeout = Duration::from_millis(50);
    let error = fails_in_time(timeout, || store.with_timeout(Some(timeout)).get("999999"));
    assert!(error.to_string().contains("too long to be read in that time"), "{error}");
    assert_eq!(store.get("999999").unwrap(), b"v");
}
