//! Tests with input that is not a state. Each input has one error, and the tests check the message about it.

use rallypoint_core::rendezvous::StateError;

use crate::assembly::*;

#[track_caller]
fn refused(bytes: &[u8]) -> StateError {
    decode(bytes).expect_err("this is not a state")
}

/// Returns the error message, without the position, for an empty state in which one attribute has this value.
fn refused_with(name: &'static str, value: &[u8]) -> String {
    message(&refused(&state_with(&[(name, value.to_vec())])))
}

#[test]
fn the_error_names_an_attribute_of_the_wrong_type() {
    for (name, value, message) in [
        ("round", &b"N"[..], "round of state that is not an int"),
        ("round", b"\x88", "round of state that is not an int"),
        ("round", b"J\xff\xff\xff\xff", "round of state that is not a non-negative int"),
        ("complete", b"K\x01", "complete of state that is not a bool"),
        ("closed", b"N", "closed of state that is not a bool"),
        ("deadline", b"K\x01", "deadline of state that is not a datetime"),
        ("participants", b"\x8f", "participants of state that is not a dict"),
        ("participants", b"N", "participants of state that is not a dict"),
        ("wait_list", b"}", "wait_list of state that is not a set"),
        ("last_heartbeats", b"\x8f", "last_heartbeats of state that is not a dict"),
        ("participants", b"}\x8c\x01aK\0s", "an entry of participants that is not a node"),
    ] {
        assert_eq!(refused_with(name, value), message);
    }
}

#[test]
fn the_error_names_the_list_with_an_entry_of_the_wrong_type() {
    let node = node("a", 1);
    let entry = |value: &[u8]| [b"}", &node[..], value, b"s"].concat();
    for (name, value, message) in [
        ("participants", entry(b"N"), "an entry of participants that is not an int"),
        ("participants", entry(&time(STAMP, utc())), "an entry of participants that is not an int"),
        ("last_heartbeats", entry(b"K\0"), "an entry of last_heartbeats that is not a datetime"),
        (
            "last_heartbeats",
            entry(b"C\x0a\x07\xea\x0b\x0f\x11\x2b\x01\x01\xe2\x40"),
            "an entry of last_heartbeats that is not a datetime",
        ),
        ("participants", b"}K\0K\0s".to_vec(), "a key other than a str or a complete node"),
        ("participants", b"}}K\0s".to_vec(), "a key other than a str or a complete node"),
        ("wait_list", b"\x8f(K\0\x90".to_vec(), "a key other than a str or a complete node"),
        ("wait_list", b"\x8f(\x8c\x01a\x90".to_vec(), "an entry of wait_list that is not a node"),
    ] {
        assert_eq!(refused_with(name, &value), message);
    }
}

#[test]
fn the_error_names_the_wrong_attribute_of_a_node() {
    let fields = |addr: &[u8], pid: &[u8], local_id: &[u8]| {
        vec![("addr", addr.to_vec()), ("pid", pid.to_vec()), ("local_id", local_id.to_vec())]
    };
    let extra = [fields(b"\x8c\0", b"K\0", b"K\0"), vec![("rank", int(1))]].concat();
    for (fields, message) in [
        (fields(b"K\0", b"K\0", b"K\0"), "addr of node that is not a str"),
        (fields(b"\x8c\0", b"N", b"K\0"), "pid of node that is not an int"),
        (fields(b"\x8c\0", b"K\0", b"\x88"), "local_id of node that is not an int"),
        (fields(b"\x8c\0", b"K\0", b"K\0")[..2].to_vec(), "node without local_id"),
        (extra, "unknown attribute rank of node that can't be preserved"),
    ] {
        assert_eq!(refused_with("wait_list", &set(&[object("_NodeDesc", &fields)])), message);
    }
}

#[test]
fn every_attribute_is_required() {
    let all = attributes();
    for (index, (name, _)) in all.iter().enumerate() {
        let mut incomplete = all.clone();
        incomplete.remove(index);
        match refused(&pickled(&object("_RendezvousState", &incomplete))) {
            StateError::OldAgent => assert_eq!(*name, "redundancy_list"),
            other => assert_eq!(message(&other), format!("state without {name}")),
        }
    }
    let bare = [&class(TORCH, "_RendezvousState")[..], b")\x81"].concat();
    assert_eq!(message(&refused(&pickled(&bare))), "a state without attributes");
}

#[test]
fn an_unknown_attribute_that_is_a_container_or_a_node_is_refused() {
    for value in [&b"}"[..], b"\x8f", b")", &node("a", 1)] {
        assert_eq!(refused_with("later", value), "unknown attribute later of state that can't be preserved");
    }
}

/// Our server stores a value even if the decoder returns `OldAgent` for it, and torch's agents then unpickle the value.
/// So the decoder must return another error if the value contains anything else that it refuses.
#[test]
fn an_old_state_is_reported_as_old_only_if_nothing_else_is_wrong() {
    let naive = [&class("datetime", "datetime")[..], b"C\x0a", STAMP, b"\x85R"].concat();
    let old = object("_RendezvousState", &[attributes(), vec![("deadline", naive)]].concat());
    assert_eq!(refused(&pickled(&old)), StateError::OldAgent);
    let call = [&old[..], &class("os", "system"), b"\x8c\x02id\x85R0"].concat();
    assert_eq!(message(&refused(&pickled(&call))), "unknown class os.system");
    let behind = [&pickled(&old)[..], b"."].concat();
    assert_eq!(message(&refused(&behind)), "bytes after the end");
}

#[test]
fn times_without_a_zone_or_outside_utc_are_refused() {
    let naive = [&class("datetime", "datetime")[..], b"C\x0a", STAMP, b"\x85R"].concat();
    assert_eq!(refused_with("deadline", &naive), "written by an agent of torch older than 2.6");
    assert_eq!(
        refused_with("deadline", &time(STAMP, vec![b'N'])),
        "something other than the arguments of a time"
    );

    let max_days = vec![0x8a, 8, 255, 255, 255, 255, 255, 255, 255, 127];
    for (days, seconds) in [(int(0), b"M\x10\x0e".to_vec()), (max_days, int(0))] {
        let zone = zone(delta(days, seconds, int(0)));
        assert_eq!(refused_with("deadline", &time(STAMP, zone)), "a zone other than UTC");
    }
}

#[test]
fn bytes_that_encode_no_time_are_refused() {
    for bytes in [&b"C\x02\x07\xea"[..], &[&b"C\xff"[..], &[0xab; 255]].concat()] {
        assert_eq!(refused_with("deadline", bytes), "bytes that are not a time");
    }
}

#[test]
fn numbers_of_more_than_64_bits_are_refused() {
    for bytes in [
        &[0, 0, 0, 0, 0, 0, 0, 0x80, 0][..],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff],
        &[0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[0x7f; 255],
    ] {
        let long = [&[0x8a, bytes.len() as u8], bytes].concat();
        assert_eq!(refused_with("round", &long), "a number that does not fit 64 bits", "{bytes:02x?}");
    }
}

#[test]
fn classes_are_constructed_only_as_in_a_state() {
    let datetime = class("datetime", "datetime");
    let node = class(TORCH, "_NodeDesc");
    let stamp = [b"C\x0a", STAMP].concat();
    for (value, message) in [
        ([&datetime[..], b")\x81"].concat(), "a call that no state contains"),
        ([&node[..], b")R"].concat(), "a call that no state contains"),
        ([&datetime[..], b")R"].concat(), "a call that no state contains"),
        ([&node[..], b"K\0\x81"].concat(), "a call that no state contains"),
        ([&stamp[..], &datetime, b"\x86"].concat(), "something other than the arguments of a time"),
        (b"K\0K\0\x8c\0\x87".to_vec(), "something other than the arguments of a time"),
        (b"K\0K\0\x93".to_vec(), "something other than the name of a class"),
        ([&text("os")[..], b"K\0\x93"].concat(), "something other than the name of a class"),
        (class(TORCH, "_RendezvousState"), "round of state that is not an int"),
        ([&class(TORCH, "_RendezvousState")[..], b")\x81"].concat(), "a call that no state contains"),
    ] {
        assert_eq!(refused_with("round", &value), message);
    }
}

#[test]
fn a_class_name_is_accepted_only_in_its_own_module() {
    for (module, name) in [
        ("os", "_NodeDesc"),
        ("datetime", "_RendezvousState"),
        (TORCH, "datetime"),
        ("datetime", "datetime.__class__"),
        ("datetime ", "datetime"),
        ("", "timezone"),
        (TORCH, ""),
        (TORCH, "_nodedesc"),
    ] {
        let at = class(module, name).len() + 1;
        let what = format!("unknown class {module}.{name}");
        assert_eq!(refused(&pickled(&class(module, name))), malformed(&what, at));
    }
}

#[test]
fn an_object_gets_its_attributes_once() {
    let node = node("a", 1);
    assert_eq!(
        refused_with("round", &[&node[..], b"}b"].concat()),
        "attributes for something other than a new state or node"
    );
    assert_eq!(refused_with("round", b"K\0}b"), "attributes for something other than a new state or node");
    assert_eq!(refused_with("round", &[&node[..], b"K\0b"].concat()), "attributes that are not a dict");

    let unfinished = [&class(TORCH, "_NodeDesc")[..], b")\x81"].concat();
    let text_of_key = "a key other than a str or a complete node";
    assert_eq!(refused_with("wait_list", &set(std::slice::from_ref(&unfinished))), text_of_key);
    assert_eq!(refused_with("participants", &[&b"}"[..], &unfinished, b"K\0s"].concat()), text_of_key);

    let shared =
        [&class(TORCH, "_NodeDesc")[..], b")\x81}\x94(", &text("addr"), &text("a"), &text("pid")].concat();
    let shared = [&shared[..], b"K\0", &text("local_id"), b"K\0ub"].concat();
    let again = [&class(TORCH, "_NodeDesc")[..], b")\x81h\0b"].concat();
    assert_eq!(
        refused_with("wait_list", &set(&[shared.clone(), again])),
        "attributes that two objects share"
    );
    let filled = [&shared[..], b"h\0(", &text("pid"), b"K\x01u"].concat();
    assert_eq!(refused_with("round", &filled), "a change to the attributes of an object");
    let lists = state_with(&[("round", [&shared[..], b"\x94"].concat()), ("participants", b"h\0".to_vec())]);
    assert_eq!(message(&refused(&lists)), "round of state that is not an int");
}

#[test]
fn no_opcode_pops_past_a_mark_or_from_an_empty_stack() {
    for (bytes, at) in [
        (&b"\x80\x04."[..], 2),
        (b"\x80\x04\x94.", 2),
        (b"\x80\x04\x85.", 2),
        (b"\x80\x04R.", 2),
        (b"\x80\x04b.", 2),
        (b"\x80\x04s.", 2),
        (b"\x80\x04u.", 2),
        (b"\x80\x04\x90.", 2),
        (b"\x80\x04(u.", 3),
        (b"\x80\x04(\x90.", 3),
        (b"\x80\x04}(.", 4),
        (b"\x80\x04}(\x94.", 4),
        (b"\x80\x04}(b.", 4),
        (b"\x80\x04}(\x8c\0K\0s.", 8),
        (b"\x80\x04}((u.", 5),
    ] {
        let text = refused(bytes).to_string();
        assert!(
            text.ends_with(&format!(" on the stack for the opcode at byte {at}")),
            "{bytes:02x?}: {text}"
        );
    }
    assert_eq!(refused(b"\x80\x04}(\x8c\0u."), malformed("a key without a value", 6));
    for reference in [&b"\x80\x04h\0."[..], b"\x80\x04j\xff\xff\xff\xff."] {
        let what = "a reference to a missing memo entry";
        assert_eq!(refused(reference), malformed(what, 2));
    }
}

#[test]
fn nothing_may_remain_on_the_stack_or_after_the_state() {
    let state = object("_RendezvousState", &attributes());
    let end = state.len() + 2;
    assert_eq!(
        refused(&pickled(&[b"N", &state[..]].concat())),
        malformed("items below the state on the stack", end + 1)
    );
    let trailing = [&pickled(&state)[..], b"N."].concat();
    assert_eq!(refused(&trailing), malformed("bytes after the end", end));
    assert_eq!(refused(&pickled(&[b"\x80\x04", &state[..]].concat())), malformed("unknown opcode 0x80", 2));
}

#[test]
fn protocols_other_than_4_and_5_and_invalid_utf_8_are_refused() {
    for protocol in [0, 1, 2, 3, 6, 255] {
        let what = format!("pickle protocol {protocol}, not 4 or 5,");
        assert_eq!(refused(&[0x80, protocol, b'N', b'.']), malformed(&what, 0));
    }
    assert_eq!(message(&refused(b"{}")), "first byte 0x7b does not begin a pickle (0x80)");
    // The second text is a surrogate, which a Python str may contain and UTF-8 may not.
    for text in [&b"\x80\x04\x8c\x02\xc3\x28."[..], b"\x80\x04\x8c\x03\xed\xb3\xbf."] {
        assert_eq!(refused(text), malformed("text that is not UTF-8", 2));
    }
}

#[test]
fn every_unknown_opcode_is_refused() {
    let needed = b"\x95\x8cX\x94hj\x93)\x81}\x8f(us\x90bKMJ\x8a\x88\x89NC\x85\x86\x87R.";
    assert_eq!(needed.len(), 29, "the decoder accepts 30 opcodes: these and PROTO");
    for code in (0..=255).filter(|code| !needed.contains(code)) {
        assert_eq!(refused(&[0x80, 4, code, b'.']), malformed(&format!("unknown opcode {code:#04x}"), 2));
    }
}
