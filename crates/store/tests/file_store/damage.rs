//! Files that are torn, damaged, or no store's at all: data or a typed error, in time, asleep, and never a change for the
//! worse.

use std::fs::File;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rallypoint_store::{Failure, FileFault, Store, StoreError};

use super::bed::{Bed, push, record, times_out_after};

const TIMEOUT: Duration = Duration::from_millis(250);

/// Every way in which a record can be cut short, after a whole one.
fn torn_tails() -> Vec<Vec<u8>> {
    let whole = record("/torn", "value");
    (1..whole.len()).map(|cut| whole[..cut].to_vec()).collect()
}

fn healthy() -> Vec<u8> {
    [record("refcount/", "1"), record("/k", "v")].concat()
}

#[test]
fn a_reader_of_a_torn_tail_has_what_is_before_it_and_sleeps_until_its_time_is_up() {
    for tail in [b"\x02\0".to_vec(), b"\x05\0\0\0/torn".to_vec()] {
        let bed = Bed::new();
        let store = bed.open();
        store.set("k", b"v").unwrap();
        push(&bed.path(), &tail);
        let before = bed.bytes();
        store.set_timeout(Some(TIMEOUT));
        assert_eq!(store.get("k").unwrap(), b"v");
        assert!(store.check(&["k"]).unwrap());
        assert_eq!((store.num_keys().unwrap(), store.list_keys().unwrap().len()), (2, 1));
        let error = times_out_after(TIMEOUT, || store.get("torn"));
        let expected = format!("its last {} bytes are a torn record", tail.len());
        assert!(error.awaited().is_some() && error.to_string().contains(&expected), "{error}");
        assert_eq!(bed.bytes(), before, "a reader changes nothing");
    }
}

#[test]
fn torn_tail_is_cut_off_under_the_exclusive_lock() {
    for tail in torn_tails() {
        let bed = Bed::with(&[healthy(), tail].concat());
        let store = bed.open();
        assert_eq!(bed.bytes(), [healthy(), record("refcount/", "2")].concat());
        assert_eq!(store.get("k").unwrap(), b"v");
        assert!(!store.check(&["torn"]).unwrap());
    }
}

#[test]
fn every_writer_heals_a_torn_tail_even_one_that_then_writes_nothing() {
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
    for (which, write) in writers.iter().enumerate() {
        let bed = Bed::new();
        let (store, other) = (bed.open(), bed.open());
        store.set("k", b"v").unwrap();
        push(&bed.path(), b"\x05\0\0\0/t");
        write(&store);
        bed.records();
        other.set("after", b"1").unwrap();
        assert_eq!(store.get("after").unwrap(), b"1", "writer {which}");
    }
}

#[test]
fn a_reader_notices_a_record_written_where_a_torn_one_of_the_same_length_was() {
    let bed = Bed::new();
    let (reader, writer) = (bed.open(), bed.open());
    let whole = record("/k", "1234");
    push(&bed.path(), &record("/k", "12345678")[..whole.len()]);
    assert!(!reader.check(&["k"]).unwrap());
    writer.set("k", b"1234").unwrap();
    assert_eq!(reader.get("k").unwrap(), b"1234");
}

#[test]
fn a_length_beyond_the_end_is_torn_and_a_length_beyond_the_limit_is_corrupt() {
    let torn = [healthy(), b"\x02\0\0\0/x".to_vec(), (1u32 << 20).to_le_bytes().to_vec()].concat();
    let bed = Bed::with(&torn);
    assert_eq!(bed.open().get("k").unwrap(), b"v");
    assert_eq!(bed.bytes()[..healthy().len()], healthy());

    let key = (1u32 << 30).to_le_bytes().to_vec();
    let value = [b"\x02\0\0\0/x", &key[..]].concat();
    for damage in [key, value] {
        let bed = Bed::with(&[healthy(), damage].concat());
        assert_corrupt(&bed, healthy().len() as u64);
    }
}

/// Opening and every operation say where the damage is, and the file stays as it was.
#[track_caller]
fn assert_corrupt(bed: &Bed, offset: u64) {
    let before = bed.bytes();
    let started = Instant::now();
    match bed.options().open() {
        Err(StoreError::File { path, fault: FileFault::Corrupt { offset: found, .. } }) => {
            assert_eq!((found, path), (offset, bed.path()))
        }
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(bed.bytes(), before);
}

#[test]
fn what_was_never_a_stores_file_is_corrupt_and_left_alone() {
    assert_corrupt(&Bed::with(b"Dear diary,\nit rained.\n"), 0);
    assert_corrupt(&Bed::with(&[0; 4096]), 0);
    assert_corrupt(&Bed::with(&[0xff; 4096]), 0);
    // As a torch process leaves it that writes behind a torn record of another.
    assert_corrupt(&Bed::with(&[healthy(), vec![2, 0], record("/x", "y")].concat()), healthy().len() as u64);
}

#[test]
fn damage_that_comes_later_is_an_error_of_every_operation() {
    let bed = Bed::new();
    let store = bed.open();
    store.set("k", b"v").unwrap();
    push(&bed.path(), &[0xff; 64]);
    let before = bed.bytes();
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
    assert_eq!(bed.bytes(), before);
}

#[test]
fn a_long_torn_record_is_not_read_over_and_over() {
    let bed =
        Bed::with(&[healthy(), b"\x02\0\0\0/x".to_vec(), (60u32 << 20).to_le_bytes().to_vec()].concat());
    // Long enough to read it once on a busy machine, and by far too short to read it at every look.
    let timeout = Duration::from_secs(2);
    // Opened by a healthy writer, and torn again behind its back.
    let store = bed.options().timeout(timeout).open().unwrap();
    push(&bed.path(), &[b"\x02\0\0\0/x", &(60u32 << 20).to_le_bytes()[..]].concat());
    File::options().write(true).open(bed.path()).unwrap().set_len(50 << 20).unwrap();
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
        let bed = Bed::new();
        let store = bed.open();
        for (key, value, deleted) in &sets {
            store.set(key, value.as_bytes()).unwrap();
            if *deleted {
                store.delete_key(key).unwrap();
            }
        }
        let mut bytes = bed.bytes();
        for (at, flip) in &flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        drop(store);
        std::fs::write(bed.path(), &bytes).unwrap();

        let timeout = Duration::from_millis(5);
        let mut results = Vec::new();
        let started = Instant::now();
        let opened = bed.options().timeout(timeout).open();
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
                    // Once somebody could write, all is well again.
                    prop_assert_eq!(store.get("a").unwrap(), b"new");
                    prop_assert_eq!(bed.open().get("a").unwrap(), b"new");
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
