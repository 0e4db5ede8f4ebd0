//! Tests of waits and timeouts. A call that cannot proceed sleeps until its timeout, and the error names the obstacle.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rallypoint_core::wire::Op;
use rallypoint_store::{Awaited, Cancellation, FileStore, Result, Store, StoreError};
use rallypoint_testkit::fails_in_time;

use super::fixture::{
    CALL_TIMEOUT, LockHolder, TestFile, append_bytes, record, times_out_after, times_out_with_cpu,
};

const TIMEOUT: Duration = Duration::from_millis(250);

type Operation = (&'static str, fn(&FileStore) -> Result<()>);

/// The operations that only read, on keys that are present.
const READ_OPERATIONS: [Operation; 6] = [
    ("get", |store| store.get("k").map(drop)),
    ("check", |store| store.check(&["k"]).map(drop)),
    ("wait", |store| store.wait(&["k"])),
    ("multi_get", |store| store.multi_get(&["k", "k"]).map(drop)),
    ("num_keys", |store| store.num_keys().map(drop)),
    ("list_keys", |store| store.list_keys().map(drop)),
];

/// The operations that write. The first one, `delete_key`, does not create the file.
const WRITE_OPERATIONS: [Operation; 6] = [
    ("delete_key", |store| store.delete_key("k").map(drop)),
    ("set", |store| store.set("k", b"w")),
    ("add", |store| store.add("n", 1).map(drop)),
    ("compare_set", |store| store.compare_set("k", b"v", b"w").map(drop)),
    ("append", |store| store.append("k", b"w")),
    ("multi_set", |store| store.multi_set(&[("k", b"w")])),
];

#[test]
fn a_get_with_a_timeout_of_1_s_takes_1_s() {
    let file = TestFile::new();
    let store = file.options().timeout(Duration::from_secs(1)).open().unwrap();
    let error = times_out_after(Duration::from_secs(1), || store.get("absent"));
    let message = error.to_string();
    assert_eq!(error.context().unwrap().op, Some(Op::Get), "{message}");
    assert!(message.contains("absent") && message.contains(&file.path().display().to_string()), "{message}");
}

#[test]
fn a_timed_out_wait_reports_which_keys_were_present() {
    let file = TestFile::new();
    let store = file.open();
    store.set("present", b"1").unwrap();
    let wait = times_out_after(TIMEOUT, || store.wait_for(&["absent", "present", "absent2"], Some(TIMEOUT)));
    assert_eq!(wait.missing_keys(), ["absent", "absent2"]);
    assert_eq!(wait.awaited(), Some(&Awaited::Keys(Some(vec![false, true, false]))));
    assert!(wait.context().unwrap().waited >= TIMEOUT);
}

#[test]
fn waiting_for_20000_keys_uses_less_than_half_of_a_processor() {
    let file = TestFile::new();
    let store = file.open();
    let names: Vec<_> = (0..20_000).map(|n| format!("key {n}")).collect();
    let mut keys: Vec<_> = names.iter().map(String::as_str).collect();
    store.multi_set(&keys.iter().map(|key| (*key, &b"1"[..])).collect::<Vec<_>>()).unwrap();
    keys.push("absent");
    let timeout = Duration::from_secs(1);
    // In a debug build, the first and the last check of all keys take up to half of the timeout.
    let error = times_out_with_cpu(timeout, 0.5, || store.wait_for(&keys, Some(timeout)));
    assert_eq!(error.missing_keys(), ["absent"]);
}

#[test]
fn a_get_returns_once_another_instance_sets_the_key() {
    static POLLS: AtomicU32 = AtomicU32::new(0);
    let count_polls = OnWait(|| {
        POLLS.fetch_add(1, Ordering::SeqCst);
    });
    let file = TestFile::new();
    let (reader, writer) =
        (file.options().cancellation(Some(Arc::new(count_polls) as _)).open().unwrap(), file.open());
    reader.set_timeout(None);
    std::thread::scope(|scope| {
        let get = scope.spawn(|| reader.get("k"));
        // Wait until the reader has polled the file without success three times.
        let deadline = Instant::now() + CALL_TIMEOUT;
        while POLLS.load(Ordering::SeqCst) < 3 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        writer.set("k", b"v").unwrap();
        assert_eq!(get.join().unwrap().unwrap(), b"v");
    });
}

#[test]
fn a_writer_times_out_while_another_process_has_the_lock() {
    for (name, operation) in WRITE_OPERATIONS {
        let file = TestFile::new();
        let store = file.open();
        store.set("k", b"v").unwrap();
        store.set_timeout(Some(TIMEOUT));
        let before = file.bytes();
        let lock = LockHolder::shared(&file.path());
        let error = times_out_after(TIMEOUT, || operation(&store));
        assert!(
            matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
            "{name}: {error}"
        );
        drop(lock);
        assert_eq!(file.bytes(), before, "{name}");
        operation(&store).unwrap();
    }
}

#[test]
fn a_reader_times_out_while_another_process_has_the_lock() {
    for (name, operation) in READ_OPERATIONS {
        let file = TestFile::with(&record("/k", "v"));
        let store = file.open();
        store.set_timeout(Some(TIMEOUT));
        // The store has not read this record yet, so its next call needs the lock.
        file.open().set("new", b"1").unwrap();
        let lock = LockHolder::exclusive(&file.path());
        let error = times_out_after(TIMEOUT, || operation(&store));
        assert!(
            matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
            "{name}: {error}"
        );
        drop(lock);
        operation(&store).unwrap();
    }
}

/// Runs a function each time a call waits, and never cancels the call.
#[derive(Debug)]
struct OnWait(fn());

impl Cancellation for OnWait {
    fn is_canceled(&self) -> bool {
        false
    }

    fn on_wait(&self) {
        (self.0)();
    }
}

#[test]
fn a_reader_of_an_unchanged_file_needs_no_lock() {
    let file = TestFile::new();
    let store = file.open();
    store.set("k", b"v").unwrap();
    let _lock = LockHolder::exclusive(&file.path());
    for (name, operation) in READ_OPERATIONS {
        operation(&store).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn opening_times_out_while_another_process_has_the_lock() {
    let file = TestFile::with(b"");
    let _lock = LockHolder::shared(&file.path());
    let error = times_out_after(TIMEOUT, || file.options().timeout(TIMEOUT).open());
    assert!(
        matches!(error, StoreError::FileTimeout { obstacle: "another process holds its lock", .. }),
        "{error}"
    );
}

#[test]
fn a_thread_that_waits_for_the_lock_does_not_block_another_thread() {
    let file = TestFile::new();
    let store = file.open();
    store.set("k", b"v").unwrap();
    let lock = LockHolder::exclusive(&file.path());
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| store.set("slow", b"1"));
        let error = times_out_after(TIMEOUT, || store.wait_for(&["absent"], Some(TIMEOUT)));
        assert!(error.awaited().is_some(), "{error}");
        drop(lock);
        slow.join().unwrap().unwrap();
    });
}

#[test]
fn reads_and_delete_key_on_a_deleted_file_wait_until_their_timeout() {
    let operations = READ_OPERATIONS.iter().chain(&WRITE_OPERATIONS[..1]);
    for (name, operation) in operations {
        let file = TestFile::with(&record("/k", "v"));
        let store = file.open();
        store.set_timeout(Some(TIMEOUT));
        fs::remove_file(file.path()).unwrap();
        let error = times_out_after(TIMEOUT, || operation(&store));
        assert!(matches!(error, StoreError::FileTimeout { obstacle: "no such file", .. }), "{name}: {error}");
        assert!(!file.path().exists(), "{name} must not create the file");
    }
}

#[test]
fn a_get_on_a_deleted_file_fails_at_most_100_ms_after_its_timeout_of_2_s() {
    let file = TestFile::new();
    let store = file.options().timeout(Duration::from_secs(2)).open().unwrap();
    fs::remove_file(file.path()).unwrap();
    times_out_after(Duration::from_secs(2), || store.get("k"));
}

#[test]
fn writers_recreate_a_deleted_file_like_torch() {
    for (name, operation) in &WRITE_OPERATIONS[1..] {
        let file = TestFile::new();
        let store = file.open();
        store.set("old", b"1").unwrap();
        fs::remove_file(file.path()).unwrap();
        operation(&store).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(file.path().exists(), "{name}");
        assert!(!store.check(&["old"]).unwrap(), "{name} must not keep values of the deleted file");
    }
}

#[test]
fn a_file_that_is_recreated_within_the_timeout_is_read() {
    let file = TestFile::new();
    let store = file.open();
    fs::remove_file(file.path()).unwrap();
    std::thread::scope(|scope| {
        let get = scope.spawn(|| store.get("k"));
        file.open().set("k", b"v").unwrap();
        assert_eq!(get.join().unwrap().unwrap(), b"v");
    });
}

#[test]
fn opening_waits_for_a_missing_directory() {
    let file = TestFile::new();
    let path = file.path().join("store");
    let options = rallypoint_store::FileStoreOptions::new(&path).timeout(TIMEOUT);
    let error = times_out_after(TIMEOUT, || options.clone().open());
    assert!(matches!(error, StoreError::FileTimeout { obstacle: "no such file", .. }), "{error}");
    fs::create_dir(file.path()).unwrap();
    options.open().unwrap();
}

#[test]
fn a_call_times_out_on_a_long_file_and_the_next_call_continues_to_read_it() {
    let file = TestFile::new();
    let store = file.open();
    let records: Vec<_> = (0..1_000_000).flat_map(|n| record(&format!("/{n}"), "v")).collect();
    append_bytes(&file.path(), &records);
    let timeout = Duration::from_millis(50);
    let error = fails_in_time(timeout, || store.with_timeout(Some(timeout)).get("999999"));
    assert!(error.to_string().contains("too long to read in time"), "{error}");
    assert_eq!(store.get("999999").unwrap(), b"v");
}
