//! Tests of the numbers of open and closed instances in the file, and of when the file is deleted. Our stores write the
//! same records as torch's.

use std::fs;
use std::time::Duration;

use rallypoint_store::{Failure, FileStore, Store, StoreError};

use super::fixture::{LockHolder, TestFile, append_bytes, record, times_out_after};

fn open(file: &TestFile, num_workers: impl Into<Option<u64>>) -> FileStore {
    file.options().num_workers(num_workers).open().unwrap()
}

/// Returns the records that torch writes when this number of instances open the file and all but the last close it.
fn count_records(opens: i64) -> Vec<(String, String)> {
    let count = |name: &str, count: i64| (name.to_owned(), count.to_string());
    let mut records: Vec<_> = (1..=opens).map(|n| count("refcount/", n)).collect();
    for closed in 1..opens {
        records.extend([count("cleanup/", closed), count("refcount/", opens - closed)]);
    }
    records
}

#[test]
fn the_last_instance_to_close_deletes_the_file_if_all_workers_have_closed_it() {
    for (num_workers, instances) in [(0, 1), (1, 1), (1, 3), (2, 2), (2, 3), (3, 3)] {
        let file = TestFile::new();
        let mut stores: Vec<_> = (0..instances).map(|_| open(&file, num_workers)).collect();
        while stores.len() > 1 {
            stores.pop();
            assert!(file.path().exists());
        }
        assert_eq!(file.records(), count_records(instances), "{num_workers} workers, {instances} instances");
        stores.pop();
        assert!(!file.path().exists(), "{num_workers} workers, {instances} instances");
    }
}

#[test]
fn the_file_stays_without_a_worker_count_or_before_all_workers_have_closed_it() {
    for num_workers in [None, Some(2)] {
        let file = TestFile::new();
        drop(open(&file, num_workers));
        let records = [("refcount/", "1"), ("cleanup/", "1"), ("refcount/", "0")];
        assert_eq!(file.records(), records.map(|(key, value)| (key.into(), value.into())), "{num_workers:?}");
    }
}

#[test]
fn workers_that_open_the_file_one_after_the_other_are_all_counted() {
    let file = TestFile::new();
    drop(open(&file, 2));
    let second = open(&file, 2);
    assert!(file.path().exists());
    drop(second);
    assert!(!file.path().exists());
}

#[test]
fn the_worker_count_of_the_last_open_instance_decides_whether_the_file_is_deleted() {
    let file = TestFile::new();
    let (removes, keeps) = (open(&file, 0), open(&file, None));
    drop(keeps);
    drop(removes);
    assert!(!file.path().exists());
    let (removes, keeps) = (open(&file, 0), open(&file, None));
    drop(removes);
    drop(keeps);
    assert!(file.path().exists());
}

#[test]
fn closing_a_store_does_not_recreate_a_deleted_file() {
    let file = TestFile::new();
    let (closed, dropped) = (open(&file, 5), open(&file, 5));
    fs::remove_file(file.path()).unwrap();
    closed.close().unwrap();
    drop(dropped);
    assert!(!file.path().exists());
}

#[test]
fn a_store_does_not_decrement_the_count_of_a_file_that_replaced_its_own() {
    let file = TestFile::new();
    let old = open(&file, 1);
    fs::remove_file(file.path()).unwrap();
    let new = open(&file, 1);
    new.set("k", b"v").unwrap();
    let before = file.bytes();
    drop(old);
    assert_eq!(file.bytes(), before);
    drop(new);
    assert!(!file.path().exists());
}

#[test]
fn a_rewritten_file_is_read_again_and_its_count_is_not_decremented() {
    let file = TestFile::new();
    let store = open(&file, 1);
    store.set("k", b"old").unwrap();
    fs::write(file.path(), record("/l", "new")).unwrap();
    assert!(!store.check(&["k"]).unwrap());
    assert_eq!(store.get("l").unwrap(), b"new");
    drop(store);
    assert_eq!(file.bytes(), record("/l", "new"));
}

#[test]
fn closing_truncates_a_torn_record_first() {
    let file = TestFile::new();
    let store = open(&file, 2);
    append_bytes(&file.path(), b"\x02\0");
    store.close().unwrap();
    assert_eq!(file.records().len(), 3);
}

#[test]
fn closing_times_out_while_another_process_has_the_lock() {
    let file = TestFile::new();
    let timeout = Duration::from_millis(300);
    let store = file.options().timeout(timeout).open().unwrap();
    let _lock = LockHolder::shared(&file.path());
    let error = times_out_after(timeout, || store.close());
    assert!(
        matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
        "{error}"
    );
}

#[test]
fn a_count_that_is_not_a_number_is_refused_and_left_unchanged() {
    let file = TestFile::with(&record("refcount/", "abc"));
    let before = file.bytes();
    let error = file.options().open().unwrap_err();
    assert!(
        matches!(error.failure(), Some(Failure::NotANumber { value, .. }) if **value == *b"abc")
            && error.context().unwrap().keys == ["refcount/"]
    );
    assert_eq!(file.bytes(), before);
}
