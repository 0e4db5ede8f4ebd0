//! Tests that requests are encoded to the same bytes as in torch, and that storing a decoded value copies only a small
//! value.

use super::*;
use crate::wire::{KeyList, MAGIC, PairList, Payload, RequestDecoder};
use crate::{Limits, Value};

#[test]
fn torch_has_the_codes_from_zero_to_eighteen_and_message_is_ours() {
    let codes: Vec<u8> = Op::ALL.iter().map(|op| *op as u8).collect();
    assert_eq!(codes, Vec::from_iter((0..19).chain([64])));
}

/// Parses hexadecimal bytes. Two dots after a byte extend it to a 64-bit number: `02..` is the number 2 in 8 bytes.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        let byte = u8::from_str_radix(word.trim_end_matches('.'), 16).unwrap();
        match word.ends_with("..") {
            true => bytes.extend_from_slice(&u64::from(byte).to_le_bytes()),
            false => bytes.push(byte),
        }
    }
    bytes
}

#[test]
fn every_request_encodes_to_the_bytes_of_torch() {
    let keys: [&[u8]; 2] = [b"/k", b"/n"];
    let keys = KeyList::new(&keys);
    let pairs: [(&[u8], &[u8]); 2] = [(b"/k", b"v"), (b"/n", b"")];
    for (request, expected) in [
        (Request::Validate { magic: MAGIC }, "00 ce f7 85 3c"),
        (Request::Set { key: b"/k", value: b"v"[..].into() }, "01 02.. 2f 6b 01.. 76"),
        (
            Request::CompareSet { key: b"/k", expected: b"".into(), desired: b"v"[..].into() },
            "02 02.. 2f 6b 00.. 01.. 76",
        ),
        (Request::Get { key: b"/k" }, "03 02.. 2f 6b"),
        (Request::Add { key: b"/n", delta: 5 }, "04 02.. 2f 6e 05.."),
        (Request::Check { keys }, "05 02.. 02.. 2f 6b 02.. 2f 6e"),
        (Request::Wait { keys }, "06 02.. 02.. 2f 6b 02.. 2f 6e"),
        (Request::NumKeys, "07"),
        (Request::DeleteKey { key: b"/k" }, "08 02.. 2f 6b"),
        (Request::Append { key: b"/k", value: b"v"[..].into() }, "09 02.. 2f 6b 01.. 76"),
        (Request::MultiGet { keys }, "0a 02.. 02.. 2f 6b 02.. 2f 6e"),
        (Request::MultiSet { pairs: PairList::new(&pairs) }, "0b 02.. 02.. 2f 6b 01.. 76 02.. 2f 6e 00.."),
        (Request::CancelWait, "0c"),
        (Request::Ping { nonce: 0x468f }, "0d 8f 46 00 00"),
        (Request::QueuePush { key: b"/k", value: b"v"[..].into() }, "0e 02.. 2f 6b 01.. 76"),
        (Request::QueuePop { key: b"/k" }, "0f 02.. 2f 6b"),
        (Request::QueueLen { key: b"/k" }, "10 02.. 2f 6b"),
        (Request::ListKeys, "11"),
        (Request::Barrier { key: b"/k", world_size: 4 }, "12 02.. 2f 6b 04.."),
    ] {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(bytes, hex(expected), "{request:?}");
    }
}

/// Decodes a SET that arrives in two pieces, and calls `check` with its value.
fn decode_split_set(value: &[u8], check: impl Fn(Payload<'_>)) {
    let mut bytes = Vec::new();
    Request::Set { key: b"/k", value: value.into() }.encode(&mut bytes);
    let (first, second) = bytes.split_at(20);
    let mut decoder = RequestDecoder::default();
    assert!(decoder.next(&mut &*first, &Limits::default()).unwrap().is_none());
    let decoded = decoder.next(&mut &*second, &Limits::default()).unwrap().unwrap();
    let Request::Set { value, .. } = decoded.request() else { panic!("{decoded:?}") };
    check(value);
}

#[test]
fn a_large_value_of_a_split_request_is_stored_without_a_copy() {
    decode_split_set(&[b'v'; Value::MIN_SHARED_BYTES], |payload| {
        assert_eq!(payload.to_value().as_ptr(), payload.bytes().as_ptr());
    });
}

#[test]
fn a_small_value_is_copied_out_of_its_frame() {
    decode_split_set(&[b'v'; Value::MIN_SHARED_BYTES - 1], |payload| {
        let stored = payload.to_value();
        assert_eq!(*stored, *payload.bytes());
        assert_ne!(stored.as_ptr(), payload.bytes().as_ptr());
    });
}
