//! Tests of torn and damaged files and of files in another format. A call returns data or a typed error, at the latest
//! at its timeout, and does not damage the file further.

use std::fs::File;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rallypoint_store::{Failure, FileFault, Store, StoreError};

use super::fixture::{TestFile, append_bytes, record, times_out_after};

const TIMEOUT: Duration = Duration::from_millis(250);

/// Returns every proper prefix of a record.
fn torn_tails() -> Vec<Vec<u8>> {
    let whole = record("/torn", "value");
    (1..whole.len()).map(|cut| whole[..cut].to_vec()).collect()
}

fn healthy() -> Vec<u8> {
    [record("refcount/", "1"), record("/k", "v")].concat()
}

#[test]
fn a_reader_reads_up_to_a_torn_record_and_sleeps_until_its_timeout() {
    for tail in [b"\x02\0".to_vec(), b"\x05\0\0\0/torn".to_vec()] {
        let file = TestFile::new();
        let store = file.open();
        store.set("k", b"v").unwrap();
        append_bytes(&file.path(), &tail);
        let before = file.bytes();
        store.set_timeout(Some(TIMEOUT));
        assert_eq!(store.get("k").unwrap(), b"v");
        assert!(store.check(&["k"]).unwrap());
        assert_eq!((store.num_keys().unwrap(), store.list_keys().unwrap().len()), (2, 1));
        let error = times_out_after(TIMEOUT, || store.get("torn"));
        let expected = format!("its last {} bytes are a torn record", tail.len());
        assert!(error.awaited().is_some() && error.to_string().contains(&expected), "{error}");
        assert_eq!(file.bytes(), before, "a reader changed the file");
    }
}

#[test]
fn opening_truncates_a_torn_record() {
    for tail in torn_tails() {
        let file = TestFile::with(&[healthy(), tail].concat());
        let store = file.open();
        assert_eq!(file.bytes(), [healthy(), record("refcount/", "2")].concat());
        assert_eq!(store.get("k").unwrap(), b"v");
        assert!(!store.check(&["torn"]).unwrap());
    }
}

#[test]
fn every_writer_truncates_a_torn_record_even_if_it_then_writes_nothing() {
    let writers: [fn(&dyn Store); 5] = [
        |store| store.set("l", b"w").unwrap(),
        |store| assert_eq!(store.add("n", 1).unwrap(), 1),
        |store| assert!(store.delete_key("k").unwrap()),
        |store| assert_eq!(store.compare_set("k", b"other", b"w").unwrap(), b"v"),
        |store| {
            assert!(matches!(
                store.add("k", 1),
                Err(StoreError::Call { failure: Failure::NotANumber { .. }, .. })
            ))
        },
    ];
    for (n, write) in writers.iter().enumerate() {
        let file = TestFile::new();
        let (store, other) = (file.open(), file.open());
        store.set("k", b"v").unwrap();
        append_bytes(&file.path(), b"\x05\0\0\0/t");
        write(&store);
        // Panics if the torn record is still in the file.
        file.records();
        other.set("after", b"1").unwrap();
        assert_eq!(store.get("after").unwrap(), b"1", "writer {n}");
    }
}

#[test]
fn a_reader_sees_a_record_that_replaced_a_torn_record_of_the_same_length() {
    let file = TestFile::new();
    let (reader, writer) = (file.open(), file.open());
    let whole = record("/k", "1234");
    append_bytes(&file.path(), &record("/k", "12345678")[..whole.len()]);
    assert!(!reader.check(&["k"]).unwrap());
    writer.set("k", b"1234").unwrap();
    assert_eq!(reader.get("k").unwrap(), b"1234");
}

#[test]
fn a_record_that_ends_beyond_the_file_is_torn_and_one_beyond_the_length_limit_is_corrupt() {
    let torn = [healthy(), b"\x02\0\0\0/x".to_vec(), (1u32 << 20).to_le_bytes().to_vec()].concat();
    let file = TestFile::with(&torn);
    assert_eq!(file.open().get("k").unwrap(), b"v");
    assert_eq!(file.bytes()[..healthy().len()], healthy());

    let key = (1u32 << 30).to_le_bytes().to_vec();
    let value = [b"\x02\0\0\0/x", &key[..]].concat();
    for damage in [key, value] {
        let file = TestFile::with(&[healthy(), damage].concat());
        assert_corrupt(&file, healthy().len() as u64);
    }
}

/// Asserts that opening fails within 1 s, reports the offset of the damage and leaves the file unchanged.
#[track_caller]
fn assert_corrupt(file: &TestFile, offset: u64) {
    let before = file.bytes();
    let started = Instant::now();
    match file.options().open() {
        Err(StoreError::File { path, fault: FileFault::Corrupt { offset: found, .. } }) => {
            assert_eq!((found, path), (offset, file.path()))
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(file.bytes(), before);
}

#[test]
fn a_file_of_another_format_is_corrupt_and_left_unchanged() {
    assert_corrupt(&TestFile::with(b"Dear diary,\nit rained.\n"), 0);
    assert_corrupt(&TestFile::with(&[0; 4096]), 0);
    assert_corrupt(&TestFile::with(&[0xff; 4096]), 0);
    // A torch process that appends to a file with a torn record leaves a file like this one.
    assert_corrupt(
        &TestFile::with(&[healthy(), vec![2, 0], record("/x", "y")].concat()),
        healthy().len() as u64,
    );
}

#[test]
fn every_operation_reports_damage_that_appears_after_opening() {
    let file = TestFile::new();
    let store = file.open();
    store.set("k", b"v").unwrap();
    append_bytes(&file.path(), &[0xff; 64]);
    let before = file.bytes();
    let errors = [
        store.get("k").unwrap_err(),
        store.check(&["k"]).unwrap_err(),
        store.wait(&["k"]).unwrap_err(),
        store.set("k", b"w").unwrap_err(),
        store.add("n", 1).unwrap_err(),
        store.delete_key("k").unwrap_err(),
        store.compare_set("k", b"v", b"w").unwrap_err(),
        store.num_keys().unwrap_err(),
        store.close().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::File { fault: FileFault::Corrupt { .. }, .. }), "{error}");
    }
    assert_eq!(file.bytes(), before);
}

#[test]
fn a_long_torn_record_is_not_read_repeatedly() {
    let file =
        TestFile::with(&[healthy(), b"\x02\0\0\0/x".to_vec(), (60u32 << 20).to_le_bytes().to_vec()].concat());
    // The timeout allows one read of the record on a busy machine, but not one read per poll.
    let timeout = Duration::from_secs(2);
    // Opening truncates the torn record. Another one is then appended.
    let store = file.options().timeout(timeout).open().unwrap();
    append_bytes(&file.path(), &[b"\x02\0\0\0/x", &(60u32 << 20).to_le_bytes()[..]].concat());
    File::options().write(true).open(file.path()).unwrap().set_len(50 << 20).unwrap();
    let error = times_out_after(timeout, || store.get("x"));
    assert!(error.awaited().is_some(), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_give_data_or_a_typed_error_in_time(
        sets in prop::collection::vec(("[a-c]", prop_oneof!["[0-9]{0,3}", "[a-z]{0,40}"], any::<bool>()), 1..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let file = TestFile::new();
        let store = file.open();
        for (key, value, deleted) in &sets {
            store.set(key, value.as_bytes()).unwrap();
            if *deleted {
                store.delete_key(key).unwrap();
            }
        }
        let mut bytes = file.bytes();
        for (at, flip) in &flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        drop(store);
        std::fs::write(file.path(), &bytes).unwrap();

        let timeout = Duration::from_millis(5);
        let mut results = Vec::new();
        let started = Instant::now();
        let opened = file.options().timeout(timeout).open();
        match opened {
            Err(error) => results.push(Err(error)),
            Ok(store) => {
                for key in ["a", "b", "absent"] {
                    results.push(store.get(key).map(drop));
                    results.push(store.check(&[key]).map(drop));
                    results.push(store.add(key, 1).map(drop));
                }
                results.push(store.set("a", b"new"));
                if store.set("a", b"new").is_ok() {
                    // A successful write implies that the file is intact.
                    prop_assert_eq!(store.get("a").unwrap(), b"new");
                    prop_assert_eq!(file.open().get("a").unwrap(), b"new");
                }
                results.push(store.num_keys().map(drop));
                results.push(store.list_keys().map(drop));
                results.push(store.close());
            }
        }
        prop_assert!(started.elapsed() < Duration::from_secs(2), "took {:?}", started.elapsed());
        for error in results.into_iter().filter_map(|result| result.err()) {
            let typed = matches!(
                error,
                StoreError::File { fault: FileFault::Corrupt { .. }, .. }
                    | StoreError::FileTimeout { .. }
                    | StoreError::Call { failure: Failure::Timeout(_) | Failure::NotANumber { .. }, .. }
            );
            prop_assert!(typed, "{error:?}");
        }
    }
}
