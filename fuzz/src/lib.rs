//! The checks of the fuzz targets. For any input, the code must not panic, must give the same result for every split of
//! the input, and must encode what it has decoded without loss.
//!
//! The fuzz targets call these functions with the bytes of a fuzzer. The tests of the core call them with the seed
//! corpus. A function panics if its check fails.

#[path = "../../crates/core/tests/support/loopback.rs"]
mod loopback;

use std::time::Duration;

use rallypoint_core::hub::HubOptions;
use rallypoint_core::record::{Parsed, Record, Table, user_keys};
use rallypoint_core::rendezvous::{cell, pickle};
use rallypoint_core::wire::{Op, ReplyDecoder, ReplyKind, RequestDecoder};
use rallypoint_core::{Limits, WireError};

use loopback::Loopback;

/// The piece lengths of the splits. Pieces of 7 and 64 bytes can end inside a length field or inside a string.
const PIECE_LENGTHS: [usize; 4] = [1, 7, 64, usize::MAX];

/// Returns limits so low that short inputs reach them.
fn low_limits() -> Limits {
    let mut limits = Limits::default();
    (limits.key_len, limits.value_len, limits.keys_per_request, limits.frame_len) = (64, 256, 32, 1024);
    (limits.keys, limits.queue_items, limits.store_bytes) = (8, 4, 2048);
    (limits.awaited_per_client, limits.awaited_total, limits.reply_len) = (8, 12, 1024);
    limits
}

/// Calls `read` with several splits of the data. Returns its result, and panics if the result is not the same for every
/// split.
fn for_every_split<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    read: impl Fn(&mut dyn Iterator<Item = &[u8]>) -> T,
) -> T {
    let [first, others @ ..] = PIECE_LENGTHS.map(|len| read(&mut data.chunks(len)));
    for other in others {
        assert_eq!(first, other, "the result depends on the split");
    }
    first
}

/// Feeds the byte stream of one client to the decoder of requests and to a server, and checks both.
pub fn request_decoder(data: &[u8]) {
    for limits in [Limits::default(), low_limits()] {
        let (frames, error) = for_every_split(data, |pieces| requests(pieces, &limits));
        assert!(data.starts_with(&frames.concat()), "encoding changed the bytes");
        assert!(error.is_some() || frames.concat().len() <= data.len());
        for_every_split(data, |pieces| serve(pieces, &limits));
    }
}

/// Removes the details of `TooLong` that depend on the split: which operand was found to be too long, and its length.
fn without_detail(error: WireError) -> WireError {
    match error {
        WireError::TooLong { .. } => WireError::TooLong { what: "frame", key: None, len: 0, limit: 0 },
        error => error,
    }
}

/// Decodes requests. Returns them encoded again, and the error that ended the decoding, if any.
fn requests(pieces: &mut dyn Iterator<Item = &[u8]>, limits: &Limits) -> (Vec<Vec<u8>>, Option<WireError>) {
    let mut decoder = RequestDecoder::default();
    let (mut frames, mut received, mut decoded) = (Vec::new(), 0, 0);
    for mut input in pieces {
        received += input.len();
        loop {
            match decoder.next(&mut input, limits) {
                Ok(Some(frame)) => {
                    let mut reencoded = Vec::new();
                    frame.request().encode(&mut reencoded);
                    assert!(reencoded.len() <= limits.frame_len.max(limits.key_len + 17));
                    decoded += reencoded.len();
                    frames.push(reencoded);
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(without_detail(error))),
            }
        }
        assert_eq!(
            decoder.received().unwrap_or(0),
            received - decoded,
            "every byte is in a request or buffered"
        );
    }
    (frames, None)
}

/// Runs a server with one client. Returns the bytes of the replies, and whether the server closed the connection.
fn serve(pieces: &mut dyn Iterator<Item = &[u8]>, limits: &Limits) -> (Vec<u8>, bool) {
    let mut net = server(limits);
    let Some(client) = net.open() else { return (Vec::new(), true) };
    let mut replies = Vec::new();
    for input in pieces {
        net.send(client, input);
        net.hub.check_invariants();
        replies.extend(net.take_received(client));
    }
    (replies, !net.is_open(client))
}

fn server(limits: &Limits) -> Loopback {
    Loopback::new(
        HubOptions {
            limits: limits.clone(),
            identity: b"identity".to_vec(),
            expire_idle_jobs: Some(Duration::from_secs(1)),
            ..HubOptions::default()
        },
        (),
    )
}

/// Checks the hub with several connections.
///
/// The data is a sequence of commands of two bytes. A command makes a connection send the bytes that follow, end its
/// stream, fail, or change its receive window, or it advances the time.
pub fn hub(data: &[u8]) {
    const CONNECTIONS: usize = 4;
    let mut limits = low_limits();
    (limits.output_pause, limits.output_hard, limits.output_total) = (256, 512, 2048);
    (limits.deferred_bytes, limits.input_total) = (256, 4096);
    let mut net = server(&limits);
    let mut ids = [None; CONNECTIONS];
    let mut data = data;
    while let [command, amount, rest @ ..] = data {
        data = rest;
        let slot = usize::from(command % CONNECTIONS as u8);
        let amount = usize::from(*amount);
        let id = match ids[slot].filter(|id| net.is_open(*id)) {
            Some(id) => id,
            None => {
                let Some(id) = net.open() else { return };
                // If bit 7 of the command is 0, the connection starts with VALIDATE, so that data reaches the engine.
                if command & 0x80 == 0 {
                    net.send(id, b"\x00\xce\xf7\x85\x3c");
                }
                ids[slot] = Some(id);
                id
            }
        };
        match command / CONNECTIONS as u8 % 8 {
            0..=3 => {
                let (sent, rest) = data.split_at(amount.min(data.len()));
                data = rest;
                net.send(id, sent);
            }
            4 => net.end(id),
            5 => net.fail(id),
            6 => net.set_window(id, amount),
            _ => net.advance(Duration::from_millis(100 * amount as u64)),
        }
        net.hub.check_invariants();
    }
    ids.into_iter().flatten().for_each(|id| net.fail(id));
    net.hub.check_invariants();
    assert_eq!(
        (net.hub.snapshot().blocked, net.hub.snapshot().awaited),
        (0, 0),
        "no wait outlives its connection"
    );
}

/// Checks the decoder of replies with a stream of replies of one kind, which the first byte selects.
pub fn reply_decoder(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let kind = match choice % 8 {
        0 => ReplyKind::Waited(Op::Wait),
        1 => ReplyKind::Checked,
        2 => ReplyKind::Number,
        3 => ReplyKind::Nonce,
        4 => ReplyKind::Value,
        5 => ReplyKind::Values(u64::from(choice / 8)),
        6 => ReplyKind::Popped,
        _ => ReplyKind::Keys,
    };
    for limits in [Limits::default(), low_limits()] {
        let (read, _) = for_every_split(data, |pieces| replies(kind, pieces, &limits));
        assert!(data.starts_with(&read), "encoding changed the bytes");
    }
}

/// Decodes replies. Returns them encoded again, and the error that ended the decoding, if any.
fn replies(
    kind: ReplyKind,
    pieces: &mut dyn Iterator<Item = &[u8]>,
    limits: &Limits,
) -> (Vec<u8>, Option<WireError>) {
    let mut decoder = ReplyDecoder::default();
    let mut read = Vec::new();
    for mut input in pieces {
        loop {
            match decoder.next(kind, &mut input, limits) {
                // A list of 0 values takes no bytes, so the loop would never end without this return.
                Ok(Some(_)) if kind == ReplyKind::Values(0) => return (read, None),
                Ok(Some(reply)) => reply.encode(&mut read),
                Ok(None) => break,
                Err(error) => return (read, Some(without_detail(error))),
            }
        }
        assert!(input.is_empty(), "`None` means that the decoder has consumed the input");
    }
    (read, None)
}

/// Checks the parser of FileStore's records.
pub fn record_reader(data: &[u8]) {
    let (records, position, damage) = for_every_split(data, records);
    assert!(position <= data.len());

    // Parsing drops the value of a deleted key, so the encoded records may be shorter than the input.
    let mut reencoded = Vec::new();
    records.iter().for_each(|record| record.encode_into(&mut reencoded));
    assert!(reencoded.len() <= position);
    let (reread, end, no_damage) = for_every_split(&reencoded, self::records);
    assert_eq!((&reread, end, no_damage), (&records, reencoded.len(), None), "decoding undoes encoding");

    let mut table = Table::new();
    records.into_iter().for_each(|record| record.apply_to(&mut table));
    assert!(damage.is_some() || user_keys(&table).count() <= data.len());
}

/// Parses records. Returns them, the position after the last one, and the damage at that position, if any.
fn records(pieces: &mut dyn Iterator<Item = &[u8]>) -> (Vec<Record>, usize, Option<String>) {
    let (mut records, mut bytes, mut position) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        bytes.extend_from_slice(piece);
        loop {
            match Record::parse(&bytes[position..], &Limits::default()) {
                Ok(Parsed::Whole(record, len)) => {
                    records.push(record);
                    position += len;
                }
                Ok(Parsed::Torn(_)) => break,
                Err(damage) => return (records, position, Some(damage)),
            }
        }
    }
    (records, position, None)
}

/// Checks the codecs of rendezvous states: the pickle, and the base64 around it.
pub fn state(data: &[u8]) {
    let mut tight = Limits::default();
    (tight.state_bytes, tight.state_nodes, tight.state_extra, tight.host_len) = (600, 2, 64, 16);
    for limits in [Limits::default(), tight] {
        if let Ok(state) = pickle::decode(data, &limits) {
            pickle::encode(&state, &Limits::default()).expect("a decoded state can be encoded");
            assert!(
                state.all_nodes().len() <= 4 * limits.state_nodes,
                "at most the maximum number of nodes in each list"
            );
        }
        let _ = cell::read(data, &limits);
        let encoded = cell::encode(data);
        if let Ok(decoded) = cell::decode(&encoded, &limits) {
            assert_eq!(decoded, data, "base64 is lossless");
        }
    }
}
