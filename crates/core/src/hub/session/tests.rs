//! Tests of the handshake and of the order of requests.

use super::*;

const VALIDATE: [u8; 5] = [0x00, 0xce, 0xf7, 0x85, 0x3c];
const NUM_KEYS: u8 = Op::NumKeys as u8;
const LIST_KEYS: u8 = Op::ListKeys as u8;
const CANCEL: u8 = Op::CancelWait as u8;

/// Returns a session after the handshake.
fn validated() -> Session {
    let mut session = Session::default();
    assert!(session.next(&mut &VALIDATE[..], &Limits::default(), false).unwrap().is_none());
    session
}

/// Returns the operations that the session decodes from `bytes`, and the error that ended the decoding, if any.
fn ops(session: &mut Session, bytes: &[u8], is_blocked: bool) -> (Vec<Op>, Option<WireError>) {
    let (mut input, mut ops) = (bytes, Vec::new());
    loop {
        match session.next(&mut input, &Limits::default(), is_blocked) {
            Ok(Some(decoded)) => ops.push(decoded.request().op()),
            Ok(None) => {
                assert!(input.is_empty(), "`None` means that the session has consumed the input");
                return (ops, None);
            }
            Err(error) => return (ops, Some(error)),
        }
    }
}

fn encoded(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

#[test]
fn next_in_place_needs_a_whole_request_and_an_empty_backlog() {
    let set = encoded(&[Request::Set { key: b"/k", value: b"v"[..].into() }]);
    let next_in_place = |session: &mut Session, bytes: &[u8]| {
        let mut input = bytes;
        let op = session.next_in_place(&mut input, &Limits::default()).map(|request| request.op());
        (op, input.len())
    };
    assert_eq!(next_in_place(&mut validated(), &set), (Some(Op::Set), 0));
    assert_eq!(next_in_place(&mut validated(), &[&set[..], &set].concat()), (Some(Op::Set), set.len()));
    for cut in 0..set.len() {
        assert_eq!(next_in_place(&mut validated(), &set[..cut]), (None, cut));
    }
    assert_eq!(next_in_place(&mut Session::default(), &set), (None, set.len()));
    assert_eq!(next_in_place(&mut validated(), &[NUM_KEYS]), (Some(Op::NumKeys), 0));
    assert_eq!(next_in_place(&mut validated(), &VALIDATE), (None, VALIDATE.len()));
    // After a part of a request has arrived, further bytes continue that request.
    let mut partial = validated();
    assert_eq!(ops(&mut partial, &set[..3], false), (vec![], None));
    assert_eq!(next_in_place(&mut partial, &set), (None, set.len()));
    let mut deferred = validated();
    assert_eq!(ops(&mut deferred, &[NUM_KEYS], true), (vec![], None));
    assert_eq!(next_in_place(&mut deferred, &set), (None, set.len()));
}

#[test]
fn next_in_place_returns_none_for_a_request_beyond_a_limit() {
    for (key, value) in [(9, 1), (8, 17), (8, 16)] {
        let limits = Limits { key_len: 8, value_len: 16, frame_len: 40, ..Limits::default() };
        let set = encoded(&[Request::Set { key: &vec![b'k'; key], value: vec![b'v'; value][..].into() }]);
        assert_eq!(validated().next_in_place(&mut &set[..], &limits), None, "{key}, {value}");
        assert!(validated().next(&mut &set[..], &limits, false).is_err(), "{key}, {value}");
    }
}

#[test]
fn validate_works_at_every_split_point() {
    for cut in 0..=VALIDATE.len() {
        let mut session = Session::default();
        assert!(session.next(&mut &VALIDATE[..cut], &Limits::default(), false).unwrap().is_none());
        assert_eq!(session.is_validated(), cut == VALIDATE.len());
        let rest = [&VALIDATE[cut..], &[NUM_KEYS]].concat();
        assert_eq!(ops(&mut session, &rest, false), (vec![Op::NumKeys], None), "cut at {cut}");
        assert!(session.is_validated());
    }
}

#[test]
fn validate_works_byte_by_byte() {
    let mut session = Session::default();
    for byte in VALIDATE {
        assert_eq!(ops(&mut session, &[byte], false), (vec![], None));
    }
    assert!(session.is_validated());
}

#[test]
fn a_wrong_magic_is_refused_and_nothing_behind_it_is_processed() {
    let mut bytes = encoded(&[Request::Validate { magic: 0xdead_beef }]);
    bytes.push(NUM_KEYS);
    let refused = WireError::BadMagic { found: 0xdead_beef };
    assert_eq!(ops(&mut Session::default(), &bytes, false), (vec![], Some(refused)));
}

#[test]
fn a_request_before_validate_is_refused_at_its_first_byte() {
    for found in 1..=255 {
        let refused = WireError::NotValidated { found };
        assert_eq!(ops(&mut Session::default(), &[found], false), (vec![], Some(refused)));
    }
}

#[test]
fn a_request_before_validate_never_reaches_the_engine() {
    let set = encoded(&[Request::Set { key: b"/k", value: b"v"[..].into() }]);
    let bytes = [&set[..], &VALIDATE].concat();
    let (ops, error) = ops(&mut Session::default(), &bytes, false);
    assert_eq!((ops, error), (vec![], Some(WireError::NotValidated { found: 1 })));
}

#[test]
fn an_unknown_operation_is_refused_at_its_first_byte() {
    for code in [0x13, 0x14, 0x7f, 0xff] {
        let refused = WireError::UnknownOp { code };
        assert_eq!(ops(&mut validated(), &[NUM_KEYS, code], false), (vec![Op::NumKeys], Some(refused)));
    }
}

#[test]
fn a_second_validate_is_refused_at_its_first_byte() {
    let refused = Some(WireError::ValidatedTwice);
    assert_eq!(ops(&mut validated(), &VALIDATE, false), (vec![], refused.clone()));
    assert_eq!(ops(&mut validated(), &[NUM_KEYS, 0], false), (vec![Op::NumKeys], refused));
}

#[test]
fn a_zero_byte_inside_a_request_is_not_a_second_validate() {
    let bytes = encoded(&[Request::Get { key: b"\0" }]);
    let mut session = validated();
    for byte in &bytes[..bytes.len() - 1] {
        assert_eq!(ops(&mut session, &[*byte], false), (vec![], None));
    }
    assert_eq!(ops(&mut session, &[0], false), (vec![Op::Get], None));
}

#[test]
fn an_unknown_operation_is_refused_behind_a_blocked_request() {
    let mut session = validated();
    let refused = WireError::UnknownOp { code: 0x13 };
    assert_eq!(ops(&mut session, &[NUM_KEYS, 0x13], true), (vec![], Some(refused)));
}

#[test]
fn requests_behind_a_blocked_one_are_deferred_and_then_returned_in_order() {
    let mut session = validated();
    assert_eq!(ops(&mut session, &[NUM_KEYS, LIST_KEYS], true), (vec![], None));
    assert!(session.has_backlog());
    assert_eq!(ops(&mut session, &[NUM_KEYS], false), (vec![Op::NumKeys, Op::ListKeys, Op::NumKeys], None));
    assert!(!session.has_backlog());
}

#[test]
fn a_cancel_overtakes_deferred_requests() {
    let mut session = validated();
    assert_eq!(ops(&mut session, &[NUM_KEYS, CANCEL], true), (vec![Op::CancelWait], None));
    assert_eq!(ops(&mut session, &[], false), (vec![Op::NumKeys], None));
}

#[test]
fn buffered_bytes_counts_incomplete_and_deferred_requests() {
    let get = encoded(&[Request::Get { key: b"/k" }]);
    let mut session = validated();
    ops(&mut session, &[&get[..], &get[..4]].concat(), true);
    let deferred = get.len() + DEFERRED_OVERHEAD_BYTES;
    assert_eq!((session.decoder().received(), session.backlog_bytes()), (Some(4), deferred));
    assert!(
        (deferred + 4..=deferred + 64).contains(&session.buffered_bytes()),
        "{}",
        session.buffered_bytes()
    );
    ops(&mut session, &get[4..], false);
    assert_eq!(
        (session.decoder().received(), session.backlog_bytes(), session.buffered_bytes()),
        (None, 0, 0)
    );
}

#[test]
fn buffered_bytes_includes_the_overhead_of_deferred_requests() {
    let mut session = validated();
    ops(&mut session, &[NUM_KEYS; 1000], true);
    assert!(session.buffered_bytes() > 1000 * size_of::<Bytes>());
}

#[test]
fn started_counts_each_request_that_arrives_in_pieces() {
    let set = encoded(&[Request::Set { key: b"/k", value: b"value"[..].into() }]);
    for is_blocked in [false, true] {
        let mut session = validated();
        let mut feed = |mut bytes: &[u8]| {
            while session.next(&mut bytes, &Limits::default(), is_blocked).unwrap().is_some() {}
            (session.decoder().started(), session.decoder().received())
        };
        let (first, _) = feed(&set[..9]);
        assert_eq!(feed(&set[9..12]), (first, Some(12)), "the same request continues");
        assert_eq!(feed(&[&set[12..], &set[..5]].concat()), (first + 1, Some(5)), "the next request");
        assert_eq!(feed(&[&set[5..], &set[..]].concat()).1, None);
    }
}
