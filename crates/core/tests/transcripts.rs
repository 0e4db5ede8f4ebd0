//! Tests of the codec with bytes that were recorded between torch's client and torch's server.
//!
//! `tests/interop/record_transcripts.py` makes the recording and describes its format.

use rallypoint_core::Limits;
use rallypoint_core::wire::{Op, Reply, ReplyDecoder, ReplyKind, Request, RequestDecoder};

const RECORDING: &str = include_str!("../../../tests/transcripts/torch-2.15.0-libuv.txt");

/// One recorded connection.
#[derive(Debug, Default)]
struct Conversation {
    name: &'static str,
    /// The names of the operations. They come from the recording script, not from the bytes.
    ops: Vec<&'static str>,
    client: Vec<u8>,
    server: Vec<u8>,
    /// Whether the server closed the connection.
    closed: bool,
}

fn conversations() -> Vec<Conversation> {
    let mut conversations: Vec<Conversation> = Vec::new();
    for line in RECORDING.lines().filter(|line| !line.is_empty()) {
        let (marker, rest) = line.split_once(' ').unwrap_or((line, ""));
        if marker == "@" {
            conversations.push(Conversation { name: rest, ..Conversation::default() });
            continue;
        }
        match (marker, conversations.last_mut()) {
            ("#", _) => {}
            ("=", Some(last)) => last.ops = rest.split(' ').collect(),
            (">", Some(last)) => last.client.extend(parse_hex(rest)),
            ("<", Some(last)) => last.server.extend(parse_hex(rest)),
            ("<!", Some(last)) => last.closed = true,
            _ => panic!("not a line of a transcript: {line}"),
        }
    }
    assert!(conversations.len() > 20, "the recording has only {} conversations", conversations.len());
    conversations
}

fn parse_hex(text: &str) -> impl Iterator<Item = u8> + '_ {
    assert!(text.len().is_multiple_of(2), "an odd number of digits in {text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal"))
}

/// Decodes the pieces of a stream, and calls `visit` for each request. Panics if bytes remain after the last request.
fn for_each_request<'a>(
    name: &str,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    mut visit: impl FnMut(&Request<'_>),
) {
    let limits = Limits::default();
    let mut decoder = RequestDecoder::default();
    for mut piece in pieces {
        while let Some(frame) =
            decoder.next(&mut piece, &limits).unwrap_or_else(|error| panic!("{name}: {error}"))
        {
            visit(&frame.request());
        }
        assert!(piece.is_empty(), "{name}: the decoder left bytes without an error");
    }
    assert_eq!(decoder.allocated(), 0, "{name}: the stream ends within a request");
}

fn reencode<'a>(name: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for_each_request(name, pieces, |request| request.encode(&mut out));
    out
}

/// Returns the kinds of the replies that the client expects, in order.
fn expected_kinds(conversation: &Conversation) -> Vec<ReplyKind> {
    let mut kinds = Vec::new();
    for_each_request(conversation.name, [&conversation.client[..]], |request| {
        kinds.extend(request.reply_kind());
    });
    kinds
}

/// Decodes the pieces of a stream as replies of these kinds. Like the client, takes one `Canceled` reply as the reply
/// to both a WAIT and its CANCEL_WAIT.
fn replies<'a>(
    conversation: &Conversation,
    kinds: &[ReplyKind],
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<Reply> {
    let name = conversation.name;
    let limits = Limits::default();
    let mut decoder = ReplyDecoder::default();
    let mut kinds = kinds.iter().copied().peekable();
    let mut replies = Vec::new();
    for mut piece in pieces {
        while let Some(&kind) = kinds.peek() {
            let reply =
                decoder.next(kind, &mut piece, &limits).unwrap_or_else(|error| panic!("{name}: {error}"));
            let Some(reply) = reply else { break };
            kinds.next();
            if reply == Reply::Canceled && kind != ReplyKind::Waited(Op::CancelWait) {
                // The CANCEL_WAIT arrived before the wake-up, so one byte is the reply to both requests.
                assert_eq!(kinds.next(), Some(ReplyKind::Waited(Op::CancelWait)), "{name}: no CANCEL_WAIT");
            }
            replies.push(reply);
        }
        assert!(piece.is_empty(), "{name}: the server sent bytes after the last reply");
    }
    assert!(!decoder.is_mid_reply(), "{name}: the stream ends within a reply");
    let missing: Vec<_> = kinds.collect();
    // The request for which the server closed the connection got no reply.
    match conversation.closed {
        true => assert_eq!(missing.len(), 1, "{name}: no reply to {missing:?}"),
        false => assert!(missing.is_empty(), "{name}: no reply to {missing:?}"),
    }
    replies
}

#[test]
fn every_operation_is_recorded() {
    let recorded = conversations();
    for op in Op::ALL.iter().filter(|op| op.is_of_torch()) {
        assert!(
            recorded.iter().any(|conversation| conversation.ops.contains(&op.name())),
            "no conversation has {op}"
        );
    }
}

#[test]
fn recorded_requests_match_their_recorded_operations() {
    for conversation in conversations() {
        let mut seen = Vec::new();
        for_each_request(conversation.name, [&conversation.client[..]], |request| {
            seen.push(request.op().name());
        });
        assert_eq!(seen, conversation.ops, "{}", conversation.name);
    }
}

#[test]
fn recorded_requests_reencode_to_the_same_bytes_for_every_cut() {
    for conversation in conversations() {
        let bytes = &conversation.client[..];
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(
                reencode(conversation.name, [first, second]),
                bytes,
                "{} cut at {cut}",
                conversation.name
            );
        }
        assert_eq!(reencode(conversation.name, bytes.chunks(1)), bytes, "{} byte by byte", conversation.name);
    }
}

#[test]
fn recorded_replies_reencode_to_the_same_bytes_for_every_cut() {
    for conversation in conversations() {
        let bytes = &conversation.server[..];
        let kinds = expected_kinds(&conversation);
        let check = |pieces: &[&[u8]], how: &str| {
            let mut out = Vec::new();
            replies(&conversation, &kinds, pieces.iter().copied())
                .iter()
                .for_each(|reply| reply.encode(&mut out));
            assert_eq!(out, bytes, "{} {how}", conversation.name);
        };
        for cut in 0..=bytes.len() {
            let (first, second) = bytes.split_at(cut);
            check(&[first, second], &format!("cut at {cut}"));
        }
        check(&bytes.chunks(1).collect::<Vec<_>>(), "byte by byte");
    }
}

#[test]
fn a_canceled_wait_gets_one_reply_or_two_if_its_wake_up_crosses_the_cancel() {
    let waits = |name: &str| {
        let recorded = conversations();
        let conversation = recorded
            .iter()
            .find(|conversation| conversation.name == name)
            .expect("the recording has this conversation");
        let kinds = expected_kinds(conversation);
        let replies = replies(conversation, &kinds, [&conversation.server[..]]);
        replies.into_iter().filter(|reply| matches!(reply, Reply::Stop | Reply::Canceled)).collect::<Vec<_>>()
    };
    assert_eq!(waits("a_wait_that_times_out"), [Reply::Canceled]);
    assert_eq!(waits("a_barrier_that_times_out"), [Reply::Canceled]);
    assert_eq!(waits("a_wake_up_that_crosses_the_cancel"), [Reply::Stop, Reply::Canceled]);
}
