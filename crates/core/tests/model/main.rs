//! Model tests: random sequences of requests from several clients, with split, pipelined, canceled and incomplete
//! requests, and with disconnects. The tests compare the hub with a simple model, and check invariants of the history
//! of an engine.
//!
//! | invariant | checked by |
//! |---|---|
//! | total order, sums, compare-and-set chains, wake-ups, one reply per request, counts | `every_reply_matches_the_model`, `every_reply_matches_the_model_with_tight_limits` |
//! | an incomplete or refused request has no effect | `an_incomplete_request_changes_nothing`, `a_refused_request_changes_nothing` |
//! | MULTI_SET is atomic | the model, which stores all pairs or none |
//! | a read after a WAIT returns the values that the WAIT saw | `reads_after_waits_match_the_model` |
//! | no registration outlives its WAIT | the model, which counts registrations after each turn |
//! | queues are first in, first out, and a push wakes one waiter | `items_are_popped_once_in_order_and_a_push_wakes_one_waiter` |
//! | a barrier releases `world_size` connected clients | `a_barrier_releases_clients_that_are_still_connected` |
//! | stored data and requests stay within their limits | `memory_stays_within_the_limits` |
//! | misbehavior of one connection does not affect other connections | `misbehavior_of_one_connection_does_not_affect_others` |
//! | prefixes are isolated | `clients_with_different_prefixes_are_isolated` |
//! | the codec does not depend on splits | `requests_decode_as_encoded_for_every_piece_length`, `replies_decode_as_encoded_for_every_piece_length`, `replies_do_not_depend_on_where_the_stream_is_cut` |
//! | outputs do not depend on the receive windows of peers | `replies_and_refusals_do_not_depend_on_retained_replies`, `replies_and_refusals_do_not_depend_on_receive_windows`, `the_bytes_sent_do_not_depend_on_the_receive_window` |
//! | a snapshot plus the effects since then is the state | the replica of every hub (`server.rs`) |
//!
//! `Engine::check_invariants` also checks wake-ups and registrations after each piece. `work.rs` tests that costs are
//! linear.

mod history;
#[path = "../support/loopback.rs"]
mod loopback;
mod model;
mod operation;
mod scenario;
mod server;

use proptest::prelude::*;
use rallypoint_core::Limits;
use rallypoint_core::hub::HubOptions;
use rallypoint_core::store::{ClientId, Engine, EngineOptions, Outcome};
use rallypoint_core::wire::{ReplyDecoder, RequestDecoder};

use loopback::Loopback;

use operation::{
    Operation, Text, any_operation, any_reply, barriers, garbage, large_operation, queues, waits,
};
use scenario::{SLOTS, Scenario, Split, Turn, turns};
use server::validate;

/// Returns limits so low that a few requests reach them.
fn tight() -> Limits {
    let mut limits = Limits::default();
    (limits.keys, limits.queue_items) = (3, 2);
    (limits.awaited_per_client, limits.awaited_total) = (3, 4);
    limits.value_len = 20;
    limits
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn every_reply_matches_the_model(turns in turns(any_operation(), 40)) {
        let mut scenario = Scenario::with_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| scenario.turn(turn));
    }
}

proptest! {
    #![proptest_config(cases(3_000))]

    #[test]
    fn reads_after_waits_match_the_model(turns in turns(waits(), 40)) {
        let mut scenario = Scenario::with_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| scenario.turn(turn));
    }

    #[test]
    fn every_reply_matches_the_model_with_tight_limits(turns in turns(any_operation(), 40)) {
        let mut scenario = Scenario::with_model(tight(), Split::AsDrawn);
        turns.iter().for_each(|turn| scenario.turn(turn));
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn items_are_popped_once_in_order_and_a_push_wakes_one_waiter(turns in turns(queues(), 40)) {
        let mut turns = turns;
        make_items_unique(&mut turns);
        let mut scenario = Scenario::with_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| scenario.turn(turn));
        history::assert_queues_are_first_in_first_out(&history::record(&turns));
    }

    #[test]
    fn a_barrier_releases_clients_that_are_still_connected(turns in turns(barriers(), 40)) {
        let mut scenario = Scenario::with_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| scenario.turn(turn));
        history::assert_barriers_release_connected_clients(&history::record(&turns));
    }

    #[test]
    fn an_incomplete_request_changes_nothing(
        turns in turns(any_operation(), 12),
        request in any_operation(),
        part in any::<u8>(),
        is_bytewise in any::<bool>(),
    ) {
        let split = if is_bytewise { Split::Bytewise } else { Split::AsDrawn };
        let mut scenario = Scenario::new(Limits::default(), split);
        turns.iter().for_each(|turn| scenario.turn(turn));
        // The disconnect ends the blocked and deferred requests of client 0.
        disconnect_if_open(&mut scenario, 0);
        let before = scenario.state();
        let (operations, partial, cuts) = (vec![], Some((request, part)), vec![]);
        scenario.turn(&Turn { slot: 0, operations, partial, cuts, disconnects: false });
        assert_eq!(scenario.state(), before);
        scenario.server.disconnect(0);
        assert_eq!(scenario.state(), before);
    }

    #[test]
    fn a_refused_request_changes_nothing(operations in prop::collection::vec(any_operation(), 1..40)) {
        let mut limits = tight();
        limits.store_bytes = 450;
        let mut scenario = Scenario::new(limits, Split::Whole);
        for operation in operations {
            let before = scenario.state();
            let turn = Turn {
                slot: 0,
                operations: vec![operation],
                partial: None,
                cuts: vec![],
                disconnects: false,
            };
            scenario.turn(&turn);
            let after = scenario.state();
            match (scenario.server.is_open(0), scenario.server.snapshot().blocked) {
                (false, _) => assert_eq!(after, before),
                (true, 1) => scenario.server.disconnect(0),
                (true, _) => {}
            }
        }
    }

    #[test]
    fn memory_stays_within_the_limits(
        turns in turns(prop_oneof![4 => any_operation(), 1 => long_multi_set(), 1 => large_operation()].boxed(), 40),
        is_bytewise in any::<bool>(),
    ) {
        let mut limits = tight();
        (limits.keys, limits.queue_items) = (6, 6);
        (limits.key_len, limits.value_len) = (64, 100);
        (limits.store_bytes, limits.frame_len) = (700, 150);
        let split = if is_bytewise { Split::Bytewise } else { Split::AsDrawn };
        // `Server` checks the limits after each piece.
        let mut scenario = Scenario::new(limits, split);
        turns.iter().for_each(|turn| scenario.turn(turn));
    }

    #[test]
    fn replies_do_not_depend_on_where_the_stream_is_cut(turns in turns(any_operation(), 25)) {
        // All turns use one slot, because the cuts affect the order of requests of different connections.
        let turns: Vec<Turn> = turns.into_iter().map(|turn| Turn { slot: 0, ..turn }).collect();
        let mut scenarios = [Split::AsDrawn, Split::Whole, Split::Bytewise].map(|split| Scenario::new(Limits::default(), split));
        for turn in &turns {
            scenarios.iter_mut().for_each(|scenario| scenario.turn(turn));
            assert_eq!(scenarios[0].replies, scenarios[1].replies, "as drawn and whole");
            assert_eq!(scenarios[0].replies, scenarios[2].replies, "as drawn and bytewise");
        }
        let [drawn, whole, bytewise] = scenarios.map(|mut scenario| scenario.state());
        assert_eq!((&drawn, &drawn), (&whole, &bytewise));
    }

    #[test]
    fn the_bytes_sent_do_not_depend_on_the_receive_window(
        operations in prop::collection::vec(any_operation(), 1..60),
        windows in prop::collection::vec(0..40usize, 1..20),
        pause in 0..100usize,
    ) {
        let mut limits = tight();
        (limits.store_bytes, limits.output_pause) = (450, pause);
        let received = [&windows[..], &[usize::MAX]].map(|windows| {
            let options = HubOptions { limits: limits.clone(), ..HubOptions::default() };
            let mut net = Loopback::new(options, ());
            let id = net.open().expect("a free slot");
            net.send(id, &validate());
            net.set_window(id, windows[0]);
            let mut received = Vec::new();
            for (operation, window) in operations.iter().zip(windows.iter().cycle()) {
                net.send(id, &operation.encode());
                net.set_window(id, *window);
                received.extend(net.take_received(id));
            }
            net.set_window(id, usize::MAX);
            received.extend(net.take_received(id));
            (received, net.is_open(id), net.hub.snapshot().keys)
        });
        let [(slow, is_open, keys), (fast, ..)] = &received;
        assert_eq!((*is_open, *keys), (received[1].1, received[1].2));
        // A connection that is closed for a refused request loses its unsent replies.
        assert!(if *is_open { slow == fast } else { fast.starts_with(slow) }, "{slow:?} {fast:?}");
    }

    /// The receive window of the reader varies, and the writer reads all bytes. If the server closes a connection, the
    /// client opens a new one.
    #[test]
    fn replies_and_refusals_do_not_depend_on_receive_windows(
        operations in prop::collection::vec((any::<bool>(), any_operation()), 1..60),
        windows in prop::collection::vec(prop_oneof![3 => Just(0), 1 => 0..40usize], 1..20),
    ) {
        let mut limits = tight();
        limits.store_bytes = 450;
        let [slow, fast] = [&windows[..], &[usize::MAX]].map(|windows| {
            let mut net = Loopback::new(HubOptions { limits: limits.clone(), ..HubOptions::default() }, ());
            let open = |net: &mut Loopback| {
                // The connections come from the loopback address, whose violations are not counted.
                let id = net.open_from("127.0.0.1:1000".parse().unwrap()).expect("a free slot");
                net.send(id, &validate());
                id
            };
            let [mut reader, mut writer] = [open(&mut net), open(&mut net)];
            // The bytes that each connection of the reader received, and what was observed after each operation.
            let (mut received, mut seen) = (vec![Vec::new()], Vec::new());
            for ((is_reader, operation), window) in operations.iter().zip(windows.iter().cycle()) {
                net.set_window(reader, *window);
                net.send(if *is_reader { reader } else { writer }, &operation.encode());
                received.last_mut().expect("at least one connection").extend(net.take_received(reader));
                let are_open = [reader, writer].map(|id| net.is_open(id));
                seen.push((net.take_received(writer), are_open, net.hub.snapshot().keys));
                if !are_open[0] {
                    reader = open(&mut net);
                    received.push(Vec::new());
                }
                if !are_open[1] {
                    writer = open(&mut net);
                }
            }
            net.set_window(reader, usize::MAX);
            received.last_mut().expect("at least one connection").extend(net.take_received(reader));
            (received, seen)
        });
        assert_eq!(slow.1, fast.1);
        assert_eq!(slow.0.last(), fast.0.last());
        // A connection that is closed for a refused request loses its unsent replies.
        assert!(slow.0.iter().zip(&fast.0).all(|(slow, fast)| fast.starts_with(slow)), "{slow:?} {fast:?}");
    }

    #[test]
    fn replies_and_refusals_do_not_depend_on_retained_replies(
        turns in turns(any_operation(), 40),
        drops in prop::collection::vec(any::<bool>(), 1..10),
    ) {
        let mut limits = tight();
        (limits.store_bytes, limits.latched_bytes) = (900, 300);
        let options = EngineOptions { limits, ..EngineOptions::default() };
        let mut engines = [Engine::new(options.clone(), ()), Engine::new(options, ())];
        let (mut blocked, mut retained) = ([false; SLOTS], Vec::new());
        let mut drops = drops.iter().cycle();
        for turn in &turns {
            for operation in turn.operations.iter().filter(|operation| !matches!(operation, Operation::Garbage(_))) {
                if blocked[turn.slot] && *operation != Operation::CancelWait {
                    continue;
                }
                let client = ClientId::new(turn.slot as u32);
                let [first, second] = engines.each_mut().map(|engine| {
                    let outcome = operation.with_request(|request| engine.handle_request(client, request));
                    let woken: Vec<ClientId> = std::iter::from_fn(|| engine.poll_woken()).collect();
                    (outcome, woken)
                });
                assert_eq!(first, second);
                blocked[turn.slot] = first.0 == Some(Ok(Outcome::Blocked));
                first.1.iter().for_each(|client| blocked[client.index()] = false);
                // The replies of the first engine are dropped immediately, and those of the second engine at random
                // times.
                retained.push(second);
                if *drops.next().expect("a cycle") {
                    retained.clear();
                }
            }
        }
    }

    #[test]
    fn misbehavior_of_one_connection_does_not_affect_others(
        turns in turns(any_operation(), 25),
        misbehaviors in prop::collection::vec(misbehavior(), 25),
    ) {
        const OFFENDER: usize = SLOTS - 1;
        let turns: Vec<Turn> = turns.into_iter().map(|turn| Turn { slot: turn.slot % OFFENDER, ..turn }).collect();
        let mut alone = Scenario::new(Limits::default(), Split::AsDrawn);
        let mut disturbed = Scenario::new(Limits::default(), Split::AsDrawn);
        for (turn, (bytes, disconnects)) in turns.iter().zip(&misbehaviors) {
            alone.turn(turn);
            // The offender uses a new connection in each turn. On the old one, further bytes could complete a partial
            // request that writes.
            disconnect_if_open(&mut disturbed, OFFENDER);
            disturbed.server.connect(OFFENDER);
            disturbed.server.deliver(OFFENDER, bytes);
            if *disconnects {
                disconnect_if_open(&mut disturbed, OFFENDER);
            }
            disturbed.turn(turn);
            assert_eq!(alone.replies[..OFFENDER], disturbed.replies[..OFFENDER]);
        }
        disconnect_if_open(&mut disturbed, OFFENDER);
        assert_eq!(alone.state(), disturbed.state());
    }

    #[test]
    fn clients_with_different_prefixes_are_isolated(turns in turns(any_operation(), 25)) {
        let is_first = |turn: &Turn| turn.slot < SLOTS / 2;
        let mut turns = turns;
        for turn in &mut turns {
            let prefix = if is_first(turn) { &b"p/"[..] } else { b"q/" };
            let operations = turn.operations.iter_mut().chain(turn.partial.iter_mut().map(|(partial, _)| partial));
            operations.for_each(|operation| operation.add_prefix(prefix));
        }
        let mut both = Scenario::new(Limits::default(), Split::AsDrawn);
        let mut first = Scenario::new(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| both.turn(turn));
        turns.iter().filter(|turn| is_first(turn)).for_each(|turn| first.turn(turn));
        assert_eq!(both.replies[..SLOTS / 2], first.replies[..SLOTS / 2]);
    }

    #[test]
    fn requests_decode_as_encoded_for_every_piece_length(
        operations in prop::collection::vec(large_operation(), 1..6),
        piece in 1..300usize,
    ) {
        let stream: Vec<u8> = operations.iter().flat_map(Operation::encode).collect();
        let mut decoder = RequestDecoder::default();
        let mut decoded = Vec::new();
        for mut input in stream.chunks(piece) {
            while let Some(frame) = decoder.next(&mut input, &Limits::default()).unwrap() {
                decoded.push(Operation::from(frame.request()));
            }
        }
        assert_eq!(decoded, operations);
        assert_eq!(decoder.allocated(), 0);
    }

    #[test]
    fn replies_decode_as_encoded_for_every_piece_length(
        replies in prop::collection::vec(any_reply(), 1..6),
        piece in 1..300usize,
    ) {
        let mut stream = Vec::new();
        replies.iter().for_each(|(_, reply)| reply.encode(&mut stream));
        let mut pieces = stream.chunks(piece);
        let mut decoder = ReplyDecoder::default();
        let mut input = &[][..];
        for (kind, reply) in replies {
            let decoded = loop {
                match decoder.next(kind, &mut input, &Limits::default()).unwrap() {
                    Some(decoded) => break decoded,
                    None => input = pieces.next().expect("a reply for each kind"),
                }
            };
            assert_eq!(decoded, reply);
        }
    }
}

fn disconnect_if_open(scenario: &mut Scenario, slot: usize) {
    if scenario.server.is_open(slot) {
        scenario.server.disconnect(slot);
    }
}

/// Generates a MULTI_SET that is about as long as `frame_len` in `memory_stays_within_the_limits`.
fn long_multi_set() -> impl Strategy<Value = Operation> {
    let text = |max| prop::collection::vec(any::<u8>(), 0..max).prop_map(Text);
    prop::collection::vec((text(20), text(90)), 1..4).prop_map(Operation::MultiSet)
}

/// Gives each pushed item a unique value.
fn make_items_unique(turns: &mut [Turn]) {
    let mut number = 0u32;
    for turn in turns {
        for operation in turn.operations.iter_mut().chain(turn.partial.iter_mut().map(|(partial, _)| partial))
        {
            if let Operation::QueuePush(_, item) = operation {
                *item = Text(number.to_string().into_bytes());
                number += 1;
            }
        }
    }
}

/// Generates the bytes of a misbehaving connection, and whether it disconnects after them. The bytes contain no
/// complete write, and no complete wait for a key or barrier of the other connections.
fn misbehavior() -> impl Strategy<Value = (Vec<u8>, bool)> {
    let private = |operation: Operation| [validate(), operation.encode()].concat();
    let wait = Operation::Wait(vec![Text(b"private".to_vec()); 3]);
    let barrier = Operation::Barrier(Text(b"private".to_vec()), 2);
    let bytes = prop_oneof![
        prop::collection::vec(1..=255u8, 0..40),
        garbage().prop_map(move |garbage| [validate(), garbage.encode()].concat()),
        (any_operation(), any::<u8>()).prop_map(|(operation, part)| {
            let bytes = operation.encode();
            let cut = bytes.len() * usize::from(part) / 256;
            [&validate(), &bytes[..cut]].concat()
        }),
        Just(private(wait)),
        Just(private(barrier)),
        Just(b"\x00\xce\xf7\x85\x3d\x07".to_vec()),
        Just(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        Just(b"\x16\x03\x01\x02\x00\x01\x00".to_vec()),
    ];
    (bytes, any::<bool>())
}
