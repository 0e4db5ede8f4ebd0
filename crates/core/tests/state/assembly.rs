//! Helpers that assemble pickles by hand, without frames and without a memo.

use rallypoint_core::Limits;
use rallypoint_core::rendezvous::{State, StateError, pickle};

pub(crate) const TORCH: &str = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";

pub(crate) fn decode(bytes: &[u8]) -> Result<State, StateError> {
    pickle::decode(bytes, &Limits::default())
}

pub(crate) fn encode(state: &State) -> Vec<u8> {
    pickle::encode(state, &Limits::default()).expect("a state within the limits")
}

/// Returns the error with this text and this position.
pub(crate) fn malformed(what: &str, at: usize) -> StateError {
    StateError::Malformed { what: what.into(), at }
}

/// Returns the message of an error without the position.
pub(crate) fn message(error: &StateError) -> String {
    let text = error.to_string();
    text.rsplit_once(" at byte ").map_or(text.clone(), |(what, _)| what.into())
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

pub(crate) fn class(module: &str, name: &str) -> Vec<u8> {
    [text(module), text(name), vec![0x93]].concat()
}

pub(crate) fn int(number: u8) -> Vec<u8> {
    vec![b'K', number]
}

/// Returns an object of one of torch's classes with these attributes.
pub(crate) fn object(class_name: &str, attributes: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = [class(TORCH, class_name), b")\x81}(".to_vec()].concat();
    for (name, value) in attributes {
        bytes.extend_from_slice(&text(name));
        bytes.extend_from_slice(value);
    }
    bytes.extend_from_slice(b"ub");
    bytes
}

pub(crate) fn node(addr: &str, pid: u8) -> Vec<u8> {
    object("_NodeDesc", &[("addr", text(addr)), ("pid", int(pid)), ("local_id", int(0))])
}

/// The bytes of a pickled `datetime`: 2026-11-15T17:43:01.123456.
pub(crate) const STAMP: &[u8] = b"\x07\xea\x0b\x0f\x11\x2b\x01\x01\xe2\x40";

pub(crate) fn delta(days: Vec<u8>, seconds: Vec<u8>, micros: Vec<u8>) -> Vec<u8> {
    [class("datetime", "timedelta"), days, seconds, micros, b"\x87R".to_vec()].concat()
}

pub(crate) fn zone(delta: Vec<u8>) -> Vec<u8> {
    [class("datetime", "timezone"), delta, b"\x85R".to_vec()].concat()
}

pub(crate) fn utc() -> Vec<u8> {
    zone(delta(int(0), int(0), int(0)))
}

pub(crate) fn time(stamp: &[u8], zone: Vec<u8>) -> Vec<u8> {
    let stamp = [&[b'C', stamp.len() as u8], stamp].concat();
    [class("datetime", "datetime"), stamp, zone, b"\x86R".to_vec()].concat()
}

/// Returns a dict with all entries in one batch.
pub(crate) fn dict(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let entries: Vec<u8> = entries.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
    [b"}(", &entries[..], b"u"].concat()
}

pub(crate) fn set(members: &[Vec<u8>]) -> Vec<u8> {
    [b"\x8f(", &members.concat()[..], b"\x90"].concat()
}

/// Returns the attributes of an empty state, in torch's order.
pub(crate) fn attributes() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("round", int(0)),
        ("complete", vec![0x89]),
        ("deadline", vec![b'N']),
        ("closed", vec![0x89]),
        ("participants", vec![b'}']),
        ("wait_list", vec![0x8f]),
        ("redundancy_list", vec![0x8f]),
        ("last_heartbeats", vec![b'}']),
    ]
}

/// Returns a pickle with this body.
pub(crate) fn pickled(body: &[u8]) -> Vec<u8> {
    [b"\x80\x04", body, b"."].concat()
}

/// Returns a pickle of an empty state in which these attributes are replaced or added.
pub(crate) fn state_with(changes: &[(&'static str, Vec<u8>)]) -> Vec<u8> {
    let mut attributes = attributes();
    for (name, value) in changes {
        match attributes.iter_mut().find(|(known, _)| known == name) {
            Some(attribute) => attribute.1 = value.clone(),
            None => attributes.push((name, value.clone())),
        }
    }
    pickled(&object("_RendezvousState", &attributes))
}
