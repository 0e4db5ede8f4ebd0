//! Tests with pickles in other forms than those that CPython 3.11 writes. They must decode to the same states.

use rallypoint_core::rendezvous::{Extra, NodeDesc, State, WallTime};

use crate::assembly::*;

fn a() -> NodeDesc {
    NodeDesc::new("a", 1, 0)
}

fn b() -> NodeDesc {
    NodeDesc::new("b", 2, 0)
}

fn moment() -> WallTime {
    WallTime::from_stamp(STAMP.try_into().unwrap()).unwrap()
}

/// Returns a state with the participants `a` and `b`, which have the group ranks 0 and 1.
fn two() -> State {
    State { participants: [(a(), 0), (b(), 1)].into(), ..State::default() }
}

fn with_participants(dict: &[&[u8]]) -> Vec<u8> {
    state_with(&[("participants", dict.concat())])
}

#[test]
fn frames_and_memo_may_be_left_out() {
    let participants = dict(&[(node("a", 1), int(0)), (node("b", 2), int(1))]);
    let heartbeats = dict(&[(node("a", 1), time(STAMP, utc())), (node("b", 2), time(STAMP, utc()))]);
    let bytes = state_with(&[
        ("deadline", time(STAMP, utc())),
        ("participants", participants),
        ("wait_list", set(&[node("c", 3), node("d", 4)])),
        ("redundancy_list", set(&[node("e", 5)])),
        ("last_heartbeats", heartbeats),
    ]);
    let expected = State {
        deadline: Some(moment()),
        wait_list: [NodeDesc::new("c", 3, 0), NodeDesc::new("d", 4, 0)].into(),
        redundancy_list: [NodeDesc::new("e", 5, 0)].into(),
        last_heartbeats: [(a(), moment()), (b(), moment())].into(),
        ..two()
    };
    assert_eq!(decode(&bytes), Ok(expected));
}

#[test]
fn entries_may_be_single_or_in_batches_of_any_size() {
    let (a, b) = (&node("a", 1)[..], &node("b", 2)[..]);
    for participants in [
        &[&b"}("[..], a, b"K\0", b, b"K\x01u"][..],
        &[b"}", a, b"K\0s", b, b"K\x01s"],
        &[b"}(", a, b"K\0u(", b, b"K\x01u"],
        &[b"}(", a, b"K\0u", b, b"K\x01s"],
        &[b"}(u(", a, b"K\0", b, b"K\x01u(u"],
    ] {
        assert_eq!(decode(&with_participants(participants)), Ok(two()));
    }
    for wait_list in [&[&b"\x8f("[..], a, b, b"\x90"][..], &[b"\x8f(\x90(", a, b"\x90(", b, b"\x90(\x90"]] {
        let bytes = state_with(&[("wait_list", wait_list.concat())]);
        assert_eq!(decode(&bytes).unwrap().wait_list, [self::a(), self::b()].into());
    }
}

#[test]
fn frames_may_start_anywhere() {
    let frame = |len: u64| [&[0x95][..], &len.to_le_bytes()].concat();
    let a = node("a", 1);
    let participants = [&b"}("[..], &frame(1), &a, &frame(0), b"K\0", &node("b", 2), b"K\x01u"];
    assert_eq!(decode(&with_participants(&participants)), Ok(two()));
}

#[test]
fn numbers_and_texts_may_use_a_wider_opcode_than_necessary() {
    let wide = |number: Vec<u8>, addr: &[u8]| {
        object("_NodeDesc", &[("addr", addr.to_vec()), ("pid", number), ("local_id", int(0))])
    };
    for number in
        [&b"K\x01"[..], b"M\x01\0", b"J\x01\0\0\0", b"\x8a\x01\x01", b"\x8a\x0c\x01\0\0\0\0\0\0\0\0\0\0\0"]
    {
        for addr in [&b"\x8c\x01a"[..], b"X\x01\0\0\0a"] {
            let bytes = with_participants(&[b"}", &wide(number.to_vec(), addr), b"\x8a\0s"]);
            assert_eq!(decode(&bytes).unwrap().participants, [(a(), 0)].into());
        }
    }
}

#[test]
fn integers_may_have_up_to_16_bytes() {
    for (bytes, number) in [
        (&[][..], 0),
        (&[0xff], -1),
        (&[0x80], -128),
        (&[0x80, 0], 128),
        (&[0, 0, 0, 0x80, 0], 1 << 31),
        (&[0, 0, 0, 0, 0, 1], 1 << 40),
        (&[0xff, 0xff, 0xff, 0x7f, 0xff], -(1 << 31) - 1),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], i64::MAX),
        (&[0, 0, 0, 0, 0, 0, 0, 0x80], i64::MIN),
        (&[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 7),
        (&[0xff; 16], -1),
    ] {
        let long = [&[0x8a, bytes.len() as u8], bytes].concat();
        let state = decode(&state_with(&[("later", long)])).unwrap();
        assert_eq!(state.extra["later"], Extra::Int(number), "{bytes:02x?}");
    }
}

#[test]
fn the_last_value_of_a_repeated_key_is_used() {
    let a = node("a", 1);
    let bytes = with_participants(&[b"}(", &a, b"K\x05", &node("b", 2), b"K\x01", &a, b"K\0u"]);
    assert_eq!(decode(&bytes), Ok(two()));

    let mut twice = attributes();
    twice.push(("round", int(7)));
    assert_eq!(decode(&pickled(&object("_RendezvousState", &twice))).unwrap().round, 7);
}

#[test]
fn a_duplicate_member_of_a_set_counts_once() {
    let bytes = state_with(&[("wait_list", set(&[node("a", 1), node("a", 1)]))]);
    assert_eq!(decode(&bytes).unwrap().wait_list, [a()].into());
}

#[test]
fn attributes_may_be_in_any_order() {
    let mut reversed = attributes();
    reversed.reverse();
    assert_eq!(decode(&pickled(&object("_RendezvousState", &reversed))), Ok(State::default()));
}

#[test]
fn a_memoized_time_may_be_referenced() {
    let shared = [&time(STAMP, utc())[..], b"\x94"].concat();
    let heartbeats = [&b"}("[..], &node("a", 1), b"h\0", &node("b", 2), b"h\0u"].concat();
    let state = decode(&state_with(&[("deadline", shared), ("last_heartbeats", heartbeats)])).unwrap();
    assert_eq!(state.deadline, Some(moment()));
    assert_eq!(state.last_heartbeats, [(a(), moment()), (b(), moment())].into());
}

#[test]
fn the_fold_bit_of_a_time_is_ignored() {
    let mut folded = STAMP.to_vec();
    folded[2] |= 0x80;
    let state = decode(&state_with(&[("deadline", time(&folded, utc()))])).unwrap();
    assert_eq!(state.deadline, Some(moment()));
}

#[test]
fn attributes_of_a_later_torch_are_kept_and_written_back() {
    let extra = [
        ("generation", int(7), Extra::Int(7)),
        ("leader", vec![b'N'], Extra::None),
        ("note", text("höher"), Extra::Text("höher".into())),
        ("ready", vec![0x88], Extra::Bool(true)),
        ("since", time(STAMP, utc()), Extra::Time(moment())),
    ];
    let bytes = state_with(&extra.clone().map(|(name, value, _)| (name, value)));
    let state = decode(&bytes).unwrap();
    let expected =
        State { extra: extra.map(|(name, _, value)| (name.into(), value)).into(), ..State::default() };
    assert_eq!(state, expected);
    assert_eq!(decode(&encode(&state)), Ok(expected));
}

#[test]
fn an_address_may_be_any_text_within_the_limit() {
    for addr in ["", "höst.example", "\u{10ffff}", &"x".repeat(255)] {
        let bytes = with_participants(&[b"}", &node(addr, 1), b"K\0s"]);
        let state = decode(&bytes).unwrap();
        assert_eq!(state.participants, [(NodeDesc::new(addr, 1, 0), 0)].into());
        assert_eq!(decode(&encode(&state)), Ok(state));
    }
}
