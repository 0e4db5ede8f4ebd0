//! What must hold for any bytes: no panic, the same result however they are cut, and what was read is what was written.
//!
//! The fuzz targets call these with bytes a fuzzer makes up, the tests of the core with the seed corpus. A failure is a
//! panic.

#[path = "../../crates/core/tests/support/loopback.rs"]
mod loopback;

use std::time::Duration;

use rallypoint_core::hub::HubOptions;
use rallypoint_core::record::{Parsed, Record, Table, user_keys};
use rallypoint_core::rendezvous::{cell, pickle};
use rallypoint_core::wire::{Op, ReplyDecoder, ReplyKind, RequestDecoder};
use rallypoint_core::{Limits, WireError};

use loopback::Loopback;

/// Lengths of pieces: each byte alone, some that fall inside lengths and strings, and all at once.
const PIECES: [usize; 4] = [1, 7, 64, usize::MAX];

/// Limits that short inputs reach too.
fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.key_len, limits.value_len, limits.keys_per_request, limits.frame_len) = (64, 256, 32, 1024);
    (limits.keys, limits.queue_items, limits.store_bytes) = (8, 4, 2048);
    (limits.awaited_per_client, limits.awaited_total, limits.reply_len) = (8, 12, 1024);
    limits
}

/// What `read` makes of the bytes, which must not depend on where they are cut.
fn however_cut<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    read: impl Fn(&mut dyn Iterator<Item = &[u8]>) -> T,
) -> T {
    let [first, others @ ..] = PIECES.map(|piece| read(&mut data.chunks(piece)));
    for other in others {
        assert_eq!(first, other, "the cut makes a difference");
    }
    first
}

/// A client's stream, from VALIDATE on or not.
pub fn request_decoder(data: &[u8]) {
    for limits in [Limits::default(), limits()] {
        let (frames, error) = however_cut(data, |pieces| requests(pieces, &limits));
        assert!(data.starts_with(&frames.concat()), "what came out is what went in");
        assert!(error.is_some() || frames.concat().len() <= data.len());
        however_cut(data, |pieces| serve(pieces, &limits));
    }
}

/// Which part of a message is found to be too long, and by how much, depends on how much of it has arrived.
fn without_detail(error: WireError) -> WireError {
    match error {
        WireError::TooLong { .. } => WireError::TooLong { what: "message", key: None, len: 0, limit: 0 },
        error => error,
    }
}

/// All whole requests, as bytes, and what ended them.
fn requests(pieces: &mut dyn Iterator<Item = &[u8]>, limits: &Limits) -> (Vec<Vec<u8>>, Option<WireError>) {
    let mut decoder = RequestDecoder::default();
    let (mut frames, mut fed, mut taken) = (Vec::new(), 0, 0);
    for mut input in pieces {
        fed += input.len();
        loop {
            match decoder.next(&mut input, limits) {
                Ok(Some(frame)) => {
                    let mut again = Vec::new();
                    frame.request().encode(&mut again);
                    assert!(again.len() <= limits.frame_len.max(limits.key_len + 17));
                    taken += again.len();
                    frames.push(again);
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(without_detail(error))),
            }
        }
        assert_eq!(decoder.received().unwrap_or(0), fed - taken, "every byte is in a request or held");
    }
    (frames, None)
}

/// What a server with this one client answers, and whether it hangs up.
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
        HubOptions { limits: limits.clone(), identity: b"identity".to_vec(), ..HubOptions::default() },
        (),
    )
}

/// A server with several connections. The data says, in commands of two bytes and what follows them, which connection sends,
/// ends, fails, stops reading, or that time passes.
pub fn hub(data: &[u8]) {
    const CONNECTIONS: usize = 4;
    let mut net = server(&limits());
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
                // Most connections begin well, so that the data reaches the engine.
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
            _ => net.pass(Duration::from_millis(100 * amount as u64)),
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

/// A server's stream of replies of one kind, which the first byte chooses.
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
    for limits in [Limits::default(), limits()] {
        let (read, _) = however_cut(data, |pieces| replies(kind, pieces, &limits));
        assert!(data.starts_with(&read), "what came out is what went in");
    }
}

/// All whole replies, encoded again, and what ended them.
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
                // No values at all take no bytes, and would come for ever.
                Ok(Some(_)) if kind == ReplyKind::Values(0) => return (read, None),
                Ok(Some(reply)) => reply.encode(&mut read),
                Ok(None) => break,
                Err(error) => return (read, Some(without_detail(error))),
            }
        }
        assert!(input.is_empty(), "`None` means that the input is used up");
    }
    (read, None)
}

/// A file that processes share.
pub fn record_reader(data: &[u8]) {
    let (records, position, damage) = however_cut(data, records);
    assert!(position <= data.len());

    // A value behind a deleted key is dropped, so the records may be shorter than what they were read from.
    let mut again = Vec::new();
    records.iter().for_each(|record| record.encode_into(&mut again));
    assert!(again.len() <= position);
    let (reread, end, no_damage) = however_cut(&again, self::records);
    assert_eq!((&reread, end, no_damage), (&records, again.len(), None), "encoding undoes decoding");

    let mut table = Table::new();
    records.into_iter().for_each(|record| record.apply_to(&mut table));
    assert!(damage.is_some() || user_keys(&table).count() <= data.len());
}

/// All whole records, how far they reach, and what ended them.
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

/// The bytes of a rendezvous' state, and the value they are in a store.
pub fn state(data: &[u8]) {
    let mut narrow = Limits::default();
    (narrow.state_bytes, narrow.state_nodes, narrow.state_extra, narrow.host_len) = (600, 2, 64, 16);
    for limits in [Limits::default(), narrow] {
        if let Ok(state) = pickle::decode(data, &limits) {
            pickle::encode(&state, &Limits::default()).expect("what is written reads the same");
            assert!(
                state.all_nodes().len() <= 4 * limits.state_nodes,
                "no more nodes than the limit, in any of the lists"
            );
        }
        let _ = cell::read(data, &limits);
        let encoded = cell::encode(data);
        if let Ok(decoded) = cell::decode(&encoded, &limits) {
            assert_eq!(decoded, data, "base64 there and back");
        }
    }
}
