//! Random orders of everything: several clients, bytes cut anywhere, requests pipelined, canceled and half sent, connections
//! that end. The hub runs against a simple model; invariants are also read off the history of an engine.
//!
//! | invariant | held by |
//! |---|---|
//! | S1, S4, S5, S7, S8, S13: one order, sums, chains, wake-ups, one reply per request, counts | `every_reply_is_the_models`, in both forms |
//! | S2: half a request does nothing | `a_request_that_never_ends_changes_nothing` |
//! | S3: a multi_set is atomic | the model stores all of it or none |
//! | S6: what a wait has seen can be read | `what_is_read_after_a_wait_is_the_models` |
//! | S9, S10: no registration outlives its wait | registrations are counted beside the model's after each turn |
//! | S11: queues | `items_come_out_once_and_in_order_and_a_push_wakes_one` |
//! | S12: barriers | `a_barrier_releases_clients_that_are_still_connected` |
//! | S14: the store and the requests are within their limits | `what_is_held_stays_within_its_limits` |
//! | S16: no connection notices another's misbehavior | `what_one_connection_breaks_no_other_notices` |
//! | S17: prefixes | `clients_under_one_prefix_notice_nothing_of_those_under_another` |
//! | S18: codec and cuts | `what_was_encoded_is_decoded_however_it_is_cut`, `any_cut_of_one_stream_gives_the_same_replies` |
//! | outputs don't depend on how they are drained | `replies_and_refusals_do_not_depend_on_who_holds_earlier_replies`, `replies_and_refusals_do_not_depend_on_how_a_connection_is_drained`, `the_bytes_of_a_connection_do_not_depend_on_how_it_drains_them` |
//! | a snapshot with the effects since then is the state | the replica beside every hub (`server.rs`) |
//!
//! S7 and S10 are also asserted inside the engine after each piece. S15, the work, is in `work.rs`.

mod history;
#[path = "../support/loopback.rs"]
mod loopback;
mod operation;
mod scenario;
mod server;
mod simple;

use proptest::prelude::*;
use rallypoint_core::Limits;
use rallypoint_core::hub::HubOptions;
use rallypoint_core::store::{Answer, ClientId, Engine, EngineOptions};
use rallypoint_core::wire::{ReplyDecoder, RequestDecoder};

use loopback::Loopback;

use operation::{
    Operation, Text, any_operation, any_reply, barriers, garbage, large_operation, queues, waits,
};
use scenario::{Play, SLOTS, Split, Turn, turns};
use server::validate;

/// Limits that a few requests reach.
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
    fn every_reply_is_the_models(turns in turns(any_operation(), 40)) {
        let mut play = Play::beside_the_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| play.turn(turn));
    }
}

proptest! {
    #![proptest_config(cases(3_000))]

    #[test]
    fn what_is_read_after_a_wait_is_the_models(turns in turns(waits(), 40)) {
        let mut play = Play::beside_the_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| play.turn(turn));
    }

    #[test]
    fn every_reply_is_the_models_within_tight_limits(turns in turns(any_operation(), 40)) {
        let mut play = Play::beside_the_model(tight(), Split::AsDrawn);
        turns.iter().for_each(|turn| play.turn(turn));
    }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn items_come_out_once_and_in_order_and_a_push_wakes_one(turns in turns(queues(), 40)) {
        let mut turns = turns;
        number_the_items(&mut turns);
        let mut play = Play::beside_the_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| play.turn(turn));
        history::assert_queues_are_fair(&history::of(&turns));
    }

    #[test]
    fn a_barrier_releases_clients_that_are_still_connected(turns in turns(barriers(), 40)) {
        let mut play = Play::beside_the_model(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| play.turn(turn));
        history::assert_barriers_count_the_living(&history::of(&turns));
    }

    #[test]
    fn a_request_that_never_ends_changes_nothing(
        turns in turns(any_operation(), 12),
        half in any_operation(),
        part in any::<u8>(),
        splits in any::<bool>(),
    ) {
        let split = if splits { Split::Bytewise } else { Split::AsDrawn };
        let mut play = Play::new(Limits::default(), split);
        turns.iter().for_each(|turn| play.turn(turn));
        // Without whatever its client waits for or has deferred.
        hang_up_if_open(&mut play, 0);
        let before = play.everything();
        let (operations, ahead, cuts) = (vec![], Some((half, part)), vec![]);
        play.turn(&Turn { slot: 0, operations, ahead, cuts, hangs_up: false });
        assert_eq!(play.everything(), before);
        play.server.hang_up(0);
        assert_eq!(play.everything(), before);
    }

    #[test]
    fn a_refused_request_changes_nothing(operations in prop::collection::vec(any_operation(), 1..40)) {
        let mut limits = tight();
        limits.store_bytes = 450;
        let mut play = Play::new(limits, Split::Whole);
        for operation in operations {
            let before = play.everything();
            let turn = Turn {
                slot: 0,
                operations: vec![operation],
                ahead: None,
                cuts: vec![],
                hangs_up: false,
            };
            play.turn(&turn);
            let after = play.everything();
            match (play.server.is_open(0), play.server.snapshot().blocked) {
                (false, _) => assert_eq!(after, before),
                (true, 1) => play.server.hang_up(0),
                (true, _) => {}
            }
        }
    }

    #[test]
    fn what_is_held_stays_within_its_limits(
        turns in turns(prop_oneof![4 => any_operation(), 1 => bulky(), 1 => large_operation()].boxed(), 40),
        splits in any::<bool>(),
    ) {
        let mut limits = tight();
        (limits.keys, limits.queue_items) = (6, 6);
        (limits.key_len, limits.value_len) = (64, 100);
        (limits.store_bytes, limits.frame_len) = (700, 150);
        let split = if splits { Split::Bytewise } else { Split::AsDrawn };
        // The server asserts it, with each request and each piece.
        let mut play = Play::new(limits, split);
        turns.iter().for_each(|turn| play.turn(turn));
    }

    #[test]
    fn any_cut_of_one_stream_gives_the_same_replies(turns in turns(any_operation(), 25)) {
        // Which requests of several connections come first depends on the cuts.
        let turns: Vec<Turn> = turns.into_iter().map(|turn| Turn { slot: 0, ..turn }).collect();
        let mut plays = [Split::AsDrawn, Split::Whole, Split::Bytewise].map(|split| Play::new(Limits::default(), split));
        for turn in &turns {
            plays.iter_mut().for_each(|play| play.turn(turn));
            assert_eq!(plays[0].replies, plays[1].replies, "as drawn and whole");
            assert_eq!(plays[0].replies, plays[2].replies, "as drawn and bytewise");
        }
        let [drawn, whole, bytewise] = plays.map(|mut play| play.everything());
        assert_eq!((&drawn, &drawn), (&whole, &bytewise));
    }

    #[test]
    fn the_bytes_of_a_connection_do_not_depend_on_how_it_drains_them(
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
        // A connection that is closed for a refused request loses the replies it has not taken.
        assert!(if *is_open { slow == fast } else { fast.starts_with(slow) }, "{slow:?} {fast:?}");
    }

    /// The reader takes its bytes at any pace, and the writer takes its bytes at once. A connection that is closed is opened again.
    #[test]
    fn replies_and_refusals_do_not_depend_on_how_a_connection_is_drained(
        operations in prop::collection::vec((any::<bool>(), any_operation()), 1..60),
        windows in prop::collection::vec(prop_oneof![3 => Just(0), 1 => 0..40usize], 1..20),
    ) {
        let mut limits = tight();
        limits.store_bytes = 450;
        let [slow, fast] = [&windows[..], &[usize::MAX]].map(|windows| {
            let mut net = Loopback::new(HubOptions { limits: limits.clone(), ..HubOptions::default() }, ());
            let open = |net: &mut Loopback| {
                // From this host, whose refused requests don't count as offences.
                let id = net.open_from("127.0.0.1:1000".parse().unwrap()).expect("a free slot");
                net.send(id, &validate());
                id
            };
            let [mut reader, mut writer] = [open(&mut net), open(&mut net)];
            // What each connection of the reader received, and what is seen after each operation.
            let (mut received, mut seen) = (vec![Vec::new()], Vec::new());
            for ((is_reader, operation), window) in operations.iter().zip(windows.iter().cycle()) {
                net.set_window(reader, *window);
                net.send(if *is_reader { reader } else { writer }, &operation.encode());
                received.last_mut().expect("one at least").extend(net.take_received(reader));
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
            received.last_mut().expect("one at least").extend(net.take_received(reader));
            (received, seen)
        });
        assert_eq!(slow.1, fast.1);
        assert_eq!(slow.0.last(), fast.0.last());
        // A connection that is closed for a refused request loses the replies it has not taken.
        assert!(slow.0.iter().zip(&fast.0).all(|(slow, fast)| fast.starts_with(slow)), "{slow:?} {fast:?}");
    }

    #[test]
    fn replies_and_refusals_do_not_depend_on_who_holds_earlier_replies(
        turns in turns(any_operation(), 40),
        holds in prop::collection::vec(any::<bool>(), 1..10),
    ) {
        let mut limits = tight();
        (limits.store_bytes, limits.latched_bytes) = (900, 300);
        let options = EngineOptions { limits, ..EngineOptions::default() };
        let mut engines = [Engine::new(options.clone(), ()), Engine::new(options, ())];
        let (mut blocked, mut held) = ([false; SLOTS], Vec::new());
        let mut holds = holds.iter().cycle();
        for turn in &turns {
            for operation in turn.operations.iter().filter(|operation| !matches!(operation, Operation::Garbage(_))) {
                if blocked[turn.slot] && *operation != Operation::CancelWait {
                    continue;
                }
                let client = ClientId::new(turn.slot as u32);
                let [first, second] = engines.each_mut().map(|engine| {
                    let answer = operation.with_request(|request| engine.handle_request(client, request));
                    let woken: Vec<ClientId> = std::iter::from_fn(|| engine.poll_woken()).collect();
                    (answer, woken)
                });
                assert_eq!(first, second);
                blocked[turn.slot] = first.0 == Some(Ok(Answer::Blocked));
                first.1.iter().for_each(|client| blocked[client.index()] = false);
                // One engine's replies are dropped, those of the other are kept or dropped at random times.
                held.push(second);
                if *holds.next().expect("a cycle") {
                    held.clear();
                }
            }
        }
    }

    #[test]
    fn what_one_connection_breaks_no_other_notices(
        turns in turns(any_operation(), 25),
        offences in prop::collection::vec(offence(), 25),
    ) {
        const OFFENDER: usize = SLOTS - 1;
        let turns: Vec<Turn> = turns.into_iter().map(|turn| Turn { slot: turn.slot % OFFENDER, ..turn }).collect();
        let mut alone = Play::new(Limits::default(), Split::AsDrawn);
        let mut beside = Play::new(Limits::default(), Split::AsDrawn);
        for (turn, (bytes, hangs_up)) in turns.iter().zip(&offences) {
            alone.turn(turn);
            // Always a new connection: what it adds to half a request of its own might make that a write.
            hang_up_if_open(&mut beside, OFFENDER);
            beside.server.connect(OFFENDER);
            beside.server.deliver(OFFENDER, bytes);
            if *hangs_up {
                hang_up_if_open(&mut beside, OFFENDER);
            }
            beside.turn(turn);
            assert_eq!(alone.replies[..OFFENDER], beside.replies[..OFFENDER]);
        }
        hang_up_if_open(&mut beside, OFFENDER);
        assert_eq!(alone.everything(), beside.everything());
    }

    #[test]
    fn clients_under_one_prefix_notice_nothing_of_those_under_another(turns in turns(any_operation(), 25)) {
        let is_first = |turn: &Turn| turn.slot < SLOTS / 2;
        let mut turns = turns;
        for turn in &mut turns {
            let prefix = if is_first(turn) { &b"p/"[..] } else { b"q/" };
            let operations = turn.operations.iter_mut().chain(turn.ahead.iter_mut().map(|(ahead, _)| ahead));
            operations.for_each(|operation| operation.put_under(prefix));
        }
        let mut all = Play::new(Limits::default(), Split::AsDrawn);
        let mut first = Play::new(Limits::default(), Split::AsDrawn);
        turns.iter().for_each(|turn| all.turn(turn));
        turns.iter().filter(|turn| is_first(turn)).for_each(|turn| first.turn(turn));
        assert_eq!(all.replies[..SLOTS / 2], first.replies[..SLOTS / 2]);
    }

    #[test]
    fn what_was_encoded_is_decoded_however_it_is_cut(
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
        assert_eq!(decoder.held(), 0);
    }

    #[test]
    fn what_was_answered_is_decoded_however_it_is_cut(
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

fn hang_up_if_open(play: &mut Play, slot: usize) {
    if play.server.is_open(slot) {
        play.server.hang_up(slot);
    }
}

/// About as long as a request may be in the test of that, or somewhat longer.
fn bulky() -> impl Strategy<Value = Operation> {
    let text = |most| prop::collection::vec(any::<u8>(), 0..most).prop_map(Text);
    prop::collection::vec((text(20), text(90)), 1..4).prop_map(Operation::MultiSet)
}

/// Makes each item that is pushed the only one of its kind.
fn number_the_items(turns: &mut [Turn]) {
    let mut number = 0u32;
    for turn in turns {
        for operation in turn.operations.iter_mut().chain(turn.ahead.iter_mut().map(|(ahead, _)| ahead)) {
            if let Operation::QueuePush(_, item) = operation {
                *item = Text(number.to_string().into_bytes());
                number += 1;
            }
        }
    }
}

/// What a connection of no good sends, and whether it then ends. None of it is a write, and what it waits for is
/// nobody else's.
fn offence() -> impl Strategy<Value = (Vec<u8>, bool)> {
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
