//! Work is linear: sixteen times as much takes about sixteen times as long, however it arrives and whoever else waits.
//!
//! Times are those the processor spent on this thread, whatever else the machine does, and are compared with times of
//! the same build and the same moment, never with a number of seconds. The bound lies far above what caches make of
//! linear work and far below what quadratic work would need.

#[path = "support/loopback.rs"]
mod loopback;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use loopback::Loopback;
use rallypoint_core::Limits;
use rallypoint_core::hub::HubOptions;
use rallypoint_core::store::{Answer, ClientId, Engine, EngineOptions};
use rallypoint_core::wire::{KeyList, MAGIC, PairList, Reply, Request, RequestDecoder};
use rustix::time::{ClockId, clock_gettime};

/// As many keys as one request may have.
const REQUEST: usize = 131_072;
/// Enough clients, or keys one by one, to tell linear from quadratic.
const CROWD: usize = 32_768;
/// Linear work needs 16 times as long, and several times more where it leaves the caches; quadratic work 256 times, and more
/// for the same reason.
const MOST: u32 = 96;

/// One measurement at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Since when this thread has been working.
struct Start(Duration);

impl Start {
    fn now() -> Start {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Start(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    fn elapsed(&self) -> Duration {
        Start::now().0 - self.0
    }
}

/// The shortest of several times. What else the machine does to the caches makes each longer, and none shorter.
fn best(times: usize, mut run: impl FnMut() -> Duration) -> Duration {
    (0..times).map(|_| run()).min().expect("at least one")
}

/// Checks that `work` of this size takes at most [`MOST`] times as long as a sixteenth of it.
#[track_caller]
fn assert_linear(size: usize, work: impl Fn(usize) -> Duration) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let small = best(5, || work(size / 16)).max(Duration::from_micros(1));
    let large = best(3, || work(size));
    assert!(large < small * MOST, "{}: {small:?}, {size}: {large:?}", size / 16);
}

fn names(n: usize) -> Vec<Vec<u8>> {
    (0..n).map(|at| format!("/key{at:07}").into_bytes()).collect()
}

fn slices(names: &[Vec<u8>]) -> Vec<&[u8]> {
    names.iter().map(|name| &name[..]).collect()
}

fn encoded(request: Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

fn wait_of(n: usize) -> Vec<u8> {
    let names = names(n);
    encoded(Request::Wait { keys: KeyList::new(&slices(&names)) })
}

/// How long decoding takes in pieces of this length.
fn decode(bytes: &[u8], piece: usize) -> Duration {
    let start = Start::now();
    let mut decoder = RequestDecoder::default();
    let mut frames = 0;
    for mut input in bytes.chunks(piece) {
        while decoder.next(&mut input, &Limits::default()).expect("these are requests").is_some() {
            frames += 1;
        }
    }
    assert_eq!(frames, 1);
    start.elapsed()
}

fn client(at: usize) -> ClientId {
    ClientId::new(at as u32)
}

fn engine() -> Engine {
    Engine::new(EngineOptions::default(), ())
}

fn ask(engine: &mut Engine, client: ClientId, request: Request<'_>) -> Answer {
    engine.handle_request(client, request).expect("a request within the limits")
}

fn drain(engine: &mut Engine) -> usize {
    std::iter::from_fn(|| engine.poll_woken()).count()
}

#[test]
fn a_wait_that_arrives_byte_by_byte_costs_what_it_is_long() {
    assert_linear(REQUEST, |n| decode(&wait_of(n), 1));
}

#[test]
fn a_wait_that_arrives_byte_by_byte_costs_little_more_than_one_in_a_piece() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = wait_of(REQUEST);
    let whole = best(3, || decode(&bytes, bytes.len()));
    let bytewise = best(2, || decode(&bytes, 1));
    // A call for each byte rather than one for all: a few dozen times, where a walk for each byte is a million.
    assert!(bytewise < whole * 1000, "whole: {whole:?}, byte by byte: {bytewise:?}");
}

#[test]
fn a_multi_set_that_arrives_in_segments_costs_what_it_is_long() {
    assert_linear(REQUEST, |n| {
        let names = names(n);
        let pairs: Vec<(&[u8], &[u8])> =
            names.iter().map(|name| (&name[..], &b"sixteen bytes ha"[..])).collect();
        decode(&encoded(Request::MultiSet { pairs: PairList::new(&pairs) }), 1460)
    });
}

#[test]
fn registering_and_cancelling_cost_what_is_waited_for() {
    assert_linear(REQUEST, |n| {
        let names = names(n);
        let keys = slices(&names);
        let mut engine = engine();
        let start = Start::now();
        ask(&mut engine, client(0), Request::Wait { keys: KeyList::new(&keys) });
        assert_eq!(ask(&mut engine, client(0), Request::CancelWait), Answer::Reply(Reply::Canceled));
        start.elapsed()
    });
}

#[test]
fn a_cancel_costs_the_same_whatever_others_wait_for() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let others: Vec<Vec<Vec<u8>>> =
        (0..4).map(|at| (0..100_000).map(|key| format!("/other{at}/{key}").into_bytes()).collect()).collect();
    let own = names(16);
    let keys = slices(&own);
    let cancels = |engine: &mut Engine| {
        let start = Start::now();
        for _ in 0..1000 {
            ask(engine, client(9), Request::Wait { keys: KeyList::new(&keys) });
            ask(engine, client(9), Request::CancelWait);
        }
        drain(engine);
        start.elapsed()
    };
    let mut alone = engine();
    let mut beside = engine();
    for (at, other) in others.iter().enumerate() {
        ask(&mut beside, client(at), Request::Wait { keys: KeyList::new(&slices(other)) });
    }
    assert_eq!(beside.snapshot().awaited, 400_000);
    let alone = best(3, || cancels(&mut alone));
    let beside = best(3, || cancels(&mut beside));
    assert!(beside < alone * 10, "alone: {alone:?}, beside 400,000 awaited keys: {beside:?}");
}

/// A store where this many clients wait for one key.
fn crowd(n: usize) -> Engine {
    let mut engine = engine();
    for at in 1..=n {
        ask(&mut engine, client(at), Request::Wait { keys: KeyList::new(&[b"/k"]) });
    }
    engine
}

#[test]
fn waking_costs_as_many_as_are_woken() {
    assert_linear(CROWD, |n| {
        let mut engine = crowd(n);
        let start = Start::now();
        ask(&mut engine, client(0), Request::Set { key: b"/k", value: b"v"[..].into() });
        assert_eq!(drain(&mut engine), n);
        start.elapsed()
    });
}

#[test]
fn leaving_costs_as_many_as_leave() {
    assert_linear(CROWD, |n| {
        let mut engine = crowd(n);
        let start = Start::now();
        // From the middle of the line outwards, where a search from either end would be dear.
        (1..=n / 2).rev().chain(n / 2 + 1..=n).for_each(|at| engine.handle_disconnect(client(at)));
        assert_eq!(engine.snapshot().blocked, 0);
        start.elapsed()
    });
}

#[test]
fn a_barrier_costs_as_many_as_it_is_for() {
    assert_linear(CROWD, |n| {
        let mut engine = engine();
        let start = Start::now();
        for at in 0..n {
            ask(&mut engine, client(at), Request::Barrier { key: b"/b", world_size: n as i64 });
        }
        assert_eq!(drain(&mut engine), n - 1);
        start.elapsed()
    });
}

#[test]
fn reading_what_a_wait_has_latched_costs_what_is_read() {
    assert_linear(CROWD, |n| {
        let names = names(n);
        let keys = slices(&names);
        let mut engine = engine();
        ask(&mut engine, client(1), Request::Wait { keys: KeyList::new(&keys) });
        for key in &keys {
            ask(&mut engine, client(0), Request::Set { key, value: b"v"[..].into() });
            ask(&mut engine, client(0), Request::DeleteKey { key });
        }
        let start = Start::now();
        ask(&mut engine, client(1), Request::MultiGet { keys: KeyList::new(&keys) });
        let took = start.elapsed();
        assert_eq!(drain(&mut engine), 1);
        took
    });
}

#[test]
fn cancels_held_back_overtake_without_a_search() {
    assert_linear(CROWD, |n| {
        let mut bytes = encoded(Request::Validate { magic: MAGIC });
        // Each cancel ends a wait that was held back behind those before it.
        bytes.extend(
            std::iter::repeat_n(encoded(Request::Wait { keys: KeyList::new(&[b"/k"]) }), n).flatten(),
        );
        bytes.extend(std::iter::repeat_n(encoded(Request::CancelWait), n).flatten());
        let mut options = HubOptions::default();
        options.limits.deferred_bytes = usize::MAX;
        let mut net = Loopback::new(options, ());
        let id = net.open().expect("a free slot");
        let start = Start::now();
        net.send(id, &bytes);
        let took = start.elapsed();
        assert_eq!(net.take_received(id).len(), n, "a reply for each cancel");
        took
    });
}
