//! Tests with the seeds of the `state` fuzz target, which include reference vectors from torch 2.15.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rallypoint_core::rendezvous::{Extra, NodeDesc, State, StateError, WallTime};

use crate::assembly::{decode, encode, malformed};

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/state")
}

pub(crate) fn seed(name: &str) -> Vec<u8> {
    let path = directory().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn names() -> Vec<String> {
    let entries = std::fs::read_dir(directory()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn host_a() -> NodeDesc {
    NodeDesc::new("host-a.example", 4242, 0)
}

fn host_b() -> NodeDesc {
    NodeDesc::new("host-b.example", 70000, 0)
}

/// 2026-11-15T17:43:01.123456Z
fn t0() -> WallTime {
    WallTime::from_micros(1_794_764_581_123_456).unwrap()
}

/// 2026-11-15T17:43:06.654321Z
fn t1() -> WallTime {
    WallTime::from_micros(1_794_764_586_654_321).unwrap()
}

/// Returns the names of valid seeds, with the states that they decode to.
pub(crate) fn vectors() -> Vec<(&'static str, State)> {
    let complete = State {
        complete: true,
        participants: [(host_a(), 0)].into(),
        last_heartbeats: [(host_a(), t0()), (host_b(), t1())].into(),
        ..State::default()
    };
    let widths = [(0, 0, 0), (1, 0, 1), (2, 0, 2), (99_999, 70_000, 255), (1 << 31, 1 << 40, 70_000)];
    vec![
        ("vector_empty", State::default()),
        (
            "vector_one_participant",
            State {
                deadline: t0().checked_add(std::time::Duration::from_secs(30)),
                participants: [(host_a(), 0)].into(),
                last_heartbeats: [(host_a(), t0())].into(),
                ..State::default()
            },
        ),
        (
            "vector_two_participants",
            State { round: 3, participants: [(host_a(), 0), (host_b(), 1)].into(), ..complete.clone() },
        ),
        ("vector_wait_list", State { wait_list: [host_b()].into(), ..complete.clone() }),
        (
            "vector_redundancy_list",
            State { closed: true, redundancy_list: [host_b()].into(), ..complete.clone() },
        ),
        (
            "vector_integer_widths",
            State {
                round: 300,
                participants: widths
                    .map(|(pid, local_id, rank)| (NodeDesc::new("h", pid, local_id), rank))
                    .into(),
                ..State::default()
            },
        ),
        (
            "thousand_nodes",
            State {
                round: 1,
                complete: true,
                participants: (0..1000).map(|index| (nth_node(index), index)).collect(),
                last_heartbeats: (0..1000)
                    .map(|index| (nth_node(index), WallTime::from_micros(t0().micros() + index).unwrap()))
                    .collect(),
                ..State::default()
            },
        ),
        (
            "extra_attributes",
            State {
                extra: [
                    ("extra_bool".into(), Extra::Bool(true)),
                    ("extra_int".into(), Extra::Int(1 << 40)),
                    ("extra_none".into(), Extra::None),
                    ("extra_text".into(), Extra::Text("später".into())),
                    ("extra_time".into(), Extra::Time(t1())),
                ]
                .into(),
                ..State::default()
            },
        ),
    ]
}

fn nth_node(index: i64) -> NodeDesc {
    NodeDesc::new(format!("node-{index:04}"), 1000 + index, 0)
}

#[test]
fn reference_vectors_are_decoded_and_our_encoding_is_not_larger_than_torchs() {
    for (name, state) in vectors() {
        let bytes = seed(name);
        assert_eq!(decode(&bytes).as_ref(), Ok(&state), "{name}");
        let written = encode(&state);
        assert!(written.len() <= bytes.len(), "{name}: {} bytes, not {}", written.len(), bytes.len());
        assert_eq!(decode(&written), Ok(state), "{name}");
    }
}

#[test]
fn a_wait_list_of_two_nodes_survives_decoding_and_encoding() {
    let bytes = seed("vector_wait_list_two");
    let state = decode(&bytes).unwrap();
    let waiting = NodeDesc::new("10.0.0.3", 300, 1);
    assert_eq!(state.wait_list, BTreeSet::from([waiting.clone(), host_b()]));
    assert_eq!(state.last_heartbeats[&waiting], t1(), "two nodes share one datetime object");
    assert_eq!(decode(&encode(&state)), Ok(state));
}

#[test]
fn pickles_of_one_state_by_other_picklers_decode_to_the_same_state() {
    let state = decode(&seed("vector_two_participants"));
    assert!(state.is_ok());
    for name in ["protocol_5", "python_pickler", "optimized"] {
        assert_eq!(decode(&seed(name)), state, "{name}");
    }
}

fn unknown_opcode(code: u8, at: usize) -> StateError {
    malformed(&format!("unknown opcode {code:#04x}"), at)
}

fn unknown_class(module: &str, name: &str, at: usize) -> StateError {
    malformed(&format!("unknown class {module}.{name}"), at)
}

fn not_a_state(at: usize) -> StateError {
    malformed("a pickle of something other than a state", at)
}

fn truncated(missing: u64, at: usize) -> StateError {
    let bytes = if missing == 1 { "byte" } else { "bytes" };
    malformed(&format!("the state ends {missing} {bytes} too early for the opcode"), at)
}

fn not_a_pickle(first: u8) -> StateError {
    malformed(&format!("first byte {first:#04x} does not begin a pickle (0x80)"), 0)
}

/// Returns the names of the seeds that must be refused, with their errors.
fn refused() -> Vec<(&'static str, StateError)> {
    const TORCH: &str = crate::assembly::TORCH;
    vec![
        ("hostile_os_system", unknown_class("posix", "system", 28)),
        ("hostile_eval", unknown_class("builtins", "eval", 29)),
        ("hostile_in_round", unknown_class("posix", "system", 121)),
        ("hostile_in_participants", unknown_class("posix", "system", 244)),
        ("hostile_other_class", unknown_class(TORCH, "DynamicRendezvousHandler", 85)),
        ("hostile_dotted_name", unknown_class(TORCH, "os.system", 70)),
        ("hostile_global_opcode", unknown_opcode(b'c', 2)),
        ("hostile_inst", unknown_opcode(b'i', 3)),
        ("hostile_obj", unknown_opcode(b'o', 4)),
        ("hostile_ext1", unknown_opcode(0x82, 2)),
        ("hostile_ext2", unknown_opcode(0x83, 2)),
        ("hostile_ext4", unknown_opcode(0x84, 2)),
        ("hostile_persid", unknown_opcode(b'P', 2)),
        ("hostile_binpersid", unknown_opcode(b'Q', 6)),
        ("hostile_newobj_ex", unknown_opcode(0x92, 25)),
        ("hostile_text8", unknown_opcode(0x8d, 2)),
        ("hostile_bytes8", unknown_opcode(0x8e, 2)),
        ("hostile_long4", unknown_opcode(0x8b, 2)),
        ("hostile_protocol_0", not_a_pickle(b'c')),
        ("hostile_protocol_2", malformed("pickle protocol 2, not 4 or 5,", 0)),
        ("hostile_build_class", malformed("attributes for something other than a new state or node", 85)),
        ("hostile_billion_laughs", malformed("something other than the arguments of a time", 6)),
        ("hostile_deep_tuples", malformed("something other than the arguments of a time", 3)),
        ("hostile_deep_marks", malformed("nothing on the stack for the opcode", 5_002)),
        ("hostile_deep_dicts", not_a_state(8_002)),
        ("hostile_memo_bomb", not_a_state(20_003)),
        ("hostile_text_4gib", truncated(0xffff_fffe, 2)),
        ("hostile_frame_2_64", truncated(u64::MAX - 2, 2)),
        ("other_int", not_a_state(4)),
        ("other_dict", not_a_state(4)),
        ("other_list", unknown_opcode(b']', 11)),
        ("other_node", not_a_state(137)),
        ("other_state_attributes", not_a_state(130)),
        ("damaged_empty", truncated(1, 0)),
        ("damaged_cut", truncated(196, 2)),
        ("damaged_text", not_a_pickle(b'c')),
        ("damaged_naive_time", StateError::OldAgent),
        ("damaged_other_zone", malformed("a zone other than UTC", 204)),
        ("damaged_missing_closed", malformed("state without closed", 202)),
    ]
}

#[test]
fn hostile_and_damaged_seeds_are_refused_with_the_cause_and_the_position() {
    for (name, error) in refused() {
        assert_eq!(decode(&seed(name)), Err(error), "{name}");
    }
}

#[test]
fn every_seed_is_tested() {
    let mut known: Vec<_> = vectors().into_iter().map(|(name, _)| name).collect();
    known.extend(refused().into_iter().map(|(name, _)| name));
    known.extend(["vector_wait_list_two", "protocol_5", "python_pickler", "optimized"]);
    known.sort();
    assert_eq!(names(), known);
}
