//! Invariants of an engine's history, which are checked without a model. A history consists of requests, disconnects
//! and replies.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint_core::store::{ClientId, Engine, EngineOptions, Outcome};
use rallypoint_core::wire::Reply;

use crate::operation::{Operation, Text};
use crate::scenario::{SLOTS, Turn};

/// A request or a disconnect, and the replies that it caused.
#[derive(Debug)]
pub(crate) struct Step {
    slot: usize,
    /// The request, or `None` if the client disconnected.
    operation: Option<Operation>,
    /// The replies with the slots of their clients.
    replies: Vec<(usize, Reply)>,
}

/// Executes turns on an engine and returns their history. A blocked client skips all requests but CANCEL_WAIT. Garbage
/// counts as a disconnect.
pub(crate) fn record(turns: &[Turn]) -> Vec<Step> {
    let mut engine = Engine::new(EngineOptions::default(), ());
    let (mut history, mut blocked) = (Vec::new(), [false; SLOTS]);
    for turn in turns {
        let slot = turn.slot;
        let ends = turn.disconnects.then_some(None);
        for operation in turn.operations.iter().map(Some).chain(ends) {
            let operation = operation.filter(|operation| !matches!(operation, Operation::Garbage(_)));
            if blocked[slot] && operation.is_some_and(|operation| *operation != Operation::CancelWait) {
                continue;
            }
            let client = ClientId::new(slot as u32);
            let mut replies = Vec::new();
            blocked[slot] = false;
            match operation {
                Some(operation) => {
                    match operation.with_request(|request| engine.handle_request(client, request)) {
                        Some(Ok(Outcome::Reply(reply))) => replies.push((slot, reply)),
                        Some(Ok(Outcome::Blocked)) => blocked[slot] = true,
                        _ => {}
                    }
                }
                None => engine.handle_disconnect(client),
            }
            while let Some(client) = engine.poll_woken() {
                blocked[client.index()] = false;
                replies.push((client.index(), Reply::Stop));
            }
            engine.check_invariants();
            history.push(Step { slot, operation: operation.cloned(), replies });
        }
    }
    history
}

/// Asserts that items are popped in the order of the pushes, each at most once, and that a push wakes at most one
/// waiter.
pub(crate) fn assert_queues_are_first_in_first_out(history: &[Step]) {
    let mut pushed: BTreeMap<&Text, Vec<&[u8]>> = BTreeMap::new();
    let mut popped: BTreeMap<&Text, usize> = BTreeMap::new();
    // Clients that were woken and have sent no request since then. Such a client may have a claim. If its next request
    // is not a pop, the engine passes the claim to the next waiter.
    let mut woken: BTreeSet<usize> = BTreeSet::new();
    for step in history {
        let passes_on = usize::from(woken.remove(&step.slot));
        woken.extend(step.replies.iter().map(|(slot, _)| *slot).filter(|slot| *slot != step.slot));
        match &step.operation {
            Some(Operation::QueuePush(queue, item)) => {
                pushed.entry(queue).or_default().push(item);
                assert!(step.replies.len() <= 1 + passes_on, "one push woke {:?}", step.replies);
            }
            Some(Operation::QueuePop(queue)) => {
                let [(_, Reply::Popped { before, item }), ..] = &step.replies[..] else { panic!("{step:?}") };
                let pushed = pushed.entry(queue).or_default();
                let popped = popped.entry(queue).or_default();
                assert_eq!(*before as usize, pushed.len() - *popped);
                assert_eq!(item.as_deref(), pushed.get(*popped).copied());
                *popped += usize::from(item.is_some());
            }
            _ => {}
        }
    }
}

/// Asserts that a barrier releases `world_size` clients, all different and all connected.
pub(crate) fn assert_barriers_release_connected_clients(history: &[Step]) {
    let mut rounds: BTreeMap<(&Text, i64), BTreeSet<usize>> = BTreeMap::new();
    for step in history {
        let Some(Operation::Barrier(key, world_size)) = &step.operation else {
            // A client that sends another request or disconnects has left its barrier.
            rounds.values_mut().for_each(|round| {
                round.remove(&step.slot);
            });
            continue;
        };
        let round = rounds.entry((key, *world_size)).or_default();
        assert!(round.insert(step.slot), "client {} is at the barrier twice", step.slot);
        let released = step.replies.iter().filter(|(_, reply)| *reply == Reply::Stop);
        let released: Vec<usize> = released.map(|(slot, _)| *slot).collect();
        match round.len() as i64 == *world_size {
            true => {
                assert_eq!(released.len(), round.len(), "each client is released once");
                assert_eq!(BTreeSet::from_iter(released), std::mem::take(round));
            }
            false => assert_eq!(released, []),
        }
    }
}
