//! FileStore's records as properties, and the seed corpus of the reader's fuzzing replayed.

use std::path::PathBuf;

use proptest::prelude::*;
use rallypoint_core::record::{Record, RecordReader, Replay, user_key};
use rallypoint_core::{Limits, RecordError, Value};

/// What reading some bytes came to.
#[derive(Debug, Clone, PartialEq)]
struct Reading {
    records: Vec<Record>,
    position: u64,
    torn: Option<(u64, usize)>,
    damage: Option<RecordError>,
}

/// Reads `bytes` in pieces that end at `cuts`.
fn read(bytes: &[u8], cuts: &[usize]) -> Reading {
    let mut reader = RecordReader::new(&Limits::default());
    let mut reading = Reading { records: vec![], position: 0, torn: None, damage: None };
    let mut ends: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.sort_unstable();
    let mut start = 0;
    for end in ends.into_iter().chain([bytes.len()]) {
        let mut piece = &bytes[start..end];
        start = end;
        loop {
            match reader.next(&mut piece) {
                Ok(Some(record)) => reading.records.push(record),
                Ok(None) => break,
                Err(damage) => {
                    reading.position = reader.position();
                    reading.damage = Some(damage);
                    return reading;
                }
            }
        }
        assert!(piece.is_empty(), "what is not a record yet is kept");
    }
    reading.position = reader.position();
    reading.torn = reader.tail().map(|tail| (tail.offset, tail.held));
    reading
}

fn named(chars: Vec<char>) -> Box<[u8]> {
    user_key(&chars.into_iter().collect::<String>())
}

fn record() -> impl Strategy<Value = Record> {
    let key = prop_oneof![
        4 => prop::collection::vec(prop::sample::select(vec!['a', 'b', '/', '-']), 0..6).prop_map(named),
        1 => prop::collection::vec(any::<char>(), 0..20).prop_map(named),
        1 => prop_oneof![Just("refcount/"), Just("cleanup/")].prop_map(|key| key.as_bytes().into()),
    ];
    let value = prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..60));
    (key, value).prop_map(|(key, value)| match value {
        None if key.starts_with(b"/") => Record::delete(key),
        value => Record::set(key, Value::copied(&value.unwrap_or_default())),
    })
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| record.encode_into(&mut bytes));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read_however_it_is_split(
        records in prop::collection::vec(record(), 0..12),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let bytes = encoded(&records);
        let expected = Reading { records, position: bytes.len() as u64, torn: None, damage: None };
        prop_assert_eq!(read(&bytes, &cuts), expected);
    }

    #[test]
    fn a_file_cut_anywhere_gives_its_whole_records_and_names_the_torn_rest(
        records in prop::collection::vec(record(), 1..8),
        cut in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let bytes = encoded(&records);
        let cut = cut.index(bytes.len());
        let reading = read(&bytes[..cut], &cuts);
        let whole = reading.records.len();
        prop_assert_eq!(&reading.records[..], &records[..whole]);
        prop_assert_eq!(reading.position as usize, encoded(&records[..whole]).len());
        let rest = cut - reading.position as usize;
        prop_assert_eq!(reading.torn, (rest > 0).then_some((reading.position, rest)));
        prop_assert_eq!(reading.damage, None);
    }

    #[test]
    fn flipped_bytes_never_depend_on_the_split_nor_change_what_was_before_them(
        records in prop::collection::vec(record(), 1..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let whole = encoded(&records);
        let mut bytes = whole.clone();
        for (at, flip) in flips {
            bytes[at.index(whole.len())] ^= flip;
        }
        let first = (0..whole.len()).find(|at| whole[*at] != bytes[*at]).unwrap_or(whole.len());
        let reading = read(&bytes, &[]);
        prop_assert_eq!(&reading, &read(&bytes, &cuts));
        let intact = (0..=records.len()).rev().find(|n| encoded(&records[..*n]).len() <= first).unwrap();
        prop_assert!(reading.records.len() >= intact);
        prop_assert_eq!(&reading.records[..intact], &records[..intact]);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic_and_the_same_however_split(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(b'/'), 1u8..5], 0..200),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let reading = read(&bytes, &cuts);
        prop_assert_eq!(&reading, &read(&bytes, &[]));
        prop_assert!(encoded(&reading.records).len() as u64 <= reading.position);
        prop_assert!(reading.position <= bytes.len() as u64);
    }
}

fn seed(name: &str) -> Reading {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/record_reader").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let reading = read(&bytes, &[]);
    let one_by_one: Vec<_> = (0..bytes.len()).collect();
    assert_eq!(reading, read(&bytes, &one_by_one), "{name}");
    reading
}

fn replayed(reading: &Reading) -> Vec<(String, String)> {
    let mut replay = Replay::default();
    reading.records.iter().for_each(|record| replay.apply(record.clone()));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    replay
        .user_keys()
        .map(|key| (text(key), text(replay.value(&[b"/", key].concat()).expect("a key that is listed"))))
        .collect()
}

fn pairs<const N: usize>(pairs: [(&str, &str); N]) -> Vec<(String, String)> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
}

#[test]
fn seeds_of_whole_files_replay_to_their_keys() {
    for (name, expected) in [
        ("empty", pairs([])),
        ("whole", pairs([("", "empty key"), ("empty", ""), ("k", "v"), ("n", "-2")])),
        ("deletes", pairs([])),
        (
            "torch_session",
            pairs([
                ("b/last_member", "1"),
                ("b/num_members", "1"),
                ("bin", &(0..32).map(char::from).collect::<String>()),
                ("k", "vw"),
                ("n", "-2"),
            ]),
        ),
    ] {
        let reading = seed(name);
        assert_eq!((reading.torn, &reading.damage), (None, &None), "{name}");
        assert_eq!(replayed(&reading), expected, "{name}");
    }
}

#[test]
fn seeds_with_a_torn_tail_keep_what_is_before_it() {
    for (name, held) in [("torn_length", 2), ("torn_key", 7), ("torn_no_value", 6), ("torn_value", 14)] {
        let reading = seed(name);
        assert_eq!((reading.position, reading.torn), (29, Some((29, held))), "{name}");
        assert_eq!((replayed(&reading), reading.damage), (pairs([("k", "v")]), None), "{name}");
    }
}

#[test]
fn seeds_of_damage_are_named_where_it_begins() {
    for (name, offset) in [
        ("corrupt_key_length", 18),
        ("corrupt_value_length", 18),
        ("corrupt_out_of_step", 18),
        ("corrupt_zeros", 18),
        ("corrupt_text", 0),
    ] {
        let reading = seed(name);
        assert_eq!(reading.damage.map(|damage| damage.offset()), Some(offset), "{name}");
    }
}
