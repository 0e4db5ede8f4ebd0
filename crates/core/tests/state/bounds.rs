//! Tests of the limits on a state, and of the bounds on the memory that decoding takes.

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{Extra, NodeDesc, State, StateError, WallTime, pickle};

use crate::assembly::*;

/// Returns the default limits after `change` has modified them.
fn limits_with(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

fn large(nodes: i64) -> State {
    let node =
        |index: i64| NodeDesc::new(format!("node-{index:06}.rack.cluster.example"), 100_000 + index, 0);
    let moment = |index: i64| WallTime::from_micros(1_794_764_581_123_456 + index).unwrap();
    State {
        participants: (0..nodes).map(|index| (node(index), index)).collect(),
        last_heartbeats: (0..nodes).map(|index| (node(index), moment(index))).collect(),
        ..State::default()
    }
}

#[test]
fn the_maximum_number_of_nodes_is_written_and_read_and_one_more_is_refused() {
    let limits = Limits::default();
    let mut most = large(limits.state_nodes as i64);
    let bytes = pickle::encode(&most, &limits).unwrap();
    assert!(bytes.len() < limits.state_bytes);
    most.participants.insert(NodeDesc::new("one more", 1, 0), 0);
    let error = pickle::encode(&most, &limits).unwrap_err();
    assert_eq!(message(&error), format!("more than {} nodes in a list", limits.state_nodes));
}

/// These states stay within the bounds on memory, which allow 1024 more items than a state within the limit has. So
/// only the limit can refuse them.
#[test]
fn a_limit_of_2_nodes_applies_to_each_list() {
    let limits = limits_with(|limits| limits.state_nodes = 2);
    assert!(pickle::encode(&large(2), &limits).is_ok());
    let error = pickle::encode(&large(3), &limits).unwrap_err();
    assert_eq!(message(&error), "more than 2 nodes in a list");
    let spares = State { redundancy_list: large(3).participants.into_keys().collect(), ..State::default() };
    let error = pickle::encode(&spares, &limits).unwrap_err();
    assert_eq!(message(&error), "more than 2 nodes in a list");
}

#[test]
fn a_state_of_too_many_bytes_is_refused() {
    let bytes = state_with(&[]);
    let limits = limits_with(|limits| limits.state_bytes = bytes.len());
    assert!(pickle::decode(&bytes, &limits).is_ok());
    let limits = limits_with(|limits| limits.state_bytes = bytes.len() - 1);
    let (len, limit) = (bytes.len(), bytes.len() - 1);
    assert_eq!(pickle::decode(&bytes, &limits), Err(StateError::TooLarge { len, limit }));
}

#[test]
fn an_address_of_too_many_bytes_is_not_encoded() {
    let long = NodeDesc::new("ü".repeat(128), 1, 0);
    let state = State { wait_list: [long].into(), ..State::default() };
    let error = pickle::encode(&state, &Limits::default()).unwrap_err();
    assert_eq!(message(&error), "more than 255 bytes of an address");
}

#[test]
fn a_round_above_the_maximum_of_an_i64_is_not_encoded() {
    let mut state = State { round: i64::MAX as u64, ..State::default() };
    assert!(pickle::encode(&state, &Limits::default()).is_ok());
    state.round += 1;
    let error = pickle::encode(&state, &Limits::default()).unwrap_err();
    assert_eq!(message(&error), "a number that does not fit 64 bits");
}

#[test]
fn an_extra_attribute_with_the_name_of_a_known_one_is_not_encoded() {
    let state = State { extra: [("round".into(), Extra::Int(5))].into(), ..State::default() };
    assert_eq!(pickle::encode(&state, &Limits::default()), Err(StateError::RoundTripMismatch { nodes: 0 }));
}

#[test]
fn a_text_is_counted_again_for_each_attribute_that_references_it() {
    let text = [&b"X"[..], &40_000u32.to_le_bytes(), &vec![b'a'; 40_000]].concat();
    let mut attributes = attributes();
    attributes.push(("note", [&text[..], b"\x94"].concat()));
    assert!(decode(&pickled(&object("_RendezvousState", &attributes))).is_ok());
    attributes.push(("reference", b"h\0".to_vec()));
    let error = decode(&pickled(&object("_RendezvousState", &attributes))).unwrap_err();
    assert_eq!(message(&error), "more than 65536 bytes of unknown attributes");
}

#[test]
fn names_and_texts_of_unknown_attributes_are_counted_together() {
    let limits = limits_with(|limits| limits.state_extra = 8);
    let state = |text: &str| State {
        extra: [("ab".into(), Extra::None), ("cd".into(), Extra::Text(text.into()))].into(),
        ..State::default()
    };
    assert!(pickle::encode(&state("1234"), &limits).is_ok());
    let error = pickle::encode(&state("12345"), &limits).unwrap_err();
    assert_eq!(message(&error), "more than 8 bytes of unknown attributes");
}

/// Returns a stream that starts with `once` and is padded with repetitions of `again` to the maximum length of a state.
fn padded(once: &[u8], again: &[u8]) -> Vec<u8> {
    let mut bytes = [b"\x80\x04", once].concat();
    let room = Limits::default().state_bytes - bytes.len();
    bytes.extend(again.iter().copied().cycle().take(room));
    bytes
}

#[test]
fn streams_of_repeated_opcodes_are_refused_at_a_bound() {
    let node_class = [&class(TORCH, "_NodeDesc")[..], b"\x94"].concat();
    for (what, once, again, limit) in [
        ("items on the stack", &b""[..], &b"N"[..], 21_024),
        ("memo entries", b"N", b"\x94", 121_024),
        ("items on the stack", b"", b"K\0", 21_024),
        ("items on the stack", b"N\x94", b"h\0", 21_024),
        ("items on the stack", b"", b"}", 21_024),
        ("items on the stack", b"", b"\x8f", 21_024),
        ("items on the stack", b"", b"(", 21_024),
        ("items on the stack", &node_class, b"h\0)\x81", 21_024),
    ] {
        let error = decode(&padded(once, again)).unwrap_err();
        assert_eq!(message(&error), format!("more than {limit} {what}"));
    }
}

/// Each node has 1001 attributes with the name `addr`. As in Python, the last one is used and the first 1000 are
/// discarded.
#[test]
fn discarded_containers_and_nodes_are_bounded_at_four_per_node_of_the_limit() {
    let names = ["addr", "pid", "local_id"].map(|name| [&text(name)[..], b"\x94"].concat()).concat();
    let once = [&class(TORCH, "_NodeDesc")[..], b"\x94", &names].concat();
    for (what, dropped) in [("containers", &b"h\x01}"[..]), ("nodes", b"h\x01h\0)\x81")] {
        let again = [b"h\0)\x81}(", &dropped.repeat(1000)[..], b"h\x01h\x01h\x02K\0h\x03K\0ub"].concat();
        assert_eq!(message(&decode(&padded(&once, &again)).unwrap_err()), format!("more than 41024 {what}"));
    }
}

#[test]
fn items_in_dicts_and_sets_are_bounded_at_six_per_node_of_the_limit() {
    let full = [&b"("[..], &b"\x8c\x01aN".repeat(1000), b"u"].concat();
    let expected = "more than 61024 items in dicts and sets";
    assert_eq!(message(&decode(&padded(b"}", &full)).unwrap_err()), expected);
    let member = [&node("a", 1)[..], b"\x94"].concat();
    let full = [&b"("[..], &b"h\0".repeat(1000), b"\x90"].concat();
    assert_eq!(message(&decode(&padded(&[&member[..], b"\x8f"].concat(), &full)).unwrap_err()), expected);
}

#[test]
fn the_address_of_many_nodes_on_one_host_is_written_once() {
    let node = |pid| NodeDesc::new("x".repeat(255), pid, 0);
    let limits = Limits::default();
    let state = State {
        participants: (0..10_000).map(|pid| (node(pid), pid)).collect(),
        wait_list: (10_000..20_000).map(node).collect(),
        ..State::default()
    };
    assert!(pickle::encode(&state, &limits).unwrap().len() < 1 << 20);
}

#[test]
fn a_state_that_repeats_each_node_in_each_list_is_within_the_bounds() {
    let count = 300;
    let limits = limits_with(|limits| limits.state_nodes = count);
    let node = |index: usize| [&node(&format!("n{index:03}"), 1)[..], b"\x94"].concat();
    let nodes: Vec<_> = (0..count).map(node).collect();
    let ranks: Vec<_> = nodes.iter().map(|node| (node.clone(), int(0))).collect();
    let times: Vec<_> =
        nodes.iter().map(|node| (node.clone(), [&time(STAMP, utc())[..], b"\x94"].concat())).collect();
    let bytes = state_with(&[
        ("participants", dict(&ranks)),
        ("wait_list", set(&nodes)),
        ("redundancy_list", set(&nodes)),
        ("last_heartbeats", dict(&times)),
    ]);
    let state = pickle::decode(&bytes, &limits).unwrap();
    assert_eq!((state.participants.len(), state.wait_list.len()), (count, count));
    assert_eq!((state.redundancy_list.len(), state.last_heartbeats.len()), (count, count));
}
