//! Property tests of FileStore's records, and tests with the seeds of the `record_reader` fuzz target.

use std::path::PathBuf;

use proptest::prelude::*;
use rallypoint_core::Limits;
use rallypoint_core::record::{Parsed, Record, Table, user_key, user_keys};

/// The result of parsing a file.
#[derive(Debug, Clone, PartialEq)]
struct Reading {
    records: Vec<Record>,
    /// The end of the last complete record.
    position: usize,
    damage: Option<String>,
}

/// Parses `bytes` in pieces that end at `cuts`.
fn read(bytes: &[u8], cuts: &[usize]) -> Reading {
    let mut reading = Reading { records: vec![], position: 0, damage: None };
    let mut ends: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.sort_unstable();
    for end in ends.into_iter().chain([bytes.len()]) {
        loop {
            match Record::parse(&bytes[reading.position..end], &Limits::default()) {
                Ok(Parsed::Whole(record, len)) => {
                    reading.records.push(record);
                    reading.position += len;
                }
                Ok(Parsed::Torn(need)) => {
                    assert!(need > end - reading.position, "`Torn` needs more bytes than there are");
                    break;
                }
                Err(damage) => return Reading { damage: Some(damage), ..reading },
            }
        }
    }
    reading
}

fn user_key_of(chars: Vec<char>) -> Vec<u8> {
    user_key(&chars.into_iter().collect::<String>())
}

fn record() -> impl Strategy<Value = Record> {
    let key = prop_oneof![
        4 => prop::collection::vec(prop::sample::select(vec!['a', 'b', '/', '-']), 0..6).prop_map(user_key_of),
        1 => prop::collection::vec(any::<char>(), 0..20).prop_map(user_key_of),
        1 => prop_oneof![Just("refcount/"), Just("cleanup/")].prop_map(|key| key.as_bytes().into()),
    ];
    let value = prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..60));
    (key, value).prop_map(|(key, value)| match value {
        None if key.starts_with(b"/") => Record::delete(key),
        value => Record::set(key, value.unwrap_or_default()),
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
    fn records_are_read_as_written_for_every_split(
        records in prop::collection::vec(record(), 0..12),
        cuts in prop::collection::vec(any::<usize>(), 0..12),
    ) {
        let bytes = encoded(&records);
        let expected = Reading { records, position: bytes.len(), damage: None };
        prop_assert_eq!(read(&bytes, &cuts), expected);
    }

    #[test]
    fn a_truncated_file_yields_its_whole_records(
        records in prop::collection::vec(record(), 1..8),
        cut in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let bytes = encoded(&records);
        let cut = cut.index(bytes.len());
        let reading = read(&bytes[..cut], &cuts);
        let count = reading.records.len();
        prop_assert_eq!(&reading.records[..], &records[..count]);
        prop_assert_eq!(reading.position, encoded(&records[..count]).len());
        prop_assert!(encoded(&records[..count + 1]).len() > cut);
        prop_assert_eq!(reading.damage, None);
    }

    #[test]
    fn flipped_bytes_leave_the_records_before_them_intact(
        records in prop::collection::vec(record(), 1..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let original = encoded(&records);
        let mut bytes = original.clone();
        for (at, flip) in flips {
            bytes[at.index(original.len())] ^= flip;
        }
        let first = (0..original.len()).find(|at| original[*at] != bytes[*at]).unwrap_or(original.len());
        let reading = read(&bytes, &[]);
        prop_assert_eq!(&reading, &read(&bytes, &cuts));
        let intact = (0..=records.len()).rev().find(|n| encoded(&records[..*n]).len() <= first).unwrap();
        prop_assert!(reading.records.len() >= intact);
        prop_assert_eq!(&reading.records[..intact], &records[..intact]);
    }

    #[test]
    fn arbitrary_bytes_parse_without_a_panic_and_independently_of_the_split(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(b'/'), 1u8..5], 0..200),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
    ) {
        let reading = read(&bytes, &cuts);
        prop_assert_eq!(&reading, &read(&bytes, &[]));
        prop_assert!(encoded(&reading.records).len() <= reading.position);
        prop_assert!(reading.position <= bytes.len());
    }
}

fn seed(name: &str) -> (Reading, usize) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/record_reader").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let reading = read(&bytes, &[]);
    let every_cut: Vec<_> = (0..bytes.len()).collect();
    assert_eq!(reading, read(&bytes, &every_cut), "{name}");
    let rest = bytes.len() - reading.position;
    (reading, rest)
}

fn replayed(reading: &Reading) -> Vec<(String, String)> {
    let mut table = Table::new();
    reading.records.iter().for_each(|record| record.clone().apply_to(&mut table));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    user_keys(&table).map(|key| (text(key), text(&table[&[b"/", key].concat()]))).collect()
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
        let (reading, rest) = seed(name);
        assert_eq!((rest, &reading.damage), (0, &None), "{name}");
        assert_eq!(replayed(&reading), expected, "{name}");
    }
}

#[test]
fn seeds_with_a_torn_tail_keep_the_records_before_it() {
    for (name, tail_len) in [("torn_length", 2), ("torn_key", 7), ("torn_no_value", 6), ("torn_value", 14)] {
        let (reading, rest) = seed(name);
        assert_eq!((reading.position, rest), (29, tail_len), "{name}");
        assert_eq!((replayed(&reading), reading.damage), (pairs([("k", "v")]), None), "{name}");
    }
}

#[test]
fn seeds_with_damage_report_its_offset() {
    for (name, offset) in [
        ("corrupt_key_length", 18),
        ("corrupt_value_length", 18),
        ("corrupt_out_of_step", 18),
        ("corrupt_zeros", 18),
        ("corrupt_text", 0),
    ] {
        let (reading, _) = seed(name);
        assert!(reading.damage.is_some() && reading.position == offset, "{name}: {reading:?}");
    }
}
