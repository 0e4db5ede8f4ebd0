//! Properties of the codec: every state survives encoding and decoding, and no input makes the decoder panic.

use std::sync::LazyLock;

use proptest::prelude::*;
use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{Extra, NodeDesc, State, WallTime, cell};

use crate::assembly::{decode, encode};
use crate::seeds::{names, seed, vectors};

static CORPUS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| names().iter().map(|name| seed(name)).collect());

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![0i64..3, any::<u8>().prop_map(i64::from), any::<i16>().prop_map(i64::from), any::<i64>()]
}

/// Generates nodes. Most nodes have one of five addresses, so that nodes share addresses. The others have random
/// addresses.
fn node() -> impl Strategy<Value = NodeDesc> {
    let addr = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "node-1", "node-10", "node-2"]).prop_map(str::to_owned),
        1 => prop::collection::vec(any::<char>(), 0..20).prop_map(String::from_iter),
    ];
    (addr, number(), 0i64..3).prop_map(|(addr, pid, local_id)| NodeDesc::new(addr, pid, local_id))
}

fn moment() -> impl Strategy<Value = WallTime> {
    let range = WallTime::MIN.micros()..=WallTime::MAX.micros();
    prop_oneof![range, 1_794_764_581_000_000i64..=1_794_764_583_000_000]
        .prop_map(|micros| WallTime::from_micros(micros).expect("within the range"))
}

fn extra() -> impl Strategy<Value = Extra> {
    prop_oneof![
        Just(Extra::None),
        any::<bool>().prop_map(Extra::Bool),
        number().prop_map(Extra::Int),
        prop::collection::vec(any::<char>(), 0..100)
            .prop_map(|text| Extra::Text(String::from_iter(text).into())),
        moment().prop_map(Extra::Time),
    ]
}

fn state() -> impl Strategy<Value = State> {
    (
        (0..=i64::MAX as u64, any::<bool>(), prop::option::of(moment()), any::<bool>()),
        prop::collection::vec(node(), 0..40),
        prop::collection::vec((any::<prop::sample::Index>(), 0u8..16, number(), moment()), 0..80),
        prop::collection::btree_map("x[a-zü]{0,5}".prop_map(|name| name.into()), extra(), 0..4),
    )
        .prop_map(|((round, complete, deadline, closed), nodes, places, extra)| {
            let mut state = State { round, complete, deadline, closed, extra, ..State::default() };
            for (index, lists, rank, time) in places.into_iter().filter(|_| !nodes.is_empty()) {
                let node = index.get(&nodes);
                if lists & 1 != 0 {
                    state.participants.insert(node.clone(), rank);
                }
                if lists & 2 != 0 {
                    state.wait_list.insert(node.clone());
                }
                if lists & 4 != 0 {
                    state.redundancy_list.insert(node.clone());
                }
                if lists & 8 != 0 {
                    state.last_heartbeats.insert(node.clone(), time);
                }
            }
            state
        })
}

/// Generates an opcode that a state may contain.
fn opcode() -> impl Strategy<Value = u8> {
    prop::sample::select(b"\x95\x8cX\x94hj\x93)\x81}\x8f(us\x90bKMJ\x8a\x88\x89NC\x85\x86\x87R.".to_vec())
}

/// If `bytes` decode to a state, checks that it survives encoding and decoding.
fn check_round_trip(bytes: &[u8]) {
    if let Ok(state) = decode(bytes) {
        assert_eq!(decode(&encode(&state)), Ok(state));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_state_survives_encoding_and_decoding(state in state()) {
        let bytes = encode(&state);
        prop_assert_eq!(&bytes[..2], &[0x80, 4]);
        prop_assert_eq!(cell::read(&cell::encode(&bytes), &Limits::default()), Ok(Some(state)));
    }

    #[test]
    fn a_truncated_state_is_refused(state in state(), cut in any::<prop::sample::Index>()) {
        let bytes = encode(&state);
        prop_assert!(decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn random_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_round_trip(&bytes);
        check_round_trip(&[b"\x80\x04", &bytes[..]].concat());
        let _ = cell::read(&bytes, &Limits::default());
    }

    #[test]
    fn random_opcodes_are_executed_or_refused(
        bytes in prop::collection::vec(prop_oneof![9 => opcode(), 1 => 0u8..20], 0..300),
    ) {
        check_round_trip(&[b"\x80\x04", &bytes[..]].concat());
    }

    #[test]
    fn seeds_with_changed_bytes_are_read_or_refused(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![any::<u8>(), opcode(), 0u8..4]), 1..6),
    ) {
        let mut bytes = which.get(&CORPUS).clone();
        for (at, byte) in changes.into_iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check_round_trip(&bytes);
    }

    #[test]
    fn spliced_seeds_are_read_or_refused(
        which in any::<[prop::sample::Index; 2]>(),
        cuts in any::<[prop::sample::Index; 2]>(),
    ) {
        let [first, second] = which.map(|which| which.get(&CORPUS).clone());
        let (head, tail) = (cuts[0].index(first.len() + 1), cuts[1].index(second.len() + 1));
        check_round_trip(&[&first[..head], &second[tail..]].concat());
    }
}

#[test]
fn a_vector_with_any_one_byte_changed_is_read_or_refused() {
    let bytes = seed("vector_wait_list");
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        for byte in 0..=255 {
            changed[at] = byte;
            let _ = decode(&changed);
        }
    }
}

#[test]
fn an_encoded_vector_is_refused_at_every_truncation() {
    for (_, state) in vectors().into_iter().filter(|(name, _)| name.starts_with("vector")) {
        let bytes = encode(&state);
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err());
        }
    }
}
