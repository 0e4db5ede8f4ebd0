//! Tests of both decoders with every operation, every split, and lengths beyond every limit.

use super::*;
use crate::wire::{KeyList, MAGIC, Op, PairList};
use crate::{Key, Value};

/// Returns at least one request of each operation, with the unusual operands that torch accepts: empty lists, empty
/// keys, keys that are not text, and empty values.
fn every_request() -> Vec<Request<'static>> {
    const KEYS: &[&[u8]] = &[b"/a", b"", b"\0\xff\0", b"/a"];
    const PAIRS: &[(&[u8], &[u8])] = &[(b"/a", b"1"), (b"", b""), (b"\xff", b"\0\0"), (b"/a", b"2")];
    let value = |bytes: &'static [u8]| bytes.into();
    vec![
        Request::Validate { magic: MAGIC },
        Request::Validate { magic: 0 },
        Request::Set { key: b"/k", value: value(b"v") },
        Request::Set { key: b"", value: value(b"") },
        Request::CompareSet { key: b"/k", expected: b"".into(), desired: value(b"new") },
        Request::CompareSet { key: b"\0", expected: b"\xff".into(), desired: value(b"") },
        Request::Get { key: b"/k" },
        Request::Get { key: b"" },
        Request::Get { key: b"\0\xff" },
        Request::Add { key: b"/n", delta: 5 },
        Request::Add { key: b"", delta: i64::MIN },
        Request::Check { keys: KeyList::new(KEYS) },
        Request::Check { keys: KeyList::new(&[]) },
        Request::Wait { keys: KeyList::new(KEYS) },
        Request::Wait { keys: KeyList::new(&[]) },
        Request::NumKeys,
        Request::DeleteKey { key: b"/k" },
        Request::Append { key: b"/k", value: value(b"more") },
        Request::MultiGet { keys: KeyList::new(KEYS) },
        Request::MultiGet { keys: KeyList::new(&[]) },
        Request::MultiSet { pairs: PairList::new(PAIRS) },
        Request::MultiSet { pairs: PairList::new(&[]) },
        Request::CancelWait,
        Request::Ping { nonce: 0x468f },
        Request::QueuePush { key: b"/q", value: value(b"item") },
        Request::QueuePop { key: b"/q" },
        Request::QueueLen { key: b"/q" },
        Request::ListKeys,
        Request::Barrier { key: b"/b", world_size: 4 },
        Request::Message { message: b"m"[..].into() },
        Request::Barrier { key: b"/b", world_size: -1 },
    ]
}

const MIB: usize = 1 << 20;

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

/// Decodes a stream that arrives in these pieces, and returns each request encoded again.
fn decode(pieces: &[&[u8]], limits: &Limits) -> Result<Vec<Vec<u8>>, WireError> {
    let mut decoder = RequestDecoder::default();
    let mut frames = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        while let Some(frame) = decoder.next(&mut input, limits)? {
            frames.push(encoded(&frame.request()));
        }
        assert!(input.is_empty(), "`None` means that the decoder has consumed the input");
    }
    Ok(frames)
}

fn frame_too_long(len: usize, limit: usize) -> WireError {
    WireError::TooLong { what: "frame", key: None, len: len as u64, limit }
}

fn refusal(bytes: &[u8]) -> WireError {
    decode(&[bytes], &Limits::default()).expect_err("this must be refused")
}

/// Returns an operation code followed by 64-bit numbers.
fn frame(op: Op, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![op as u8];
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    bytes
}

/// Lengths and counts far beyond every limit.
const HUGE_LENGTHS: [u64; 5] = [1 << 31, 1 << 40, 1 << 62, 1 << 63, u64::MAX];

#[test]
fn the_examples_cover_every_operation() {
    let requests = every_request();
    for op in Op::ALL {
        assert!(requests.iter().any(|request| request.op() == *op), "{op}");
    }
}

#[test]
fn every_request_decodes_to_what_was_encoded() {
    for request in every_request() {
        let bytes = encoded(&request);
        let mut input = &bytes[..];
        let frame = RequestDecoder::default().next(&mut input, &Limits::default()).unwrap().unwrap();
        assert_eq!(frame.request(), request);
        assert!(input.is_empty());
    }
}

#[test]
fn every_request_decodes_when_split_at_any_byte() {
    for request in every_request() {
        let bytes = encoded(&request);
        for cut in 0..=bytes.len() {
            let (before, after) = bytes.split_at(cut);
            let frames = decode(&[before, after], &Limits::default()).unwrap();
            assert_eq!(frames, [&bytes[..]], "{request:?} cut at {cut}");
        }
    }
}

#[test]
fn every_request_decodes_byte_by_byte() {
    for request in every_request() {
        let bytes = encoded(&request);
        let mut decoder = RequestDecoder::default();
        for (at, byte) in bytes.iter().enumerate() {
            let mut input = std::slice::from_ref(byte);
            let frame = decoder.next(&mut input, &Limits::default()).unwrap();
            assert_eq!(frame.is_some(), at + 1 == bytes.len());
            if let Some(frame) = frame {
                assert_eq!(frame.request(), request);
            }
        }
    }
}

#[test]
fn pipelined_requests_decode_in_order_for_every_piece_length() {
    let frames: Vec<Vec<u8>> = every_request().iter().map(encoded).collect();
    let stream = frames.concat();
    for len in 1..stream.len() {
        let pieces: Vec<&[u8]> = stream.chunks(len).collect();
        assert_eq!(decode(&pieces, &Limits::default()).unwrap(), frames, "pieces of {len}");
    }
}

#[test]
fn received_counts_bytes_and_allocated_counts_capacity() {
    let bytes = encoded(&Request::Set { key: b"/k", value: b"v"[..].into() });
    let mut decoder = RequestDecoder::default();
    assert_eq!(decoder.allocated(), 0);
    for at in 0..bytes.len() - 1 {
        assert!(decoder.next(&mut &bytes[at..at + 1], &Limits::default()).unwrap().is_none());
        assert_eq!(decoder.received(), Some(at + 1));
        assert!((at + 1..=64).contains(&decoder.allocated()), "{:?}", decoder.allocated());
    }
    assert!(decoder.next(&mut &bytes[bytes.len() - 1..], &Limits::default()).unwrap().is_some());
    assert_eq!(decoder.allocated(), 0);
}

#[test]
fn an_unknown_operation_is_refused_at_its_first_byte() {
    for code in [0x13, 0x14, 0x7f, 0xff] {
        assert_eq!(refusal(&[code]), WireError::UnknownOp { code });
    }
}

#[test]
fn a_request_before_an_unknown_operation_is_still_decoded() {
    let limits = Limits::default();
    let mut decoder = RequestDecoder::default();
    let mut input = &[Op::NumKeys as u8, 0x13][..];
    assert_eq!(decoder.next(&mut input, &limits).unwrap().unwrap().request(), Request::NumKeys);
    assert_eq!(decoder.next(&mut input, &limits).unwrap_err(), WireError::UnknownOp { code: 0x13 });
}

#[test]
fn a_key_past_the_limit_is_refused_before_its_bytes_arrive() {
    let limit = Limits::default().key_len;
    for len in [8193].into_iter().chain(HUGE_LENGTHS) {
        let refused = WireError::TooLong { what: "key", key: None, len, limit };
        for op in [
            Op::Set,
            Op::CompareSet,
            Op::Get,
            Op::Add,
            Op::DeleteKey,
            Op::Append,
            Op::QueuePush,
            Op::QueuePop,
            Op::QueueLen,
            Op::Barrier,
        ] {
            assert_eq!(refusal(&frame(op, &[len])), refused, "{op}");
        }
        for op in [Op::Check, Op::Wait, Op::MultiGet, Op::MultiSet] {
            assert_eq!(refusal(&frame(op, &[1, len])), refused, "{op}");
        }
    }
}

#[test]
fn a_value_past_the_limit_is_refused_before_its_bytes_arrive() {
    let limit = Limits::default().value_len;
    for len in [(8 << 20) + 1].into_iter().chain(HUGE_LENGTHS) {
        let refused = WireError::TooLong { what: "value", key: Some(String::new()), len, limit };
        for op in [Op::Set, Op::CompareSet, Op::Append, Op::QueuePush] {
            assert_eq!(refusal(&frame(op, &[0, len])), refused, "{op}");
        }
        assert_eq!(refusal(&frame(Op::CompareSet, &[0, 0, len])), refused);
        assert_eq!(refusal(&frame(Op::MultiSet, &[1, 0, len])), refused);
    }
}

#[test]
fn the_error_for_a_long_value_names_its_key() {
    let mut bytes = Vec::new();
    Request::MultiSet { pairs: PairList::new(&[(b"first", b"v"), (b"second", b"")]) }.encode(&mut bytes);
    let at = bytes.len() - 8;
    bytes[at..].copy_from_slice(&u64::MAX.to_le_bytes());
    let text = "value of 18446744073709551615 bytes for second, limit 8388608";
    assert_eq!(refusal(&bytes).to_string(), text);
    // The error is the same for every split, including splits within the length.
    for cut in 1..bytes.len() {
        let (mut decoder, limits) = (RequestDecoder::default(), Limits::default());
        assert!(decoder.next(&mut &bytes[..cut], &limits).unwrap().is_none());
        assert_eq!(decoder.next(&mut &bytes[cut..], &limits).unwrap_err().to_string(), text);
    }
}

#[test]
fn a_list_with_too_many_items_is_refused_before_its_first_item_arrives() {
    let limit = Limits::default().keys_per_request;
    for count in [131_073].into_iter().chain(HUGE_LENGTHS) {
        for op in [Op::Check, Op::Wait, Op::MultiGet, Op::MultiSet] {
            assert_eq!(refusal(&frame(op, &[count])), WireError::TooManyKeys { count, limit }, "{op}");
        }
    }
}

#[test]
fn a_long_key_is_refused_at_the_last_byte_of_its_length() {
    let bytes = frame(Op::Get, &[8193]);
    assert!(decode(&[&bytes[..8]], &Limits::default()).unwrap().is_empty());
    let by_byte: Vec<&[u8]> = bytes.chunks(1).collect();
    assert!(matches!(
        decode(&by_byte, &Limits::default()),
        Err(WireError::TooLong { what: "key", len: 8193, .. })
    ));
}

#[test]
fn operands_and_frames_exactly_at_their_limits_are_accepted() {
    let mut limits = Limits::default();
    (limits.key_len, limits.value_len, limits.keys_per_request) = (5, 7, 3);
    let pairs: [(&[u8], &[u8]); 3] = [(b"12345", b"1234567"); 3];
    let bytes = encoded(&Request::MultiSet { pairs: PairList::new(&pairs) });
    limits.frame_len = bytes.len();
    assert_eq!(decode(&[&bytes], &limits).unwrap(), [&bytes[..]]);

    limits.frame_len -= 1;
    let refused = frame_too_long(bytes.len(), limits.frame_len);
    assert_eq!(decode(&[&bytes], &limits).unwrap_err(), refused);
}

#[test]
fn a_frame_past_the_limit_is_refused_before_its_last_part_arrives() {
    let limits = Limits { frame_len: 200, ..Limits::default() };
    let mut bytes = frame(Op::MultiSet, &[2, 0, 100]);
    bytes.extend_from_slice(&[b'v'; 100]);
    bytes.extend_from_slice(&frame(Op::MultiSet, &[0, 100])[1..]);
    let refused = frame_too_long(bytes.len() + 100, 200);
    assert_eq!(decode(&[&bytes], &limits).unwrap_err(), refused);
}

#[test]
fn a_list_that_cannot_fit_into_a_frame_is_refused_before_its_first_item_arrives() {
    let limits = Limits { frame_len: 1000, ..Limits::default() };
    let refused = frame_too_long(9 + 8 * 200, 1000);
    assert_eq!(decode(&[&frame(Op::Wait, &[200])], &limits).unwrap_err(), refused);
    assert_eq!(decode(&[&frame(Op::MultiSet, &[100])], &limits).unwrap_err(), refused);
}

#[test]
fn lengths_do_not_overflow_with_maximal_limits() {
    let max = usize::MAX;
    let limits =
        Limits { key_len: max, value_len: max, keys_per_request: max, frame_len: max, ..Limits::default() };
    for number in HUGE_LENGTHS {
        for bytes in [
            frame(Op::Get, &[number]),
            frame(Op::Set, &[0, number]),
            frame(Op::Wait, &[number]),
            frame(Op::MultiSet, &[number]),
            frame(Op::MultiSet, &[number, number]),
        ] {
            assert!(decode(&[&bytes], &limits).unwrap().is_empty(), "{number} is within the limit");
        }
    }
}

#[test]
fn the_buffer_grows_with_received_bytes_and_not_with_announced_lengths() {
    let limits = Limits::default();
    let mut decoder = RequestDecoder::default();
    let mut bytes = frame(Op::Set, &[0, 8 << 20]);
    bytes.extend_from_slice(&[b'v'; 1000]);
    for piece in bytes.chunks(100) {
        assert!(decoder.next(&mut &*piece, &limits).unwrap().is_none());
    }
    let capacity = decoder.0.partial.as_ref().unwrap().bytes.capacity();
    assert!(capacity <= 2 * bytes.len(), "capacity of {capacity} bytes after {}", bytes.len());
}

#[test]
fn a_frame_of_known_length_allocates_no_excess_capacity() {
    let limits = Limits::default();
    let mut decoder = RequestDecoder::default();
    let bytes = encoded(&Request::Set { key: b"k", value: (&[b'v'; 10_000][..]).into() });
    for piece in bytes[..bytes.len() - 1].chunks(1000) {
        assert!(decoder.next(&mut &*piece, &limits).unwrap().is_none());
    }
    assert_eq!(decoder.0.partial.as_ref().unwrap().bytes.capacity(), bytes.len());
}

#[test]
fn list_items_are_parsed_once() {
    let keys: Vec<&[u8]> = vec![b"/key"; 1000];
    let bytes = encoded(&Request::Wait { keys: KeyList::new(&keys) });
    let half = bytes.len() / 2;
    let mut decoder = RequestDecoder::default();
    assert!(decoder.next(&mut &bytes[..half], &Limits::default()).unwrap().is_none());

    // Overwrite parsed items. If the decoder parsed them again, it would refuse the request.
    let partial = decoder.0.partial.as_mut().unwrap();
    let parsed = half - 100;
    partial.bytes[9..parsed].fill(0xff);
    let frame = decoder.next(&mut &bytes[half..], &Limits::default()).unwrap().unwrap();
    assert_eq!(frame.into_owned()[parsed..], bytes[parsed..]);
}

#[test]
fn the_buffer_never_exceeds_the_frame_limit() {
    let limits = Limits { frame_len: 5 * MIB, ..Limits::default() };
    let value = vec![b'v'; MIB - 1];
    let names: Vec<String> = (0..4).map(|n| format!("/{n}")).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &value[..])).collect();
    let list = encoded(&Request::MultiSet { pairs: PairList::new(&pairs) });
    let single = encoded(&Request::Set { key: b"/k", value: vec![b'v'; 4 * MIB][..].into() });
    for (bytes, limit) in [(list, limits.frame_len), (single.clone(), single.len())] {
        let mut decoder = RequestDecoder::default();
        for piece in bytes[..bytes.len() - 1].chunks(100_000) {
            assert!(decoder.next(&mut &*piece, &limits).unwrap().is_none());
            assert!(decoder.allocated() <= limit, "{:?} of {limit}", decoder.allocated());
        }
    }
}

#[test]
fn an_owned_frame_decodes_to_the_same_request() {
    for request in every_request() {
        let bytes = encoded(&request);
        let frame = RequestDecoder::default().next(&mut &bytes[..], &Limits::default()).unwrap().unwrap();
        assert_eq!(Decoded::Owned(frame.into_owned()).request(), request);
    }
}

// ---- replies ----

fn every_reply() -> Vec<(ReplyKind, Reply)> {
    let value = |bytes: &[u8]| Value::copied(bytes);
    vec![
        (ReplyKind::Waited(Op::Wait), Reply::Stop),
        (ReplyKind::Waited(Op::CancelWait), Reply::Canceled),
        (ReplyKind::Waited(Op::Barrier), Reply::Stop),
        (ReplyKind::Checked, Reply::Checked(true)),
        (ReplyKind::Checked, Reply::Checked(false)),
        (ReplyKind::Number, Reply::Number(i64::MIN)),
        (ReplyKind::Nonce, Reply::Nonce(u32::MAX)),
        (ReplyKind::Value, Reply::Value(value(b"v"))),
        (ReplyKind::Value, Reply::Value(value(b""))),
        (ReplyKind::Values(0), Reply::Values(vec![])),
        (ReplyKind::Values(3), Reply::Values(vec![value(b"a"), value(b""), value(b"\0\xff")])),
        (ReplyKind::Popped, Reply::Popped { before: 0, item: None }),
        (ReplyKind::Popped, Reply::Popped { before: 2, item: Some(value(b"item")) }),
        (ReplyKind::Popped, Reply::Popped { before: 1, item: Some(value(b"")) }),
        (ReplyKind::Keys, Reply::Keys(vec![])),
        (ReplyKind::Keys, Reply::Keys(vec![Key::from(&b"/k"[..]), Key::from(&b""[..])])),
    ]
}

fn encoded_reply(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

fn decode_reply(kind: ReplyKind, bytes: &[u8]) -> Result<Option<Reply>, WireError> {
    ReplyDecoder::default().next(kind, &mut &*bytes, &Limits::default())
}

#[test]
fn every_reply_decodes_to_what_was_encoded() {
    for (kind, reply) in every_reply() {
        assert_eq!(decode_reply(kind, &encoded_reply(&reply)), Ok(Some(reply)));
    }
}

#[test]
fn every_reply_decodes_when_split_at_any_byte() {
    for (kind, reply) in every_reply() {
        let bytes = encoded_reply(&reply);
        for cut in 0..bytes.len() {
            let mut decoder = ReplyDecoder::default();
            assert_eq!(decoder.next(kind, &mut &bytes[..cut], &Limits::default()), Ok(None));
            assert_eq!(decoder.is_mid_reply(), cut > 0);
            let whole = decoder.next(kind, &mut &bytes[cut..], &Limits::default());
            assert_eq!(whole, Ok(Some(reply.clone())), "{kind:?} cut at {cut}");
            assert!(!decoder.is_mid_reply());
        }
    }
}

#[test]
fn consecutive_replies_decode_for_every_piece_length() {
    let stream: Vec<u8> = every_reply().iter().flat_map(|(_, reply)| encoded_reply(reply)).collect();
    for len in 1..=stream.len() {
        let mut decoder = ReplyDecoder::default();
        let mut pieces = stream.chunks(len);
        let mut input: &[u8] = &[];
        for (kind, reply) in every_reply() {
            let decoded = loop {
                match decoder.next(kind, &mut input, &Limits::default()).unwrap() {
                    Some(decoded) => break decoded,
                    None => input = pieces.next().expect("the stream has bytes for every reply"),
                }
            };
            assert_eq!(decoded, reply, "pieces of {len}");
        }
    }
}

#[test]
fn an_undefined_reply_byte_is_refused() {
    for found in 2..=255 {
        let refused = decode_reply(ReplyKind::Waited(Op::Barrier), &[found]);
        assert_eq!(refused, Err(WireError::BadReply { op: Op::Barrier, found: found.into() }));
        let refused = decode_reply(ReplyKind::Checked, &[found]);
        assert_eq!(refused, Err(WireError::BadReply { op: Op::Check, found: found.into() }));
    }
}

#[test]
fn a_reply_past_the_limit_is_refused_before_the_bytes_after_its_length_arrive() {
    let limit = Limits::default().reply_len;
    for len in [64 << 20].into_iter().chain(HUGE_LENGTHS) {
        let prefix = |numbers: &[u64]| frame(Op::Get, numbers)[1..].to_vec();
        for (kind, bytes) in [
            (ReplyKind::Value, prefix(&[len])),
            (ReplyKind::Values(1), prefix(&[len])),
            (ReplyKind::Popped, prefix(&[1, len])),
            (ReplyKind::Keys, prefix(&[1, len])),
        ] {
            let refused = decode_reply(kind, &bytes).unwrap_err();
            assert!(
                matches!(refused, WireError::TooLong { limit: l, .. } if l == limit),
                "{kind:?} of {len}: {refused}"
            );
        }
    }
}

#[test]
fn a_reply_with_more_keys_than_fit_is_refused_before_its_first_key_arrives() {
    for count in [8 << 20, 1 << 40, 1 << 62] {
        let refused = decode_reply(ReplyKind::Keys, &u64::to_le_bytes(count)).unwrap_err();
        assert!(matches!(refused, WireError::TooLong { what: "frame", .. }), "{count}: {refused}");
    }
}

#[test]
fn a_reply_with_a_negative_count_is_refused() {
    for found in [-1, i64::MIN] {
        let refused = decode_reply(ReplyKind::Keys, &found.to_le_bytes());
        assert_eq!(refused, Err(WireError::BadReply { op: Op::ListKeys, found }));
    }
}

#[test]
fn more_values_than_can_fit_are_refused_before_a_byte_arrives() {
    let refused = decode_reply(ReplyKind::Values(u64::MAX), &[]);
    assert!(matches!(refused, Err(WireError::TooLong { what: "frame", .. } | WireError::TooManyKeys { .. })));
}

#[test]
fn the_buffer_of_a_reply_grows_with_received_bytes() {
    let mut decoder = ReplyDecoder::default();
    let announced = u64::to_le_bytes(60 << 20);
    assert_eq!(decoder.next(ReplyKind::Value, &mut &announced[..], &Limits::default()), Ok(None));
    assert_eq!(decoder.next(ReplyKind::Value, &mut &[1; 100][..], &Limits::default()), Ok(None));
    assert!(decoder.0.partial.as_ref().unwrap().bytes.capacity() <= 256);
}

#[test]
fn the_reply_for_an_empty_queue_ends_after_the_count() {
    let mut bytes = encoded_reply(&Reply::Popped { before: 0, item: None });
    bytes.extend_from_slice(&encoded_reply(&Reply::Nonce(7)));
    let (mut decoder, mut input) = (ReplyDecoder::default(), &bytes[..]);
    let popped = decoder.next(ReplyKind::Popped, &mut input, &Limits::default());
    assert_eq!(popped, Ok(Some(Reply::Popped { before: 0, item: None })));
    assert_eq!(input.len(), 4);
}
