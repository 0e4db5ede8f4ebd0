//! Who is counted in the file and who removes it: torch's rule, byte for byte.

use std::fs;
use std::time::Duration;

use rallypoint_store::{Failure, FileStore, Store, StoreError};

use super::bed::{Bed, Held, push, record, times_out_after};

fn open(bed: &Bed, num_workers: impl Into<Option<u64>>) -> FileStore {
    bed.options().num_workers(num_workers).open().unwrap()
}

/// The records torch leaves when so many instances open the file and then close it, but for the last.
fn counted(opens: i64) -> Vec<(String, String)> {
    let count = |name: &str, count: i64| (name.to_owned(), count.to_string());
    let mut records: Vec<_> = (1..=opens).map(|n| count("refcount/", n)).collect();
    for closed in 1..opens {
        records.extend([count("cleanup/", closed), count("refcount/", opens - closed)]);
    }
    records
}

#[test]
fn the_last_of_all_workers_removes_the_file() {
    for (num_workers, instances) in [(0, 1), (1, 1), (1, 3), (2, 2), (2, 3), (3, 3)] {
        let bed = Bed::new();
        let mut stores: Vec<_> = (0..instances).map(|_| open(&bed, num_workers)).collect();
        while stores.len() > 1 {
            stores.pop();
            assert!(bed.path().exists());
        }
        assert_eq!(bed.records(), counted(instances), "{num_workers} workers, {instances} instances");
        stores.pop();
        assert!(!bed.path().exists(), "{num_workers} workers, {instances} instances");
    }
}

#[test]
fn without_a_number_of_workers_or_with_some_still_to_come_the_file_stays() {
    for num_workers in [None, Some(2)] {
        let bed = Bed::new();
        drop(open(&bed, num_workers));
        let records = [("refcount/", "1"), ("cleanup/", "1"), ("refcount/", "0")];
        assert_eq!(bed.records(), records.map(|(key, value)| (key.into(), value.into())), "{num_workers:?}");
    }
}

#[test]
fn workers_that_come_one_after_the_other_count_too() {
    let bed = Bed::new();
    drop(open(&bed, 2));
    let second = open(&bed, 2);
    assert!(bed.path().exists());
    drop(second);
    assert!(!bed.path().exists());
}

#[test]
fn the_number_of_whoever_is_last_decides() {
    let bed = Bed::new();
    let (removes, keeps) = (open(&bed, 0), open(&bed, None));
    drop(keeps);
    drop(removes);
    assert!(!bed.path().exists());
    let (removes, keeps) = (open(&bed, 0), open(&bed, None));
    drop(removes);
    drop(keeps);
    assert!(bed.path().exists());
}

#[test]
fn closing_a_store_whose_file_is_gone_does_not_make_it_anew() {
    let bed = Bed::new();
    let (closed, dropped) = (open(&bed, 5), open(&bed, 5));
    fs::remove_file(bed.path()).unwrap();
    closed.close().unwrap();
    drop(dropped);
    assert!(!bed.path().exists());
}

#[test]
fn a_store_does_not_sign_out_of_a_file_it_did_not_sign_in_to() {
    let bed = Bed::new();
    let old = open(&bed, 1);
    fs::remove_file(bed.path()).unwrap();
    let new = open(&bed, 1);
    new.set("k", b"v").unwrap();
    let before = bed.bytes();
    drop(old);
    assert_eq!(bed.bytes(), before);
    drop(new);
    assert!(!bed.path().exists());
}

#[test]
fn a_file_that_was_cut_in_place_is_read_anew_and_not_signed_out_of() {
    let bed = Bed::new();
    let store = open(&bed, 1);
    store.set("k", b"old").unwrap();
    fs::write(bed.path(), record("/l", "new")).unwrap();
    assert!(!store.check(&["k"]).unwrap());
    assert_eq!(store.get("l").unwrap(), b"new");
    drop(store);
    assert_eq!(bed.bytes(), record("/l", "new"));
}

#[test]
fn closing_cuts_off_a_torn_tail_first() {
    let bed = Bed::new();
    let store = open(&bed, 2);
    push(&bed.path(), b"\x02\0");
    store.close().unwrap();
    assert_eq!(bed.records().len(), 3);
}

#[test]
fn closing_keeps_its_time_out_and_says_what_held_it_up() {
    let bed = Bed::new();
    let timeout = Duration::from_millis(300);
    let store = bed.options().timeout(timeout).open().unwrap();
    let _held = Held::shared(&bed.path());
    let error = times_out_after(timeout, || store.close());
    assert!(
        matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
        "{error}"
    );
}

#[test]
fn a_count_that_is_no_number_is_refused_and_left_alone() {
    let bed = Bed::with(&record("refcount/", "abc"));
    let before = bed.bytes();
    let error = bed.options().open().unwrap_err();
    assert!(
        matches!(error.failure(), Some(Failure::NotANumber { held, .. }) if **held == *b"abc")
            && error.context().unwrap().keys == ["refcount/"]
    );
    assert_eq!(bed.bytes(), before);
}
