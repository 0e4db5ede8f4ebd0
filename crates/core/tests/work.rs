//! Tests that the cost of decoding and of engine operations is linear in the size of the input.
//!
//! The tests measure the processor time of their thread, which other processes barely affect. They compare two
//! measurements of the same run, usually the full size and 1/16 of it, and never compare with a fixed time. The
//! permitted ratio is between the ratio of linear work with cache effects and the ratio of quadratic work.

#[path = "support/loopback.rs"]
mod loopback;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use loopback::Loopback;
use rallypoint_core::Limits;
use rallypoint_core::hub::HubOptions;
use rallypoint_core::store::{ClientId, Engine, EngineOptions, Outcome};
use rallypoint_core::wire::{KeyList, MAGIC, PairList, Reply, Request, RequestDecoder};
use rustix::time::{ClockId, clock_gettime};

/// The maximum number of keys in one request.
const KEYS_PER_REQUEST: usize = 131_072;
/// A number of clients or keys that is large enough to distinguish linear from quadratic work.
const CLIENTS: usize = 32_768;
/// The maximum ratio of the times for the full work and for 1/16 of it. The ratio of linear work is 16, or several
/// times that if only the small work fits into the caches. The ratio of quadratic work is at least 256.
const MAX_RATIO: u32 = 160;

/// A lock that each measurement takes, so that measurements do not run at the same time.
static MEASUREMENT: Mutex<()> = Mutex::new(());

/// A timer of the processor time of this thread.
struct CpuTimer(Duration);

impl CpuTimer {
    fn start() -> CpuTimer {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        CpuTimer(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    fn elapsed(&self) -> Duration {
        CpuTimer::start().0 - self.0
    }
}

/// Returns the shortest of several measurements. Interference by other processes can only make a measurement longer.
fn shortest(times: usize, mut run: impl FnMut() -> Duration) -> Duration {
    (0..times).map(|_| run()).min().expect("at least one measurement")
}

/// Asserts that `work` of this size takes less than [`MAX_RATIO`] times as long as 1/16 of it.
#[track_caller]
fn assert_linear(size: usize, work: impl Fn(usize) -> Duration) {
    let _guard = MEASUREMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let small = shortest(5, || work(size / 16)).max(Duration::from_micros(1));
    let large = shortest(3, || work(size));
    assert!(large < small * MAX_RATIO, "{}: {small:?}, {size}: {large:?}", size / 16);
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

/// Returns the processor time for decoding `bytes` in pieces of this length.
fn decode(bytes: &[u8], piece: usize) -> Duration {
    let timer = CpuTimer::start();
    let mut decoder = RequestDecoder::default();
    let mut frames = 0;
    for mut input in bytes.chunks(piece) {
        while decoder.next(&mut input, &Limits::default()).expect("valid requests").is_some() {
            frames += 1;
        }
    }
    assert_eq!(frames, 1);
    timer.elapsed()
}

fn client(at: usize) -> ClientId {
    ClientId::new(at as u32)
}

fn engine() -> Engine {
    Engine::new(EngineOptions::default(), ())
}

fn send(engine: &mut Engine, client: ClientId, request: Request<'_>) -> Outcome {
    engine.handle_request(client, request).expect("a request within the limits")
}

fn drain(engine: &mut Engine) -> usize {
    std::iter::from_fn(|| engine.poll_woken()).count()
}

#[test]
fn decoding_a_wait_byte_by_byte_is_linear() {
    assert_linear(KEYS_PER_REQUEST, |n| decode(&wait_of(n), 1));
}

#[test]
fn decoding_byte_by_byte_takes_less_than_1000_times_as_long_as_in_one_piece() {
    let _guard = MEASUREMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = wait_of(KEYS_PER_REQUEST);
    let whole = shortest(3, || decode(&bytes, bytes.len()));
    let bytewise = shortest(2, || decode(&bytes, 1));
    // One call per byte takes a few dozen times as long. Parsing the whole frame for each byte would take a million
    // times as long.
    assert!(bytewise < whole * 1000, "whole: {whole:?}, byte by byte: {bytewise:?}");
}

#[test]
fn decoding_a_multi_set_in_tcp_segments_takes_less_than_100_times_as_long_as_in_one_piece() {
    let _guard = MEASUREMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names(KEYS_PER_REQUEST);
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &b"sixteen bytes ha"[..])).collect();
    let bytes = encoded(Request::MultiSet { pairs: PairList::new(&pairs) });
    let whole = shortest(3, || decode(&bytes, bytes.len()));
    let segments = shortest(3, || decode(&bytes, 1460));
    // Parsing the frame from its start for each of its 3,900 segments would take about 2,000 times as long.
    assert!(segments < whole * 100, "whole: {whole:?}, in segments: {segments:?}");
}

#[test]
fn registering_and_canceling_a_wait_is_linear() {
    assert_linear(KEYS_PER_REQUEST, |n| {
        let names = names(n);
        let keys = slices(&names);
        let mut engine = engine();
        let timer = CpuTimer::start();
        send(&mut engine, client(0), Request::Wait { keys: KeyList::new(&keys) });
        assert_eq!(send(&mut engine, client(0), Request::CancelWait), Outcome::Reply(Reply::Canceled));
        timer.elapsed()
    });
}

#[test]
fn the_cost_of_a_cancel_does_not_depend_on_other_waiters() {
    let _guard = MEASUREMENT.lock().unwrap_or_else(PoisonError::into_inner);
    let others: Vec<Vec<Vec<u8>>> =
        (0..4).map(|at| (0..100_000).map(|key| format!("/other{at}/{key}").into_bytes()).collect()).collect();
    let own = names(16);
    let keys = slices(&own);
    let cancels = |engine: &mut Engine| {
        let timer = CpuTimer::start();
        for _ in 0..1000 {
            send(engine, client(9), Request::Wait { keys: KeyList::new(&keys) });
            send(engine, client(9), Request::CancelWait);
        }
        drain(engine);
        timer.elapsed()
    };
    let mut alone = engine();
    let mut shared = engine();
    for (at, other) in others.iter().enumerate() {
        send(&mut shared, client(at), Request::Wait { keys: KeyList::new(&slices(other)) });
    }
    assert_eq!(shared.snapshot().awaited, 400_000);
    let alone = shortest(3, || cancels(&mut alone));
    let shared = shortest(3, || cancels(&mut shared));
    assert!(shared < alone * 10, "alone: {alone:?}, with 400,000 awaited keys of other clients: {shared:?}");
}

/// Returns an engine with `n` clients that wait for the same key.
fn engine_with_waiters(n: usize) -> Engine {
    let mut engine = engine();
    for at in 1..=n {
        send(&mut engine, client(at), Request::Wait { keys: KeyList::new(&[b"/k"]) });
    }
    engine
}

#[test]
fn waking_waiters_is_linear() {
    assert_linear(CLIENTS, |n| {
        let mut engine = engine_with_waiters(n);
        let timer = CpuTimer::start();
        send(&mut engine, client(0), Request::Set { key: b"/k", value: b"v"[..].into() });
        assert_eq!(drain(&mut engine), n);
        timer.elapsed()
    });
}

#[test]
fn disconnecting_waiters_is_linear() {
    assert_linear(CLIENTS, |n| {
        let mut engine = engine_with_waiters(n);
        let timer = CpuTimer::start();
        // The clients of the first half disconnect from the middle of the list to its start, and then those of the
        // second half from the middle to the end. A search from either end of the list would be quadratic.
        (1..=n / 2).rev().chain(n / 2 + 1..=n).for_each(|at| engine.handle_disconnect(client(at)));
        assert_eq!(engine.snapshot().blocked, 0);
        timer.elapsed()
    });
}

#[test]
fn a_barrier_is_linear_in_its_world_size() {
    assert_linear(CLIENTS, |n| {
        let mut engine = engine();
        let timer = CpuTimer::start();
        for at in 0..n {
            send(&mut engine, client(at), Request::Barrier { key: b"/b", world_size: n as i64 });
        }
        assert_eq!(drain(&mut engine), n - 1);
        timer.elapsed()
    });
}

#[test]
fn reading_latched_values_is_linear() {
    assert_linear(CLIENTS, |n| {
        let names = names(n);
        let keys = slices(&names);
        let mut engine = engine();
        send(&mut engine, client(1), Request::Wait { keys: KeyList::new(&keys) });
        for key in &keys {
            send(&mut engine, client(0), Request::Set { key, value: b"v"[..].into() });
            send(&mut engine, client(0), Request::DeleteKey { key });
        }
        let timer = CpuTimer::start();
        send(&mut engine, client(1), Request::MultiGet { keys: KeyList::new(&keys) });
        let elapsed = timer.elapsed();
        assert_eq!(drain(&mut engine), 1);
        elapsed
    });
}

#[test]
fn cancels_behind_deferred_waits_are_linear() {
    assert_linear(CLIENTS, |n| {
        let mut bytes = encoded(Request::Validate { magic: MAGIC });
        // Each CANCEL_WAIT ends the current WAIT, and the next deferred WAIT then blocks.
        bytes.extend(
            std::iter::repeat_n(encoded(Request::Wait { keys: KeyList::new(&[b"/k"]) }), n).flatten(),
        );
        bytes.extend(std::iter::repeat_n(encoded(Request::CancelWait), n).flatten());
        let mut options = HubOptions::default();
        options.limits.deferred_bytes = usize::MAX;
        let mut net = Loopback::new(options, ());
        let id = net.open().expect("a free slot");
        let timer = CpuTimer::start();
        net.send(id, &bytes);
        let elapsed = timer.elapsed();
        assert_eq!(net.take_received(id).len(), n, "one reply for each CANCEL_WAIT");
        elapsed
    });
}
