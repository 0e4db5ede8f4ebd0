//! Tests of the hub in memory and in virtual time. `tests/model` runs random sequences of requests.

#[path = "support/loopback.rs"]
mod loopback;

use std::time::Duration;

use rallypoint_core::hub::{Action, CloseReason, ConnectionId, Event, HubOptions};
use rallypoint_core::wire::{KeyList, MAGIC, Op, PairList, Request};
use rallypoint_core::{Limits, Refusal};

use loopback::Loopback;

const MIB: usize = 1 << 20;
const KEY: &[&[u8]] = &[b"/k"];
const SECOND: Duration = Duration::from_secs(1);

fn encoded(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Request<'a> {
    Request::Set { key, value: value.into() }
}

fn wait<'a>(keys: &'a [&'a [u8]]) -> Request<'a> {
    Request::Wait { keys: KeyList::new(keys) }
}

/// Returns the default limits after `change` has modified them.
fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

fn server(limits: Limits) -> Loopback {
    Loopback::new(HubOptions { limits, ..HubOptions::default() }, ())
}

/// Opens a connection and sends its handshake.
fn client(net: &mut Loopback) -> ConnectionId {
    let id = net.open().expect("the connection is accepted");
    net.send(id, &encoded(&[Request::Validate { magic: MAGIC }]));
    id
}

/// Sends requests and returns the bytes of the replies.
fn exchange(net: &mut Loopback, id: ConnectionId, requests: &[Request<'_>]) -> Vec<u8> {
    net.send(id, &encoded(requests));
    net.take_received(id)
}

/// Removes all events and returns the reasons for which connections were closed.
fn closed(net: &mut Loopback) -> Vec<CloseReason> {
    let events = std::mem::take(&mut net.events).into_iter();
    events
        .filter_map(|event| if let Event::Closed { reason, .. } = event { Some(reason) } else { None })
        .collect()
}

// ---- one reply per request, in order ----

#[test]
fn a_cancel_overtakes_a_get_that_is_deferred_behind_a_wait() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    exchange(&mut net, id, &[set(b"/k", b"v")]);
    let requests = [wait(&[b"/absent"]), Request::Get { key: b"/k" }, Request::CancelWait];
    assert_eq!(exchange(&mut net, id, &requests), b"\x01\x01\0\0\0\0\0\0\0v");
}

#[test]
fn two_waits_in_one_read_get_one_reply_each() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    exchange(&mut net, id, &[set(b"/k", b"v")]);
    assert_eq!(
        exchange(&mut net, id, &[wait(KEY), wait(KEY), Request::Ping { nonce: 9 }]),
        b"\0\0\x09\0\0\0"
    );
}

#[test]
fn a_cancel_without_a_wait_gets_a_reply() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    assert_eq!(exchange(&mut net, id, &[Request::CancelWait]), [1]);
}

#[test]
fn requests_behind_a_wait_continue_after_the_wake_up() {
    let mut net = server(Limits::default());
    let [waiter, setter] = [(); 2].map(|()| client(&mut net));
    assert_eq!(exchange(&mut net, waiter, &[wait(KEY), Request::Get { key: b"/k" }]), b"");
    exchange(&mut net, setter, &[set(b"/k", b"v")]);
    assert_eq!(net.take_received(waiter), b"\0\x01\0\0\0\0\0\0\0v");
}

#[test]
fn a_multi_set_is_applied_once_when_its_last_byte_arrives() {
    let pairs: [(&[u8], &[u8]); 2] = [(b"/a", b"1"), (b"/b", b"2")];
    let bytes = encoded(&[Request::MultiSet { pairs: PairList::new(&pairs) }]);
    let mut net = server(Limits::default());
    let [slow, other] = [(); 2].map(|()| client(&mut net));
    for (at, byte) in bytes.iter().enumerate() {
        net.send(slow, &[*byte]);
        let keys = if at + 1 == bytes.len() { 2 } else { 0 };
        assert_eq!(net.hub.snapshot().keys, keys, "after byte {at}");
    }
    // A further read from `slow` does not apply the request a second time.
    exchange(&mut net, other, &[set(b"/a", b"newer")]);
    net.send(slow, &[]);
    assert_eq!(net.hub.snapshot().get(b"/a").map(|value| value.to_vec()), Some(b"newer".to_vec()));
}

// ---- end of a connection ----

#[test]
fn a_peer_that_ends_its_stream_gets_its_replies_before_the_connection_is_closed() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    net.set_window(id, 0);
    net.send(id, &encoded(&[Request::Ping { nonce: 7 }]));
    net.end(id);
    assert!(net.is_open(id), "a reply is not sent yet");
    net.set_window(id, 4);
    assert!(!net.is_open(id));
}

#[test]
fn a_waiting_peer_that_ends_its_stream_is_closed() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    net.send(id, &encoded(&[wait(KEY), Request::NumKeys]));
    net.end(id);
    assert!(!net.is_open(id));
    assert_eq!(net.hub.snapshot().blocked, 0);
}

#[test]
fn a_refused_request_closes_its_connection_even_if_the_peer_reads_no_replies() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    net.set_window(id, 0);
    let requests =
        [Request::Ping { nonce: 7 }, Request::Barrier { key: b"/b", world_size: 0 }, set(b"/k", b"")];
    net.send(id, &encoded(&requests));
    assert!(!net.is_open(id), "the hub does not wait until the peer reads the reply to the PING");
    assert_eq!(net.hub.snapshot().keys, 0);
    let reason = Refusal::BadWorldSize { key: "/b".into(), world_size: 0 };
    assert_eq!(closed(&mut net), [CloseReason::Refused(reason)]);
    assert_eq!(net.hub.stats().refusals, 1);
}

#[test]
fn events_of_a_closed_connection_do_not_affect_the_connection_that_reuses_its_index() {
    let mut net = server(Limits::default());
    let old = client(&mut net);
    net.fail(old);
    let new = client(&mut net);
    assert_eq!((old.index(), old == new), (new.index(), false));
    net.hub.handle_readable(old, true);
    net.hub.handle_failure(old, net.now);
    net.run();
    assert_eq!(exchange(&mut net, new, &[Request::Ping { nonce: 1 }]), b"\x01\0\0\0");
    assert_eq!(ConnectionId::from_bits(new.to_bits()), new);
}

// ---- admission and limits ----

#[test]
fn a_connection_past_the_limit_is_refused() {
    let mut net = server(limits(|limits| limits.connections = 1));
    client(&mut net);
    assert_eq!(net.open(), None);
    assert_eq!(closed(&mut net), [CloseReason::TooManyConnections { open: 1 }]);
    assert_eq!((net.hub.stats().refused, net.hub.stats().accepted), (1, 2));
}

/// Opens a connection that violates the protocol.
fn violate_protocol(net: &mut Loopback) {
    let id = net.open().unwrap();
    net.send(id, b"GET / HTTP/1.1\r\n");
    assert!(!net.is_open(id));
}

#[test]
fn an_address_with_21_violations_in_1_s_is_refused_for_10_s() {
    let mut net = server(Limits::default());
    (0..21).for_each(|_| violate_protocol(&mut net));
    assert_eq!(net.open(), None);
    net.advance(10 * SECOND);
    assert!(net.open().is_some());
}

#[test]
fn the_log_gets_10_lines_per_second_and_a_count_of_the_rest() {
    let mut net = server(limits(|limits| limits.violations_per_second = 1_000));
    (0..100).for_each(|_| violate_protocol(&mut net));
    assert_eq!(closed(&mut net).len(), 10);
    net.advance(SECOND);
    violate_protocol(&mut net);
    assert!(matches!(net.events[..], [Event::Closed { suppressed: 90, .. }]), "{:?}", net.events);
    assert_eq!(net.hub.stats().protocol_errors, 101);
}

#[test]
fn the_hub_stops_reading_from_a_peer_that_reads_no_replies() {
    let mut net = server(limits(|limits| {
        limits.output_pause = 10;
        limits.deferred_bytes = 1_000;
    }));
    let id = client(&mut net);
    net.set_window(id, 0);
    let pings = encoded(&[Request::Ping { nonce: 7 }; 10_000]);
    net.send(id, &pings);
    net.hub.check_invariants();
    assert_eq!(net.take_received(id), b"");
    net.set_window(id, usize::MAX);
    assert_eq!(net.take_received(id), b"\x07\0\0\0".repeat(10_000), "the hub handles every request");
}

#[test]
fn uploads_share_one_budget_first_come_first_served() {
    let limits = limits(|limits| limits.input_total = 16 * MIB);
    let mut net = server(limits);
    let value = vec![7; 8 * MIB];
    let upload = encoded(&[set(b"/large", &value)]);
    let ids: Vec<_> = (0..3).map(|_| client(&mut net)).collect();
    ids.iter().for_each(|id| net.send(*id, &upload[..100_000]));
    net.hub.check_invariants();
    // The budget is 12 MiB, three quarters of `input_total`, so one upload of 8 MiB fits into it. The hub reads the
    // second upload only after the first one is complete.
    net.send(ids[1], &upload[100_000..]);
    assert_eq!(net.hub.snapshot().keys, 0);
    net.send(ids[0], &upload[100_000..]);
    assert_eq!(net.hub.snapshot().keys, 1);
    ids[1..].iter().for_each(|id| assert_eq!(exchange(&mut net, *id, &[]), b""));
    net.send(ids[2], &upload[100_000..]);
    for id in ids {
        assert_eq!(exchange(&mut net, id, &[Request::NumKeys]), 1i64.to_le_bytes());
    }
}

#[test]
fn a_pass_reads_all_small_requests_and_the_oldest_upload() {
    let mut net = server(Limits::default());
    let [first, second, small] = std::array::from_fn(|_| client(&mut net));
    let upload = encoded(&[set(b"/k", &[b'v'; 4 << 20])]);
    for id in [first, second] {
        net.send(id, &upload[..64 * 1024]);
    }
    for id in [second, first] {
        net.hub.handle_readable(id, false);
    }
    let mut reads = Vec::new();
    for _ in 0..2 {
        net.hub.handle_readable(small, false);
        while let Some(action) = net.hub.poll_action(net.now) {
            let Action::Read { id, len } = action else { continue };
            reads.push(id);
            let bytes = if id == small { vec![] } else { vec![b'v'; len] };
            net.hub.handle_bytes(id, &bytes, bytes.is_empty(), net.now);
        }
    }
    assert_eq!(reads, [small, first, small, first]);
}

#[test]
fn a_stalled_upload_is_closed_only_while_another_upload_waits() {
    let mut net = server(limits(|limits| limits.input_total = 16 * MIB));
    let value = vec![7; 8 * MIB];
    let upload = encoded(&[set(b"/large", &value)]);
    let [stalled, waiting] = [(); 2].map(|()| client(&mut net));
    net.send(stalled, &upload[..100_000]);
    net.advance(10 * SECOND);
    assert!(net.is_open(stalled), "no other upload waits");
    net.send(waiting, &upload[..100_000]);
    net.advance(4 * SECOND);
    assert!(!net.is_open(stalled));
    assert!(matches!(closed(&mut net)[..], [CloseReason::StalledUpload { waiting: 1, .. }]));
    net.send(waiting, &upload[100_000..]);
    assert_eq!(net.hub.snapshot().keys, 1);
}

#[test]
fn an_upload_of_2_kb_per_second_counts_as_stalled() {
    let mut net = server(limits(|limits| limits.input_total = 16 * MIB));
    let upload = encoded(&[set(b"/large", &vec![7; 8 * MIB])]);
    let [slow, waiting] = [(); 2].map(|()| client(&mut net));
    net.send(slow, &upload[..100_000]);
    net.send(waiting, &upload[..100_000]);
    for second in 0..4 {
        net.send(slow, &upload[100_000 + second * 2_000..][..2_000]);
        net.advance(SECOND);
    }
    assert!(matches!(closed(&mut net)[..], [CloseReason::StalledUpload { waiting: 1, .. }]));
}

#[test]
fn a_large_reply_is_sent_before_the_next_request_is_read() {
    let mut net = server(Limits::default());
    let clients = [(); 2].map(|()| client(&mut net));
    for n in 0..40u8 {
        let key = [b"/".as_slice(), &[b'a' + n; 8_000]].concat();
        exchange(&mut net, clients[0], &[set(&key, b"v")]);
    }
    clients.into_iter().for_each(|id| net.hub.handle_readable(id, false));
    let mut actions = Vec::new();
    while let Some(action) = net.hub.poll_action(net.now) {
        actions.push(action);
        match action {
            Action::Read { id, .. } => {
                net.hub.handle_bytes(id, &encoded(&[Request::ListKeys]), true, net.now)
            }
            Action::Send(id) => {
                let (slices, count) = net.hub.transmit(id);
                let len = slices[..count].iter().map(|slice| slice.len()).sum();
                net.hub.handle_sent(id, len, true, net.now);
            }
            Action::Close(_) | Action::Connect(_) => unreachable!("the clients follow the protocol"),
        }
    }
    let [first, second] = clients;
    assert!(
        matches!(actions[..], [Action::Read { id, .. }, Action::Send(sent), Action::Read { id: next, .. }, Action::Send(last)]
            if (id, sent, next, last) == (first, first, second, second)),
        "{actions:?}"
    );
}

#[test]
fn an_upload_that_the_hub_has_not_read_is_not_stalled() {
    let mut net = server(limits(|limits| limits.input_total = 16 * MIB));
    let upload = encoded(&[set(b"/large", &vec![7; 8 * MIB])]);
    let [unread, waiting] = [(); 2].map(|()| client(&mut net));
    net.send(unread, &upload[..100_000]);
    net.send(waiting, &upload[..100_000]);
    net.hub.handle_readable(unread, false);
    net.now += 4 * SECOND;
    net.run();
    assert_eq!(closed(&mut net), []);
}

#[test]
fn a_connection_that_is_not_read_gets_no_share_of_the_budget() {
    let mut net = server(limits(|limits| limits.input_total = 16 * MIB));
    let [blocked, other] = [(); 2].map(|()| client(&mut net));
    let [small, large] = [2 * MIB, 8 * MIB].map(|len| encoded(&[set(b"/k", &vec![7; len])]));
    // After the WAIT, the client sends a complete request that exceeds `deferred_bytes`, and the start of another
    // request.
    let requests = [encoded(&[wait(&[b"/absent"])]), small, large[..200_000].to_vec()];
    net.send(blocked, &requests.concat());
    net.send(other, &large);
    assert_eq!(net.hub.snapshot().keys, 1);
}

#[test]
fn past_input_total_the_connection_with_the_largest_request_is_closed() {
    let mut net = server(limits(|limits| limits.input_total = 100_000));
    let value = vec![7; 60_000];
    let part = &encoded(&[set(b"/k", &value)])[..30_000];
    let ids: Vec<_> = (0..4).map(|_| client(&mut net)).collect();
    net.send(ids[0], &part[..20_000]);
    ids[1..].iter().for_each(|id| net.send(*id, part));
    net.hub.check_invariants();
    assert!(net.is_open(ids[0]), "the connection with the smallest request stays open");
    assert!(matches!(closed(&mut net)[..], [CloseReason::TooMuchInput { .. }, ..]));
}

#[test]
fn past_output_total_the_connection_that_stalled_first_is_closed() {
    let mut net = server(limits(|limits| limits.output_total = MIB));
    let writer = client(&mut net);
    let value = vec![7; MIB / 2];
    let mut readers = Vec::new();
    for number in 0..4u8 {
        let key = [b'/', number];
        exchange(&mut net, writer, &[set(&key, &value)]);
        let id = client(&mut net);
        net.set_window(id, 0);
        net.send(id, &encoded(&[Request::Get { key: &key }]));
        readers.push(id);
        // After the deletion, the value counts only for the reader.
        exchange(&mut net, writer, &[Request::DeleteKey { key: &key }]);
        net.advance(SECOND);
        net.hub.check_invariants();
    }
    assert!(!net.is_open(readers[0]) && net.is_open(readers[3]));
    assert!(matches!(closed(&mut net)[..], [CloseReason::TooMuchOutput { .. }, ..]));
}

#[test]
fn a_value_in_1000_unread_replies_counts_once() {
    let mut net = server(limits(|limits| limits.output_total = 16 * MIB));
    let writer = client(&mut net);
    exchange(&mut net, writer, &[set(b"/k", &vec![7; MIB])]);
    let readers: Vec<_> = (0..1000).map(|_| client(&mut net)).collect();
    for id in &readers {
        net.set_window(*id, 0);
        net.send(*id, &encoded(&[Request::Get { key: b"/k" }]));
    }
    net.advance(2 * SECOND);
    assert!(readers.iter().all(|id| net.is_open(*id)), "{:?}", closed(&mut net).first());
}

#[test]
fn a_key_list_longer_than_output_hard_is_refused() {
    let mut net = server(limits(|limits| limits.output_hard = 1_000));
    let id = client(&mut net);
    exchange(&mut net, id, &[set(&[b'k'; 1_000], b"")]);
    net.send(id, &encoded(&[Request::ListKeys]));
    assert!(matches!(closed(&mut net)[..], [CloseReason::Refused(Refusal::Limit { op: Op::ListKeys, .. })]));
}

#[test]
fn the_key_of_a_rendezvous_state_accepts_only_states() {
    let mut net = server(Limits::default());
    let id = client(&mut net);
    net.send(id, &encoded(&[set(b"/torch.rendezvous.job", b"cos\nsystem\n")]));
    assert!(!net.is_open(id));
    assert_eq!(net.hub.snapshot().keys, 0);
    let reason = closed(&mut net).remove(0).to_string();
    assert!(reason.contains("not the state of a rendezvous"), "{reason}");
    // Under the keys of a round's store, the server accepts any value.
    let id = client(&mut net);
    exchange(&mut net, id, &[set(b"/torch.rendezvous.job.0/k", b"anything")]);
    assert_eq!(net.hub.snapshot().keys, 1);
}

// ---- deadlines ----

#[test]
fn a_connection_without_a_handshake_is_closed_after_10_s() {
    let mut net = server(Limits::default());
    let silent = net.open().unwrap();
    let slow = net.open().unwrap();
    net.send(slow, &encoded(&[Request::Validate { magic: MAGIC }])[..3]);
    net.advance(9 * SECOND);
    assert!(net.is_open(silent) && net.is_open(slow));
    net.advance(2 * SECOND);
    assert!(!net.is_open(silent) && !net.is_open(slow));
    assert_eq!(net.hub.stats().no_handshake, 2);
    assert_eq!(net.hub.poll_timeout(net.now), None, "no deadline is left");
}

#[test]
fn past_stale_total_the_oldest_connections_without_a_handshake_are_closed() {
    let mut net = server(limits(|limits| limits.stale_total = 2));
    let ids: Vec<_> = (0..4).map(|_| net.open().unwrap()).collect();
    net.advance(2 * SECOND);
    assert_eq!(ids.iter().map(|id| net.is_open(*id)).collect::<Vec<_>>(), [false, false, true, true]);
}

#[test]
fn past_stale_per_address_the_oldest_connections_of_an_address_are_closed() {
    let mut net = server(limits(|limits| (limits.stale_total, limits.stale_per_address) = (4, 2)));
    let ids: Vec<_> = (0..4).map(|_| net.open().unwrap()).collect();
    let other = net.open_from("192.0.2.7:1".parse().unwrap()).unwrap();
    net.advance(2 * SECOND);
    assert_eq!(ids.iter().map(|id| net.is_open(*id)).collect::<Vec<_>>(), [false, false, true, true]);
    assert!(net.is_open(other));
}

#[test]
fn a_connection_is_closed_if_its_request_is_slower_than_partial_rate() {
    let mut net = server(Limits::default());
    let [slow, fast] = [(); 2].map(|()| client(&mut net));
    let value = vec![7; 200_000];
    let bytes = encoded(&[set(b"/k", &value)]);
    for second in 0..65 {
        net.send(slow, &bytes[second..=second]);
        net.send(fast, &bytes[2_000 * second..2_000 * (second + 1)]);
        net.advance(SECOND);
    }
    assert!(!net.is_open(slow) && net.is_open(fast));
    assert_eq!(closed(&mut net), [CloseReason::SlowRequest { limit: 1024 }]);
}

#[test]
fn a_peer_that_reads_none_of_its_replies_is_closed_after_30_s() {
    let mut net = server(Limits::default());
    let [stuck, slow] = [(); 2].map(|()| client(&mut net));
    exchange(&mut net, slow, &[set(b"/k", &[7; 1000])]);
    for id in [stuck, slow] {
        net.set_window(id, 0);
        net.send(id, &encoded(&[Request::Get { key: b"/k" }]));
    }
    for _ in 0..35 {
        net.advance(SECOND);
        net.set_window(slow, 1);
    }
    assert!(!net.is_open(stuck) && net.is_open(slow));
    assert!(matches!(closed(&mut net)[..], [CloseReason::SlowReader { unsent: 1008, .. }]));
}

// ---- idle jobs ----

/// Returns a server in which idle jobs expire after 1 min.
fn expiring() -> Loopback {
    Loopback::new(HubOptions { expire_idle_jobs: Some(60 * SECOND), ..HubOptions::default() }, ())
}

/// Opens a connection, sends requests, and then makes the connection fail.
fn exchange_once(net: &mut Loopback, requests: &[Request<'_>]) {
    let id = client(net);
    exchange(net, id, requests);
    net.fail(id);
}

/// Removes all events, and returns the run ids of expired jobs and the numbers of their deleted keys and queue items.
fn expired(net: &mut Loopback) -> Vec<(String, usize)> {
    let events = std::mem::take(&mut net.events).into_iter();
    let job = |event| if let Event::Expired(job) = event { Some(job) } else { None };
    events.filter_map(job).map(|job| (String::from_utf8(job.run_id).unwrap(), job.keys)).collect()
}

#[test]
fn only_the_keys_of_idle_jobs_are_deleted() {
    let mut net = expiring();
    let push = Request::QueuePush { key: b"/torch.rendezvous.old.3/queue", value: b"item"[..].into() };
    exchange_once(
        &mut net,
        &[
            set(b"/torch.rendezvous.old.3/MASTER_ADDR", b"v"),
            set(b"/rallypoint.rendezvous/old/announced/3", b"v"),
            push,
            set(b"/mine/k", b"v"),
        ],
    );
    net.advance(30 * SECOND);
    exchange_once(&mut net, &[set(b"/torch.rendezvous.new.0/k", b"v")]);
    net.advance(29 * SECOND);
    assert_eq!(expired(&mut net), []);
    net.advance(3 * SECOND);
    assert_eq!(expired(&mut net), [("old".into(), 3)]);
    net.advance(60 * SECOND);
    assert_eq!(expired(&mut net), [("new".into(), 1)]);
    assert_eq!((net.hub.snapshot().keys, net.hub.snapshot().queue_items), (1, 0));
    assert_eq!(net.hub.poll_timeout(net.now), None, "no job is left");
}

#[test]
fn a_job_does_not_expire_while_a_client_that_used_its_keys_is_connected() {
    let key = &b"/torch.rendezvous.job.0/k"[..];
    let (single, pair) = ([key], [&b"/other"[..], key]);
    let check = Request::Check { keys: KeyList::new(&pair) };
    for request in [Request::Get { key }, check, wait(&single), Request::Add { key, delta: 1 }] {
        let mut net = expiring();
        exchange_once(&mut net, &[Request::Add { key, delta: 1 }]);
        net.advance(50 * SECOND);
        let id = client(&mut net);
        // A request without a rendezvous key does not change the job of the connection.
        exchange(&mut net, id, &[request, set(b"/other", b"")]);
        net.advance(1_000 * SECOND);
        assert_eq!(expired(&mut net), [], "{request:?}: its client is connected");
        net.fail(id);
        net.advance(59 * SECOND);
        assert_eq!(expired(&mut net), [], "{request:?}");
        net.advance(3 * SECOND);
        assert_eq!(expired(&mut net).len(), 1, "{request:?}");
    }
}

#[test]
fn a_connection_prevents_only_the_job_whose_keys_it_used_last_from_expiring() {
    let mut net = expiring();
    let id = client(&mut net);
    exchange(&mut net, id, &[set(b"/torch.rendezvous.a.0/k", b""), set(b"/torch.rendezvous.b.0/k", b"")]);
    net.advance(62 * SECOND);
    assert_eq!(expired(&mut net), [("a".into(), 1)]);
    net.advance(600 * SECOND);
    assert_eq!(expired(&mut net), []);
}

#[test]
fn a_job_that_sets_keys_again_expires_again() {
    let mut net = expiring();
    for _ in 0..2 {
        exchange_once(&mut net, &[set(b"/torch.rendezvous.job.0/k", b"")]);
        net.advance(62 * SECOND);
        assert_eq!(expired(&mut net), [("job".into(), 1)]);
    }
}
